/* SPDX-License-Identifier: Apache-2.0 */
#include "ops_table.h"

#include <math.h>

#include <geektrain/ops.h>

#include "backend/cpu/reference/reference.h"

#define BIT(slot) (1u << (slot))

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

static void add(double *s, const double *x, const double *r, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        s[i] = x[i] + (r != NULL ? r[i] : 0);
    }
}

/* ---- bias gradient
 * ------------------------------------------------------------------------------*/
static gt_status run_bias(gt_context *ctx, gt_tensor *t, const op_case *c)
{
    return gt_bias_grad(ctx, &t[0], &t[1], NULL);
}

static void oracle_bias(double **v, const op_case *c)
{
    gti_ref_bias_grad(v[0], v[1], c->n, c->c);
}

static const op_spec bias = {
    .name = "bias_grad",
    .slots = 2,
    .slot = {{"db", OP_ADD, OP_GRAD, '1', 'C'}, {"dy", OP_IN, OP_ACT, 'N', 'C'}},
    .run = run_bias,
    .oracle = oracle_bias,
};

/* ---- LayerNorm
 * ----------------------------------------------------------------------------------*/
enum { LF_Y, LF_S, LF_MEAN, LF_RSTD, LF_X, LF_RES, LF_GAMMA, LF_BETA };

static gt_status run_ln_fwd(gt_context *ctx, gt_tensor *t, const op_case *c)
{
    return gt_layernorm_forward(ctx, &t[LF_Y], &t[LF_S], &t[LF_MEAN], &t[LF_RSTD], &t[LF_X],
                                &t[LF_RES], &t[LF_GAMMA], &t[LF_BETA], (float)c->p[0], NULL);
}

/* The norm is taken of the sum as stored. */
static double *stored_sum(double *s, double *x, const double *res, const op_case *c)
{
    if (s == NULL) {
        return x;
    }
    add(s, x, res, c->n * c->c);
    for (int64_t i = 0; i < c->n * c->c; i++) {
        float f = (float)s[i];
        s[i] = (double)(c->dtype == GT_BF16  ? gt_bf16_to_f32(gt_f32_to_bf16(f))
                        : c->dtype == GT_F16 ? gt_f16_to_f32(gt_f32_to_f16(f))
                                             : f);
    }
    return s;
}

static void oracle_ln_fwd(double **v, const op_case *c)
{
    const double *s = stored_sum(v[LF_S], v[LF_X], v[LF_RES], c);
    gti_ref_layernorm_fwd(v[LF_Y], v[LF_MEAN], v[LF_RSTD], s, v[LF_GAMMA], v[LF_BETA], c->n, c->c,
                          c->p[0]);
}

static const op_spec ln_fwd = {
    .name = "layernorm_forward",
    .slots = 8,
    .slot = {{"y", OP_OUT, OP_ACT, 'N', 'C'},
             {"s", OP_OUT, OP_ACT, 'N', 'C'},
             {"mean", OP_OUT, OP_F32, 'N', '1'},
             {"rstd", OP_OUT, OP_F32, 'N', '1'},
             {"x", OP_IN, OP_ACT, 'N', 'C'},
             {"residual", OP_IN, OP_ACT, 'N', 'C'},
             {"gamma", OP_IN, OP_ACT, '1', 'C'},
             {"beta", OP_IN, OP_ACT, '1', 'C'}},
    .p = {1e-5},
    .factor = 2,
    .run = run_ln_fwd,
    .oracle = oracle_ln_fwd,
};

enum { LB_DX, LB_DGAMMA, LB_DBETA, LB_DY, LB_DRES, LB_X, LB_GAMMA, LB_MEAN, LB_RSTD };

static void prepare_ln_bwd(double **v, const op_case *c)
{
    for (int64_t i = 0; i < c->n * c->c; i++) {
        v[LB_X][i] = c->p[1] + (c->p[2] != 0 ? c->p[2] : 1) * v[LB_X][i];
        v[LB_X][i] = c->dtype == GT_F32 ? (double)(float)v[LB_X][i] : v[LB_X][i];
    }
    double *y = calloc((size_t)(c->n * c->c + 1), sizeof *y);
    double *zero = calloc((size_t)c->c + 1, sizeof *zero);
    gti_ref_layernorm_fwd(y, v[LB_MEAN], v[LB_RSTD], v[LB_X], zero, zero, c->n, c->c, c->p[0]);
    free(zero);
    free(y);
}

static gt_status run_ln_bwd(gt_context *ctx, gt_tensor *t, const op_case *c)
{
    return gt_layernorm_backward(ctx, &t[LB_DX], &t[LB_DGAMMA], &t[LB_DBETA], &t[LB_DY],
                                 &t[LB_DRES], &t[LB_X], &t[LB_GAMMA], &t[LB_MEAN], &t[LB_RSTD],
                                 NULL);
}

static void oracle_ln_bwd(double **v, const op_case *c)
{
    gti_ref_layernorm_bwd(v[LB_DX], v[LB_DGAMMA], v[LB_DBETA], v[LB_DY], v[LB_DRES], v[LB_X],
                          v[LB_GAMMA], v[LB_RSTD], c->n, c->c);
}

/* dbeta: beta does not occur in the inputs; it enters as sum(dy beta) with slot dbeta as beta. */
static double objective_ln(double **v, const op_case *c)
{
    double y[64];
    gti_ref_layernorm_fwd(y, NULL, NULL, v[LB_X], v[LB_GAMMA], v[LB_DBETA], c->n, c->c, c->p[0]);
    return dot(y, v[LB_DY], c->n * c->c) + dot(v[LB_X], v[LB_DRES], c->n * c->c);
}

static const op_spec ln_bwd = {
    .name = "layernorm_backward",
    .slots = 9,
    .slot = {{"dx", OP_OUT, OP_ACT, 'N', 'C'},
             {"dgamma", OP_ADD, OP_GRAD, '1', 'C'},
             {"dbeta", OP_ADD, OP_GRAD, '1', 'C'},
             {"dy", OP_IN, OP_ACT, 'N', 'C'},
             {"dresidual", OP_IN, OP_ACT, 'N', 'C'},
             {"x", OP_IN, OP_ACT, 'N', 'C'},
             {"gamma", OP_IN, OP_ACT, '1', 'C'},
             {"mean", OP_IN, OP_F32, 'N', '1'},
             {"rstd", OP_IN, OP_F32, 'N', '1'}},
    .p = {1e-5},
    .factor = 4,
    .prepare = prepare_ln_bwd,
    .run = run_ln_bwd,
    .oracle = oracle_ln_bwd,
    .objective = objective_ln,
    .gradient = {{LB_DX, LB_X}, {LB_DGAMMA, LB_GAMMA}, {LB_DBETA, LB_DBETA}},
    .gradients = 3,
};

/* ---- RMSNorm
 * ------------------------------------------------------------------------------------*/
enum { RF_Y, RF_S, RF_RSTD, RF_X, RF_RES, RF_GAMMA };

static gt_status run_rms_fwd(gt_context *ctx, gt_tensor *t, const op_case *c)
{
    return gt_rmsnorm_forward(ctx, &t[RF_Y], &t[RF_S], &t[RF_RSTD], &t[RF_X], &t[RF_RES],
                              &t[RF_GAMMA], (float)c->p[0], NULL);
}

static void oracle_rms_fwd(double **v, const op_case *c)
{
    const double *s = stored_sum(v[RF_S], v[RF_X], v[RF_RES], c);
    gti_ref_rmsnorm_fwd(v[RF_Y], v[RF_RSTD], s, v[RF_GAMMA], c->n, c->c, c->p[0]);
}

static const op_spec rms_fwd = {
    .name = "rmsnorm_forward",
    .slots = 6,
    .slot = {{"y", OP_OUT, OP_ACT, 'N', 'C'},
             {"s", OP_OUT, OP_ACT, 'N', 'C'},
             {"rstd", OP_OUT, OP_F32, 'N', '1'},
             {"x", OP_IN, OP_ACT, 'N', 'C'},
             {"residual", OP_IN, OP_ACT, 'N', 'C'},
             {"gamma", OP_IN, OP_ACT, '1', 'C'}},
    .p = {1e-5},
    .run = run_rms_fwd,
    .oracle = oracle_rms_fwd,
};

enum { RB_DX, RB_DGAMMA, RB_DY, RB_DRES, RB_X, RB_GAMMA, RB_RSTD };

static void prepare_rms_bwd(double **v, const op_case *c)
{
    double *y = calloc((size_t)(c->n * c->c + 1), sizeof *y);
    gti_ref_rmsnorm_fwd(y, v[RB_RSTD], v[RB_X], v[RB_GAMMA], c->n, c->c, c->p[0]);
    free(y);
}

static gt_status run_rms_bwd(gt_context *ctx, gt_tensor *t, const op_case *c)
{
    return gt_rmsnorm_backward(ctx, &t[RB_DX], &t[RB_DGAMMA], &t[RB_DY], &t[RB_DRES], &t[RB_X],
                               &t[RB_GAMMA], &t[RB_RSTD], NULL);
}

static void oracle_rms_bwd(double **v, const op_case *c)
{
    gti_ref_rmsnorm_bwd(v[RB_DX], v[RB_DGAMMA], v[RB_DY], v[RB_DRES], v[RB_X], v[RB_GAMMA],
                        v[RB_RSTD], c->n, c->c);
}

static double objective_rms(double **v, const op_case *c)
{
    double y[64];
    gti_ref_rmsnorm_fwd(y, NULL, v[RB_X], v[RB_GAMMA], c->n, c->c, c->p[0]);
    return dot(y, v[RB_DY], c->n * c->c) + dot(v[RB_X], v[RB_DRES], c->n * c->c);
}

static const op_spec rms_bwd = {
    .name = "rmsnorm_backward",
    .slots = 7,
    .slot = {{"dx", OP_OUT, OP_ACT, 'N', 'C'},
             {"dgamma", OP_ADD, OP_GRAD, '1', 'C'},
             {"dy", OP_IN, OP_ACT, 'N', 'C'},
             {"dresidual", OP_IN, OP_ACT, 'N', 'C'},
             {"x", OP_IN, OP_ACT, 'N', 'C'},
             {"gamma", OP_IN, OP_ACT, '1', 'C'},
             {"rstd", OP_IN, OP_F32, 'N', '1'}},
    .p = {1e-5},
    .factor = 4,
    .prepare = prepare_rms_bwd,
    .run = run_rms_bwd,
    .oracle = oracle_rms_bwd,
    .objective = objective_rms,
    .gradient = {{RB_DX, RB_X}, {RB_DGAMMA, RB_GAMMA}},
    .gradients = 2,
};

static void all_over_sizes(void **state)
{
    op_check(*(const op_spec **)state);
}

/* ---- special cases
 * ------------------------------------------------------------------------------*/
static void optional_tensors_may_be_absent(void **state)
{
    op_case c = op_case_of(&ln_fwd, 5, 19, GT_F32);
    c.absent = BIT(LF_S) | BIT(LF_RES);
    op_check_case(&ln_fwd, &c);
    c.absent |= BIT(LF_MEAN) | BIT(LF_RSTD);
    op_check_case(&ln_fwd, &c);
    c = op_case_of(&rms_fwd, 5, 19, GT_BF16);
    c.absent = BIT(RF_S) | BIT(RF_RES) | BIT(RF_RSTD);
    op_check_case(&rms_fwd, &c);
    const unsigned parts[] = {BIT(LB_DX),
                              BIT(LB_DGAMMA),
                              BIT(LB_DBETA),
                              BIT(LB_DRES),
                              BIT(LB_DGAMMA) | BIT(LB_DBETA),
                              BIT(LB_DX) | BIT(LB_DGAMMA)};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        c = op_case_of(&ln_bwd, 18, 19, GT_F32);
        c.absent = parts[i];
        op_check_case(&ln_bwd, &c);
    }
    for (int slot = RB_DX; slot <= RB_DGAMMA; slot++) {
        c = op_case_of(&rms_bwd, 18, 19, GT_F16);
        c.absent = BIT(slot);
        op_check_case(&rms_bwd, &c);
    }
}

static void outputs_may_lie_in_inputs(void **state)
{
    const struct {
        const op_spec *op;
        int out, in;
    } pairs[] = {{&ln_bwd, LB_DX, LB_DY},    {&ln_bwd, LB_DX, LB_DRES}, {&rms_bwd, RB_DX, RB_DY},
                 {&rms_bwd, RB_DX, RB_DRES}, {&ln_fwd, LF_S, LF_X},     {&ln_fwd, LF_S, LF_RES},
                 {&rms_fwd, RF_S, RF_X}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        op_case c = op_case_of(pairs[i].op, 18, 1031, i % 2 == 0 ? GT_F32 : GT_BF16);
        c.alias_out = pairs[i].out;
        c.alias_in = pairs[i].in;
        op_check_case(pairs[i].op, &c);
    }
}

/* Rows of mean 1e4 and deviation 1: f32 resolves 1e-3 there, so x is taken as rounded. */
static void rows_far_from_zero(void **state)
{
    TH_ON_DEVICES(h)
    {
        for (int64_t columns = 64; columns <= 4099; columns += 4035) {
            gt_tensor x = th_new(&h, GT_F32, TH_SHAPE(3, columns));
            gt_tensor y = th_new(&h, GT_F32, TH_SHAPE(3, columns));
            gt_tensor gamma = th_new(&h, GT_F32, TH_SHAPE(columns));
            gt_tensor beta = th_new(&h, GT_F32, TH_SHAPE(columns));
            th_random(&h, &x, 3, 1.0);
            double *v = th_get(&h, &x);
            for (int64_t i = 0; i < 3 * columns; i++) {
                v[i] += 1e4;
            }
            th_set(&h, &x, v);
            th_fill(&h, &gamma, 1);
            th_fill(&h, &beta, 0);
            TH_OK(gt_layernorm_forward(h.ctx, &y, NULL, NULL, NULL, &x, NULL, &gamma, &beta, 1e-5f,
                                       NULL));
            double *ones = th_host(&h, columns), *zeros = th_host(&h, columns);
            double *want = th_host(&h, 3 * columns);
            for (int64_t i = 0; i < columns; i++) {
                ones[i] = 1;
            }
            gti_ref_layernorm_fwd(want, NULL, NULL, th_get(&h, &x), ones, zeros, 3, columns, 1e-5);
            th_compare(&h, "y", &y, want, 1);
        }
    }
    op_case c = op_case_of(&ln_bwd, 5, 768, GT_F32);
    c.p[1] = 1e4;
    c.label = "mean 1e4";
    op_check_case(&ln_bwd, &c);
}

/* Epsilon belongs to the variance: constant and nearly constant rows. */
static void epsilon_joins_the_variance(void **state)
{
    TH_ON_DEVICES(h)
    {
        gt_tensor x = th_new(&h, GT_F32, TH_SHAPE(2, 4)), y = th_new(&h, GT_F32, TH_SHAPE(2, 4));
        gt_tensor gamma = th_new(&h, GT_F32, TH_SHAPE(4)), beta = th_new(&h, GT_F32, TH_SHAPE(4));
        gt_tensor rstd = th_new(&h, GT_F32, TH_SHAPE(2));
        th_set(&h, &x, (const double[]){7, 7, 7, 7, 0, 0, 0, 0.004});
        th_fill(&h, &gamma, 1);
        th_fill(&h, &beta, 0);
        TH_OK(gt_layernorm_forward(h.ctx, &y, NULL, NULL, &rstd, &x, NULL, &gamma, &beta, 1e-5f,
                                   NULL));
        const double want[] = {0, 0, 0, 0, -0.277350098, -0.277350098, -0.277350098, 0.832050294};
        th_compare(&h, "y", &y, want, 0.1);
        TH_TRUE(fabs(th_get(&h, &rstd)[1] - 277.350098) < 1e-3);
    }
}

static void bad_arguments_are_named(void **state)
{
    TH_ON_DEVICES(h)
    {
        gt_tensor x = th_new(&h, GT_F32, TH_SHAPE(2, 4)), y = th_new(&h, GT_F32, TH_SHAPE(2, 4));
        gt_tensor narrow = th_new(&h, GT_F32, TH_SHAPE(2, 3));
        gt_tensor half = th_new(&h, GT_F16, TH_SHAPE(2, 4));
        gt_tensor empty = th_new(&h, GT_F32, TH_SHAPE(2, 0));
        gt_tensor gamma = th_new(&h, GT_F32, TH_SHAPE(4)), beta = th_new(&h, GT_F32, TH_SHAPE(4));
        gt_tensor three = th_new(&h, GT_F32, TH_SHAPE(3));
#define LN(y, s, x, r, g, eps)                                                                     \
    gt_layernorm_forward(h.ctx, y, s, NULL, NULL, x, r, g, &beta, eps, NULL)
        TH_FAILS(LN(&y, NULL, NULL, NULL, &gamma, 1e-5f), GT_ERR_ARGUMENT, "x is NULL");
        TH_FAILS(LN(&narrow, NULL, &x, NULL, &gamma, 1e-5f), GT_ERR_SHAPE, "y is [2,3]");
        TH_FAILS(LN(&half, NULL, &x, NULL, &gamma, 1e-5f), GT_ERR_DTYPE, "y is f16");
        TH_FAILS(LN(&y, NULL, &x, NULL, &three, 1e-5f), GT_ERR_SHAPE, "gamma has 3");
        TH_FAILS(LN(&y, &y, &x, NULL, &gamma, 1e-5f), GT_ERR_ARGUMENT, "s is given without");
        TH_FAILS(LN(&y, NULL, &x, NULL, &gamma, NAN), GT_ERR_ARGUMENT, "eps");
        TH_FAILS(LN(&empty, NULL, &empty, NULL, &gamma, 1e-5f), GT_ERR_SHAPE, "C=0");
        TH_FAILS(gt_bias_grad(h.ctx, &three, &x, NULL), GT_ERR_SHAPE, "db has 3");
        TH_FAILS(gt_bias_grad(h.ctx, &three, &half, NULL), GT_ERR_SHAPE, "db has 3");
    }
}

#define OVER_SIZES(op)                                                                             \
    {                                                                                              \
#op "_over_sizes", all_over_sizes, NULL, NULL, (void *)(uintptr_t)&op                      \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        OVER_SIZES(bias),
        OVER_SIZES(ln_fwd),
        OVER_SIZES(ln_bwd),
        OVER_SIZES(rms_fwd),
        OVER_SIZES(rms_bwd),
        cmocka_unit_test(optional_tensors_may_be_absent),
        cmocka_unit_test(outputs_may_lie_in_inputs),
        cmocka_unit_test(rows_far_from_zero),
        cmocka_unit_test(epsilon_joins_the_variance),
        cmocka_unit_test(bad_arguments_are_named),
    };
    return cmocka_run_group_tests_name("ops_norm", tests, NULL, NULL);
}
