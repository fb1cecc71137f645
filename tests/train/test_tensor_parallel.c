/* SPDX-License-Identifier: Apache-2.0
 * The primitives over ranks against one rank in double. */
#include <math.h>

#include <geektrain/tensor_parallel.h>

#include "ranks.h"

enum { N = 12, I = 10, O = 9 };

typedef struct tp_case {
    gt_dtype dtype;
    bool sequence_parallel, no_overlap;
    int chunks;
    int64_t ffn;
} tp_case;

/* A deterministic whole tensor in double, as rounded to the dtype. */
static double *whole(th *h, gt_dtype dtype, int64_t n, uint64_t seed)
{
    gt_tensor t = th_new(h, dtype, TH_SHAPE(n));
    th_random(h, &t, seed, 0.7);
    return th_get(h, &t);
}

static gt_tensor upload(th *h, gt_dtype dtype, int64_t rows, int64_t columns, const double *values)
{
    gt_tensor t = th_new(h, dtype, TH_SHAPE(rows, columns));
    if (rows * columns > 0) {
        th_set(h, &t, values);
    }
    return t;
}

/* Columns [first, first + count) of x[rows, columns]. */
static double *columns_of(th *h, const double *x, int64_t rows, int64_t columns, int64_t first,
                          int64_t count)
{
    double *y = th_host(h, rows * count + 1);
    for (int64_t i = 0; i < rows * count; i++) {
        y[i] = x[i / count * columns + first + i % count];
    }
    return y;
}

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

typedef struct shard {
    th *h;
    const tp_case *c;
    gt_tp tp;
    int size, rank;
    int64_t f, f_first; /* this rank's part of the hidden width */
    int64_t n, n_first; /* its rows outside the pair            */
} shard;

static shard shard_of(gt_comm *world, gt_context *ctx, const tp_case *c)
{
    shard s = {
        .h = gti_rank_harness(), .c = c, .size = gt_comm_size(world), .rank = gt_comm_rank(world)};
    bool cut = c->sequence_parallel;
    s.f = gt_split_count(c->ffn, s.size, s.rank);
    s.f_first = gt_split_first(c->ffn, s.size, s.rank);
    s.n = cut ? N / s.size : N;
    s.n_first = cut ? s.n * s.rank : 0;
    s.tp = (gt_tp)GT_TP_INIT;
    s.tp.ctx = ctx;
    s.tp.comm = world;
    s.tp.sequence_parallel = cut;
    s.tp.no_overlap = c->no_overlap;
    s.tp.chunks = c->chunks;
    int64_t bytes = (int64_t)gt_tp_scratch_bytes(&s.tp, c->dtype, N, I > O ? I : O);
    s.tp.scratch = th_new(s.h, GT_U8, TH_SHAPE(bytes));
    return s;
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

/* ---- vocabulary -------------------------------------------------------------------------------*/

enum { V = 11, C = 4, SEQ = 6 };

static void embedding_rank(gt_comm *world, gt_context *ctx, void *user)
{
    shard s = shard_of(world, ctx, user);
    th *h = s.h;
    gt_dtype dtype = s.c->dtype;
    int64_t v = gt_split_count(V, s.size, s.rank), v_first = gt_split_first(V, s.size, s.rank);
    double *table = whole(h, dtype, V * C, 1), *positions = whole(h, dtype, SEQ * C, 2);
    double *dy = whole(h, dtype, N * C, 3), id[N], row[N];
    double *want = th_host(h, N * C), *dtable = th_host(h, V * C), *dpos = th_host(h, SEQ * C);
    for (int64_t i = 0; i < N; i++) {
        id[i] = (double)((i * 5 + 3) % V);
        row[i] = (double)(i + 30);
    }
    for (int64_t i = 0; i < N * C; i++) {
        int64_t token = (int64_t)id[i / C] * C + i % C, place = i / C % SEQ * C + i % C;
        want[i] = table[token] + positions[place];
        dtable[token] += dy[i];
        dpos[place] += dy[i];
    }
    gt_tensor ids = th_new(h, GT_I32, TH_SHAPE(N)), rows = th_new(h, GT_I64, TH_SHAPE(N));
    th_set(h, &ids, id);
    th_set(h, &rows, row);
    gt_tensor tt = upload(h, dtype, v, C, table + v_first * C),
              pt = upload(h, dtype, SEQ, C, positions);
    gt_tensor y = th_new(h, dtype, TH_SHAPE(s.n, C));
    gt_tensor dyt = upload(h, dtype, s.n, C, dy + s.n_first * C);
    gt_tensor dt = th_new(h, GT_F32, TH_SHAPE(v, C)), dp = th_new(h, GT_F32, TH_SHAPE(SEQ, C));
    th_fill(h, &dt, 0.0);
    th_fill(h, &dp, 0.0);
    gt_embedding_params p = GT_EMBEDDING_PARAMS_INIT;
    p.vocab = V;
    p.seq = SEQ;
    TH_OK(gt_tp_embedding_forward(&s.tp, &y, &tt, &pt, &ids, &rows, &p, NULL));
    th_compare(h, "y", &y, want + s.n_first * C, 2.0);
    TH_OK(gt_tp_embedding_backward(&s.tp, &dt, &dp, &dyt, &ids, &rows, &p, NULL));
    th_compare(h, "dtable", &dt, dtable + v_first * C, 2.0);
    th_compare(h, "dpositions", &dp, dpos, 2.0);
}

static void embedding_matches_one_rank(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size++) {
        for (int kind = 0; kind < 4; kind++) {
            tp_case c = {
                .dtype = kind == 3 ? GT_BF16 : GT_F32, .sequence_parallel = kind % 2, .ffn = 3};
            gti_run_ranks(size, embedding_rank, kind == 0 ? "guarded" : "cpu", &c);
        }
    }
}

typedef struct xent_case {
    int64_t vocab;
    double scale;
    bool one_shard; /* all targets in the first shard */
    float smoothing, z;
} xent_case;

static double xent_row(const xent_case *x, const double *z, int64_t target)
{
    double max = -INFINITY, sum = 0.0, mean = 0.0, eps = (double)x->smoothing;
    for (int64_t v = 0; v < x->vocab; v++) {
        max = fmax(max, z[v]);
    }
    for (int64_t v = 0; v < x->vocab; v++) {
        sum += exp(z[v] - max);
    }
    double lse = max + log(sum);
    for (int64_t v = 0; v < x->vocab; v++) {
        mean += (lse - z[v]) / (double)x->vocab;
    }
    return (1.0 - eps) * (lse - z[target]) + eps * mean + (double)x->z * lse * lse;
}

static void xent_rank(gt_comm *world, gt_context *ctx, void *user)
{
    const xent_case *x = user;
    tp_case c = {.dtype = GT_F32, .ffn = 1};
    shard s = shard_of(world, ctx, &c);
    th *h = s.h;
    int64_t v = gt_split_count(x->vocab, s.size, s.rank);
    int64_t first = gt_split_first(x->vocab, s.size, s.rank);
    double *z = whole(h, GT_F32, N * x->vocab, 1), target[N], stats[2] = {0};
    double *losses = th_host(h, N), *grad = th_host(h, N * x->vocab + 1);
    for (int64_t i = 0; i < N * x->vocab; i++) {
        z[i] = (double)(float)(z[i] * x->scale);
    }
    for (int64_t i = 0; i < N; i++) {
        int64_t range = x->one_shard ? gt_split_count(x->vocab, s.size, 0) : x->vocab;
        double *row = z + i * x->vocab;
        target[i] = i == 4 ? -100.0 : (double)(i * 7 % range);
        if (i == 4) {
            continue;
        }
        losses[i] = xent_row(x, row, (int64_t)target[i]);
        stats[0] += losses[i];
        stats[1] += 1.0;
        for (int64_t k = 0; k < x->vocab; k++) { /* central differences */
            double keep = row[k], d = 1e-5 * (1.0 + fabs(keep)) / (x->scale > 100.0 ? 100.0 : 1.0);
            row[k] = keep + d;
            double up = xent_row(x, row, (int64_t)target[i]);
            row[k] = keep - d;
            double down = xent_row(x, row, (int64_t)target[i]);
            row[k] = keep;
            grad[i * x->vocab + k] = 0.5 * (up - down) / (2 * d);
        }
    }
    gt_tensor logits = upload(h, GT_F32, N, v, columns_of(h, z, N, x->vocab, first, v));
    gt_tensor t = th_new(h, GT_I32, TH_SHAPE(N)), l = th_new(h, GT_F32, TH_SHAPE(N));
    gt_tensor st = th_new(h, GT_F64, TH_SHAPE(2));
    th_set(h, &t, target);
    th_fill(h, &st, 0.0);
    gt_cross_entropy_params p = GT_CROSS_ENTROPY_PARAMS_INIT;
    p.grad_scale = 0.5f;
    p.label_smoothing = x->smoothing;
    p.z_loss = x->z;
    int64_t bytes = (int64_t)gt_tp_cross_entropy_scratch_bytes(&s.tp, N);
    s.tp.scratch = th_new(h, GT_U8, TH_SHAPE(bytes));
    uint64_t operations = 0;
    gt_comm_stats before, after;
    gt_comm_get_stats(world, &before);
    TH_OK(gt_tp_cross_entropy(&s.tp, &logits, &l, &st, &t, x->vocab, &p, NULL));
    TH_OK(gt_context_synchronize(ctx));
    gt_comm_get_stats(world, &after);
    operations = after.operations - before.operations;
    TH_EQUAL(operations, s.size == 1 ? 0 : 2);
    th_tolerance loose = {.absolute = 3e-5, .relative = 3e-5};
    th_compare_values("losses", th_get(h, &l), losses, N, loose);
    th_compare_values("stats", th_get(h, &st), stats, 2, loose);
    th_compare_values("gradient", th_get(h, &logits), columns_of(h, grad, N, x->vocab, first, v),
                      N * v, loose);
}

static void cross_entropy_matches_one_rank(void **state)
{
    (void)state;
    static const xent_case cases[] = {
        {.vocab = 11, .scale = 2.0},
        {.vocab = 11, .scale = 2.0, .smoothing = 0.1f, .z = 0.01f},
        {.vocab = 11, .scale = 1e4}, /* logits of +-1e4 */
        {.vocab = 11, .scale = 2.0, .one_shard = true},
        {.vocab = 2, .scale = 2.0, .smoothing = 0.2f}, /* empty shards */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int size = 1; size <= 4; size++) {
            xent_case x = cases[i];
            gti_run_ranks(size, xent_rank, size == 3 ? "guarded" : "cpu", &x);
        }
    }
}

static void bad_target_rank(gt_comm *world, gt_context *ctx, void *user)
{
    (void)user;
    tp_case c = {.dtype = GT_F32, .ffn = 1};
    shard s = shard_of(world, ctx, &c);
    gt_tensor logits = th_new(s.h, GT_F32, TH_SHAPE(2, gt_split_count(V, s.size, s.rank)));
    gt_tensor t = th_new(s.h, GT_I32, TH_SHAPE(2)), st = th_new(s.h, GT_F64, TH_SHAPE(2));
    th_fill(s.h, &logits, 0.0);
    th_fill(s.h, &st, 0.0);
    th_set(s.h, &t, (double[]){3, V});
    s.tp.scratch = th_new(s.h, GT_U8, TH_SHAPE(1024));
    TH_FAILS(gt_tp_cross_entropy(&s.tp, &logits, NULL, &st, &t, V, NULL, NULL), GT_ERR_ARGUMENT,
             "11");
}

static void target_outside_the_vocabulary_is_named(void **state)
{
    (void)state;
    gti_run_ranks(2, bad_target_rank, "cpu", NULL);
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
    TH_OK(gt_tp_column_backward(&s.tp, &x, &d1, NULL, &a, &x, &w1, NULL));
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
    TH_FAILS(gt_tp_column_forward(&s.tp, &y, &x, &w, NULL, NULL), GT_ERR_SHAPE,
             "x has 5 rows (a share) and y 11");
    TH_FAILS(gt_tp_column_forward(&s.tp, &y, &x, &bad, NULL, NULL), GT_ERR_SHAPE, "w is ");
    gt_tensor whole_y = th_new(h, GT_F32, TH_SHAPE(10, s.f));
    s.tp.scratch.shape[0] = 8;
    TH_FAILS(gt_tp_column_forward(&s.tp, &whole_y, &x, &w, NULL, NULL), GT_ERR_ARGUMENT,
             "scratch has 8 bytes");
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
    TH_TRUE(gt_tp_row_forward(&s.tp, &y, &x, &w, NULL, NULL, NULL) != GT_OK);
}

static void ranks_with_different_rows_all_fail(void **state)
{
    (void)state;
    for (int cut = 0; cut < 2; cut++) {
        tp_case c = {.sequence_parallel = cut, .ffn = 8};
        gti_run_ranks(2, different_rank, "cpu", &c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linears_match_one_rank),
        cmocka_unit_test(embedding_matches_one_rank),
        cmocka_unit_test(cross_entropy_matches_one_rank),
        cmocka_unit_test(target_outside_the_vocabulary_is_named),
        cmocka_unit_test(regions_go_there_and_back),
        cmocka_unit_test(bytes_sent_equal_the_formula),
        cmocka_unit_test(bad_shapes_are_named),
        cmocka_unit_test(ranks_with_different_rows_all_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
