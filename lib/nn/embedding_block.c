/* SPDX-License-Identifier: Apache-2.0
 * The first block: token (+ learned position) embedding, dropout. */
#include "core/fail.h"
#include "nn/gpt.h"

enum { P_TOKENS, P_POSITIONS };
enum { S_DY }; /* split backward: the gradient that WEIGHT needs */
enum { W_TP, W_DY };

static gt_status declare(gt_block *block, gt_param_list *params)
{
    const gti_gpt *gpt = block->state;
    gt_param p = {.struct_size = sizeof(p),
                  .name = "tokens",
                  .ndim = 2,
                  .shape = {gpt->config.vocab, gpt->config.width},
                  .tp_axis = 0,
                  .init = GT_INIT_NORMAL,
                  .std = gpt->init_std};
    GT_TRY(gt_param_add(params, &p));
    if (gpt->llama) {
        return GT_OK;
    }
    p.name = "positions";
    p.shape[0] = gpt->config.seq;
    p.tp_axis = GT_REPLICATED;
    return gt_param_add(params, &p);
}

static gt_status plan(gt_block *block, gt_plan *plan)
{
    const gti_gpt *gpt = block->state;
    const gt_layout *l = gt_plan_layout(plan);
    GT_TRY(gti_gpt_check_plan(gpt, plan, 0));
    int64_t out[2] = {l->rows, gpt->config.width}, none[2] = {0, gpt->config.width};
    int64_t scratch = gti_plan_tp_scratch(l, gpt->config.width);
    bool dropped = gpt->config.dropout > 0.0f && !l->split_backward;
    GT_TRY(gt_plan_output(plan, l->dtype, 2, out));
    GT_TRY(gt_plan_save(plan, l->dtype, 2, l->split_backward ? out : none));
    GT_TRY(gt_plan_workspace(plan, GT_U8, 1, &scratch));
    return gt_plan_workspace(plan, l->dtype, 2, dropped ? out : none);
}

static gt_embedding_params params_of(const gti_gpt *gpt, const gt_step *step)
{
    gt_embedding_params p = GT_EMBEDDING_PARAMS_INIT;
    p.vocab = gpt->config.vocab;
    p.seq = step->layout->seq;
    return p;
}

static gt_status forward(gt_block *block, const gt_step *step, const gt_tensor *in, gt_tensor *out,
                         gt_saved *saved)
{
    const gti_gpt *gpt = block->state;
    gt_embedding_params p = params_of(gpt, step);
    gt_tp tp = gt_step_tp(step, &step->workspace[W_TP]);
    const gt_tensor *positions = gpt->llama ? NULL : &step->params[P_POSITIONS];
    GT_TRY(gt_tp_embedding_forward(&tp, out, &step->params[P_TOKENS], positions, step->tokens,
                                   step->rows, &p, step->stream));
    if (step->training && gpt->config.dropout > 0.0f) {
        return gti_step_dropout(step, gpt->config.dropout, 0, out, out);
    }
    return GT_OK;
}

/* INPUT only keeps what WEIGHT needs: there is nobody to hand a gradient to. */
static gt_status backward(gt_block *block, const gt_step *step, const gt_tensor *in,
                          const gt_tensor *dout, gt_tensor *din, gt_saved *saved, unsigned parts)
{
    const gti_gpt *gpt = block->state;
    bool dropped = gpt->config.dropout > 0.0f;
    const gt_tensor *dy = dout;
    if (step->layout->split_backward || dropped) {
        gt_tensor *kept =
            step->layout->split_backward ? gt_saved_tensor(saved, S_DY) : &step->workspace[W_DY];
        if ((parts & GT_BACKWARD_INPUT) && dropped) {
            GT_TRY(gti_step_dropout(step, gpt->config.dropout, 0, kept, dout));
        } else if (parts & GT_BACKWARD_INPUT) {
            GT_TRY(gt_copy(step->ctx, kept, dout, step->stream));
        }
        dy = kept;
    }
    if (!(parts & GT_BACKWARD_WEIGHT)) {
        return GT_OK;
    }
    gt_embedding_params p = params_of(gpt, step);
    gt_tp tp = gt_step_tp(step, &step->workspace[W_TP]);
    gt_tensor *dpositions = gpt->llama ? NULL : gti_step_grad(step, P_POSITIONS);
    return gt_tp_embedding_backward(&tp, gti_step_grad(step, P_TOKENS), dpositions, dy,
                                    step->tokens, step->rows, &p, step->stream);
}

const gt_block_ops gti_embedding_ops = {.type = "embedding",
                                        .declare = declare,
                                        .plan = plan,
                                        .forward = forward,
                                        .backward = backward,
                                        .destroy = gti_gpt_destroy};
