/* SPDX-License-Identifier: Apache-2.0 */
#include "ops_table.h"

#include <math.h>

#include <geektrain/ops.h>

#include "backend/cpu/reference/reference.h"
#include "core/philox.h"

/* ---- GELU
 * ---------------------------------------------------------------------------------------*/
static gt_status run_gelu(gt_context *ctx, gt_tensor *t, const op_case *c)
{
    return gt_gelu_forward(ctx, &t[0], &t[1], NULL);
}

static void oracle_gelu(double **v, const op_case *c)
{
    for (int64_t i = 0; i < c->n * c->c; i++) {
        v[0][i] = gti_ref_gelu(v[1][i]);
    }
}

/* Wide inputs, so that both tails are met. */
static void spread(double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] *= i % 3 == 0 ? 4 : 1;
    }
}

static void prepare_gelu(double **v, const op_case *c)
{
    spread(v[1], c->n * c->c);
}

static const op_spec gelu_fwd = {
    .name = "gelu_forward",
    .slots = 2,
    .slot = {{"y", OP_OUT, OP_ACT, 'N', 'C'}, {"x", OP_IN, OP_ACT, 'N', 'C'}},
    .factor = 0.5,
    .prepare = prepare_gelu,
    .run = run_gelu,
    .oracle = oracle_gelu,
};

static gt_status run_gelu_bwd(gt_context *ctx, gt_tensor *t, const op_case *c)
{
    return gt_gelu_backward(ctx, &t[0], &t[1], &t[2], NULL);
}

static void oracle_gelu_bwd(double **v, const op_case *c)
{
    for (int64_t i = 0; i < c->n * c->c; i++) {
        v[0][i] = v[1][i] * gti_ref_gelu_grad(v[2][i]);
    }
}

static void prepare_gelu_bwd(double **v, const op_case *c)
{
    spread(v[2], c->n * c->c);
}

static double objective_gelu(double **v, const op_case *c)
{
    double sum = 0;
    for (int64_t i = 0; i < c->n * c->c; i++) {
        sum += v[1][i] * gti_ref_gelu(v[2][i]);
    }
    return sum;
}

static const op_spec gelu_bwd = {
    .name = "gelu_backward",
    .slots = 3,
    .slot = {{"dx", OP_OUT, OP_ACT, 'N', 'C'},
             {"dy", OP_IN, OP_ACT, 'N', 'C'},
             {"x", OP_IN, OP_ACT, 'N', 'C'}},
    .factor = 0.5,
    .prepare = prepare_gelu_bwd,
    .run = run_gelu_bwd,
    .oracle = oracle_gelu_bwd,
    .objective = objective_gelu,
    .gradient = {{0, 2}},
    .gradients = 1,
};

/* ---- SwiGLU
 * -------------------------------------------------------------------------------------*/
static gt_status run_swiglu(gt_context *ctx, gt_tensor *t, const op_case *c)
{
    return gt_swiglu_forward(ctx, &t[0], &t[1], NULL);
}

static double swiglu(const double *gu, const op_case *c, int64_t n, int64_t i)
{
    return gti_ref_silu(gu[n * 2 * c->c + i]) * gu[(2 * n + 1) * c->c + i];
}

static void oracle_swiglu(double **v, const op_case *c)
{
    for (int64_t i = 0; i < c->n * c->c; i++) {
        v[0][i] = swiglu(v[1], c, i / c->c, i % c->c);
    }
}

static const op_spec swiglu_fwd = {
    .name = "swiglu_forward",
    .slots = 2,
    .slot = {{"y", OP_OUT, OP_ACT, 'N', 'C'}, {"gu", OP_IN, OP_ACT, 'N', 'D'}},
    .factor = 0.5,
    .run = run_swiglu,
    .oracle = oracle_swiglu,
};

static gt_status run_swiglu_bwd(gt_context *ctx, gt_tensor *t, const op_case *c)
{
    return gt_swiglu_backward(ctx, &t[0], &t[1], &t[2], NULL);
}

static void oracle_swiglu_bwd(double **v, const op_case *c)
{
    for (int64_t k = 0; k < c->n * c->c; k++) {
        int64_t gate = k / c->c * 2 * c->c + k % c->c, up = gate + c->c;
        double g = v[2][gate], u = v[2][up], dy = v[1][k];
        v[0][gate] = dy * u * gti_ref_silu_grad(g);
        v[0][up] = dy * gti_ref_silu(g);
    }
}

static double objective_swiglu(double **v, const op_case *c)
{
    double sum = 0;
    for (int64_t i = 0; i < c->n * c->c; i++) {
        sum += v[1][i] * swiglu(v[2], c, i / c->c, i % c->c);
    }
    return sum;
}

static const op_spec swiglu_bwd = {
    .name = "swiglu_backward",
    .slots = 3,
    .slot = {{"dgu", OP_OUT, OP_ACT, 'N', 'D'},
             {"dy", OP_IN, OP_ACT, 'N', 'C'},
             {"gu", OP_IN, OP_ACT, 'N', 'D'}},
    .factor = 0.5,
    .run = run_swiglu_bwd,
    .oracle = oracle_swiglu_bwd,
    .objective = objective_swiglu,
    .gradient = {{0, 2}},
    .gradients = 1,
};

/* ---- dropout: p[0] probability, p[1] whole width - C, p[2] first column
 * ---------------------------*/
static gt_status run_dropout(gt_context *ctx, gt_tensor *t, const op_case *c)
{
    gt_dropout_params p = GT_DROPOUT_PARAMS_INIT;
    p.p = (float)c->p[0];
    p.seed = 1234567890123456789u;
    p.site = 42;
    p.columns = c->c + (int64_t)c->p[1];
    p.first_column = (int64_t)c->p[2];
    return gt_dropout(ctx, &t[0], &t[1], &t[2], &p, NULL);
}

static void oracle_dropout(double **v, const op_case *c)
{
    double p = (double)(float)c->p[0];
    for (int64_t i = 0; i < c->n * c->c; i++) {
        uint64_t row = (uint64_t)v[2][i / c->c], column = (uint64_t)(i % c->c + (int64_t)c->p[2]);
        uint64_t element = row * (uint64_t)(c->c + (int64_t)c->p[1]) + column;
        double draw = (double)gti_philox_u32(1234567890123456789u, 42, element) * 0x1p-32;
        v[0][i] = draw >= p ? v[1][i] / (1 - p) : 0;
    }
}

/* Any rows of a larger batch, also beyond 2^32 elements. */
static void prepare_dropout(double **v, const op_case *c)
{
    for (int64_t n = 0; n < c->n; n++) {
        v[2][n] = (double)(n * n % 97 + (n % 2 != 0 ? INT64_C(5000000000) : 0));
    }
}

static const op_spec dropout = {
    .name = "dropout",
    .slots = 3,
    .slot = {{"y", OP_OUT, OP_ACT, 'N', 'C'},
             {"x", OP_IN, OP_ACT, 'N', 'C'},
             {"rows", OP_IN, OP_I64, 'N', '1'}},
    .p = {0.3, 3, 2},
    .factor = 0.5,
    .prepare = prepare_dropout,
    .run = run_dropout,
    .oracle = oracle_dropout,
};

static void all_over_sizes(void **state)
{
    op_check(*(const op_spec **)state);
}

/* ---- special cases
 * ------------------------------------------------------------------------------*/
static void outputs_may_lie_in_inputs(void **state)
{
    const struct {
        const op_spec *op;
        int in;
    } pairs[] = {{&gelu_fwd, 1}, {&gelu_bwd, 1}, {&gelu_bwd, 2}, {&swiglu_bwd, 2}, {&dropout, 1}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        op_case c = op_case_of(pairs[i].op, 5, 1031, i % 2 == 0 ? GT_F32 : GT_F16);
        c.alias_in = pairs[i].in;
        op_check_case(pairs[i].op, &c);
    }
}

/* Tails, infinities and NaN, on every instruction set. */
static void gelu_at_the_ends(void **state)
{
    enum { COUNT = 40 };
    const double special[] = {0,   -0.0, 1e-30, -1e-30, 5,     -5,       10,  -10,  13,
                              -13, 100,  -100,  1e10,   -1e10, INFINITY, NAN, 3e38, -3e38};
    TH_ON_DEVICES(h)
    {
        gt_tensor x = th_new(&h, GT_F32, TH_SHAPE(COUNT)), y = th_new(&h, GT_F32, TH_SHAPE(COUNT));
        gt_tensor dy = th_new(&h, GT_F32, TH_SHAPE(COUNT));
        double v[COUNT] = {0}, want[COUNT], slope[COUNT];
        memcpy(v, special, sizeof special);
        for (int i = 0; i < COUNT; i++) {
            v[i] = (double)(float)v[i];
            want[i] = isinf(v[i])        ? INFINITY
                      : fabs(v[i]) > 1e9 ? fmax(v[i], 0)
                                         : gti_ref_gelu(v[i]);
            slope[i] = fabs(v[i]) > 1e9 ? (v[i] > 0) : gti_ref_gelu_grad(v[i]);
        }
        th_set(&h, &x, v);
        th_fill(&h, &dy, 1);
        TH_OK(gt_gelu_forward(h.ctx, &y, &x, NULL));
        double *got = th_get(&h, &y);
        for (int i = 0; i < COUNT; i++) {
            /* Relative precision in the tail too: tanh would have rounded to -1. */
            bool near = fabs(got[i] - want[i]) <= 3e-6 * fabs(want[i]) + 1e-20;
            TH_TRUE(near || got[i] == want[i] || (isnan(got[i]) && isnan(want[i])));
        }
        TH_OK(gt_gelu_backward(h.ctx, &y, &dy, &x, NULL));
        th_compare(&h, "gelu'", &y, slope, 0.1);
    }
}

/* Field case: any sharding by rows or columns draws the whole tensor's mask; seeds and sites
 * differ. */
static void dropout_shards_join_to_the_whole(void **state)
{
    enum { N = 10, C = 101, PARTS = 3 };
    TH_ON_DEVICES(h)
    {
        gt_tensor x = th_new(&h, GT_F32, TH_SHAPE(N, C)), y = th_new(&h, GT_F32, TH_SHAPE(N, C));
        gt_tensor rows = th_new(&h, GT_I64, TH_SHAPE(N));
        th_fill(&h, &x, 1);
        th_iota(&h, &rows);
        gt_dropout_params p = GT_DROPOUT_PARAMS_INIT;
        p.p = 0.5f;
        p.seed = 9;
        p.site = 3;
        TH_OK(gt_dropout(h.ctx, &y, &x, &rows, &p, NULL));
        double *whole = th_get(&h, &y), *other;
        int kept = 0;
        for (int i = 0; i < N * C; i++) {
            kept += whole[i] != 0;
            TH_TRUE(whole[i] == 0 || whole[i] == 2);
        }
        TH_TRUE(abs(kept - N * C / 2) < 80); /* five deviations */
        p.columns = C;
        for (int part = 0, first = 0; part < PARTS; part++) {
            int width = 33 + (part == 1) + (part == 2); /* 33, 34, 34 */
            gt_tensor xs = th_new(&h, GT_F32, TH_SHAPE(N, width));
            gt_tensor ys = th_new(&h, GT_F32, TH_SHAPE(N, width));
            th_fill(&h, &xs, 1);
            p.first_column = first;
            TH_OK(gt_dropout(h.ctx, &ys, &xs, &rows, &p, NULL));
            double *shard = th_get(&h, &ys);
            for (int i = 0; i < N * width; i++) {
                TH_TRUE(shard[i] == whole[i / width * C + first + i % width]);
            }
            first += width;
        }
        p.first_column = 0;
        for (int first = 0; first < N; first += 5) {
            gt_tensor xs, ys, rs;
            TH_OK(gt_tensor_slice(&xs, &x, first * C, 5 * C));
            TH_OK(gt_tensor_slice(&ys, &y, first * C, 5 * C));
            TH_OK(gt_tensor_slice(&rs, &rows, first, 5));
            xs.ndim = ys.ndim = 2;
            xs.shape[0] = ys.shape[0] = 5;
            xs.shape[1] = ys.shape[1] = C;
            TH_OK(gt_dropout(h.ctx, &ys, &xs, &rs, &p, NULL));
        }
        other = th_get(&h, &y);
        TH_TRUE(memcmp(other, whole, N * C * sizeof *whole) == 0);
        for (int change = 0; change < 2; change++) {
            p.seed = 9 + (uint64_t)(change == 0);
            p.site = 3 + (uint64_t)(change == 1);
            TH_OK(gt_dropout(h.ctx, &y, &x, &rows, &p, NULL));
            other = th_get(&h, &y);
            int equal = 0;
            for (int i = 0; i < N * C; i++) {
                equal += other[i] == whole[i];
            }
            TH_TRUE(abs(equal - N * C / 2) < 80);
        }
    }
}

static void bad_arguments_are_named(void **state)
{
    TH_ON_DEVICES(h)
    {
        gt_tensor x = th_new(&h, GT_F32, TH_SHAPE(2, 5)), y = th_new(&h, GT_F32, TH_SHAPE(2, 5));
        gt_tensor half = th_new(&h, GT_F16, TH_SHAPE(2, 5));
        gt_tensor rows = th_new(&h, GT_I64, TH_SHAPE(2));
        gt_dropout_params p = GT_DROPOUT_PARAMS_INIT;
        TH_FAILS(gt_gelu_forward(h.ctx, &half, &x, NULL), GT_ERR_DTYPE, "y is f16");
        TH_FAILS(gt_swiglu_forward(h.ctx, &y, &x, NULL), GT_ERR_SHAPE, "gu has 5 columns");
        TH_FAILS(gt_dropout(h.ctx, &y, &x, &x, &p, NULL), GT_ERR_DTYPE, "rows is f32");
        p.p = 1;
        TH_FAILS(gt_dropout(h.ctx, &y, &x, &rows, &p, NULL), GT_ERR_ARGUMENT, "p is 1");
        p.p = 0.5f;
        p.columns = 8;
        p.first_column = 4;
        TH_FAILS(gt_dropout(h.ctx, &y, &x, &rows, &p, NULL), GT_ERR_SHAPE, "columns [4, 9)");
    }
}

#define OVER_SIZES(op)                                                                             \
    {                                                                                              \
#op "_over_sizes", all_over_sizes, NULL, NULL, (void *)(uintptr_t)&op                      \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        OVER_SIZES(gelu_fwd),
        OVER_SIZES(gelu_bwd),
        OVER_SIZES(swiglu_fwd),
        OVER_SIZES(swiglu_bwd),
        OVER_SIZES(dropout),
        cmocka_unit_test(outputs_may_lie_in_inputs),
        cmocka_unit_test(gelu_at_the_ends),
        cmocka_unit_test(dropout_shards_join_to_the_whole),
        cmocka_unit_test(bad_arguments_are_named),
    };
    return cmocka_run_group_tests_name("ops_activation", tests, NULL, NULL);
}
