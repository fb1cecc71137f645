/* SPDX-License-Identifier: Apache-2.0 */
#include "optim/optimizers.h"

static int states(const gt_optimizer_config *config, void *user,
                  gt_optimizer_state out[GT_OPTIMIZER_STATES])
{
    (void)user;
    out[0] = (gt_optimizer_state){.name = "m", .dtype = config->moments_dtype};
    return 1;
}

static gt_status update(const gt_optimizer_call *call, const double *sums)
{
    (void)sums;
    gt_lion_params p = GT_LION_PARAMS_INIT;
    p.lr = (float)call->lr;
    p.beta1 = (float)call->config->beta1;
    p.beta2 = (float)call->config->beta2;
    p.weight_decay = (float)call->weight_decay;
    p.grad_scale = (float)call->grad_scale;
    gt_tensor weight = call->weight, master = call->master, m = call->state[0];
    return gt_lion(call->ctx, &weight, &master, &m, &call->grad, &p, call->stream);
}

const gt_optimizer gti_optimizer_lion = {
    .struct_size = sizeof(gt_optimizer), .type = "Lion", .states = states, .update = update};
