/* SPDX-License-Identifier: Apache-2.0 */
#include <geektrain/ops.h>

#include <inttypes.h>

#include "backend/backend.h"
#include "ops/check.h"
#include "ops/linear.h"

void gt_gemm_params_init(gt_gemm_params *params, size_t size)
{
    const gt_gemm_params defaults = GT_GEMM_PARAMS_INIT;
    gti_default_params(params, size, &defaults, sizeof defaults);
}

static gt_status check_operands(gt_context *ctx, const gt_tensor *c, const gt_tensor *a,
                                const gt_tensor *b)
{
    GT_TRY(gti_check_tensor(ctx, "a", a, GTI_FLOATS));
    GT_TRY(gti_check_tensor(ctx, "b", b, GTI_ONLY(a->dtype)));
    GT_TRY(gti_check_tensor(ctx, "c", c, GTI_GRAD_OF(a->dtype)));
    if (a->ndim < 2 || b->ndim < 2 || c->ndim < 2) {
        return GT_FAIL(GT_ERR_SHAPE, "a, b and c have %d, %d and %d dimensions, wanted 2 or more",
                       a->ndim, b->ndim, c->ndim);
    }
    return GT_OK;
}

/* Fills the shapes in args; a and b must agree in K, c must be [M,N]. */
static gt_status fit(struct gti_gemm_args *args, const gt_tensor *c, const gt_tensor *a,
                     const gt_tensor *b)
{
    int64_t a_rows, a_columns, b_rows, b_columns;
    gti_rows_columns(a, &a_rows, &a_columns);
    gti_rows_columns(b, &b_rows, &b_columns);
    const int64_t k = args->trans_a ? a_rows : a_columns;
    const int64_t b_k = args->trans_b ? b_columns : b_rows;
    if (k != b_k) {
        return GT_FAIL(GT_ERR_SHAPE, "a has K=%" PRId64 ", b has K=%" PRId64, k, b_k);
    }
    args->m = args->trans_a ? a_columns : a_rows;
    args->n = args->trans_b ? b_rows : b_columns;
    args->k = k;
    args->lda = a_columns;
    args->ldb = b_columns;
    args->ldc = args->n;
    return gti_check_matrix("c", c, "[M,N]", args->m, args->n);
}

static gt_status check_epilogue(gt_context *ctx, const gt_gemm_params *p, const gt_tensor *c,
                                const gt_tensor *a, int64_t n)
{
    GT_TRY(gti_check_optional(ctx, "bias", p->bias, GTI_ONLY(a->dtype)));
    if (gti_present(p->bias)) {
        GT_TRY(gti_check_numel("bias", p->bias, "N", n));
    }
    if (gti_present(p->pre_gelu)) {
        if (!p->gelu) {
            return GT_FAIL(GT_ERR_ARGUMENT, "pre_gelu is given but gelu is false");
        }
        GT_TRY(gti_check_tensor(ctx, "pre_gelu", p->pre_gelu, GTI_ONLY(c->dtype)));
        GT_TRY(gti_check_same_shape("pre_gelu", p->pre_gelu, "c", c));
    }
    return GT_OK;
}

gt_status gt_gemm(gt_context *ctx, gt_tensor *c, const gt_tensor *a, const gt_tensor *b,
                  const gt_gemm_params *params, gt_stream *stream)
{
    gt_gemm_params p = GT_GEMM_PARAMS_INIT;
    GT_TRY(gti_take_params("gt_gemm_params", &p, sizeof p, params));
    GT_TRY(check_operands(ctx, c, a, b));
    struct gti_gemm_args args = {.c = *c,
                                 .a = *a,
                                 .b = *b,
                                 .bias = gti_optional(p.bias),
                                 .aux = gti_optional(p.pre_gelu),
                                 .trans_a = p.trans_a,
                                 .trans_b = p.trans_b,
                                 .beta = p.accumulate ? 1.0f : 0.0f,
                                 .epilogue = p.gelu ? GTI_EPILOGUE_GELU : GTI_EPILOGUE_NONE};
    GT_TRY(fit(&args, c, a, b));
    GT_TRY(check_epilogue(ctx, &p, c, a, args.n));
    if (args.m == 0 || args.n == 0) {
        return GT_OK;
    }
    return GTI_RUN(ctx, stream, gemm, &args);
}

gt_status gt_linear_forward(gt_context *ctx, gt_tensor *y, const gt_tensor *x, const gt_tensor *w,
                            const gt_tensor *bias, gt_stream *stream)
{
    GT_TRY(gti_check_tensor(ctx, "x", x, GTI_FLOATS));
    GT_TRY(gti_check_tensor(ctx, "w", w, GTI_ONLY(x->dtype)));
    GT_TRY(gti_check_tensor(ctx, "y", y, GTI_GRAD_OF(x->dtype)));
    int64_t n, inputs, outputs, w_inputs;
    gti_rows_columns(x, &n, &inputs);
    gti_rows_columns(w, &outputs, &w_inputs);
    if (inputs != w_inputs) {
        return GT_FAIL(GT_ERR_SHAPE, "x has I=%" PRId64 " inputs, w has %" PRId64, inputs,
                       w_inputs);
    }
    GT_TRY(gti_check_matrix("y", y, "[N,O]", n, outputs));
    GT_TRY(gti_check_optional(ctx, "bias", bias, GTI_ONLY(x->dtype)));
    if (gti_present(bias)) {
        GT_TRY(gti_check_numel("bias", bias, "O", outputs));
    }
    if (n == 0 || outputs == 0) {
        return GT_OK;
    }
    struct gti_gemm_args args = {.c = *y,
                                 .a = *x,
                                 .b = *w,
                                 .bias = gti_optional(bias),
                                 .m = n,
                                 .n = outputs,
                                 .k = inputs,
                                 .lda = inputs,
                                 .ldb = inputs,
                                 .ldc = outputs,
                                 .trans_b = true};
    return GTI_RUN(ctx, stream, gemm, &args);
}

/* What linear_backward was given, seen as matrices. */
typedef struct linear {
    int64_t n, inputs, outputs;
} linear;

static gt_status check_linear_backward(gt_context *ctx, linear *l, const gt_tensor *dx,
                                       const gt_tensor *dw, const gt_tensor *dbias,
                                       const gt_tensor *dy, const gt_tensor *x, const gt_tensor *w)
{
    GT_TRY(gti_check_tensor(ctx, "dy", dy, GTI_FLOATS));
    gti_rows_columns(dy, &l->n, &l->outputs);
    if (gti_present(dx)) {
        GT_TRY(gti_check_tensor(ctx, "w", w, GTI_ONLY(dy->dtype)));
        GT_TRY(gti_check_tensor(ctx, "dx", dx, GTI_GRAD_OF(dy->dtype)));
        gti_rows_columns(dx, &(int64_t){0}, &l->inputs);
        GT_TRY(gti_check_matrix("w", w, "[O,I]", l->outputs, l->inputs));
        GT_TRY(gti_check_matrix("dx", dx, "[N,I]", l->n, l->inputs));
    }
    if (gti_present(dw)) {
        GT_TRY(gti_check_tensor(ctx, "x", x, GTI_ONLY(dy->dtype)));
        GT_TRY(gti_check_tensor(ctx, "dw", dw, GTI_GRAD_OF(dy->dtype)));
        int64_t columns;
        gti_rows_columns(x, &(int64_t){0}, &columns);
        GT_TRY(gti_check_matrix("x", x, "[N,I]", l->n, gti_present(dx) ? l->inputs : columns));
        l->inputs = columns;
        GT_TRY(gti_check_matrix("dw", dw, "[O,I]", l->outputs, l->inputs));
    }
    if (gti_present(dbias)) {
        GT_TRY(gti_check_tensor(ctx, "dbias", dbias, GTI_GRAD_OF(dy->dtype)));
        GT_TRY(gti_check_numel("dbias", dbias, "O", l->outputs));
    }
    return GT_OK;
}

gt_status gt_linear_backward(gt_context *ctx, gt_tensor *dx, gt_tensor *dw, gt_tensor *dbias,
                             const gt_tensor *dy, const gt_tensor *x, const gt_tensor *w,
                             gt_stream *stream)
{
    return gti_linear_backward(ctx, dx, dw, false, dbias, dy, x, w, stream);
}

gt_status gti_linear_backward(gt_context *ctx, gt_tensor *dx, gt_tensor *dw, bool unset,
                              gt_tensor *dbias, const gt_tensor *dy, const gt_tensor *x,
                              const gt_tensor *w, gt_stream *stream)
{
    linear l = {0};
    GT_TRY(check_linear_backward(ctx, &l, dx, dw, dbias, dy, x, w));
    if (gti_present(dx) && l.n > 0 && l.inputs > 0) {
        struct gti_gemm_args args = {.c = *dx,
                                     .a = *dy,
                                     .b = *w,
                                     .m = l.n,
                                     .n = l.inputs,
                                     .k = l.outputs,
                                     .lda = l.outputs,
                                     .ldb = l.inputs,
                                     .ldc = l.inputs};
        GT_TRY(GTI_RUN(ctx, stream, gemm, &args));
    }
    if (gti_present(dw) && l.outputs > 0 && l.inputs > 0) {
        struct gti_gemm_args args = {.c = *dw,
                                     .a = *dy,
                                     .b = *x,
                                     .m = l.outputs,
                                     .n = l.inputs,
                                     .k = l.n,
                                     .lda = l.outputs,
                                     .ldb = l.inputs,
                                     .ldc = l.inputs,
                                     .trans_a = true,
                                     .beta = unset ? 0.0f : 1.0f};
        GT_TRY(GTI_RUN(ctx, stream, gemm, &args));
    }
    if (gti_present(dbias) && l.outputs > 0 && l.n > 0) {
        struct gti_bias_grad_args args = {.db = *dbias, .dy = *dy};
        GT_TRY(GTI_RUN(ctx, stream, bias_grad, &args));
    }
    return GT_OK;
}
