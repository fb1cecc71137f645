/* SPDX-License-Identifier: Apache-2.0
 * AdamW and Adam: decay decoupled or added to the gradient. */
#include "optim/optimizers.h"

gt_adamw_params gti_adamw_params(const gt_optimizer_call *call)
{
    gt_adamw_params p = GT_ADAMW_PARAMS_INIT;
    p.lr = (float)call->lr;
    p.beta1 = (float)call->config->beta1;
    p.beta2 = (float)call->config->beta2;
    p.eps = (float)call->config->eps;
    p.weight_decay = (float)call->weight_decay;
    p.grad_scale = (float)call->grad_scale;
    p.step = call->step;
    return p;
}

int gti_two_moments(const gt_optimizer_config *config, void *user,
                    gt_optimizer_state out[GT_OPTIMIZER_STATES])
{
    (void)user;
    out[0] = (gt_optimizer_state){.name = "m", .dtype = config->moments_dtype};
    out[1] = (gt_optimizer_state){.name = "v", .dtype = config->moments_dtype};
    return 2;
}

static gt_status update(const gt_optimizer_call *call, bool l2)
{
    gt_adamw_params p = gti_adamw_params(call);
    gt_tensor weight = call->weight, master = call->master;
    gt_tensor m = call->state[0], v = call->state[1];
    p.l2 = l2;
    return gt_adamw(call->ctx, &weight, &master, &m, &v, &call->grad, &p, call->stream);
}

static gt_status update_adamw(const gt_optimizer_call *call, const double *sums)
{
    (void)sums;
    return update(call, false);
}

static gt_status update_adam(const gt_optimizer_call *call, const double *sums)
{
    (void)sums;
    return update(call, true);
}

const gt_optimizer gti_optimizer_adamw = {.struct_size = sizeof(gt_optimizer),
                                          .type = "AdamW",
                                          .takes_remainder = true,
                                          .states = gti_two_moments,
                                          .update = update_adamw};
const gt_optimizer gti_optimizer_adam = {.struct_size = sizeof(gt_optimizer),
                                         .type = "Adam",
                                         .takes_remainder = true,
                                         .states = gti_two_moments,
                                         .update = update_adam};
