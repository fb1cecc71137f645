/* SPDX-License-Identifier: Apache-2.0 */
#include <geektrain/ops.h>

#include <inttypes.h>
#include <math.h>

#include "backend/backend.h"
#include "core/params.h"
#include "ops/check.h"

void gt_init_params_init(gt_init_params *params, size_t size)
{
    gti_params_init(params, size);
}

static gt_status check_values(const gt_init_params *p)
{
    if (p->kind != GT_INIT_CONSTANT && p->kind != GT_INIT_NORMAL && p->kind != GT_INIT_UNIFORM) {
        return GT_FAIL(GT_ERR_ARGUMENT, "kind is %d, wanted one of gt_init_kind", (int)p->kind);
    }
    if (!isfinite(p->mean) || !isfinite(p->std) || p->std < 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "mean is %g and std %g, wanted finite numbers, std >= 0",
                       (double)p->mean, (double)p->std);
    }
    return GT_OK;
}

/* The piece [axis_first, axis_first + axis_local) must lie in the whole axis. */
static gt_status check_piece(const gt_init_params *p)
{
    if (p->offset < 0 || p->axis_local < 1 || p->inner < 1 || p->axis_first < 0 ||
        p->axis_local > p->axis_global || p->axis_first > p->axis_global - p->axis_local) {
        return GT_FAIL(GT_ERR_SHAPE,
                       "the piece from %" PRId64 " of %" PRId64 " rows of %" PRId64
                       " elements, beginning at %" PRId64 ", does not lie in an axis of %" PRId64,
                       p->offset, p->axis_local, p->inner, p->axis_first, p->axis_global);
    }
    return GT_OK;
}

gt_status gt_init(gt_context *ctx, gt_tensor *y, const gt_init_params *params, gt_stream *stream)
{
    gt_init_params p = GT_INIT_PARAMS_INIT;
    GT_TRY(gti_check_tensor(ctx, "y", y, GTI_FLOATS));
    GT_TRY(gti_take_params("gt_init_params", &p, sizeof(p), params));
    GT_TRY(check_values(&p));
    if (gt_tensor_numel(y) == 0) {
        return GT_OK;
    }
    if (p.axis_local == 0 && p.inner == 0 && p.axis_global == 0 && p.axis_first == 0) {
        p.inner = 1;
        p.axis_local = p.axis_global = INT64_MAX; /* one stripe: the index is the offset */
    }
    GT_TRY(check_piece(&p));
    struct gti_init_args args = {
        .y = *y,
        .kind = p.kind == GT_INIT_NORMAL    ? GTI_INIT_NORMAL
                : p.kind == GT_INIT_UNIFORM ? GTI_INIT_UNIFORM
                                            : GTI_INIT_CONSTANT,
        .mean = p.mean,
        .std = p.std,
        .key = p.seed,
        .stream = p.stream_id,
        .offset = p.offset,
        .axis_local = p.axis_local,
        .inner = p.inner,
        .axis_global = p.axis_global,
        .axis_first = p.axis_first,
    };
    return GTI_RUN(ctx, stream, init, &args);
}
