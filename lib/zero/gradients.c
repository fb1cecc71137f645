/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients: from full tensors that backward adds to, to the sum that the optimizer reads.
 *
 *   stage 0, 1  the full gradient stays; the last microbatch starts one all-reduce (reduce-scatter)
 *   stage 2, 3  a transient full gradient per unit and microbatch is reduce-scattered and added to
 *               the shard in the accumulation dtype
 *
 * Reductions run under later work. Partial tensors (norms and biases under sequence parallelism)
 * are first summed over the model group; the unit's own reduction is started one unit later, so
 * that nobody waits for that small all-reduce.
 */
#include "zero/state.h"

#include <stdio.h>

#include "core/fail.h"
#include "zero/gradients.h"

static bool casts(const gt_zero *zero)
{
    return zero->stage <= 1 && zero->size > 1 &&
           zero->params.communication_dtype != zero->params.accum_dtype;
}

static size_t full_bytes(const gt_zero *zero, const struct zero_unit *u)
{
    return (size_t)u->padded * gt_dtype_size(zero->params.communication_dtype);
}

static gt_tensor transient(const gt_zero *zero, const struct zero_unit *u)
{
    gt_tensor t = gt_tensor_1d(u->grad_buffer->data, zero->params.communication_dtype, u->padded);
    t.device = gt_context_device(zero->ctx);
    return t;
}

/* The full gradient that backward adds to and collectives read. */
static gt_tensor full_gradient(const gt_zero *zero, const struct zero_unit *u)
{
    return zero->stage <= 1 ? u->grad_full : transient(zero, u);
}

static gt_status own_slice(const gt_zero *zero, const struct zero_unit *u, gt_tensor *out)
{
    gt_tensor whole = transient(zero, u);
    return gt_tensor_slice(out, &whole, zero->rank * u->shard, u->shard);
}

static gt_status wait_named(const struct zero_unit *u, gt_work **work)
{
    gt_status st = gt_work_wait(work, NULL);
    if (st != GT_OK) {
        return gti_fail_in(st, "reducing the gradients of unit %s", u->name);
    }
    return GT_OK;
}

/* After a reduction: what is left to do with its result. */
static gt_status complete_reduce(gt_zero *zero, struct zero_unit *u)
{
    if (u->reduce_work == NULL) {
        return GT_OK;
    }
    GT_TRY(wait_named(u, &u->reduce_work));
    if (u->grad_buffer == NULL) {
        return GT_OK;
    }
    gt_tensor sum;
    if (casts(zero)) {
        sum = transient(zero, u);
        if (zero->stage == 1) {
            GT_TRY(own_slice(zero, u, &sum));
        }
        GT_TRY(gt_cast(zero->ctx, &u->grad, &sum, NULL));
    } else if (zero->params.accum_dtype != GT_F32) {
        GT_TRY(own_slice(zero, u, &sum));
        GT_TRY(gt_axpby(zero->ctx, &u->grad, &sum, 1.0f, u->grad_summed ? 1.0f : 0.0f, NULL));
    }
    u->grad_summed = true;
    gti_zero_pool_give(&u->grad_buffer);
    return GT_OK;
}

/* A buffer for a transient gradient, waiting for the oldest reduction when both are in flight. */
static gt_status take_buffer(gt_zero *zero, struct zero_unit *u)
{
    size_t bytes = full_bytes(zero, u);
    for (int i = zero->count - 1; i >= 0; i--) { /* backward order: the oldest first */
        int count, unused;
        gti_zero_pool_class(&zero->grad_pool, bytes, &count, &unused);
        if (unused > 0 || count < 2) {
            break;
        }
        if (zero->units[i].reduce_work != NULL && zero->units[i].grad_buffer != NULL) {
            GT_TRY(complete_reduce(zero, &zero->units[i]));
        }
    }
    return gti_zero_pool_take(zero, &zero->grad_pool, bytes, &u->grad_buffer);
}

static gt_status clear(gt_zero *zero, const struct zero_unit *u, int64_t from, int64_t to)
{
    gt_tensor full = full_gradient(zero, u), range;
    if (to <= from) {
        return GT_OK;
    }
    GT_TRY(gt_tensor_slice(&range, &full, from, to - from));
    return gt_fill(zero->ctx, &range, 0.0, NULL);
}

static gt_status open_gradients(gt_zero *zero, struct zero_unit *u)
{
    if (zero->stage >= 2) {
        GT_TRY(complete_reduce(zero, u));
        GT_TRY(take_buffer(zero, u));
    }
    int64_t from = 0; /* what lies between tensors that backward sets is cleared, padding too */
    for (int i = 0; i < u->count; i++) {
        struct zero_tensor *t = &u->tensors[i];
        t->unset = t->sets_gradient;
        if (t->unset) {
            GT_TRY(clear(zero, u, from, t->offset));
            from = t->offset + t->numel;
        }
    }
    GT_TRY(clear(zero, u, from, u->padded));
    u->grad_open = true;
    return GT_OK;
}

/* Tensors that backward was to set, and did not. */
static gt_status clear_unset(gt_zero *zero, struct zero_unit *u)
{
    for (int i = 0; i < u->count; i++) {
        struct zero_tensor *t = &u->tensors[i];
        if (t->unset) {
            GT_TRY(clear(zero, u, t->offset, t->offset + t->numel));
            t->unset = false;
        }
    }
    return GT_OK;
}

gt_status gt_zero_grad(gt_zero *zero, int unit, int tensor, gt_tensor *out)
{
    bool unset = false;
    GT_TRY(gt_zero_grad_unset(zero, unit, tensor, out, &unset));
    return unset ? gt_fill(zero->ctx, out, 0.0, NULL) : GT_OK;
}

gt_status gt_zero_grad_unset(gt_zero *zero, int unit, int tensor, gt_tensor *out, bool *unset)
{
    *unset = false;
    GT_TRY(gti_zero_unit_check(zero, unit, tensor));
    struct zero_unit *u = &zero->units[unit];
    struct zero_tensor *t = &u->tensors[tensor];
    if (u->reduced_last) {
        return GT_FAIL(GT_ERR_STATE, "gt_zero_grad of unit %s after its last reduce of the step",
                       u->name);
    }
    if (t->frozen) {
        *out = (gt_tensor){0};
        return GT_OK;
    }
    if (zero->deferred == unit) { /* the last microbatch's gradient is still being summed */
        GT_TRY(gti_zero_fail(zero, gti_zero_flush_deferred(zero)));
    }
    if (!u->grad_open) {
        GT_TRY(gti_zero_fail(zero, open_gradients(zero, u)));
    }
    *unset = t->unset;
    t->unset = false;
    gt_tensor full = full_gradient(zero, u);
    return gt_tensor_slice(out, &full, t->offset, t->numel);
}

static gt_status start_full_reduce(gt_zero *zero, struct zero_unit *u)
{
    gt_tensor full = u->grad_full;
    if (casts(zero)) {
        GT_TRY(take_buffer(zero, u));
        full = transient(zero, u);
        GT_TRY(gt_cast(zero->ctx, &full, &u->grad_full, NULL));
    }
    if (zero->stage == 0) {
        return gt_all_reduce(zero->comm, &full, GT_SUM, NULL, &u->reduce_work);
    }
    gt_tensor own = u->grad;
    if (casts(zero)) {
        GT_TRY(own_slice(zero, u, &own));
    }
    return gt_reduce_scatter(zero->comm, &own, &full, GT_SUM, NULL, &u->reduce_work);
}

static gt_status start_shard_reduce(gt_zero *zero, struct zero_unit *u)
{
    gt_tensor full = transient(zero, u);
    u->grad_open = false;
    if (zero->params.accum_dtype == GT_F32) {
        if (!u->grad_summed) {
            GT_TRY(gt_fill(zero->ctx, &u->grad, 0.0, NULL));
            u->grad_summed = true;
        }
        return gt_reduce_scatter_add(zero->comm, &u->grad, &full, NULL, &u->reduce_work);
    }
    gt_tensor own;
    GT_TRY(own_slice(zero, u, &own));
    return gt_reduce_scatter(zero->comm, &own, &full, GT_SUM, NULL, &u->reduce_work);
}

static gt_status start_reduce(gt_zero *zero, struct zero_unit *u)
{
    if (zero->stage >= 2) {
        return start_shard_reduce(zero, u);
    }
    u->grad_summed = true;
    return zero->size == 1 ? GT_OK : start_full_reduce(zero, u);
}

gt_status gti_zero_flush_deferred(gt_zero *zero)
{
    if (zero->deferred < 0) {
        return GT_OK;
    }
    struct zero_unit *u = &zero->units[zero->deferred];
    zero->deferred = -1;
    GT_TRY(wait_named(u, &u->partial_work));
    return start_reduce(zero, u);
}

static gt_status reduce(gt_zero *zero, int unit, bool last)
{
    struct zero_unit *u = &zero->units[unit];
    GT_TRY(gti_zero_flush_deferred(zero));
    if (!u->grad_open) { /* not used here; the other ranks may have used it */
        GT_TRY(open_gradients(zero, u));
    }
    GT_TRY(clear_unset(zero, u));
    u->reduced_last = last;
    if (u->partial > 0) {
        gt_tensor full = full_gradient(zero, u), head;
        GT_TRY(gt_tensor_slice(&head, &full, 0, u->partial));
        GT_TRY(gt_all_reduce(zero->params.model_comm, &head, GT_SUM, NULL, &u->partial_work));
        zero->deferred = unit;
        return GT_OK;
    }
    return start_reduce(zero, u);
}

gt_status gt_zero_reduce(gt_zero *zero, int unit, bool last)
{
    GT_TRY(gti_zero_unit_check(zero, unit, 0));
    const struct zero_unit *u = &zero->units[unit];
    if (u->reduced_last) {
        return GT_FAIL(GT_ERR_STATE, "unit %s is reduced again after the step's last reduce",
                       u->name);
    }
    if (zero->stage <= 1 && !last) {
        return GT_OK;
    }
    return gti_zero_fail(zero, reduce(zero, unit, last));
}

static gt_status sum_tied(gt_zero *zero)
{
    for (int i = 0; i < zero->count; i++) {
        struct zero_unit *u = &zero->units[i];
        if (u->tie != NULL && gt_comm_size(u->tie) > 1) {
            GT_TRY(gt_all_reduce(u->tie, &u->grad, GT_SUM, NULL, NULL));
        }
    }
    return GT_OK;
}

static gt_status finish(gt_zero *zero)
{
    for (int i = zero->count - 1; i >= 0; i--) {
        if (!zero->units[i].reduced_last) {
            GT_TRY(gt_zero_reduce(zero, i, true));
        }
    }
    GT_TRY(gti_zero_flush_deferred(zero));
    for (int i = zero->count - 1; i >= 0; i--) {
        GT_TRY(complete_reduce(zero, &zero->units[i]));
    }
    return sum_tied(zero);
}

gt_status gt_zero_finish(gt_zero *zero)
{
    if (zero == NULL || !zero->allocated) {
        return GT_FAIL(GT_ERR_STATE, "gt_zero_finish before gt_zero_allocate");
    }
    GT_TRY(gti_zero_fail(zero, finish(zero)));
    return gti_zero_check_order(zero);
}

/* The distinct elements this rank answers for: its shard, at stage 0 too. */
static gt_status distinct(const gt_zero *zero, const struct zero_unit *u, gt_tensor *out)
{
    if (zero->stage > 0) {
        *out = u->grad;
        return GT_OK;
    }
    return gt_tensor_slice(out, &u->grad, zero->rank * u->shard, u->shard);
}

gt_status gt_zero_norm(gt_zero *zero, gt_tensor *acc)
{
    for (int i = 0; i < zero->count; i++) {
        const struct zero_unit *u = &zero->units[i];
        gt_tensor range;
        GT_TRY(distinct(zero, u, &range));
        for (int t = 0; t < u->count; t++) {
            struct zero_piece p = gti_zero_piece(&u->tensors[t], zero->rank * u->shard, u->shard);
            int64_t counted = u->tensors[t].counted - p.in_tensor;
            p.count = counted < p.count ? counted : p.count;
            if (p.count <= 0 || u->tensors[t].frozen) {
                continue;
            }
            gt_tensor piece;
            GT_TRY(gt_tensor_slice(&piece, &range, p.in_range, p.count));
            GT_TRY(gt_sum_sq(zero->ctx, acc, &piece, u->tensors[t].norm_weight, NULL));
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
    name[0] = '\0';
    for (int i = 0; i < zero->count; i++) {
        const struct zero_unit *u = &zero->units[i];
        gt_tensor range;
        GT_TRY(distinct(zero, u, &range));
        for (int t = 0; t < u->count; t++) {
            struct zero_piece p = gti_zero_piece(&u->tensors[t], zero->rank * u->shard, u->shard);
            if (p.count == 0 || u->tensors[t].frozen) {
                continue;
            }
            gt_tensor piece;
            int64_t index = -1;
            GT_TRY(gt_tensor_slice(&piece, &range, p.in_range, p.count));
            GT_TRY(first_nonfinite(zero, &piece, &index));
            if (index >= 0) {
                snprintf(name, size, "%s", u->tensors[t].name);
                return GT_OK;
            }
        }
    }
    return GT_OK;
}

gt_status gt_zero_discard(gt_zero *zero)
{
    for (int i = 0; i < zero->count; i++) {
        struct zero_unit *u = &zero->units[i];
        gti_zero_pool_give(&u->grad_buffer);
        u->grad_open = false;
        u->grad_summed = false;
        u->reduced_last = false;
    }
    return GT_OK;
}
