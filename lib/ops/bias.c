/* SPDX-License-Identifier: Apache-2.0 */
#include <geektrain/ops.h>

#include "backend/backend.h"
#include "ops/check.h"

gt_status gt_bias_grad(gt_context *ctx, gt_tensor *db, const gt_tensor *dy, gt_stream *stream)
{
    int64_t n, c;
    GT_TRY(gti_check_tensor(ctx, "dy", dy, GTI_FLOATS));
    gti_rows_columns(dy, &n, &c);
    GT_TRY(gti_check_tensor(ctx, "db", db, GTI_GRAD_OF(dy->dtype)));
    GT_TRY(gti_check_numel("db", db, "C", c));
    struct gti_bias_grad_args args = {.db = *db, .dy = *dy};
    return GTI_RUN(ctx, stream, bias_grad, &args);
}
