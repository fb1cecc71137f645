/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters before use: at stage 3 they are gathered into rotating buffers; at the other stages
 * only the publication of the last update has to be waited for.
 *
 * The order of gathers must be the same on all ranks. Each rank keeps a hash of its order
 * since the last finish, and its beginning; gt_zero_finish compares the hashes and names the first
 * unit that differs.
 */
#include "zero/state.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/fail.h"

static size_t gathered_bytes(const gt_zero *zero, const struct zero_bucket *b)
{
    return (size_t)b->flat->padded * gt_dtype_size(zero->params.dtype);
}

static gt_tensor gathered(const gt_zero *zero, const struct zero_bucket *b)
{
    if (b->persistent) {
        return b->full;
    }
    gt_tensor t = gt_tensor_1d(b->buffer->data, zero->params.dtype, b->flat->padded);
    t.device = gt_context_device(zero->ctx);
    return t;
}

static bool travels(const struct zero_bucket *b)
{
    return !b->persistent && b->flat->padded > 0;
}

static gt_status start_gather(gt_zero *zero, struct zero_bucket *b)
{
    GT_TRY(gti_zero_pool_take(zero, &zero->gather_pool, gathered_bytes(zero, b), &b->buffer));
    gt_tensor whole = gathered(zero, b);
    GT_TRY(gt_work_wait(&b->gather_work, NULL)); /* the node's piece may still be on its way */
    return gt_all_gather(zero->node, &whole, &b->near, NULL, &b->gather_work);
}

static gt_status prefetch(gt_zero *zero, struct zero_bucket *b)
{
    if (!travels(b) || b->buffer != NULL) {
        return GT_OK;
    }
    int count, unused;
    gti_zero_pool_class(&zero->gather_pool, gathered_bytes(zero, b), &count, &unused);
    if (unused == 0 && count >= 2) {
        return GT_OK; /* both buffers of this size are in use: gathered when its turn comes */
    }
    return gti_zero_fail(zero, start_gather(zero, b));
}

static gt_status check_published(const struct zero_unit *u)
{
    if (u->unpublished) {
        return GT_FAIL(GT_ERR_STATE,
                       "unit %s is gathered with values that were loaded and not published; call "
                       "gt_zero_publish first",
                       u->row->name);
    }
    return GT_OK;
}

gt_status gt_zero_prefetch(gt_zero *zero, int unit)
{
    GT_TRY(gti_zero_check_unit(zero, unit));
    struct zero_unit *u = &zero->units[unit];
    GT_TRY(check_published(u));
    GT_TRY(prefetch(zero, &u->bucket[GTI_TRAINED]));
    return prefetch(zero, &u->bucket[GTI_FROZEN]);
}

static void record_order(gt_zero *zero, int unit)
{
    int mixed[2] = {unit, 0};
    if (zero->order_count < ZERO_ORDER_KEPT) {
        zero->order[zero->order_count] = unit;
    }
    zero->order_count++;
    zero->order_hash = XXH3_64bits_withSeed(mixed, sizeof(mixed), zero->order_hash);
}

static gt_status gather(gt_zero *zero, struct zero_bucket *b)
{
    if (travels(b) && b->buffer == NULL) {
        GT_TRY(start_gather(zero, b));
    }
    if (b->gather_work == NULL) {
        return GT_OK;
    }
    gt_status st = gt_work_wait(&b->gather_work, NULL);
    if (st != GT_OK) {
        return gti_fail_in(st, "gathering unit %s, number %lld since the last step",
                           b->unit->row->name, (long long)zero->order_count);
    }
    return GT_OK;
}

static gt_status gather_unit(gt_zero *zero, int unit)
{
    struct zero_unit *u = &zero->units[unit];
    bool moves = travels(&u->bucket[GTI_TRAINED]) || travels(&u->bucket[GTI_FROZEN]);
    if (u->users == 0 && moves) {
        record_order(zero, unit);
    }
    u->users++;
    GT_TRY(gather(zero, &u->bucket[GTI_TRAINED]));
    return gather(zero, &u->bucket[GTI_FROZEN]);
}

gt_status gt_zero_gather(gt_zero *zero, int unit)
{
    GT_TRY(gti_zero_check_unit(zero, unit));
    GT_TRY(check_published(&zero->units[unit]));
    return gti_zero_fail(zero, gather_unit(zero, unit));
}

gt_status gt_zero_release(gt_zero *zero, int unit)
{
    GT_TRY(gti_zero_check_unit(zero, unit));
    struct zero_unit *u = &zero->units[unit];
    if (u->users == 0) {
        return GT_FAIL(GT_ERR_STATE, "gt_zero_release of unit %s, which is not gathered",
                       u->row->name);
    }
    u->users--;
    for (int k = 0; u->users == 0 && k < GTI_BUCKETS; k++) {
        gti_zero_pool_give(&u->bucket[k].buffer);
    }
    return GT_OK;
}

gt_status gti_zero_check_released(const gt_zero *zero, const char *call)
{
    for (int i = 0; i < zero->count; i++) {
        if (zero->units[i].users > 0) {
            return GT_FAIL(
                GT_ERR_STATE,
                "%s while unit %s is gathered: a gt_zero_release is missing, and what is "
                "gathered would stay as it was before the update",
                call, zero->units[i].row->name);
        }
    }
    return GT_OK;
}

gt_status gt_zero_param(gt_zero *zero, int param, gt_tensor *out)
{
    const struct gti_param *p;
    if (out == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_zero_param: out is NULL");
    }
    GT_TRY(gti_zero_check_param(zero, param, &p));
    struct zero_unit *u = &zero->units[p->unit];
    if (u->users == 0) {
        return GT_FAIL(GT_ERR_STATE, "gt_zero_param of %s, whose unit %s is not gathered",
                       p->decl.name, u->row->name);
    }
    if (p->local_numel == 0 && u->bucket[gti_param_bucket(p)].flat->padded == 0) {
        *out = gt_tensor_1d(NULL, zero->params.dtype, 0);
        out->device = gt_context_device(zero->ctx);
        return GT_OK;
    }
    gt_tensor whole = gathered(zero, gti_zero_bucket(zero, p));
    return gt_tensor_slice(out, &whole, p->offset, p->local_numel);
}

/* Names the first place where this rank's order differs from another's. */
static gt_status report_divergence(gt_zero *zero)
{
    enum { KEPT = ZERO_ORDER_KEPT };
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
                                 r, b ? zero->units[b - 1].row->name : "(none)", i + 1,
                                 a ? zero->units[a - 1].row->name : "(none)");
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
    zero->order_hash = 0;
    zero->order_count = 0;
    return GT_OK;
}
