/* SPDX-License-Identifier: Apache-2.0 */
#include "optim/optimizers.h"

static int states(const gt_optimizer_config *config, void *user,
                  gt_optimizer_state out[GT_OPTIMIZER_STATES])
{
    (void)user;
    out[0] = (gt_optimizer_state){.name = "velocity", .dtype = config->moments_dtype};
    return config->momentum != 0.0;
}

static gt_status update(const gt_optimizer_call *call, const double *sums)
{
    (void)sums;
    gt_sgd_params p = GT_SGD_PARAMS_INIT;
    p.lr = (float)call->lr;
    p.momentum = (float)call->config->momentum;
    p.dampening = (float)call->config->dampening;
    p.weight_decay = (float)call->weight_decay;
    p.grad_scale = (float)call->grad_scale;
    p.nesterov = call->config->nesterov;
    p.step = call->step;
    gt_tensor weight = call->weight, master = call->master, velocity = call->state[0];
    return gt_sgd(call->ctx, &weight, &master, velocity.data ? &velocity : NULL, &call->grad, &p,
                  call->stream);
}

const gt_optimizer gti_optimizer_sgd = {
    .struct_size = sizeof(gt_optimizer), .type = "SGD", .states = states, .update = update};
