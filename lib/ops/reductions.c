/* SPDX-License-Identifier: Apache-2.0 */
#include <geektrain/ops.h>

#include "backend/backend.h"
#include "ops/check.h"

gt_status gt_sum_sq(gt_context *ctx, gt_tensor *acc, const gt_tensor *x, double factor,
                    gt_stream *stream)
{
    GT_TRY(gti_check_tensor(ctx, "acc", acc, GTI_ONLY(GT_F64)));
    GT_TRY(gti_check_numel("acc", acc, "numel", 1));
    GT_TRY(gti_check_tensor(ctx, "x", x, GTI_FLOATS));
    struct gti_sum_sq_args args = {.acc = *acc, .x = *x, .factor = factor};
    return gt_tensor_numel(x) == 0 ? GT_OK : GTI_RUN(ctx, stream, sum_sq, &args);
}

gt_status gt_find_nonfinite(gt_context *ctx, gt_tensor *index, const gt_tensor *x,
                            gt_stream *stream)
{
    GT_TRY(gti_check_tensor(ctx, "index", index, GTI_ONLY(GT_I64)));
    GT_TRY(gti_check_numel("index", index, "numel", 1));
    GT_TRY(gti_check_tensor(ctx, "x", x, GTI_FLOATS));
    struct gti_find_nonfinite_args args = {.index = *index, .x = *x};
    return GTI_RUN(ctx, stream, find_nonfinite, &args);
}
