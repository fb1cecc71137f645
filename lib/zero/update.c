/* SPDX-License-Identifier: Apache-2.0
 * The optimizer step on this rank's state, and the way of new parameters back to every rank. */
#include "zero/state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"

/* What the optimizer gets of a parameter: elements [first, + count) of the local tensor, of which
 * the state range holds all. */
static gt_status make_call(gt_zero *zero, int param, const struct zero_states *states,
                           struct zero_piece piece, gt_optimizer_call *call)
{
    const struct gti_param *p = &zero->table->param[param];
    struct zero_bucket *b = gti_zero_bucket(zero, p);
    int64_t width = states->master.dtype == GT_U8 ? 2 : 1;
    call->param = param;
    call->first = piece.first;
    call->count = piece.count;
    GT_TRY(gt_tensor_slice(&call->weight, &b->own, piece.at, piece.count));
    GT_TRY(gt_tensor_slice(&call->master, &states->master, piece.at * width, piece.count * width));
    GT_TRY(gt_tensor_slice(&call->grad, &b->grad, piece.at, piece.count));
    if (zero->scratch.data != NULL) {
        GT_TRY(gt_tensor_slice(&call->scratch, &zero->scratch, piece.at, piece.count));
    }
    for (int i = 0; i < zero->elementwise; i++) {
        GT_TRY(gt_tensor_slice(&call->state[i], &states->state[i], piece.at, piece.count));
    }
    memcpy(call->vector, zero->param[param].vector, sizeof(call->vector));
    return GT_OK;
}

/* What is the same for all parameters of a step, then the parameter's scales of it. */
static gt_optimizer_call begin_call(const gt_zero *zero, double grad_scale, int64_t step)
{
    return (gt_optimizer_call){.struct_size = sizeof(gt_optimizer_call),
                               .ctx = zero->ctx,
                               .config = &zero->params.optimizer,
                               .user = zero->params.rule_user,
                               .table = zero->table,
                               .grad_scale = grad_scale,
                               .step = step};
}

static void scale_call(const gt_zero *zero, const struct gti_param *p, double lr,
                       gt_optimizer_call *call)
{
    call->lr = lr * (double)p->lr_scale;
    call->weight_decay = zero->params.optimizer.weight_decay * (double)p->decay_scale;
}

/* ---- sums over whole tensors, for rules that want them ----------------------------------------
 */

static gt_status count_sums(const gt_zero *zero, int param, int64_t *out)
{
    const struct gti_param *p = &zero->table->param[param];
    gt_param_info info = GT_PARAM_INFO_INIT;
    *out = 0;
    if (p->frozen || zero->rule->sums == NULL) {
        return GT_OK;
    }
    GT_TRY(gt_params_get(zero->table, param, &info));
    *out = zero->rule->sums(&zero->params.optimizer, zero->params.rule_user, &info);
    if (*out < 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "optimizer %s wants %lld sums of %s", zero->rule->type,
                       (long long)*out, p->decl.name);
    }
    return GT_OK;
}

/* Sums of a unit: its parameters' one after the other, then room for what is not to be counted. */
static gt_status unit_sums(const gt_zero *zero, const struct gti_unit *u, int64_t *total,
                           int64_t *most)
{
    *total = *most = 0;
    for (int i = 0; i < u->count; i++) {
        int64_t n;
        GT_TRY(count_sums(zero, u->param[i], &n));
        *total += n;
        *most = n > *most ? n : *most;
    }
    return GT_OK;
}

static gt_status make_workspace(gt_zero *zero)
{
    int64_t sums = 0, elements = 1;
    if (zero->sums.data != NULL && zero->scratch.data != NULL && zero->host_sums != NULL) {
        return GT_OK;
    }
    for (int i = 0; i < zero->count; i++) {
        int64_t total, most;
        int64_t n = gti_zero_state_count(zero, &zero->units[i].bucket[GTI_TRAINED]);
        GT_TRY(unit_sums(zero, zero->units[i].row, &total, &most));
        sums = total + most > sums ? total + most : sums;
        elements = n > elements ? n : elements;
    }
    sums += 1;
    if (zero->host_sums == NULL) {
        zero->host_sums = malloc((size_t)sums * sizeof(double));
    }
    if (zero->host_sums == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for %lld sums", (long long)sums);
    }
    if (zero->sums.data == NULL) {
        GT_TRY(gt_tensor_alloc(zero->ctx, &zero->sums, GT_MEM_WORKSPACE, GT_F64, 1, &sums));
    }
    if (zero->scratch.data == NULL) {
        GT_TRY(gt_tensor_alloc(zero->ctx, &zero->scratch, GT_MEM_WORKSPACE, GT_F32, 1, &elements));
    }
    return GT_OK;
}

/* Every element of the state range is measured, but of those that another rank counts the sums go
 * nowhere: at stage 0 all ranks hold everything, and replicas are held by several. */
static gt_status measure_param(gt_zero *zero, const struct zero_states *states, int param,
                               gt_tensor *sums, gt_tensor *nowhere, gt_optimizer_call *call)
{
    const struct gti_param *p = &zero->table->param[param];
    struct zero_piece all = gti_zero_state_piece(zero, p);
    int64_t at = all.first, end = all.first + all.count;
    while (at < end) {
        bool counts = gti_param_counts(zero->table, p, gti_param_run(p, at, end).piece);
        int64_t stop = at;
        while (stop < end) {
            struct gti_run run = gti_param_run(p, stop, end);
            if (gti_param_counts(zero->table, p, run.piece) != counts) {
                break;
            }
            stop += run.count;
        }
        struct zero_piece piece = {at, stop - at, all.at + at - all.first};
        GT_TRY(make_call(zero, param, states, piece, call));
        GT_TRY(zero->rule->measure(call, counts ? sums : nowhere));
        at = stop;
    }
    return GT_OK;
}

static gt_status measure_unit(gt_zero *zero, struct zero_unit *u, double lr,
                              gt_optimizer_call *call)
{
    struct zero_bucket *b = &u->bucket[GTI_TRAINED];
    struct zero_states states;
    int64_t total, most, at = 0;
    gt_tensor all, nowhere;
    GT_TRY(unit_sums(zero, u->row, &total, &most));
    GT_TRY(gt_tensor_slice(&all, &zero->sums, 0, total));
    GT_TRY(gt_tensor_slice(&nowhere, &zero->sums, total, most));
    GT_TRY(gt_fill(zero->ctx, &all, 0.0, NULL));
    GT_TRY(gt_fill(zero->ctx, &nowhere, 0.0, NULL));
    GT_TRY(gti_zero_offload_begin(zero, b, &states));
    for (int i = 0; i < u->row->count; i++) {
        int64_t n;
        gt_tensor sums, spill;
        GT_TRY(count_sums(zero, u->row->param[i], &n));
        if (n == 0) {
            continue;
        }
        GT_TRY(gt_tensor_slice(&sums, &all, at, n));
        GT_TRY(gt_tensor_slice(&spill, &nowhere, 0, n));
        scale_call(zero, &zero->table->param[u->row->param[i]], lr, call);
        GT_TRY(measure_param(zero, &states, u->row->param[i], &sums, &spill, call));
        at += n;
    }
    GT_TRY(gti_zero_offload_end(zero, b, &states));
    GT_TRY(gt_copy_to_host(zero->ctx, zero->host_sums, &all, NULL));
    gt_tensor host = gt_tensor_1d(zero->host_sums, GT_F64, total);
    if (zero->stage > 0) {
        GT_TRY(gt_all_reduce(zero->comm, &host, GT_SUM, NULL, NULL));
    }
    return zero->params.model_comm
               ? gt_all_reduce(zero->params.model_comm, &host, GT_SUM, NULL, NULL)
               : GT_OK;
}

/* ---- update -----------------------------------------------------------------------------------
 */

static gt_status update_unit(gt_zero *zero, struct zero_unit *u, double lr, double grad_scale,
                             int64_t step)
{
    struct zero_bucket *b = &u->bucket[GTI_TRAINED];
    gt_optimizer_call call = begin_call(zero, grad_scale, step);
    struct zero_states states;
    int64_t at = 0;
    if (zero->rule->sums != NULL) {
        GT_TRY(make_workspace(zero));
        GT_TRY(measure_unit(zero, u, lr, &call));
    }
    GT_TRY(gti_zero_offload_begin(zero, b, &states));
    for (int i = 0; i < u->row->count; i++) {
        const struct gti_param *p = &zero->table->param[u->row->param[i]];
        struct zero_piece piece = gti_zero_state_piece(zero, p);
        int64_t n;
        GT_TRY(count_sums(zero, u->row->param[i], &n));
        bool idle =
            p->frozen || (piece.count == 0 &&
                          p->states <= 1 + zero->elementwise + gti_zero_separate_master(zero));
        if (!idle) {
            GT_TRY(make_call(zero, u->row->param[i], &states, piece, &call));
            scale_call(zero, p, lr, &call);
            GT_TRY(zero->rule->update(&call, n > 0 ? zero->host_sums + at : NULL));
        }
        at += n;
    }
    return gti_zero_offload_end(zero, b, &states);
}

gt_status gti_zero_publish_bucket(gt_zero *zero, struct zero_bucket *b)
{
    if (zero->stage == 0 || b->flat->padded == 0 || (!b->persistent && zero->across == NULL)) {
        return GT_OK;
    }
    GT_TRY(gt_work_wait(&b->gather_work, NULL));
    return b->persistent ? gt_all_gather(zero->comm, &b->full, &b->own, NULL, &b->gather_work)
                         : gt_all_gather(zero->across, &b->near, &b->own, NULL, &b->gather_work);
}

static gt_status update_all(gt_zero *zero, double lr, double grad_scale, int64_t step)
{
    for (int i = 0; i < zero->count; i++) {
        struct zero_bucket *b = &zero->units[i].bucket[GTI_TRAINED];
        if (b->flat->padded == 0) {
            continue;
        }
        if (b->gather_work != NULL) { /* nobody gathered it since the last step */
            GT_TRY(gt_work_wait(&b->gather_work, NULL));
        }
        GT_TRY(update_unit(zero, &zero->units[i], lr, grad_scale, step));
        GT_TRY(gti_zero_publish_bucket(zero, b));
    }
    return gt_zero_discard(zero);
}

static gt_status check_update(const gt_zero *zero, double lr, double grad_scale, int64_t step)
{
    if (zero == NULL || !zero->allocated || step < 1 || !isfinite(lr) || !isfinite(grad_scale)) {
        return GT_FAIL(GT_ERR_ARGUMENT,
                       "gt_zero_update with lr %g, grad_scale %g, step %lld: wanted allocated "
                       "state, finite numbers and a step from 1 on",
                       lr, grad_scale, (long long)step);
    }
    GT_TRY(gti_zero_check_released(zero, "gt_zero_update"));
    for (int i = 0; i < zero->count; i++) {
        const struct zero_bucket *b = &zero->units[i].bucket[GTI_TRAINED];
        if (!b->reduced_last && b->flat->padded > 0) {
            return GT_FAIL(GT_ERR_STATE, "gt_zero_update before gt_zero_finish");
        }
    }
    return GT_OK;
}

gt_status gti_zero_update(gt_zero *zero, double lr, double grad_scale, int64_t step)
{
    GT_TRY(check_update(zero, lr, grad_scale, step));
    return gti_zero_fail(zero, update_all(zero, lr, grad_scale, step));
}

gt_status gt_zero_update(gt_zero *zero, double lr, double grad_scale, int64_t step)
{
    GT_TRY(check_update(zero, lr, grad_scale, step));
    if (zero->size > 1) {
        const double numbers[] = {lr, grad_scale, (double)step};
        GT_TRY(gt_comm_check_equal(zero->comm,
                                   "learning rate, grad_scale and step of gt_zero_update", numbers,
                                   sizeof(numbers)));
    }
    return gti_zero_fail(zero, update_all(zero, lr, grad_scale, step));
}

gt_status gt_zero_set_weight_decay(gt_zero *zero, double weight_decay)
{
    if (zero == NULL || !isfinite(weight_decay) || weight_decay < 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "weight decay %g, wanted a finite number from 0 on",
                       weight_decay);
    }
    zero->params.optimizer.weight_decay = weight_decay;
    return GT_OK;
}
