/* SPDX-License-Identifier: Apache-2.0
 * Column- and row-parallel linears and regions over ranks against one rank in double; bytes sent;
 * bad input. */
#include <math.h>

#include "tp_shard.h"

/* c[m,n] = a[m,k] b[k,n] with either transposed in memory. */
static double *product(th *h, const double *a, bool ta, const double *b, bool tb, int64_t m,
                       int64_t n, int64_t k)
{
    double *c = th_host(h, m * n);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            for (int64_t l = 0; l < k; l++) {
                c[i * n + j] +=
                    (ta ? a[l * m + i] : a[i * k + l]) * (tb ? b[j * k + l] : b[l * n + j]);
            }
        }
    }
    return c;
}

static double gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

static void column_case(const shard *s)
{
    th *h = s->h;
    gt_dtype dtype = s->c->dtype;
    int64_t ffn = s->c->ffn;
    double *x = whole(h, dtype, N * I, 1), *w = whole(h, dtype, ffn * I, 2);
    double *b = whole(h, dtype, ffn, 3), *dy = whole(h, dtype, N * ffn, 4);
    gt_tensor xt = upload(h, dtype, s->n, I, x + s->n_first * I);
    gt_tensor wt = upload(h, dtype, s->f, I, w + s->f_first * I);
    gt_tensor bt = th_new(h, dtype, TH_SHAPE(s->f));
    if (s->f > 0) {
        th_set(h, &bt, b + s->f_first);
    }
    double *dy_mine = columns_of(h, dy, N, ffn, s->f_first, s->f);
    gt_tensor dyt = upload(h, dtype, N, s->f, dy_mine);
    gt_tensor y = th_new(h, dtype, TH_SHAPE(N, s->f)), pre = th_new(h, dtype, TH_SHAPE(N, s->f));
    gt_tp_column_params p = GT_TP_COLUMN_PARAMS_INIT;
    p.bias = &bt;
    p.gelu = true;
    p.pre_gelu = &pre;
    TH_OK(gt_tp_column_forward(&s->tp, &y, &xt, &wt, &p, NULL));
    double *want = product(h, x, false, w, true, N, ffn, I);
    for (int64_t i = 0; i < N * ffn; i++) {
        want[i] += b[i % ffn];
    }
    double *want_pre = columns_of(h, want, N, ffn, s->f_first, s->f);
    th_compare(h, "pre_gelu", &pre, want_pre, 4.0);
    for (int64_t i = 0; i < N * s->f; i++) {
        want_pre[i] = gelu(want_pre[i]);
    }
    th_compare(h, "y", &y, want_pre, 4.0);
    /* backward: dx from all ranks, dw and db of our own rows, added to ones */
    gt_tensor dx = th_new(h, dtype, TH_SHAPE(s->n, I)), dw = th_new(h, GT_F32, TH_SHAPE(s->f, I));
    gt_tensor db = th_new(h, GT_F32, TH_SHAPE(s->f));
    th_fill(h, &dw, 1.0);
    th_fill(h, &db, 1.0);
    TH_OK(gt_tp_column_backward(&s->tp, &dx, &dw, &db, &dyt, &xt, &wt, NULL));
    double *want_dx = product(h, dy, false, w, false, N, I, ffn);
    th_compare(h, "dx", &dx, want_dx + s->n_first * I, 8.0);
    double *want_dw = product(h, dy_mine, true, x, false, s->f, I, N);
    double *want_db = th_host(h, s->f + 1);
    for (int64_t i = 0; i < s->f * I; i++) {
        want_dw[i] += 1.0;
    }
    for (int64_t i = 0; i < s->f; i++) {
        want_db[i] = 1.0;
        for (int64_t k = 0; k < N; k++) {
            want_db[i] += dy_mine[k * s->f + i];
        }
    }
    th_compare(h, "dw", &dw, want_dw, 8.0);
    th_compare(h, "db", &db, want_db, 8.0);
    /* in two parts, as a zero-bubble schedule asks */
    th_poison(h, &dx);
    th_fill(h, &dw, 1.0);
    TH_OK(gt_tp_column_backward(&s->tp, &dx, NULL, NULL, &dyt, &xt, &wt, NULL));
    th_compare(h, "dx alone", &dx, want_dx + s->n_first * I, 8.0);
    TH_OK(gt_tp_column_backward(&s->tp, NULL, &dw, NULL, &dyt, &xt, &wt, NULL));
    th_compare(h, "dw alone", &dw, want_dw, 8.0);
}

static void row_case(const shard *s)
{
    th *h = s->h;
    gt_dtype dtype = s->c->dtype;
    int64_t ffn = s->c->ffn;
    double *x = whole(h, dtype, N * ffn, 5), *w = whole(h, dtype, O * ffn, 6);
    double *b = whole(h, dtype, O, 7), *r = whole(h, dtype, N * O, 8);
    double *dy = whole(h, dtype, N * O, 9);
    double *x_mine = columns_of(h, x, N, ffn, s->f_first, s->f);
    double *w_mine = columns_of(h, w, O, ffn, s->f_first, s->f);
    gt_tensor xt = upload(h, dtype, N, s->f, x_mine), wt = upload(h, dtype, O, s->f, w_mine);
    gt_tensor bt = th_new(h, dtype, TH_SHAPE(O)), y = th_new(h, dtype, TH_SHAPE(s->n, O));
    gt_tensor rt = upload(h, dtype, s->n, O, r + s->n_first * O);
    gt_tensor dyt = upload(h, dtype, s->n, O, dy + s->n_first * O);
    th_set(h, &bt, b);
    TH_OK(gt_tp_row_forward(&s->tp, &y, &xt, &wt, &bt, &rt, NULL));
    double *want = product(h, x, false, w, true, N, O, ffn);
    for (int64_t i = 0; i < N * O; i++) {
        want[i] += b[i % O];
    }
    double *plain = th_host(h, N * O);
    memcpy(plain, want, N * O * sizeof(double));
    for (int64_t i = 0; i < N * O; i++) {
        want[i] += r[i];
    }
    th_compare(h, "y", &y, want + s->n_first * O, 8.0);
    th_poison(h, &y);
    TH_OK(gt_tp_row_forward(&s->tp, &y, &xt, &wt, &bt, NULL, NULL));
    th_compare(h, "y without residual", &y, plain + s->n_first * O, 8.0);
    gt_tensor dx = th_new(h, dtype, TH_SHAPE(N, s->f)), dw = th_new(h, GT_F32, TH_SHAPE(O, s->f));
    gt_tensor db = th_new(h, GT_F32, TH_SHAPE(O));
    th_fill(h, &dw, 1.0);
    th_fill(h, &db, 0.0);
    TH_OK(gt_tp_row_backward(&s->tp, &dx, &dw, &db, &dyt, &xt, &wt, NULL));
    double *want_dx = product(h, dy, false, w_mine, false, N, s->f, O);
    double *want_dw = product(h, dy, true, x_mine, false, O, s->f, N);
    for (int64_t i = 0; i < O * s->f; i++) {
        want_dw[i] += 1.0;
    }
    th_compare(h, "dx", &dx, want_dx, 8.0);
    th_compare(h, "dw", &dw, want_dw, 8.0);
    if (s->tp.sequence_parallel) {
        TH_OK(gt_all_reduce(s->tp.comm, &db, GT_SUM, NULL, NULL));
    }
    double *want_db = th_host(h, O);
    for (int64_t i = 0; i < N * O; i++) {
        want_db[i % O] += dy[i];
    }
    th_compare(h, "db", &db, want_db, 8.0);
}

static void linear_rank(gt_comm *world, gt_context *ctx, void *user)
{
    shard s = shard_of(world, ctx, user);
    column_case(&s);
    row_case(&s);
}

static void linears_match_one_rank(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size++) {
        for (int kind = 0; kind < 12; kind++) {
            tp_case c = {.dtype = kind % 3 == 2 ? GT_BF16 : GT_F32,
                         .sequence_parallel = kind % 2 == 1,
                         .no_overlap = kind / 2 % 2 == 1,
                         .chunks = kind % 4 == 0 ? 5 : 0,
                         .ffn = kind < 8 ? 7 : 2}; /* 2: empty shards on 3 and 4 ranks */
            gti_run_ranks(size, linear_rank, kind % 5 == 0 ? "guarded" : "cpu", &c);
        }
    }
}

/* ---- regions ----------------------------------------------------------------------------------*/

static void region_rank(gt_comm *world, gt_context *ctx, void *user)
{
    shard s = shard_of(world, ctx, user);
    th *h = s.h;
    int64_t share = N / s.size, c = gt_split_count(O, s.size, s.rank);
    double *x = whole(h, s.c->dtype, N * O, 1), *sum = th_host(h, N * O);
    for (int64_t i = 0; i < N * O; i++) {
        sum[i] = x[i] * s.size;
    }
    gt_tensor full = upload(h, s.c->dtype, N, O, x),
              rows = th_new(h, s.c->dtype, TH_SHAPE(share, O));
    gt_tensor back = th_new(h, s.c->dtype, TH_SHAPE(N, O)),
              piece = th_new(h, s.c->dtype, TH_SHAPE(N, c));
    TH_OK(gt_tp_scatter_rows(&s.tp, &rows, &full, NULL));
    th_compare(h, "rows", &rows, x + s.rank * share * O, 0.0);
    TH_OK(gt_tp_gather_rows(&s.tp, &back, &rows, NULL));
    th_compare(h, "gathered rows", &back, x, 0.0);
    TH_OK(gt_tp_reduce_scatter_rows(&s.tp, &rows, &full, NULL));
    th_compare(h, "summed rows", &rows, sum + s.rank * share * O, 1.0);
    TH_OK(gt_tp_scatter_columns(&s.tp, &piece, &full, NULL));
    int64_t first = gt_split_first(O, s.size, s.rank);
    th_compare(h, "columns", &piece, columns_of(h, x, N, O, first, c), 0.0);
    th_poison(h, &back);
    TH_OK(gt_tp_gather_columns(&s.tp, &back, &piece, NULL));
    th_compare(h, "gathered columns", &back, x, 0.0);
    TH_OK(gt_tp_reduce(&s.tp, &full, NULL));
    th_compare(h, "sum", &full, sum, 1.0);
    let_others_return();
    TH_FAILS(gt_tp_gather_rows(&s.tp, &piece, &rows, NULL), GT_ERR_SHAPE, "wanted its rows");
}

static void regions_go_there_and_back(void **state)
{
    (void)state;
    for (int size = 2; size <= 4; size++) {
        tp_case c = {.dtype = size == 3 ? GT_BF16 : GT_F32, .ffn = 3};
        gti_run_ranks(size, region_rank, size == 2 ? "guarded" : "cpu", &c);
    }
}

/* ---- bytes and bad input ----------------------------------------------------------------------*/

/* Column then row, forward and backward: what one layer half sends. */
static void bytes_rank(gt_comm *world, gt_context *ctx, void *user)
{
    shard s = shard_of(world, ctx, user);
    th *h = s.h;
    int64_t f = s.f;
    gt_tensor x = th_new(h, GT_F32, TH_SHAPE(s.n, I)), y = th_new(h, GT_F32, TH_SHAPE(s.n, O));
    gt_tensor a = th_new(h, GT_F32, TH_SHAPE(N, f)), w1 = th_new(h, GT_F32, TH_SHAPE(f, I));
    gt_tensor w2 = th_new(h, GT_F32, TH_SHAPE(O, f)), d1 = th_new(h, GT_F32, TH_SHAPE(f, I));
    gt_tensor dx = th_new(h, GT_F32, TH_SHAPE(s.n, I));
    gt_tensor *all[] = {&x, &y, &a, &w1, &w2, &d1};
    for (int i = 0; i < 6; i++) {
        th_fill(h, all[i], 0.5);
    }
    gt_comm_stats st[5];
    gt_comm_get_stats(world, &st[0]);
    TH_OK(gt_tp_column_forward(&s.tp, &a, &x, &w1, NULL, NULL));
    gt_comm_get_stats(world, &st[1]);
    TH_OK(gt_tp_row_forward(&s.tp, &y, &a, &w2, NULL, NULL, NULL));
    gt_comm_get_stats(world, &st[2]);
    TH_OK(gt_tp_row_backward(&s.tp, &a, NULL, NULL, &y, &a, &w2, NULL));
    gt_comm_get_stats(world, &st[3]);
    TH_OK(gt_tp_column_backward(&s.tp, &dx, &d1, NULL, &a, &x, &w1, NULL));
    gt_comm_get_stats(world, &st[4]);
    uint64_t share = 4 * N / 2; /* bytes per column that an exchange between two ranks sends */
    bool cut = s.c->sequence_parallel;
    TH_EQUAL(st[1].bytes_sent - st[0].bytes_sent, cut ? share * I : 0);
    TH_EQUAL(st[2].bytes_sent - st[1].bytes_sent, cut ? share * O : 2 * share * O);
    TH_EQUAL(st[3].bytes_sent - st[2].bytes_sent, cut ? share * O : 0);
    TH_EQUAL(st[4].bytes_sent - st[3].bytes_sent, cut ? 2 * share * I : 2 * share * I);
}

static void bytes_sent_equal_the_formula(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        tp_case c = {.sequence_parallel = kind % 2, .no_overlap = kind / 2, .ffn = 7};
        gti_run_ranks(2, bytes_rank, "cpu", &c);
    }
}

static void bad_shapes_rank(gt_comm *world, gt_context *ctx, void *user)
{
    shard s = shard_of(world, ctx, user);
    th *h = s.h;
    gt_tensor x = th_new(h, GT_F32, TH_SHAPE(5, I)), w = th_new(h, GT_F32, TH_SHAPE(s.f, I));
    gt_tensor y = th_new(h, GT_F32, TH_SHAPE(11, s.f)),
              bad = th_new(h, GT_F32, TH_SHAPE(s.f, I + 1));
    let_others_return();
    TH_FAILS(gt_tp_column_forward(&s.tp, &y, &x, &w, NULL, NULL), GT_ERR_SHAPE,
             "x has 5 rows (a share) and y 11");
    TH_FAILS(gt_tp_column_forward(&s.tp, &y, &x, &bad, NULL, NULL), GT_ERR_SHAPE, "w is ");
    gt_tensor whole_y = th_new(h, GT_F32, TH_SHAPE(10, s.f)),
              dw = th_new(h, GT_F32, TH_SHAPE(s.f, I));
    TH_FAILS(gt_tp_column_backward(&s.tp, &x, &dw, NULL, &whole_y, &x, &w, NULL), GT_ERR_ARGUMENT,
             "dx is the memory of x");
    TH_FAILS(gt_tp_row_backward(&s.tp, &whole_y, NULL, NULL, &whole_y, &whole_y, &w, NULL),
             GT_ERR_ARGUMENT, "dx is the memory of dy");
    s.tp.scratch.shape[0] = 8;
    TH_FAILS(gt_tp_column_forward(&s.tp, &whole_y, &x, &w, NULL, NULL), GT_ERR_ARGUMENT,
             "scratch has 8 bytes");
}

/* A planner may put an empty share where something else is. */
static void empty_share_rank(gt_comm *world, gt_context *ctx, void *user)
{
    shard s = shard_of(world, ctx, user);
    th *h = s.h;
    gt_tensor dy = th_new(h, GT_F32, TH_SHAPE(N, O)), x = th_new(h, GT_F32, TH_SHAPE(N, s.f));
    gt_tensor w = th_new(h, GT_F32, TH_SHAPE(O, s.f)), dw = th_new(h, GT_F32, TH_SHAPE(O, s.f));
    gt_tensor *all[] = {&dy, &x, &w, &dw};
    for (int i = 0; i < 4; i++) {
        th_fill(h, all[i], 0.5);
    }
    gt_tensor dx = th_new(h, GT_F32, TH_SHAPE(N, s.f));
    if (s.f == 0) {
        dx.data = dy.data;
    }
    TH_OK(gt_tp_row_backward(&s.tp, &dx, &dw, NULL, &dy, &x, &w, NULL));
}

static void an_empty_share_lies_anywhere(void **state)
{
    (void)state;
    tp_case c = {.ffn = 2};
    gti_run_ranks(3, empty_share_rank, "cpu", &c);
}

static void bad_shapes_are_named(void **state)
{
    (void)state;
    tp_case c = {.sequence_parallel = true, .ffn = 8};
    gti_run_ranks(2, bad_shapes_rank, "cpu", &c);
}

/* Ranks that pass different numbers of rows: an error on both, no hang. */
static void different_rank(gt_comm *world, gt_context *ctx, void *user)
{
    shard s = shard_of(world, ctx, user);
    int64_t rows = s.rank == 0 ? N : N - 2;
    gt_tensor x = th_new(s.h, GT_F32, TH_SHAPE(rows, s.f)),
              w = th_new(s.h, GT_F32, TH_SHAPE(O, s.f));
    gt_tensor y = th_new(s.h, GT_F32, TH_SHAPE(s.c->sequence_parallel ? rows / 2 : rows, O));
    th_fill(s.h, &x, 1.0);
    th_fill(s.h, &w, 1.0);
    gt_status st = gt_tp_row_forward(&s.tp, &y, &x, &w, NULL, NULL, NULL);
    TH_FAILS(st, GT_ERR_MISMATCH, "rank ");
}

static void ranks_with_different_rows_all_fail(void **state)
{
    (void)state;
    for (int cut = 0; cut < 2; cut++) {
        tp_case c = {.sequence_parallel = cut, .ffn = 8};
        gti_run_ranks(2, different_rank, "cpu", &c);
    }
}

/* What only the last rank has wrong: it says what, the others pass it on, at once. */
static void one_wrong_rank(gt_comm *world, gt_context *ctx, void *user)
{
    shard s = shard_of(world, ctx, user);
    th *h = s.h;
    bool wrong = s.rank == s.size - 1, cut = s.c->sequence_parallel;
    int64_t n = cut ? N / s.size : N;
    gt_tensor x = th_new(h, GT_F32, TH_SHAPE(n * (cut ? s.size : 1), s.f)),
              w = th_new(h, GT_F32, TH_SHAPE(O, wrong ? s.f + 1 : s.f));
    gt_tensor y = th_new(h, GT_F32, TH_SHAPE(n, O));
    th_fill(h, &x, 1.0);
    th_fill(h, &w, 1.0);
    let_others_return();
    TH_FAILS(gt_tp_row_forward(&s.tp, &y, &x, &w, NULL, NULL, NULL),
             wrong ? GT_ERR_SHAPE : GT_ERR_PEER, "wanted [O,I]=[9,");
}

static void one_wrong_rank_is_named_on_all(void **state)
{
    (void)state;
    for (int size = 2; size <= 4; size++) {
        for (int cut = 0; cut < 2; cut++) {
            tp_case c = {.sequence_parallel = cut, .ffn = 8};
            gti_run_ranks(size, one_wrong_rank, "cpu", &c);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linears_match_one_rank),
        cmocka_unit_test(regions_go_there_and_back),
        cmocka_unit_test(bytes_sent_equal_the_formula),
        cmocka_unit_test(an_empty_share_lies_anywhere),
        cmocka_unit_test(bad_shapes_are_named),
        cmocka_unit_test(ranks_with_different_rows_all_fail),
        cmocka_unit_test(one_wrong_rank_is_named_on_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
