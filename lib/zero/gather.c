/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters before use: at stage 3 they are gathered into rotating buffers; at the other stages
 * only the publication of the last update has to be waited for.
 *
 * The order of gathers must be the same on all ranks. Each rank keeps its order since the last
 * finish; gt_zero_finish compares hashes of it and names the first unit that differs.
 */
#include "zero/state.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "zero/gradients.h"

static size_t gathered_bytes(const gt_zero *zero, const struct zero_unit *u)
{
    return (size_t)u->padded * gt_dtype_size(zero->params.dtype);
}

static gt_tensor buffer_tensor(const gt_zero *zero, const struct zero_buffer *buffer,
                               gt_dtype dtype, int64_t count)
{
    gt_tensor t = gt_tensor_1d(buffer->data, dtype, count);
    t.device = gt_context_device(zero->ctx);
    return t;
}

static gt_status start_gather(gt_zero *zero, struct zero_unit *u)
{
    GT_TRY(gti_zero_pool_take(zero, &zero->gather_pool, gathered_bytes(zero, u), &u->buffer));
    gt_tensor whole = buffer_tensor(zero, u->buffer, zero->params.dtype, u->padded);
    GT_TRY(gt_work_wait(&u->gather_work, NULL)); /* the node's piece may still be on its way */
    return gt_all_gather(zero->node, &whole, &u->near, NULL, &u->gather_work);
}

gt_status gt_zero_prefetch(gt_zero *zero, int unit)
{
    GT_TRY(gti_zero_unit_check(zero, unit, 0));
    struct zero_unit *u = &zero->units[unit];
    if (u->persistent || u->buffer != NULL) {
        return GT_OK;
    }
    int count, unused;
    gti_zero_pool_class(&zero->gather_pool, gathered_bytes(zero, u), &count, &unused);
    if (unused == 0 && count >= 2) {
        return GT_OK; /* both buffers of this size are in use: gathered when its turn comes */
    }
    u->prefetched = true;
    return gti_zero_fail(zero, start_gather(zero, u));
}

static gt_status record_order(gt_zero *zero, int unit)
{
    if (zero->order_count == zero->order_room) {
        int room = zero->order_room ? 2 * zero->order_room : 64;
        int *grown = realloc(zero->order, (size_t)room * sizeof(int));
        if (grown == NULL) {
            return GT_FAIL(GT_ERR_MEMORY, "no host memory for a gather order of %d", room);
        }
        zero->order = grown;
        zero->order_room = room;
    }
    zero->order[zero->order_count++] = unit;
    zero->order_hash = (zero->order_hash ^ (uint64_t)(unit + 1)) * 1099511628211u;
    return GT_OK;
}

static gt_status gather(gt_zero *zero, int unit)
{
    struct zero_unit *u = &zero->units[unit];
    if (!u->persistent) {
        if (u->users == 0) {
            GT_TRY(record_order(zero, unit));
        }
        if (u->buffer == NULL) {
            GT_TRY(start_gather(zero, u));
        }
        u->prefetched = false;
    }
    u->users++;
    if (u->gather_work == NULL) {
        return GT_OK;
    }
    gt_status st = gt_work_wait(&u->gather_work, NULL);
    if (st != GT_OK) {
        return gti_fail_in(st, "gathering unit %s, number %d since the last step", u->name,
                           zero->order_count);
    }
    return GT_OK;
}

gt_status gt_zero_gather(gt_zero *zero, int unit)
{
    GT_TRY(gti_zero_unit_check(zero, unit, 0));
    if (!zero->allocated) {
        return GT_FAIL(GT_ERR_STATE, "gt_zero_gather before gt_zero_allocate");
    }
    return gti_zero_fail(zero, gather(zero, unit));
}

gt_status gt_zero_release(gt_zero *zero, int unit)
{
    GT_TRY(gti_zero_unit_check(zero, unit, 0));
    struct zero_unit *u = &zero->units[unit];
    if (u->users == 0) {
        return GT_FAIL(GT_ERR_STATE, "gt_zero_release of unit %s, which is not gathered", u->name);
    }
    u->users--;
    if (u->users == 0) {
        gti_zero_pool_give(&u->buffer);
    }
    return GT_OK;
}

gt_status gt_zero_param(gt_zero *zero, int unit, int tensor, gt_tensor *out)
{
    GT_TRY(gti_zero_unit_check(zero, unit, tensor));
    struct zero_unit *u = &zero->units[unit];
    if (u->users == 0) {
        return GT_FAIL(GT_ERR_STATE, "gt_zero_param of unit %s, which is not gathered", u->name);
    }
    const struct zero_tensor *t = &u->tensors[tensor];
    gt_tensor whole =
        u->persistent ? u->full : buffer_tensor(zero, u->buffer, zero->params.dtype, u->padded);
    return gt_tensor_slice(out, &whole, t->offset, t->numel);
}

/* Names the first place where this rank's order differs from another's. */
static gt_status report_divergence(gt_zero *zero)
{
    enum { KEPT = 256 };
    int32_t mine[KEPT] = {0};
    int32_t *all = malloc((size_t)zero->size * sizeof(mine));
    if (all == NULL) {
        return gti_zero_fail(zero,
                             GT_FAIL(GT_ERR_MEMORY, "no host memory to compare gather orders"));
    }
    for (int i = 0; i < KEPT && i < zero->order_count; i++) {
        mine[i] = zero->order[i] + 1;
    }
    gt_tensor in = gt_tensor_1d(mine, GT_I32, KEPT);
    gt_tensor out = gt_tensor_1d(all, GT_I32, (int64_t)KEPT * zero->size);
    gt_status st = gt_all_gather(zero->comm, &out, &in, NULL, NULL);
    if (st == GT_OK) {
        st = GT_FAIL(GT_ERR_MISMATCH, "ranks gathered the ZeRO units in different orders");
        for (int i = 0; i < KEPT; i++) {
            for (int r = 1; r < zero->size; r++) {
                int a = all[i], b = all[r * KEPT + i];
                if (a != b) {
                    st = GT_FAIL(GT_ERR_MISMATCH,
                                 "rank %d gathered unit %s as number %d of the step, rank 0 %s; "
                                 "all ranks must gather in one order",
                                 r, b ? zero->units[b - 1].name : "(none)", i + 1,
                                 a ? zero->units[a - 1].name : "(none)");
                    free(all);
                    return st;
                }
            }
        }
    }
    free(all);
    return st;
}

gt_status gti_zero_check_order(gt_zero *zero)
{
    if (zero->stage < 3) {
        return GT_OK;
    }
    int64_t range[2] = {(int64_t)(zero->order_hash >> 1), -(int64_t)(zero->order_hash >> 1)};
    int64_t agreed[2] = {range[0], range[1]};
    gt_tensor t = gt_tensor_1d(agreed, GT_I64, 2);
    GT_TRY(gt_all_reduce(zero->comm, &t, GT_MAX, NULL, NULL));
    if (agreed[0] != -agreed[1]) {
        return report_divergence(zero);
    }
    zero->order_hash = 1469598103934665603u;
    zero->order_count = 0;
    return GT_OK;
}
