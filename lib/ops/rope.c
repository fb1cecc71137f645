/* SPDX-License-Identifier: Apache-2.0 */
#include <geektrain/ops.h>

#include <inttypes.h>
#include <math.h>

#include "backend/backend.h"
#include "ops/check.h"

gt_status gt_rope(gt_context *ctx, gt_tensor *x, const gt_tensor *rows, const gt_tensor *freq,
                  int64_t ld, int64_t heads, int64_t seq, float scale, bool inverse,
                  gt_stream *stream)
{
    GT_TRY(gti_check_tensor(ctx, "x", x, GTI_FLOATS));
    GT_TRY(gti_check_tensor(ctx, "rows", rows, GTI_ONLY(GT_I64)));
    GT_TRY(gti_check_tensor(ctx, "freq", freq, GTI_ONLY(GT_F32)));
    const int64_t head_size = 2 * gt_tensor_numel(freq), n = gt_tensor_numel(rows);
    if (heads < 0 || seq < 1 || ld < heads * head_size) {
        return GT_FAIL(GT_ERR_SHAPE,
                       "rope over heads=%" PRId64 " of D=%" PRId64 ", ld=%" PRId64 ", seq=%" PRId64
                       ", wanted ld of heads*D or more and seq of 1 or more",
                       heads, head_size, ld, seq);
    }
    if (!isfinite(scale)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "scale is %g, wanted a finite number", (double)scale);
    }
    if (n == 0 || heads == 0 || head_size == 0) {
        return GT_OK;
    }
    const int64_t reach = (n - 1) * ld + heads * head_size;
    if (gt_tensor_numel(x) < reach) {
        return GT_FAIL(GT_ERR_SHAPE,
                       "x has %" PRId64 " elements, wanted %" PRId64 " or more for N=%" PRId64
                       " rows of %" PRId64 " that are %" PRId64 " apart",
                       gt_tensor_numel(x), reach, n, heads * head_size, ld);
    }
    struct gti_rope_args args = {.x = *x,
                                 .rows = *rows,
                                 .freq = *freq,
                                 .ld = ld,
                                 .heads = heads,
                                 .head_size = head_size,
                                 .seq = seq,
                                 .scale = scale,
                                 .inverse = inverse};
    return GTI_RUN(ctx, stream, rope, &args);
}
