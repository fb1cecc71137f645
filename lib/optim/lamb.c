/* SPDX-License-Identifier: Apache-2.0
 * LAMB (You et al. 2020): AdamW's step, scaled per tensor by |weights| / |step|. */
#include <math.h>

#include "optim/optimizers.h"

enum { SUMS = 2 }; /* squares of the weights, of the step */

static int64_t sums_of(const gt_optimizer_config *config, void *user, const gt_param_info *info)
{
    (void)config;
    (void)user;
    (void)info;
    return SUMS;
}

static gt_status measure(const gt_optimizer_call *call, gt_tensor *sums)
{
    gt_adamw_params p = gti_adamw_params(call);
    gt_tensor step = call->scratch, m = call->state[0], v = call->state[1];
    return gt_lamb_update(call->ctx, &step, &m, &v, sums, &call->master, &call->grad, &p,
                          call->stream);
}

static gt_status update(const gt_optimizer_call *call, const double *sums)
{
    const gt_optimizer_config *c = call->config;
    double trust = gt_lamb_trust(sums, c->min_coeff, c->max_coeff > 0.0 ? c->max_coeff : INFINITY);
    gt_tensor weight = call->weight, master = call->master;
    return gt_lamb_apply(call->ctx, &weight, &master, &call->scratch, (float)call->lr, (float)trust,
                         call->stream);
}

const gt_optimizer gti_optimizer_lamb = {.struct_size = sizeof(gt_optimizer),
                                         .type = "LAMB",
                                         .states = gti_two_moments,
                                         .sums = sums_of,
                                         .measure = measure,
                                         .update = update};
