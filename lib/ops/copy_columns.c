/* SPDX-License-Identifier: Apache-2.0 */
#include <geektrain/ops.h>

#include "backend/backend.h"
#include "ops/check.h"

static gt_status check_range(const char *name, const gt_tensor *t, int64_t first, int64_t count)
{
    int64_t rows, columns;
    gti_rows_columns(t, &rows, &columns);
    if (first < 0 || count < 0 || first + count > columns) {
        return GT_FAIL(GT_ERR_SHAPE, "columns %lld to %lld of %s, which has %lld", (long long)first,
                       (long long)(first + count), name, (long long)columns);
    }
    return GT_OK;
}

gt_status gt_copy_columns(gt_context *ctx, gt_tensor *y, int64_t y_first, const gt_tensor *x,
                          int64_t x_first, int64_t count, gt_stream *stream)
{
    GT_TRY(gti_check_tensor(ctx, "y", y, GTI_ANY_DTYPE));
    GT_TRY(gti_check_tensor(ctx, "x", x, GTI_ONLY(y->dtype)));
    struct gti_copy_columns_args args = {
        .y = *y, .x = *x, .count = count, .y_first = y_first, .x_first = x_first};
    int64_t rows;
    gti_rows_columns(y, &args.rows, &args.ldy);
    gti_rows_columns(x, &rows, &args.ldx);
    if (rows != args.rows) {
        return GT_FAIL(GT_ERR_SHAPE, "x has %lld rows, wanted the %lld of y", (long long)rows,
                       (long long)args.rows);
    }
    GT_TRY(check_range("y", y, y_first, count));
    GT_TRY(check_range("x", x, x_first, count));
    if (rows == 0 || count == 0) {
        return GT_OK;
    }
    return GTI_RUN(ctx, stream, copy_columns, &args);
}
