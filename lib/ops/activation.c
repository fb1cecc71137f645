/* SPDX-License-Identifier: Apache-2.0
 * GELU, SwiGLU, dropout: the checks. */
#include <geektrain/ops.h>

#include "backend/backend.h"
#include "core/params.h"
#include "ops/check.h"

static gt_status check_same(const gt_context *ctx, const char *name, const gt_tensor *t,
                            const gt_tensor *x)
{
    GT_TRY(gti_check_tensor(ctx, name, t, GTI_ONLY(x->dtype)));
    return gti_check_numel(name, t, "elements of x", gt_tensor_numel(x));
}

gt_status gt_gelu_forward(gt_context *ctx, gt_tensor *y, const gt_tensor *x, gt_stream *stream)
{
    GT_TRY(gti_check_tensor(ctx, "x", x, GTI_FLOATS));
    GT_TRY(check_same(ctx, "y", y, x));
    struct gti_gelu_fwd_args args = {.y = *y, .x = *x};
    return GTI_RUN(ctx, stream, gelu_fwd, &args);
}

gt_status gt_gelu_backward(gt_context *ctx, gt_tensor *dx, const gt_tensor *dy, const gt_tensor *x,
                           gt_stream *stream)
{
    GT_TRY(gti_check_tensor(ctx, "x", x, GTI_FLOATS));
    GT_TRY(check_same(ctx, "dx", dx, x));
    GT_TRY(check_same(ctx, "dy", dy, x));
    struct gti_gelu_bwd_args args = {.dx = *dx, .dy = *dy, .x = *x};
    return GTI_RUN(ctx, stream, gelu_bwd, &args);
}

/* gu is [N,2F]; y (or dy) [N,F]. */
static gt_status check_swiglu(const gt_context *ctx, const char *name, const gt_tensor *y,
                              const gt_tensor *gu)
{
    int64_t n, two_f;
    GT_TRY(gti_check_tensor(ctx, "gu", gu, GTI_FLOATS));
    gti_rows_columns(gu, &n, &two_f);
    if (two_f % 2 != 0) {
        return GT_FAIL(GT_ERR_SHAPE, "gu has %lld columns, wanted an even number, 2F",
                       (long long)two_f);
    }
    GT_TRY(gti_check_tensor(ctx, name, y, GTI_ONLY(gu->dtype)));
    return gti_check_matrix(name, y, "[N,F]", n, two_f / 2);
}

gt_status gt_swiglu_forward(gt_context *ctx, gt_tensor *y, const gt_tensor *gu, gt_stream *stream)
{
    GT_TRY(check_swiglu(ctx, "y", y, gu));
    struct gti_swiglu_fwd_args args = {.y = *y, .gu = *gu};
    return GTI_RUN(ctx, stream, swiglu_fwd, &args);
}

gt_status gt_swiglu_backward(gt_context *ctx, gt_tensor *dgu, const gt_tensor *dy,
                             const gt_tensor *gu, gt_stream *stream)
{
    GT_TRY(check_swiglu(ctx, "dy", dy, gu));
    GT_TRY(gti_check_tensor(ctx, "dgu", dgu, GTI_ONLY(gu->dtype)));
    GT_TRY(gti_check_same_shape("dgu", dgu, "gu", gu));
    struct gti_swiglu_bwd_args args = {.dgu = *dgu, .dy = *dy, .gu = *gu};
    return GTI_RUN(ctx, stream, swiglu_bwd, &args);
}

void gt_dropout_params_init(gt_dropout_params *params, size_t size)
{
    gti_params_init(params, size);
}

gt_status gt_dropout(gt_context *ctx, gt_tensor *y, const gt_tensor *x, const gt_tensor *rows,
                     const gt_dropout_params *params, gt_stream *stream)
{
    gt_dropout_params p = GT_DROPOUT_PARAMS_INIT;
    int64_t n, c;
    GT_TRY(gti_take_params("gt_dropout_params", &p, sizeof p, params));
    GT_TRY(gti_check_tensor(ctx, "x", x, GTI_FLOATS));
    GT_TRY(check_same(ctx, "y", y, x));
    gti_rows_columns(x, &n, &c);
    GT_TRY(gti_check_tensor(ctx, "rows", rows, GTI_ONLY(GT_I64)));
    GT_TRY(gti_check_numel("rows", rows, "N", n));
    if (!(p.p >= 0.0f && p.p < 1.0f)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "p is %g, wanted a probability in [0, 1)", (double)p.p);
    }
    int64_t columns = p.columns != 0 ? p.columns : c;
    if (p.first_column < 0 || p.first_column > columns - c) {
        return GT_FAIL(
            GT_ERR_SHAPE, "x is columns [%lld, %lld) of a tensor of %lld, wanted them inside",
            (long long)p.first_column, (long long)(p.first_column + c), (long long)columns);
    }
    struct gti_dropout_args args = {
        .y = *y,
        .x = *x,
        .rows = *rows,
        .p = p.p,
        .key = p.seed,
        .stream = p.site,
        .columns = columns,
        .first_column = p.first_column,
    };
    return GTI_RUN(ctx, stream, dropout, &args);
}
