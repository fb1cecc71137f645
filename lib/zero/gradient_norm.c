/* SPDX-License-Identifier: Apache-2.0
 * What the global norm counts: the elements of the gradient that this rank answers for. */
#include "zero/state.h"

#include <math.h>
#include <stdio.h>

#include "core/fail.h"

/* The longest range from `at` on whose pieces are all counted here, or all not. */
static int64_t alike(const gt_zero *zero, const struct gti_param *p, int64_t at, int64_t end,
                     bool *counts)
{
    int64_t from = at;
    while (at < end) {
        struct gti_run run = gti_param_run(p, at, end);
        bool here = gti_param_counts(zero->table, p, run.piece);
        if (at > from && here != *counts) {
            break;
        }
        *counts = here;
        at += run.count;
    }
    return at - from;
}

static gt_status gradient_range(const gt_zero *zero, const struct gti_param *p, int64_t first,
                                int64_t count, gt_tensor *out)
{
    const struct zero_bucket *b = &zero->units[p->unit].bucket[GTI_TRAINED];
    int64_t at = p->offset + first - gti_zero_state_first(zero, b);
    return gt_tensor_slice(out, &b->grad, at, count);
}

static gt_status norm_of(gt_zero *zero, const struct gti_param *p, gt_tensor *acc)
{
    struct zero_piece shard = gti_zero_shard_piece(zero, p);
    int64_t at = shard.first, end = shard.first + shard.count;
    while (at < end) {
        bool counts = false;
        int64_t n = alike(zero, p, at, end, &counts);
        if (counts) {
            gt_tensor range;
            GT_TRY(gradient_range(zero, p, at, n, &range));
            GT_TRY(gt_sum_sq(zero->ctx, acc, &range, 1.0, NULL));
        }
        at += n;
    }
    return GT_OK;
}

static gt_status check_finished(const gt_zero *zero, const char *call)
{
    for (int i = 0; zero != NULL && i < zero->count; i++) {
        const struct zero_bucket *b = &zero->units[i].bucket[GTI_TRAINED];
        if (!b->reduced_last && b->flat->padded > 0) {
            return GT_FAIL(GT_ERR_STATE, "%s before gt_zero_finish", call);
        }
    }
    return zero != NULL && zero->allocated
               ? GT_OK
               : GT_FAIL(GT_ERR_STATE, "%s before gt_zero_allocate", call);
}

gt_status gt_zero_norm(gt_zero *zero, gt_tensor *acc)
{
    GT_TRY(check_finished(zero, "gt_zero_norm"));
    for (int i = 0; i < zero->count; i++) {
        const struct gti_unit *u = zero->units[i].row;
        for (int k = 0; k < u->count && !u->copy; k++) {
            const struct gti_param *p = &zero->table->param[u->param[k]];
            if (!p->frozen) {
                GT_TRY(norm_of(zero, p, acc));
            }
        }
    }
    return GT_OK;
}

static gt_status first_nonfinite(gt_zero *zero, const gt_tensor *piece, int64_t *index)
{
    gt_tensor at;
    int64_t one = 1;
    GT_TRY(gt_tensor_alloc(zero->ctx, &at, GT_MEM_WORKSPACE, GT_I64, 1, &one));
    gt_status st = gt_find_nonfinite(zero->ctx, &at, piece, NULL);
    if (st == GT_OK) {
        st = gt_copy_to_host(zero->ctx, index, &at, NULL);
    }
    gt_tensor_free(zero->ctx, &at);
    return st;
}

gt_status gt_zero_find_nonfinite(gt_zero *zero, char *name, size_t size)
{
    if (name == NULL || size == 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_zero_find_nonfinite has no room for a name");
    }
    GT_TRY(check_finished(zero, "gt_zero_find_nonfinite"));
    for (int i = 0; i < zero->count; i++) {
        const struct gti_unit *u = zero->units[i].row;
        for (int k = 0; k < u->count; k++) {
            const struct gti_param *p = &zero->table->param[u->param[k]];
            struct zero_piece shard = gti_zero_shard_piece(zero, p);
            gt_tensor piece;
            int64_t index = -1;
            if (shard.count == 0 || p->frozen) {
                continue;
            }
            GT_TRY(gradient_range(zero, p, shard.first, shard.count, &piece));
            GT_TRY(first_nonfinite(zero, &piece, &index));
            if (index >= 0) {
                snprintf(name, size, "%s", p->decl.name);
                return GT_OK;
            }
        }
    }
    name[0] = '\0';
    return GT_OK;
}
