/* SPDX-License-Identifier: Apache-2.0
 * The norm of a family: layer norm for GPT-2, RMS norm for Llama. */
#include "core/fail.h"
#include "nn/gpt.h"

gt_status gti_norm_declare(const gti_gpt *gpt, gt_param_list *params, const char *weight,
                           const char *bias)
{
    gt_param p = {.struct_size = sizeof(p),
                  .name = weight,
                  .ndim = 1,
                  .shape = {gpt->config.width},
                  .tp_axis = GT_REPLICATED,
                  .init = GT_INIT_CONSTANT,
                  .mean = 1.0f,
                  .no_decay = true,
                  .sequence_partial = true};
    GT_TRY(gt_param_add(params, &p));
    if (gpt->llama) {
        return GT_OK;
    }
    p.name = bias;
    p.mean = 0.0f;
    return gt_param_add(params, &p);
}

gt_status gti_norm_forward(const gt_step *step, const gti_gpt *gpt, const gti_norm *n)
{
    if (gpt->llama) {
        return gt_rmsnorm_forward(step->ctx, n->y, n->s, n->rstd, n->x, n->residual, n->gamma,
                                  gpt->eps, step->stream);
    }
    return gt_layernorm_forward(step->ctx, n->y, n->s, n->mean, n->rstd, n->x, n->residual,
                                n->gamma, n->beta, gpt->eps, step->stream);
}

gt_status gti_norm_backward(const gt_step *step, const gti_gpt *gpt, const gti_norm_grad *n)
{
    if (n->dx == NULL && n->dgamma == NULL && n->dbeta == NULL) {
        return GT_OK;
    }
    if (gpt->llama) {
        return gt_rmsnorm_backward(step->ctx, n->dx, n->dgamma, n->dy, n->dresidual, n->x, n->gamma,
                                   n->rstd, step->stream);
    }
    return gt_layernorm_backward(step->ctx, n->dx, n->dgamma, n->dbeta, n->dy, n->dresidual, n->x,
                                 n->gamma, n->mean, n->rstd, step->stream);
}
