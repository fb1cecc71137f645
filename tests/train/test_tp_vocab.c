/* SPDX-License-Identifier: Apache-2.0
 * Embedding and cross entropy with the vocabulary cut over ranks, against one rank in double. */
#include <math.h>

#include "tp_shard.h"

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

/* A target that only the last rank has wrong, or that all have. */
static void bad_target_rank(gt_comm *world, gt_context *ctx, void *user)
{
    bool one = *(const bool *)user;
    tp_case c = {.dtype = GT_F32, .ffn = 1};
    shard s = shard_of(world, ctx, &c);
    gt_tensor logits = th_new(s.h, GT_F32, TH_SHAPE(2, gt_split_count(V, s.size, s.rank)));
    gt_tensor t = th_new(s.h, GT_I32, TH_SHAPE(2)), st = th_new(s.h, GT_F64, TH_SHAPE(2));
    bool bad = !one || s.rank == s.size - 1;
    th_fill(s.h, &logits, 0.0);
    th_fill(s.h, &st, 0.0);
    th_set(s.h, &t, (double[]){3, bad ? V : 1});
    s.tp.scratch = th_new(s.h, GT_U8, TH_SHAPE(1024));
    let_others_return();
    gt_status got = gt_tp_cross_entropy(&s.tp, &logits, NULL, &st, &t, V, NULL, NULL);
    TH_FAILS(got, bad && got != GT_ERR_PEER ? GT_ERR_ARGUMENT : GT_ERR_PEER,
             "targets[1] is 11, wanted a token in [0, 11)"); /* a slow rank hears it from another */
}

static void target_outside_the_vocabulary_is_named(void **state)
{
    (void)state;
    for (int size = 2; size <= 4; size++) {
        for (int one = 0; one < 2; one++) {
            bool only_last = one;
            gti_run_ranks(size, bad_target_rank, "cpu", &only_last);
        }
    }
}

static void bad_token_rank(gt_comm *world, gt_context *ctx, void *user)
{
    (void)user;
    tp_case c = {.dtype = GT_F32, .ffn = 1};
    shard s = shard_of(world, ctx, &c);
    bool bad = s.rank == s.size - 1;
    gt_tensor table = th_new(s.h, GT_F32, TH_SHAPE(gt_split_count(V, s.size, s.rank), C));
    gt_tensor ids = th_new(s.h, GT_I32, TH_SHAPE(2)), rows = th_new(s.h, GT_I64, TH_SHAPE(2));
    gt_tensor y = th_new(s.h, GT_F32, TH_SHAPE(2, C));
    th_fill(s.h, &table, 1.0);
    th_set(s.h, &ids, (double[]){3, bad ? V : 1});
    th_set(s.h, &rows, (double[]){0, 1});
    gt_embedding_params p = GT_EMBEDDING_PARAMS_INIT;
    p.vocab = V;
    p.seq = SEQ;
    let_others_return();
    TH_FAILS(gt_tp_embedding_forward(&s.tp, &y, &table, NULL, &ids, &rows, &p, NULL),
             bad ? GT_ERR_ARGUMENT : GT_ERR_PEER, "ids[1] is 11, wanted a token in [0, 11)");
}

static void token_outside_the_vocabulary_is_named(void **state)
{
    (void)state;
    for (int size = 2; size <= 4; size++) {
        gti_run_ranks(size, bad_token_rank, "cpu", NULL);
    }
}

/* Not a single row: nothing to do, without scratch too. */
static void no_rows_rank(gt_comm *world, gt_context *ctx, void *user)
{
    const tp_case *c = user;
    shard s = shard_of(world, ctx, c);
    const int64_t v = gt_split_count(V, s.size, s.rank);
    gt_tensor table = th_new(s.h, GT_F32, TH_SHAPE(v, C)), dt = th_new(s.h, GT_F32, TH_SHAPE(v, C));
    gt_tensor ids = th_new(s.h, GT_I32, TH_SHAPE(0)), rows = th_new(s.h, GT_I64, TH_SHAPE(0));
    gt_tensor y = th_new(s.h, GT_F32, TH_SHAPE(0, C)), st = th_new(s.h, GT_F64, TH_SHAPE(2));
    gt_tensor dp = th_new(s.h, GT_F32, TH_SHAPE(SEQ, C)), z = th_new(s.h, GT_F32, TH_SHAPE(0, v));
    gt_tensor *kept[] = {&dt, &dp, &st};
    for (int i = 0; i < 3; i++) {
        th_fill(s.h, kept[i], 7.0);
    }
    gt_embedding_params p = GT_EMBEDDING_PARAMS_INIT;
    p.vocab = V;
    p.seq = SEQ;
    s.tp.scratch = (gt_tensor){0};
    TH_OK(gt_tp_embedding_forward(&s.tp, &y, &table, NULL, &ids, &rows, &p, NULL));
    TH_OK(gt_tp_embedding_backward(&s.tp, &dt, &dp, &y, &ids, &rows, &p, NULL));
    TH_OK(gt_tp_cross_entropy(&s.tp, &z, NULL, &st, &ids, V, NULL, NULL));
    for (int i = 0; i < 3; i++) {
        const double *got = th_get(s.h, kept[i]);
        for (int64_t e = 0; e < gt_tensor_numel(kept[i]); e++) {
            TH_TRUE(got[e] == 7.0);
        }
    }
}

static void no_rows_are_nothing_to_do(void **state)
{
    (void)state;
    for (int size = 1; size <= 3; size++) {
        for (int cut = 0; cut < 2; cut++) {
            tp_case c = {.dtype = GT_F32, .sequence_parallel = cut, .ffn = 3};
            gti_run_ranks(size, no_rows_rank, size == 2 ? "guarded" : "cpu", &c);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_matches_one_rank),
        cmocka_unit_test(cross_entropy_matches_one_rank),
        cmocka_unit_test(no_rows_are_nothing_to_do),
        cmocka_unit_test(target_outside_the_vocabulary_is_named),
        cmocka_unit_test(token_outside_the_vocabulary_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
