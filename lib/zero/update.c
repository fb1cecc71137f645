/* SPDX-License-Identifier: Apache-2.0
 * The optimizer step on this rank's state, and the way of new parameters back to every rank. */
#include "zero/state.h"

#include <math.h>
#include <stdlib.h>

#include "core/fail.h"

struct piece_tensors {
    gt_tensor param, master, m, v, grad;
};

static gt_status slice_if(gt_tensor *out, const gt_tensor *t, struct zero_piece p, int64_t width)
{
    if (t->data == NULL) {
        *out = (gt_tensor){0};
        return GT_OK;
    }
    return gt_tensor_slice(out, t, p.in_range * width, p.count * width);
}

static gt_status cut(struct zero_unit *u, const gt_tensor states[GTI_MAX_STATES],
                     struct zero_piece p, struct piece_tensors *out)
{
    int64_t master_width = states[0].dtype == GT_U8 ? 2 : 1;
    GT_TRY(slice_if(&out->param, &u->own, p, 1));
    GT_TRY(slice_if(&out->master, &states[0], p, master_width));
    GT_TRY(slice_if(&out->m, &states[1], p, 1));
    GT_TRY(slice_if(&out->v, &states[2], p, 1));
    return slice_if(&out->grad, &u->grad, p, 1);
}

static gt_adamw_params adamw_params(const gt_zero *zero, const struct zero_tensor *t, double lr,
                                    double grad_scale, int64_t step)
{
    const gt_optimizer_config *o = &zero->params.optimizer;
    gt_adamw_params p = GT_ADAMW_PARAMS_INIT;
    p.lr = (float)(lr * (double)t->lr_scale);
    p.beta1 = (float)o->beta1;
    p.beta2 = (float)o->beta2;
    p.eps = (float)o->eps;
    p.weight_decay = (float)(o->weight_decay * (double)t->decay_scale);
    p.grad_scale = (float)grad_scale;
    p.step = step;
    p.l2 = o->type == GT_ADAM;
    return p;
}

static gt_status step_piece(gt_zero *zero, struct piece_tensors *x, const gt_adamw_params *a)
{
    const gt_optimizer_config *o = &zero->params.optimizer;
    if (o->type == GT_SGD) {
        gt_sgd_params s = GT_SGD_PARAMS_INIT;
        s.lr = a->lr;
        s.momentum = (float)o->momentum;
        s.dampening = (float)o->dampening;
        s.weight_decay = a->weight_decay;
        s.grad_scale = a->grad_scale;
        s.nesterov = o->nesterov;
        s.step = a->step;
        return gt_sgd(zero->ctx, &x->param, &x->master, x->v.data ? &x->v : NULL, &x->grad, &s,
                      NULL);
    }
    if (o->type == GT_LION) {
        gt_lion_params l = GT_LION_PARAMS_INIT;
        l.lr = a->lr;
        l.beta1 = a->beta1;
        l.beta2 = a->beta2;
        l.weight_decay = a->weight_decay;
        l.grad_scale = a->grad_scale;
        return gt_lion(zero->ctx, &x->param, &x->master, &x->m, &x->grad, &l, NULL);
    }
    return gt_adamw(zero->ctx, &x->param, &x->master, &x->m, &x->v, &x->grad, a, NULL);
}

static gt_status update_unit(gt_zero *zero, struct zero_unit *u, double lr, double grad_scale,
                             int64_t step)
{
    gt_tensor states[GTI_MAX_STATES];
    GT_TRY(gti_zero_offload_begin(zero, u, states));
    int64_t first = gti_zero_state_first(zero, u), count = gti_zero_state_count(zero, u);
    for (int i = 0; i < u->count; i++) {
        const struct zero_tensor *t = &u->tensors[i];
        struct zero_piece p = gti_zero_piece(t, first, count);
        if (p.count == 0 || t->frozen) {
            continue;
        }
        struct piece_tensors x;
        gt_adamw_params a = adamw_params(zero, t, lr, grad_scale, step);
        GT_TRY(cut(u, states, p, &x));
        GT_TRY(step_piece(zero, &x, &a));
    }
    return gti_zero_offload_end(zero, u, states);
}

/* ---- LAMB: the trust ratio needs the norms of whole tensors, hence two sweeps -----------------
 */

static int tensor_count(const gt_zero *zero)
{
    int n = 0;
    for (int i = 0; i < zero->count; i++) {
        n += zero->units[i].count;
    }
    return n;
}

static gt_status lamb_workspace(gt_zero *zero)
{
    if (zero->lamb_update.data != NULL) {
        return GT_OK;
    }
    int64_t largest = 1, norms = 2 * (int64_t)tensor_count(zero) + 1;
    for (int i = 0; i < zero->count; i++) {
        int64_t count = gti_zero_state_count(zero, &zero->units[i]);
        largest = count > largest ? count : largest;
    }
    if (zero->lamb_host == NULL) {
        zero->lamb_host = malloc((size_t)norms * sizeof(double));
    }
    if (zero->lamb_host == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for %lld norms", (long long)norms);
    }
    if (zero->lamb_norms.data == NULL) {
        GT_TRY(gt_tensor_alloc(zero->ctx, &zero->lamb_norms, GT_MEM_WORKSPACE, GT_F64, 1, &norms));
    }
    return gt_tensor_alloc(zero->ctx, &zero->lamb_update, GT_MEM_WORKSPACE, GT_F32, 1, &largest);
}

/* update = what LAMB would add, before the trust ratio; norms[2] += its and the weights' squares.
 * The moments advance only when `moments` says so: the second sweep must not advance them again. */
static gt_status lamb_first(gt_zero *zero, struct zero_unit *u, gt_tensor *norms, double lr,
                            double grad_scale, int64_t step)
{
    gt_tensor states[GTI_MAX_STATES];
    GT_TRY(gti_zero_offload_begin(zero, u, states));
    int64_t first = gti_zero_state_first(zero, u), count = gti_zero_state_count(zero, u);
    for (int i = 0; i < u->count; i++) {
        struct zero_piece p = gti_zero_piece(&u->tensors[i], first, count);
        if (p.count == 0 || u->tensors[i].frozen) {
            continue;
        }
        struct piece_tensors x;
        gt_tensor update, norm;
        gt_adamw_params a = adamw_params(zero, &u->tensors[i], lr, grad_scale, step);
        GT_TRY(cut(u, states, p, &x));
        GT_TRY(gt_tensor_slice(&update, &zero->lamb_update, p.in_range, p.count));
        GT_TRY(gt_tensor_slice(&norm, norms, 2 * i, 2));
        GT_TRY(gt_lamb_update(zero->ctx, &update, &x.m, &x.v, &norm, &x.master, &x.grad, &a, NULL));
    }
    return gti_zero_offload_end(zero, u, states);
}

static gt_status lamb_trust(gt_zero *zero, struct zero_unit *u, gt_tensor *norms, double *host)
{
    GT_TRY(gt_copy_to_host(zero->ctx, host, norms, NULL));
    gt_tensor sums = gt_tensor_1d(host, GT_F64, 2 * (int64_t)u->count);
    if (zero->stage > 0) {
        GT_TRY(gt_all_reduce(zero->comm, &sums, GT_SUM, NULL, NULL));
    }
    if (zero->params.model_comm != NULL) {
        for (int i = 0; i < u->count; i++) {
            if (u->tensors[i].norm_weight == 0.0 && u->tie == NULL) {
                host[2 * i] = host[2 * i + 1] = 0.0; /* a replica; another rank counts it */
            }
        }
        GT_TRY(gt_all_reduce(zero->params.model_comm, &sums, GT_SUM, NULL, NULL));
    }
    return GT_OK;
}

static gt_status lamb_second(gt_zero *zero, struct zero_unit *u, const double *sums, double lr)
{
    const gt_optimizer_config *o = &zero->params.optimizer;
    gt_tensor states[GTI_MAX_STATES];
    GT_TRY(gti_zero_offload_begin(zero, u, states));
    int64_t first = gti_zero_state_first(zero, u), count = gti_zero_state_count(zero, u);
    for (int i = 0; i < u->count; i++) {
        struct zero_piece p = gti_zero_piece(&u->tensors[i], first, count);
        if (p.count == 0 || u->tensors[i].frozen) {
            continue;
        }
        double trust =
            gt_lamb_trust(&sums[2 * i], o->min_coeff, o->max_coeff > 0.0 ? o->max_coeff : INFINITY);
        struct piece_tensors x;
        gt_tensor step;
        GT_TRY(cut(u, states, p, &x));
        GT_TRY(gt_tensor_slice(&step, &zero->lamb_update, p.in_range, p.count));
        GT_TRY(gt_lamb_apply(zero->ctx, &x.param, &x.master, &step,
                             (float)(lr * (double)u->tensors[i].lr_scale), (float)trust, NULL));
    }
    return gti_zero_offload_end(zero, u, states);
}

static gt_status lamb_unit(gt_zero *zero, struct zero_unit *u, double lr, double grad_scale,
                           int64_t step)
{
    gt_tensor norms;
    GT_TRY(lamb_workspace(zero));
    GT_TRY(gt_tensor_slice(&norms, &zero->lamb_norms, 0, 2 * (int64_t)u->count));
    GT_TRY(gt_fill(zero->ctx, &norms, 0.0, NULL));
    GT_TRY(lamb_first(zero, u, &norms, lr, grad_scale, step));
    GT_TRY(lamb_trust(zero, u, &norms, zero->lamb_host));
    return lamb_second(zero, u, zero->lamb_host, lr);
}

/* ---- publication ------------------------------------------------------------------------------
 */

/* Every rank's new slice to all; waited for when the unit is next gathered. */
static gt_status publish_unit(gt_zero *zero, struct zero_unit *u)
{
    if (zero->stage == 0 || (!u->persistent && zero->across == NULL)) {
        return GT_OK;
    }
    GT_TRY(gt_work_wait(&u->gather_work, NULL));
    return u->persistent ? gt_all_gather(zero->comm, &u->full, &u->own, NULL, &u->gather_work)
                         : gt_all_gather(zero->across, &u->near, &u->own, NULL, &u->gather_work);
}

static gt_status update(gt_zero *zero, double lr, double grad_scale, int64_t step)
{
    for (int i = 0; i < zero->count; i++) {
        struct zero_unit *u = &zero->units[i];
        if (u->gather_work != NULL) { /* nobody gathered it since the last step */
            GT_TRY(gt_work_wait(&u->gather_work, NULL));
        }
        GT_TRY(zero->params.optimizer.type == GT_LAMB ? lamb_unit(zero, u, lr, grad_scale, step)
                                                      : update_unit(zero, u, lr, grad_scale, step));
        GT_TRY(publish_unit(zero, u));
    }
    return gt_zero_discard(zero);
}

gt_status gt_zero_update(gt_zero *zero, double lr, double grad_scale, int64_t step)
{
    if (zero == NULL || !zero->allocated || step < 1) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_zero_update needs allocated state and step >= 1");
    }
    for (int i = 0; i < zero->count; i++) {
        if (!zero->units[i].reduced_last) {
            return GT_FAIL(GT_ERR_STATE, "gt_zero_update before gt_zero_finish");
        }
    }
    return gti_zero_fail(zero, update(zero, lr, grad_scale, step));
}

/* From masters to working parameters after initialisation or loading. */
static gt_status round_unit(gt_zero *zero, struct zero_unit *u)
{
    if (zero->params.dtype == GT_F32) {
        return GT_OK;
    }
    gt_tensor states[GTI_MAX_STATES];
    GT_TRY(gt_work_wait(&u->gather_work, NULL)); /* the last publication reads what is written */
    GT_TRY(gti_zero_offload_begin(zero, u, states));
    if (states[0].dtype == GT_F32) {
        GT_TRY(gt_cast(zero->ctx, &u->own, &states[0], NULL));
    }
    return gti_zero_offload_end(zero, u, states);
}

static gt_status publish(gt_zero *zero)
{
    for (int i = 0; i < zero->count; i++) {
        GT_TRY(round_unit(zero, &zero->units[i]));
        GT_TRY(publish_unit(zero, &zero->units[i]));
    }
    return GT_OK;
}

gt_status gt_zero_publish(gt_zero *zero)
{
    return gti_zero_fail(zero, publish(zero));
}
