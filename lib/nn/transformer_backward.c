/* SPDX-License-Identifier: Apache-2.0
 * Backward of the transformer block. One sequence of calls serves all parts: each is asked for its
 * input gradient (INPUT), its parameters' (WEIGHT) or both. Between the parts of a split backward
 * the gradients that WEIGHT needs stay in saved tensors; otherwise they live in workspace, and the
 * gradient of the sum in din itself. */
#include "core/fail.h"
#include "nn/transformer.h"

typedef struct pass {
    const gti_gpt *gpt;
    const gt_step *step;
    gt_saved *saved;
    gt_tp tp;
    bool input, weight, split;
    float dropout;
} pass;

static gt_tensor *either(const pass *p, int saved, int workspace)
{
    return p->split ? gt_saved_tensor(p->saved, saved) : &p->step->workspace[workspace];
}

static gt_tensor *grad(const pass *p, gti_layer_param which)
{
    return p->weight ? gti_transformer_grad(p->gpt, p->step, which) : NULL;
}

/* For the linear layer whose weight this is. */
static gt_tp tp_of(const pass *p, gti_layer_param which)
{
    gt_tp tp = p->tp;
    tp.dw_unset = gti_step_unset(p->step, gti_transformer_param(p->gpt, which));
    return tp;
}

static const gt_tensor *weight(const pass *p, gti_layer_param which)
{
    return gti_transformer_weight(p->gpt, p->step, which);
}

/* dy through the dropout at site k, in a place that lasts as long as WEIGHT needs it. */
static gt_status through_dropout(const pass *p, int k, int slot, const gt_tensor *dy,
                                 const gt_tensor **out)
{
    if (p->dropout == 0.0f && !p->split) {
        *out = dy;
        return GT_OK;
    }
    gt_tensor *kept = either(p, slot, GTI_W_ROWS);
    *out = kept;
    if (!p->input || kept->data == dy->data) {
        return GT_OK;
    }
    return p->dropout > 0.0f ? gti_step_dropout(p->step, p->dropout, k, kept, dy)
                             : gt_copy(p->step->ctx, kept, dy, p->step->stream);
}

/* din of a norm (dx NULL in the WEIGHT part) and its parameters. */
static gt_status norm_backward(const pass *p, int which, gt_tensor *dx, const gt_tensor *dy,
                               const gt_tensor *dresidual, const gt_tensor *x)
{
    bool first = which == GTI_NORM1;
    gti_norm_grad n = {.dx = p->input ? dx : NULL,
                       .dgamma = grad(p, first ? GTI_NORM1 : GTI_NORM2),
                       .dbeta = grad(p, first ? GTI_NORM1_BIAS : GTI_NORM2_BIAS),
                       .dy = dy,
                       .dresidual = p->input ? dresidual : NULL,
                       .x = x,
                       .gamma = weight(p, first ? GTI_NORM1 : GTI_NORM2),
                       .mean = gt_saved_tensor(p->saved, first ? GTI_S_MEAN1 : GTI_S_MEAN2),
                       .rstd = gt_saved_tensor(p->saved, first ? GTI_S_RSTD1 : GTI_S_RSTD2)};
    return gti_norm_backward(p->step, p->gpt, &n);
}

/* The gradient before the activation function, from that after it (dact). */
static gt_status activation_backward(const pass *p, gt_tensor *dpre, const gt_tensor *dact)
{
    const gt_tensor *pre = gt_saved_tensor(p->saved, GTI_S_PRE);
    if (!p->input) {
        return GT_OK;
    }
    return p->gpt->llama ? gt_swiglu_backward(p->step->ctx, dpre, dact, pre, p->step->stream)
                         : gt_gelu_backward(p->step->ctx, dpre, dact, pre, p->step->stream);
}

/* dsum = gradient of the sum s, from dout. */
static gt_status feed_forward_backward(const pass *p, gt_tensor *dsum, const gt_tensor *dout)
{
    bool llama = p->gpt->llama;
    gt_tensor *dpre = either(p, GTI_S_DPRE, llama ? GTI_W_DGU : GTI_W_DACT);
    gt_tensor *dact = llama ? &p->step->workspace[GTI_W_DACT] : dpre;
    gt_tensor *dnormed = either(p, GTI_S_DNORMED2, GTI_W_DNORMED);
    const gt_tensor *ddown;
    GT_TRY(through_dropout(p, 1, GTI_S_DDOWN, dout, &ddown));
    gt_tp down = tp_of(p, GTI_DOWN), up = tp_of(p, GTI_UP);
    GT_TRY(gt_tp_row_backward(&down, p->input ? dact : NULL, grad(p, GTI_DOWN),
                              grad(p, GTI_DOWN_BIAS), ddown, gt_saved_tensor(p->saved, GTI_S_ACT),
                              weight(p, GTI_DOWN), p->step->stream));
    GT_TRY(activation_backward(p, dpre, dact));
    GT_TRY(gt_tp_column_backward(
        &up, p->input ? dnormed : NULL, grad(p, GTI_UP), grad(p, GTI_UP_BIAS), dpre,
        gt_saved_tensor(p->saved, GTI_S_NORMED2), weight(p, GTI_UP), p->step->stream));
    return norm_backward(p, GTI_NORM2, dsum, dnormed, dout, gt_saved_tensor(p->saved, GTI_S_SUM));
}

static gt_status attention_backward(const pass *p, gt_tensor *din, const gt_tensor *dsum,
                                    const gt_tensor *in)
{
    const gt_step *step = p->step;
    gti_heads h = gti_transformer_heads(p->gpt, step->layout);
    gt_tensor *dattended = &step->workspace[GTI_W_DATT];
    gt_tensor *dqkv = either(p, GTI_S_DQKV, GTI_W_DQKV);
    gt_tensor *dnormed = either(p, GTI_S_DNORMED1, GTI_W_DNORMED);
    const gt_tensor *attended = gt_saved_tensor(p->saved, GTI_S_ATTENDED), *dout;
    GT_TRY(through_dropout(p, 0, GTI_S_DOUT, dsum, &dout));
    gt_tp out = tp_of(p, GTI_OUT), qkv = tp_of(p, GTI_QKV);
    GT_TRY(gt_tp_row_backward(&out, p->input ? dattended : NULL, grad(p, GTI_OUT),
                              grad(p, GTI_OUT_BIAS), dout, attended, weight(p, GTI_OUT),
                              step->stream));
    if (p->input) {
        GT_TRY(gti_attention_backward(
            step, &h, dqkv, dattended, attended, gt_saved_tensor(p->saved, GTI_S_LSE),
            gt_saved_tensor(p->saved, GTI_S_QKV), &step->workspace[GTI_W_RING]));
        GT_TRY(gti_transformer_rope(p->gpt, step, dqkv, true));
    }
    GT_TRY(gt_tp_column_backward(
        &qkv, p->input ? dnormed : NULL, grad(p, GTI_QKV), grad(p, GTI_QKV_BIAS), dqkv,
        gt_saved_tensor(p->saved, GTI_S_NORMED1), weight(p, GTI_QKV), step->stream));
    return norm_backward(p, GTI_NORM1, din, dnormed, dsum, in);
}

gt_status gti_transformer_backward(gt_block *block, const gt_step *step, const gt_tensor *in,
                                   const gt_tensor *dout, gt_tensor *din, gt_saved *saved,
                                   unsigned parts)
{
    const gti_gpt *gpt = block->state;
    pass p = {.gpt = gpt,
              .step = step,
              .saved = saved,
              .tp = gt_step_tp(step, &step->workspace[GTI_W_TP]),
              .input = parts & GT_BACKWARD_INPUT,
              .weight = parts & GT_BACKWARD_WEIGHT,
              .split = step->layout->split_backward,
              .dropout = gpt->config.dropout};
    if (p.input && (din == NULL || din->data == NULL)) {
        return GT_FAIL(GT_ERR_STATE, "block %s is asked for a gradient that has no place to go",
                       block->name);
    }
    /* Without dropout the sum's gradient is also that of Wo's output, which WEIGHT wants to see. */
    gt_tensor *dsum = p.split && p.dropout == 0.0f ? gt_saved_tensor(saved, GTI_S_DOUT) : din;
    GT_TRY(feed_forward_backward(&p, dsum, dout));
    return attention_backward(&p, din, dsum, in);
}
