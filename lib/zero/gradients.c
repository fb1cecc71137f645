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

#include "core/fail.h"

static bool casts(const gt_zero *zero)
{
    return zero->stage <= 1 && zero->size > 1 &&
           zero->params.communication_dtype != zero->params.accum_dtype;
}

static bool present(const struct zero_bucket *b)
{
    return b->flat->padded > 0;
}

static size_t full_bytes(const gt_zero *zero, const struct zero_bucket *b)
{
    return (size_t)b->flat->padded * gt_dtype_size(zero->params.communication_dtype);
}

static gt_tensor transient(const gt_zero *zero, const struct zero_bucket *b)
{
    gt_tensor t =
        gt_tensor_1d(b->grad_buffer->data, zero->params.communication_dtype, b->flat->padded);
    t.device = gt_context_device(zero->ctx);
    return t;
}

/* The full gradient that backward adds to and collectives read. */
static gt_tensor full_gradient(const gt_zero *zero, const struct zero_bucket *b)
{
    return zero->stage <= 1 ? b->grad_full : transient(zero, b);
}

static gt_status own_slice(const gt_zero *zero, const struct zero_bucket *b, gt_tensor *out)
{
    gt_tensor whole = transient(zero, b);
    return gt_tensor_slice(out, &whole, zero->rank * b->flat->shard, b->flat->shard);
}

static gt_status wait_named(const struct zero_bucket *b, gt_work **work)
{
    gt_status st = gt_work_wait(work, NULL);
    if (st != GT_OK) {
        return gti_fail_in(st, "reducing the gradients of unit %s", b->unit->row->name);
    }
    return GT_OK;
}

/* After a reduction: what is left to do with its result. */
static gt_status complete_reduce(gt_zero *zero, struct zero_bucket *b)
{
    if (b->reduce_work == NULL) {
        return GT_OK;
    }
    GT_TRY(wait_named(b, &b->reduce_work));
    if (b->grad_buffer == NULL) {
        return GT_OK;
    }
    gt_tensor sum;
    if (casts(zero)) {
        sum = transient(zero, b);
        if (zero->stage == 1) {
            GT_TRY(own_slice(zero, b, &sum));
        }
        GT_TRY(gt_cast(zero->ctx, &b->grad, &sum, NULL));
    } else if (zero->params.accum_dtype != GT_F32) {
        GT_TRY(own_slice(zero, b, &sum));
        GT_TRY(gt_axpby(zero->ctx, &b->grad, &sum, 1.0f, b->grad_summed ? 1.0f : 0.0f, NULL));
    }
    b->grad_summed = true;
    gti_zero_pool_give(&b->grad_buffer);
    return GT_OK;
}

/* A buffer for a transient gradient, waiting for the oldest reduction when both are in flight. */
static gt_status take_buffer(gt_zero *zero, struct zero_bucket *b)
{
    size_t bytes = full_bytes(zero, b);
    for (int i = zero->count - 1; i >= 0; i--) { /* backward order: the oldest first */
        struct zero_bucket *older = &zero->units[i].bucket[GTI_TRAINED];
        int count, unused;
        gti_zero_pool_class(&zero->grad_pool, bytes, &count, &unused);
        if (unused > 0 || count < 2) {
            break;
        }
        if (older->reduce_work != NULL && older->grad_buffer != NULL) {
            GT_TRY(complete_reduce(zero, older));
        }
    }
    return gti_zero_pool_take(zero, &zero->grad_pool, bytes, &b->grad_buffer);
}

static gt_status clear(gt_zero *zero, const struct zero_bucket *b, int64_t from, int64_t to)
{
    gt_tensor full = full_gradient(zero, b), range;
    if (to <= from) {
        return GT_OK;
    }
    GT_TRY(gt_tensor_slice(&range, &full, from, to - from));
    return gt_fill(zero->ctx, &range, 0.0, NULL);
}

static gt_status open_gradients(gt_zero *zero, struct zero_bucket *b)
{
    const struct gti_unit *u = b->unit->row;
    if (zero->stage >= 2) {
        GT_TRY(complete_reduce(zero, b));
        GT_TRY(take_buffer(zero, b));
    }
    int64_t from = 0; /* what lies between tensors that backward sets is cleared, padding too */
    for (int i = 0; i < u->count; i++) {
        const struct gti_param *p = &zero->table->param[u->param[i]];
        struct zero_param *z = &zero->param[u->param[i]];
        z->unset = z->sets_gradient && !p->frozen;
        if (z->unset) {
            GT_TRY(clear(zero, b, from, p->offset));
            from = p->offset + p->local_numel;
        }
    }
    GT_TRY(clear(zero, b, from, b->flat->padded));
    b->grad_open = true;
    return GT_OK;
}

/* Tensors that backward was to set, and did not. */
static gt_status clear_unset(gt_zero *zero, struct zero_bucket *b)
{
    const struct gti_unit *u = b->unit->row;
    for (int i = 0; i < u->count; i++) {
        const struct gti_param *p = &zero->table->param[u->param[i]];
        struct zero_param *z = &zero->param[u->param[i]];
        if (z->unset) {
            GT_TRY(clear(zero, b, p->offset, p->offset + p->local_numel));
            z->unset = false;
        }
    }
    return GT_OK;
}

gt_status gt_zero_grad(gt_zero *zero, int param, gt_tensor *out)
{
    bool unset = false;
    GT_TRY(gt_zero_grad_unset(zero, param, out, &unset));
    return unset ? gt_fill(zero->ctx, out, 0.0, NULL) : GT_OK;
}

gt_status gt_zero_grad_unset(gt_zero *zero, int param, gt_tensor *out, bool *unset)
{
    const struct gti_param *p;
    if (out == NULL || unset == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the gradient of parameter %d is asked for with NULL",
                       param);
    }
    GT_TRY(gti_zero_check_param(zero, param, &p));
    struct zero_bucket *b = gti_zero_bucket(zero, p);
    struct zero_param *z = &zero->param[param];
    if (p->frozen || !present(b)) {
        *unset = false;
        *out = (gt_tensor){0};
        return GT_OK;
    }
    if (b->reduced_last) {
        return GT_FAIL(GT_ERR_STATE,
                       "gradient of %s asked for after its unit's last reduce of the "
                       "step",
                       p->decl.name);
    }
    if (zero->deferred == b) { /* the last microbatch's gradient is still being summed */
        GT_TRY(gti_zero_fail(zero, gti_zero_flush_deferred(zero)));
    }
    if (!b->grad_open) {
        GT_TRY(gti_zero_fail(zero, open_gradients(zero, b)));
    }
    gt_tensor full = full_gradient(zero, b);
    GT_TRY(gt_tensor_slice(out, &full, p->offset, p->local_numel));
    *unset = z->unset;
    z->unset = false;
    return GT_OK;
}

static gt_status start_full_reduce(gt_zero *zero, struct zero_bucket *b)
{
    gt_tensor full = b->grad_full;
    if (casts(zero)) {
        GT_TRY(take_buffer(zero, b));
        full = transient(zero, b);
        GT_TRY(gt_cast(zero->ctx, &full, &b->grad_full, NULL));
    }
    if (zero->stage == 0) {
        return gt_all_reduce(zero->comm, &full, GT_SUM, NULL, &b->reduce_work);
    }
    gt_tensor own = b->grad;
    if (casts(zero)) {
        GT_TRY(own_slice(zero, b, &own));
    }
    return gt_reduce_scatter(zero->comm, &own, &full, GT_SUM, NULL, &b->reduce_work);
}

static gt_status start_shard_reduce(gt_zero *zero, struct zero_bucket *b)
{
    gt_tensor full = transient(zero, b);
    b->grad_open = false;
    if (zero->params.accum_dtype == GT_F32) {
        if (!b->grad_summed) {
            GT_TRY(gt_fill(zero->ctx, &b->grad, 0.0, NULL));
            b->grad_summed = true;
        }
        return gt_reduce_scatter_add(zero->comm, &b->grad, &full, NULL, &b->reduce_work);
    }
    gt_tensor own;
    GT_TRY(own_slice(zero, b, &own));
    return gt_reduce_scatter(zero->comm, &own, &full, GT_SUM, NULL, &b->reduce_work);
}

static gt_status start_reduce(gt_zero *zero, struct zero_bucket *b)
{
    if (zero->stage >= 2) {
        return start_shard_reduce(zero, b);
    }
    b->grad_summed = true;
    return zero->size == 1 ? GT_OK : start_full_reduce(zero, b);
}

gt_status gti_zero_flush_deferred(gt_zero *zero)
{
    struct zero_bucket *b = zero->deferred;
    if (b == NULL) {
        return GT_OK;
    }
    zero->deferred = NULL;
    GT_TRY(wait_named(b, &b->partial_work));
    return start_reduce(zero, b);
}

static gt_status reduce(gt_zero *zero, struct zero_bucket *b, bool last)
{
    GT_TRY(gti_zero_flush_deferred(zero));
    if (!b->grad_open) { /* not used here; the other ranks may have used it */
        GT_TRY(open_gradients(zero, b));
    }
    GT_TRY(clear_unset(zero, b));
    b->reduced = true;
    b->reduced_last = last;
    gt_tensor full = full_gradient(zero, b), head;
    GT_TRY(gti_zero_sum_shared(zero, b, &full));
    if (b->flat->partial > 0) {
        GT_TRY(gt_tensor_slice(&head, &full, 0, b->flat->partial));
        GT_TRY(gt_all_reduce(zero->params.model_comm, &head, GT_SUM, NULL, &b->partial_work));
        zero->deferred = b;
        return GT_OK;
    }
    return start_reduce(zero, b);
}

gt_status gt_zero_reduce(gt_zero *zero, int unit, bool last)
{
    GT_TRY(gti_zero_check_unit(zero, unit));
    struct zero_bucket *b = &zero->units[unit].bucket[GTI_TRAINED];
    if (!present(b)) {
        return GT_OK; /* nothing in it is trained */
    }
    if (b->reduced_last) {
        return GT_FAIL(GT_ERR_STATE, "unit %s is reduced again after the step's last reduce",
                       b->unit->row->name);
    }
    if (zero->stage <= 1 && !last) {
        return GT_OK;
    }
    return gti_zero_fail(zero, reduce(zero, b, last));
}

static gt_status sum_tied(gt_zero *zero)
{
    for (int i = 0; i < zero->count; i++) {
        struct zero_unit *u = &zero->units[i];
        struct zero_bucket *b = &u->bucket[GTI_TRAINED];
        if (u->row->tie != NULL && gt_comm_size(u->row->tie) > 1 && present(b)) {
            GT_TRY(gt_all_reduce(u->row->tie, &b->grad, GT_SUM, NULL, NULL));
        }
    }
    return GT_OK;
}

/* A unit that was given away with every microbatch has nothing left to reduce. */
static gt_status finish_bucket(gt_zero *zero, struct zero_bucket *b)
{
    if (!present(b) || b->reduced_last) {
        return GT_OK;
    }
    if (zero->stage >= 2 && b->reduced) {
        if (b->grad_open) {
            return GT_FAIL(GT_ERR_STATE,
                           "the gradient of unit %s was added to after its last gt_zero_reduce",
                           b->unit->row->name);
        }
        b->reduced_last = true;
        return GT_OK;
    }
    return reduce(zero, b, true);
}

static gt_status finish(gt_zero *zero)
{
    GT_TRY(gti_zero_check_released(zero, "gt_zero_finish"));
    for (int i = zero->count - 1; i >= 0; i--) {
        GT_TRY(finish_bucket(zero, &zero->units[i].bucket[GTI_TRAINED]));
    }
    GT_TRY(gti_zero_flush_deferred(zero));
    for (int i = zero->count - 1; i >= 0; i--) {
        GT_TRY(complete_reduce(zero, &zero->units[i].bucket[GTI_TRAINED]));
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

gt_status gt_zero_discard(gt_zero *zero)
{
    if (zero == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_zero_discard: zero is NULL");
    }
    for (int i = 0; i < zero->count; i++) {
        struct zero_bucket *b = &zero->units[i].bucket[GTI_TRAINED];
        gti_zero_pool_give(&b->grad_buffer);
        b->grad_open = false;
        b->grad_summed = false;
        b->reduced = false;
        b->reduced_last = false;
    }
    return GT_OK;
}
