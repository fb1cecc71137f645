/* SPDX-License-Identifier: Apache-2.0 */
#include "ops_table.h"

#include <math.h>

#include <geektrain/ops.h>

#include "backend/cpu/reference/reference.h"

#define IGNORED (-100)

/* ---- spec: p = {grad_scale, label_smoothing, z_loss, centre of the logits}
 * ------------------------*/
enum { X_LOGITS, X_LOSSES, X_STATS, X_TARGETS };

static gt_cross_entropy_params params_of(const op_case *c)
{
    gt_cross_entropy_params p = GT_CROSS_ENTROPY_PARAMS_INIT;
    p.grad_scale = (float)c->p[0];
    p.label_smoothing = (float)c->p[1];
    p.z_loss = (float)c->p[2];
    return p;
}

static struct gti_ref_xent reference_of(const op_case *c)
{
    return (struct gti_ref_xent){(double)(float)c->p[0], (double)(float)c->p[1],
                                 (double)(float)c->p[2], IGNORED};
}

static void prepare(double **v, const op_case *c)
{
    for (int64_t i = 0; i < c->n * c->c; i++) {
        v[X_LOGITS][i] = 2 * v[X_LOGITS][i] + c->p[3];
    }
    for (int64_t n = 0; n < c->n; n++) {
        v[X_TARGETS][n] = (double)(n % 5 == 3 ? IGNORED : (n * 7 + c->c - 1) % c->c);
    }
}

static gt_status run(gt_context *ctx, gt_tensor *t, const op_case *c)
{
    gt_cross_entropy_params p = params_of(c);
    return gt_cross_entropy(ctx, &t[X_LOGITS], &t[X_LOSSES], &t[X_STATS], &t[X_TARGETS], &p, NULL);
}

static void oracle(double **v, const op_case *c)
{
    struct gti_ref_xent p = reference_of(c);
    double *logits = malloc((size_t)(c->n * c->c + 1) * sizeof *logits);
    memcpy(logits, v[X_LOGITS], (size_t)(c->n * c->c) * sizeof *logits);
    gti_ref_xent(v[X_LOGITS], v[X_LOSSES], v[X_STATS], logits, v[X_TARGETS], c->n, c->c, &p);
    free(logits);
}

static double objective(double **v, const op_case *c)
{
    struct gti_ref_xent p = reference_of(c);
    double stats[2] = {0, 0};
    gti_ref_xent(NULL, NULL, stats, v[X_LOGITS], v[X_TARGETS], c->n, c->c, &p);
    return stats[0] * p.grad_scale;
}

#define XENT_SLOTS                                                                                 \
    .slots = 4, .slot = {{"logits", OP_REPLACED, OP_ACT, 'N', 'C'},                                \
                         {"losses", OP_OUT, OP_F32, 'N', '1'},                                     \
                         {"stats", OP_ADD, OP_F64, '1', '2'},                                      \
                         {"targets", OP_IN, OP_I32, 'N', '1'}}

/* Sums of losses are f64 of f32 logits: their tolerance is that of the losses. */
static const op_spec plain = {
    .name = "cross_entropy",
    XENT_SLOTS,
    .p = {0.5, 0, 0, 0},
    .prepare = prepare,
    .run = run,
    .oracle = oracle,
    .objective = objective,
    .gradient = {{X_LOGITS, X_LOGITS}},
    .gradients = 1,
};

static const op_spec smoothed = {
    .name = "cross_entropy_smoothed",
    XENT_SLOTS,
    .p = {2, 0.1, 1e-3, 0},
    .factor = 2,
    .prepare = prepare,
    .run = run,
    .oracle = oracle,
    .objective = objective,
    .gradient = {{X_LOGITS, X_LOGITS}},
    .gradients = 1,
};

static void all_over_sizes(void **state)
{
    op_check(*(const op_spec **)state);
}

/* ---- the vocabulary in shards: same losses, same gradient
 * -----------------------------------------*/
enum { N = 7, V = 53, SHARDS = 4 };
static const int cuts[SHARDS + 1] = {0, 20, 20, 21, V}; /* one empty, one of a single token */

/* What the all-reduces between the steps do. */
static void combine(th *h, gt_tensor *parts, int64_t count, bool max)
{
    double *all = th_host(h, count);
    for (int64_t i = 0; i < count; i++) {
        all[i] = max ? -INFINITY : 0;
    }
    for (int s = 0; s < SHARDS; s++) {
        double *part = th_get(h, &parts[s]);
        for (int64_t i = 0; i < count; i++) {
            all[i] = max ? fmax(all[i], part[i]) : all[i] + part[i];
        }
    }
    for (int s = 0; s < SHARDS; s++) {
        th_set(h, &parts[s], all);
    }
}

static void check_shards(th *h, gt_dtype dtype, const op_case *c)
{
    gt_cross_entropy_params p = params_of(c);
    struct gti_ref_xent ref = reference_of(c);
    gt_tensor whole = th_new(h, dtype, TH_SHAPE(N, V)), targets = th_new(h, GT_I32, TH_SHAPE(N));
    gt_tensor z[SHARDS], max[SHARDS], sums[SHARDS], losses[SHARDS], stats[SHARDS];
    th_random(h, &whole, 5, 3.0);
    th_set(h, &targets, (const double[]){0, 52, 20, IGNORED, 19, 21, 40});
    double *logits = th_get(h, &whole), *t = th_get(h, &targets);
    double grad[N * V], want[N], want_stats[2] = {0, 0};
    gti_ref_xent(grad, want, want_stats, logits, t, N, V, &ref);
    for (int s = 0; s < SHARDS; s++) {
        int width = cuts[s + 1] - cuts[s];
        double *columns = th_host(h, N * width);
        for (int i = 0; i < N * width; i++) {
            columns[i] = logits[i / width * V + cuts[s] + i % width];
        }
        z[s] = th_new(h, dtype, TH_SHAPE(N, width));
        th_set(h, &z[s], columns);
        max[s] = th_new(h, GT_F32, TH_SHAPE(N));
        sums[s] = th_new(h, GT_F32, TH_SHAPE(3, N));
        losses[s] = th_new(h, GT_F32, TH_SHAPE(N));
        stats[s] = th_new(h, GT_F64, TH_SHAPE(2));
        th_fill(h, &stats[s], 0);
        TH_OK(gt_cross_entropy_max(h->ctx, &max[s], &z[s], NULL));
    }
    combine(h, max, N, true);
    for (int s = 0; s < SHARDS; s++) {
        TH_OK(gt_cross_entropy_sums(h->ctx, &sums[s], &z[s], &max[s], &targets, &p, cuts[s], V,
                                    NULL));
    }
    combine(h, sums, 3 * N, false);
    for (int s = 0; s < SHARDS; s++) {
        int width = cuts[s + 1] - cuts[s];
        double *columns = th_host(h, N * width);
        for (int i = 0; i < N * width; i++) {
            columns[i] = grad[i / width * V + cuts[s] + i % width];
        }
        TH_OK(gt_cross_entropy_grad(h->ctx, &z[s], &losses[s], &stats[s], &max[s], &sums[s],
                                    &targets, &p, cuts[s], V, NULL));
        th_compare(h, "shard gradient", &z[s], columns, 1);
        th_compare(h, "shard losses", &losses[s], want, 1);
        th_compare_values("shard stats", th_get(h, &stats[s]), want_stats, 2,
                          (th_tolerance){1e-4, 1e-5});
    }
}

static void shards_equal_the_whole(void **state)
{
    static const gt_dtype dtypes[] = {GT_F32, GT_BF16, GT_F16};
    TH_ON_DEVICES(h)
    {
        for (int i = 0; i < 6; i++) {
            const op_spec *op = i < 3 ? &plain : &smoothed;
            op_case c = op_case_of(op, N, V, dtypes[i % 3]);
            check_shards(&h, dtypes[i % 3], &c);
        }
    }
}

/* ---- special cases
 * ------------------------------------------------------------------------------*/
static void gpt2_vocabulary_and_shifted_logits(void **state)
{
    op_case c = op_case_of(&plain, 3, 50257, GT_F32);
    op_check_case(&plain, &c);
    c = op_case_of(&smoothed, 2, 50257, GT_BF16);
    op_check_case(&smoothed, &c);
    for (int sign = -1; sign <= 1; sign += 2) {
        c = op_case_of(&plain, 6, 1030, GT_F32);
        c.p[3] = sign * 1e4; /* logits around +-1e4 */
        op_check_case(&plain, &c);
        c = op_case_of(&smoothed, 6, 1030, GT_F32);
        c.p[2] = 0;
        c.p[3] = sign * 1e4;
        c.factor = 20; /* the mean of z - max takes differences of numbers rounded at 1e4 */
        op_check_case(&smoothed, &c);
    }
}

static double *stats_of(th *h, gt_tensor *logits, gt_tensor *losses, const double *targets,
                        const gt_cross_entropy_params *p)
{
    gt_tensor t = th_new(h, GT_I32, TH_SHAPE(logits->shape[0]));
    gt_tensor stats = th_new(h, GT_F64, TH_SHAPE(2));
    th_set(h, &t, targets);
    th_fill(h, &stats, 0);
    TH_OK(gt_cross_entropy(h->ctx, logits, losses, &stats, &t, p, NULL));
    return th_get(h, &stats);
}

static void extreme_logits(void **state)
{
    TH_ON_DEVICES(h)
    {
        gt_tensor z = th_new(&h, GT_F32, TH_SHAPE(4, 3)), losses = th_new(&h, GT_F32, TH_SHAPE(4));
        const double inf = INFINITY;
        th_set(&h, &z, (const double[]){1e4, -1e4, 0, 1e4, -1e4, 0, -inf, 0, 0, -inf, -inf, 3});
        stats_of(&h, &z, &losses, (const double[]){0, 1, 1, 2}, NULL);
        th_compare(&h, "losses", &losses, (const double[]){0, 2e4, 0.69314718056, 0}, 0.1);
        th_compare(&h, "gradient", &z, (const double[]){0, 0, 0, 1, -1, 0, 0, -0.5, 0.5, 0, 0, 0},
                   0.1);
        /* A masked target costs infinity; a NaN shows. */
        th_set(&h, &z, (const double[]){-inf, 0, 0, 1, NAN, 1, -inf, -inf, NAN, 1, 2, 3});
        double *stats = stats_of(&h, &z, &losses, (const double[]){0, 0, 0, IGNORED}, NULL);
        double *l = th_get(&h, &losses);
        TH_TRUE(l[0] == inf && isnan(l[1]) && isnan(l[2]) && l[3] == 0 && isnan(stats[0]));
    }
}

/* Field case: all targets ignored is a loss of 0 over 0 tokens and a gradient of exactly 0. */
static void all_ignored(void **state)
{
    TH_ON_DEVICES(h)
    {
        gt_tensor z = th_new(&h, GT_F32, TH_SHAPE(2, 3)), losses = th_new(&h, GT_F32, TH_SHAPE(2));
        gt_cross_entropy_params p = GT_CROSS_ENTROPY_PARAMS_INIT;
        p.label_smoothing = 0.1f;
        p.z_loss = 0.1f;
        th_fill(&h, &z, NAN); /* what an ignored row holds does not matter */
        double *stats = stats_of(&h, &z, &losses, (const double[]){IGNORED, IGNORED}, &p);
        TH_TRUE(stats[0] == 0 && stats[1] == 0);
        th_compare(&h, "gradient", &z, (const double[6]){0}, 0);
        th_compare(&h, "losses", &losses, (const double[2]){0}, 0);
        /* An ignore index that is a token. */
        p = (gt_cross_entropy_params)GT_CROSS_ENTROPY_PARAMS_INIT;
        p.ignore_index = 1;
        th_fill(&h, &z, 0);
        stats = stats_of(&h, &z, NULL, (const double[]){1, 2}, &p);
        TH_TRUE(fabs(stats[0] - log(3)) < 1e-6 && stats[1] == 1);
    }
}

static void no_grad_leaves_the_logits(void **state)
{
    TH_ON_DEVICES(h)
    {
        gt_tensor z = th_new(&h, GT_F32, TH_SHAPE(2, 5));
        gt_cross_entropy_params p = GT_CROSS_ENTROPY_PARAMS_INIT;
        p.no_grad = true;
        th_random(&h, &z, 1, 1);
        double *before = th_get(&h, &z);
        stats_of(&h, &z, NULL, (const double[]){1, IGNORED}, &p);
        th_compare(&h, "logits", &z, before, 0);
    }
}

static void bad_targets_are_named(void **state)
{
    const double bad[][3] = {{0, 1, -4}, {0, 5, 1}};
    TH_ON_DEVICES(h)
    {
        for (int i = 0; i < 2; i++) {
            gt_tensor z = th_new(&h, GT_F32, TH_SHAPE(3, 5)), t = th_new(&h, GT_I32, TH_SHAPE(3));
            gt_tensor stats = th_new(&h, GT_F64, TH_SHAPE(2)),
                      max = th_new(&h, GT_F32, TH_SHAPE(3));
            gt_tensor sums = th_new(&h, GT_F32, TH_SHAPE(3, 3));
            const char *sentence = i == 0 ? "targets[2] is -4" : "targets[1] is 5";
            th_fill(&h, &z, 2);
            th_fill(&h, &max, 2);
            th_fill(&h, &sums, 2);
            th_fill(&h, &stats, 7);
            th_set(&h, &t, bad[i]);
            gt_status st = gt_cross_entropy(h.ctx, &z, NULL, &stats, &t, NULL, NULL);
            TH_FAILS(st != GT_OK ? st : gt_context_synchronize(h.ctx), GT_ERR_ARGUMENT, sentence);
            st = gt_cross_entropy_grad(h.ctx, &z, NULL, &stats, &max, &sums, &t, NULL, 0, 5, NULL);
            TH_FAILS(st != GT_OK ? st : gt_context_synchronize(h.ctx), GT_ERR_ARGUMENT, sentence);
            st = gt_cross_entropy_sums(h.ctx, &sums, &z, &max, &t, NULL, 0, 5, NULL);
            TH_FAILS(st != GT_OK ? st : gt_context_synchronize(h.ctx), GT_ERR_ARGUMENT, sentence);
            const double twos[15] = {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2};
            th_compare(&h, "logits", &z, twos, 0);
            th_compare(&h, "stats", &stats, (const double[]){7, 7}, 0);
        }
    }
}

static void bad_arguments_are_named(void **state)
{
    TH_ON_DEVICES(h)
    {
        gt_tensor z = th_new(&h, GT_F32, TH_SHAPE(3, 5)), t = th_new(&h, GT_I32, TH_SHAPE(3));
        gt_tensor stats = th_new(&h, GT_F64, TH_SHAPE(2)), two = th_new(&h, GT_F32, TH_SHAPE(2));
        gt_tensor three = th_new(&h, GT_F32, TH_SHAPE(3)),
                  sums = th_new(&h, GT_F32, TH_SHAPE(3, 3));
        gt_cross_entropy_params p = GT_CROSS_ENTROPY_PARAMS_INIT;
        TH_FAILS(gt_cross_entropy(h.ctx, &z, &two, &stats, &t, &p, NULL), GT_ERR_SHAPE, "losses");
        TH_FAILS(gt_cross_entropy(h.ctx, &z, NULL, &two, &t, &p, NULL), GT_ERR_DTYPE, "stats");
        TH_FAILS(gt_cross_entropy(h.ctx, &z, NULL, &stats, &two, &p, NULL), GT_ERR_DTYPE,
                 "targets");
        TH_FAILS(gt_cross_entropy_sums(h.ctx, &sums, &z, &three, &t, &p, 3, 7, NULL), GT_ERR_SHAPE,
                 "columns [3, 8)");
        p.label_smoothing = 1.5f;
        TH_FAILS(gt_cross_entropy(h.ctx, &z, NULL, &stats, &t, &p, NULL), GT_ERR_ARGUMENT,
                 "label_smoothing is 1.5");
        p.label_smoothing = 0;
        p.z_loss = NAN;
        TH_FAILS(gt_cross_entropy(h.ctx, &z, NULL, &stats, &t, &p, NULL), GT_ERR_ARGUMENT,
                 "z_loss is nan");
    }
}

#define OVER_SIZES(op)                                                                             \
    {                                                                                              \
#op "_over_sizes", all_over_sizes, NULL, NULL, (void *)(uintptr_t)&op                      \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        OVER_SIZES(plain),
        OVER_SIZES(smoothed),
        cmocka_unit_test(shards_equal_the_whole),
        cmocka_unit_test(gpt2_vocabulary_and_shifted_logits),
        cmocka_unit_test(extreme_logits),
        cmocka_unit_test(all_ignored),
        cmocka_unit_test(no_grad_leaves_the_logits),
        cmocka_unit_test(bad_targets_are_named),
        cmocka_unit_test(bad_arguments_are_named),
    };
    return cmocka_run_group_tests_name("ops_loss", tests, NULL, NULL);
}
