/* SPDX-License-Identifier: Apache-2.0 */
#include <geektrain/ops.h>

#include <inttypes.h>
#include <math.h>

#include "backend/backend.h"
#include "ops/check.h"
#include "ops/reduce.h"

/* Memory shared by two tensors other than wholly, which no one-pass operation survives. */
static gt_status check_overlap(const char *name, const gt_tensor *y, const gt_tensor *x)
{
    uintptr_t a = (uintptr_t)y->data, b = (uintptr_t)x->data;
    size_t a_size = gt_tensor_bytes(y), b_size = gt_tensor_bytes(x);
    bool same = a == b && a_size == b_size;
    if (!same && a < b + b_size && b < a + a_size) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s and x overlap, wanted the same memory or none shared",
                       name);
    }
    return GT_OK;
}

/* y and x have as many elements. *empty: nothing to do. */
static gt_status check_pair(const gt_tensor *y, const gt_tensor *x, bool *empty)
{
    GT_TRY(gti_check_numel("x", x, "numel of y", gt_tensor_numel(y)));
    *empty = gt_tensor_numel(y) == 0;
    return *empty ? GT_OK : check_overlap("y", y, x);
}

static gt_status check_fill_value(gt_dtype dtype, double value)
{
    double low = 0, high = 0;
    if (dtype == GT_I32) {
        low = INT32_MIN;
        high = INT32_MAX;
    } else if (dtype == GT_I64) {
        low = -0x1p63;
        high = 0x1p63 - 1024;
    } else if (dtype == GT_U8) {
        high = 255;
    } else {
        return GT_OK;
    }
    if (!(value >= low && value <= high && trunc(value) == value)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "value is %g, wanted one that %s holds", value,
                       gt_dtype_name(dtype));
    }
    return GT_OK;
}

gt_status gt_fill(gt_context *ctx, gt_tensor *y, double value, gt_stream *stream)
{
    GT_TRY(gti_check_tensor(ctx, "y", y, GTI_ANY_DTYPE));
    GT_TRY(check_fill_value(y->dtype, value));
    struct gti_fill_args args = {.y = *y, .value = value};
    return gt_tensor_numel(y) == 0 ? GT_OK : GTI_RUN(ctx, stream, fill, &args);
}

gt_status gt_copy(gt_context *ctx, gt_tensor *y, const gt_tensor *x, gt_stream *stream)
{
    bool empty;
    GT_TRY(gti_check_tensor(ctx, "y", y, GTI_ANY_DTYPE));
    GT_TRY(gti_check_tensor(ctx, "x", x, GTI_ONLY(y->dtype)));
    GT_TRY(check_pair(y, x, &empty));
    struct gti_copy_args args = {.y = *y, .x = *x};
    return empty ? GT_OK : GTI_RUN(ctx, stream, copy, &args);
}

gt_status gt_cast(gt_context *ctx, gt_tensor *y, const gt_tensor *x, gt_stream *stream)
{
    bool empty;
    GT_TRY(gti_check_tensor(ctx, "y", y, GTI_FLOATS | GTI_ONLY(GT_F64)));
    unsigned from = GTI_FLOATS;
    if (y->dtype == GT_F64) {
        from = GTI_ONLY(GT_F32) | GTI_ONLY(GT_F64);
    } else if (y->dtype == GT_F32) {
        from |= GTI_ONLY(GT_F64);
    }
    GT_TRY(gti_check_tensor(ctx, "x", x, from));
    GT_TRY(check_pair(y, x, &empty));
    struct gti_cast_args args = {.y = *y, .x = *x};
    return empty ? GT_OK : GTI_RUN(ctx, stream, cast, &args);
}

gt_status gt_axpby(gt_context *ctx, gt_tensor *y, const gt_tensor *x, float alpha, float beta,
                   gt_stream *stream)
{
    bool empty;
    GT_TRY(gti_check_tensor(ctx, "y", y, GTI_FLOATS));
    GT_TRY(gti_check_tensor(ctx, "x", x, GTI_FLOATS));
    GT_TRY(check_pair(y, x, &empty));
    struct gti_axpby_args args = {.y = *y, .x = *x, .alpha = alpha, .beta = beta};
    return empty ? GT_OK : GTI_RUN(ctx, stream, axpby, &args);
}

gt_status gti_reduce(gt_context *ctx, gt_tensor *out, const gt_tensor *a, const gt_tensor *b,
                     gti_reduce_kind kind, gt_stream *stream)
{
    GT_TRY(gti_check_tensor(ctx, "out", out, GTI_ANY_DTYPE));
    GT_TRY(gti_check_tensor(ctx, "a", a, GTI_ONLY(out->dtype)));
    unsigned from = out->dtype == GT_F32 ? GTI_FLOATS : GTI_ONLY(out->dtype);
    GT_TRY(gti_check_tensor(ctx, "b", b, from));
    GT_TRY(gti_check_numel("a", a, "numel of out", gt_tensor_numel(out)));
    GT_TRY(gti_check_numel("b", b, "numel of out", gt_tensor_numel(out)));
    struct gti_reduce_args args = {.out = *out, .a = *a, .b = *b, .kind = kind};
    return gt_tensor_numel(out) == 0 ? GT_OK : GTI_RUN(ctx, stream, reduce, &args);
}
