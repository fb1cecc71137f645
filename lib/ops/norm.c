/* SPDX-License-Identifier: Apache-2.0
 * LayerNorm and RMSNorm: the checks. */
#include <geektrain/ops.h>

#include "backend/backend.h"
#include "ops/check.h"

static gt_status check_x(const gt_context *ctx, const gt_tensor *x, int64_t *n, int64_t *c)
{
    GT_TRY(gti_check_tensor(ctx, "x", x, GTI_FLOATS));
    gti_rows_columns(x, n, c);
    if (*c == 0) {
        return GT_FAIL(GT_ERR_SHAPE, "x has rows of C=0 elements, wanted at least 1");
    }
    return GT_OK;
}

/* A tensor like x: its dtype, [N,C]. */
static gt_status check_like(const gt_context *ctx, const char *name, const gt_tensor *t,
                            const gt_tensor *x, bool required)
{
    int64_t n, c;
    gti_rows_columns(x, &n, &c);
    if (!required && !gti_present(t)) {
        return GT_OK;
    }
    GT_TRY(gti_check_tensor(ctx, name, t, GTI_ONLY(x->dtype)));
    return gti_check_matrix(name, t, "[N,C]", n, c);
}

static gt_status check_statistic(const gt_context *ctx, const char *name, const gt_tensor *t,
                                 int64_t n, bool required)
{
    if (!required && !gti_present(t)) {
        return GT_OK;
    }
    GT_TRY(gti_check_tensor(ctx, name, t, GTI_ONLY(GT_F32)));
    return gti_check_numel(name, t, "N", n);
}

static gt_status check_weight(const gt_context *ctx, const char *name, const gt_tensor *t,
                              unsigned dtypes, int64_t c)
{
    GT_TRY(gti_check_tensor(ctx, name, t, dtypes));
    return gti_check_numel(name, t, "C", c);
}

static gt_status check_weight_grad(const gt_context *ctx, const char *name, const gt_tensor *t,
                                   gt_dtype dtype, int64_t c)
{
    return gti_present(t) ? check_weight(ctx, name, t, GTI_GRAD_OF(dtype), c) : GT_OK;
}

static gt_status check_residual(const gt_context *ctx, const gt_tensor *s,
                                const gt_tensor *residual, const gt_tensor *x)
{
    if (gti_present(s) != gti_present(residual) && gt_tensor_numel(x) > 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s is given without %s: the fused sum takes both",
                       gti_present(s) ? "s" : "residual", gti_present(s) ? "residual" : "s");
    }
    GT_TRY(check_like(ctx, "s", s, x, false));
    return check_like(ctx, "residual", residual, x, false);
}

static gt_status check_eps(float eps)
{
    if (!(eps >= 0.0f && eps < 1.0f)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "eps is %g, wanted one in [0, 1)", (double)eps);
    }
    return GT_OK;
}

gt_status gt_layernorm_forward(gt_context *ctx, gt_tensor *y, gt_tensor *s, gt_tensor *mean,
                               gt_tensor *rstd, const gt_tensor *x, const gt_tensor *residual,
                               const gt_tensor *gamma, const gt_tensor *beta, float eps,
                               gt_stream *stream)
{
    int64_t n, c;
    GT_TRY(check_x(ctx, x, &n, &c));
    GT_TRY(check_like(ctx, "y", y, x, true));
    GT_TRY(check_residual(ctx, s, residual, x));
    GT_TRY(check_statistic(ctx, "mean", mean, n, false));
    GT_TRY(check_statistic(ctx, "rstd", rstd, n, false));
    GT_TRY(check_weight(ctx, "gamma", gamma, GTI_ONLY(x->dtype), c));
    GT_TRY(check_weight(ctx, "beta", beta, GTI_ONLY(x->dtype), c));
    GT_TRY(check_eps(eps));
    struct gti_layernorm_fwd_args args = {
        .y = *y,
        .s = gti_optional(s),
        .mean = gti_optional(mean),
        .rstd = gti_optional(rstd),
        .x = *x,
        .residual = gti_optional(residual),
        .gamma = *gamma,
        .beta = *beta,
        .eps = eps,
    };
    return GTI_RUN(ctx, stream, layernorm_fwd, &args);
}

gt_status gt_layernorm_backward(gt_context *ctx, gt_tensor *dx, gt_tensor *dgamma, gt_tensor *dbeta,
                                const gt_tensor *dy, const gt_tensor *dresidual, const gt_tensor *x,
                                const gt_tensor *gamma, const gt_tensor *mean,
                                const gt_tensor *rstd, gt_stream *stream)
{
    int64_t n, c;
    GT_TRY(check_x(ctx, x, &n, &c));
    GT_TRY(check_like(ctx, "dx", dx, x, false));
    GT_TRY(check_weight_grad(ctx, "dgamma", dgamma, x->dtype, c));
    GT_TRY(check_weight_grad(ctx, "dbeta", dbeta, x->dtype, c));
    GT_TRY(check_like(ctx, "dy", dy, x, true));
    GT_TRY(check_like(ctx, "dresidual", dresidual, x, false));
    GT_TRY(check_weight(ctx, "gamma", gamma, GTI_ONLY(x->dtype), c));
    GT_TRY(check_statistic(ctx, "mean", mean, n, true));
    GT_TRY(check_statistic(ctx, "rstd", rstd, n, true));
    struct gti_layernorm_bwd_args args = {
        .dx = gti_optional(dx),
        .dgamma = gti_optional(dgamma),
        .dbeta = gti_optional(dbeta),
        .dy = *dy,
        .dresidual = gti_optional(dresidual),
        .x = *x,
        .gamma = *gamma,
        .mean = *mean,
        .rstd = *rstd,
    };
    return GTI_RUN(ctx, stream, layernorm_bwd, &args);
}

gt_status gt_rmsnorm_forward(gt_context *ctx, gt_tensor *y, gt_tensor *s, gt_tensor *rstd,
                             const gt_tensor *x, const gt_tensor *residual, const gt_tensor *gamma,
                             float eps, gt_stream *stream)
{
    int64_t n, c;
    GT_TRY(check_x(ctx, x, &n, &c));
    GT_TRY(check_like(ctx, "y", y, x, true));
    GT_TRY(check_residual(ctx, s, residual, x));
    GT_TRY(check_statistic(ctx, "rstd", rstd, n, false));
    GT_TRY(check_weight(ctx, "gamma", gamma, GTI_ONLY(x->dtype), c));
    GT_TRY(check_eps(eps));
    struct gti_rmsnorm_fwd_args args = {
        .y = *y,
        .s = gti_optional(s),
        .rstd = gti_optional(rstd),
        .x = *x,
        .residual = gti_optional(residual),
        .gamma = *gamma,
        .eps = eps,
    };
    return GTI_RUN(ctx, stream, rmsnorm_fwd, &args);
}

gt_status gt_rmsnorm_backward(gt_context *ctx, gt_tensor *dx, gt_tensor *dgamma,
                              const gt_tensor *dy, const gt_tensor *dresidual, const gt_tensor *x,
                              const gt_tensor *gamma, const gt_tensor *rstd, gt_stream *stream)
{
    int64_t n, c;
    GT_TRY(check_x(ctx, x, &n, &c));
    GT_TRY(check_like(ctx, "dx", dx, x, false));
    GT_TRY(check_weight_grad(ctx, "dgamma", dgamma, x->dtype, c));
    GT_TRY(check_like(ctx, "dy", dy, x, true));
    GT_TRY(check_like(ctx, "dresidual", dresidual, x, false));
    GT_TRY(check_weight(ctx, "gamma", gamma, GTI_ONLY(x->dtype), c));
    GT_TRY(check_statistic(ctx, "rstd", rstd, n, true));
    struct gti_rmsnorm_bwd_args args = {
        .dx = gti_optional(dx),
        .dgamma = gti_optional(dgamma),
        .dy = *dy,
        .dresidual = gti_optional(dresidual),
        .x = *x,
        .gamma = *gamma,
        .rstd = *rstd,
    };
    return GTI_RUN(ctx, stream, rmsnorm_bwd, &args);
}
