/* SPDX-License-Identifier: Apache-2.0
 * Pre-norm transformer block, forward. GPT-2: layer norm, GELU, biases. Llama: RMS norm, rotary
 * positions, SwiGLU, grouped-query attention, no biases.
 *
 *     s = x + Wo attention(Wqkv norm1(x))          y = s + Wdown act(Wup norm2(s))
 */
#include "nn/transformer.h"

#include "core/fail.h"

const gt_tensor *gti_transformer_weight(const gti_gpt *gpt, const gt_step *step,
                                        gti_layer_param which)
{
    int i = gti_transformer_param(gpt, which);
    return i < 0 ? NULL : &step->params[i];
}

gt_tensor *gti_transformer_grad(const gti_gpt *gpt, const gt_step *step, gti_layer_param which)
{
    return gti_step_grad(step, gti_transformer_param(gpt, which));
}

gt_status gti_transformer_rope(const gti_gpt *gpt, const gt_step *step, gt_tensor *qkv,
                               bool inverse)
{
    if (!gpt->llama) {
        return GT_OK;
    }
    gti_heads h = gti_transformer_heads(gpt, step->layout);
    return gt_rope(step->ctx, qkv, step->rows, &step->constants[0], gti_heads_row(&h),
                   h.heads + h.kv_heads, step->layout->seq, gpt->rope_scale, inverse, step->stream);
}

/* attention's share of the sum, before the residual is added */
static gt_status attention(const gti_gpt *gpt, const gt_step *step, const gt_tensor *in,
                           gt_tensor *out, gt_saved *saved)
{
    gt_tp tp = gt_step_tp(step, &step->workspace[GTI_W_TP]);
    gti_heads h = gti_transformer_heads(gpt, step->layout);
    gt_tensor *qkv = gt_saved_tensor(saved, GTI_S_QKV);
    gt_tensor *attended = gt_saved_tensor(saved, GTI_S_ATTENDED);
    gti_norm norm = {.y = gt_saved_tensor(saved, GTI_S_NORMED1),
                     .mean = gt_saved_tensor(saved, GTI_S_MEAN1),
                     .rstd = gt_saved_tensor(saved, GTI_S_RSTD1),
                     .x = in,
                     .gamma = gti_transformer_weight(gpt, step, GTI_NORM1),
                     .beta = gti_transformer_weight(gpt, step, GTI_NORM1_BIAS)};
    gt_tp_column_params column = GT_TP_COLUMN_PARAMS_INIT;
    column.bias = gti_transformer_weight(gpt, step, GTI_QKV_BIAS);
    GT_TRY(gti_norm_forward(step, gpt, &norm));
    GT_TRY(gt_tp_column_forward(&tp, qkv, norm.y, gti_transformer_weight(gpt, step, GTI_QKV),
                                &column, step->stream));
    GT_TRY(gti_transformer_rope(gpt, step, qkv, false));
    GT_TRY(gti_attention_forward(step, &h, attended, gt_saved_tensor(saved, GTI_S_LSE), qkv,
                                 &step->workspace[GTI_W_RING]));
    return gt_tp_row_forward(&tp, out, attended, gti_transformer_weight(gpt, step, GTI_OUT),
                             gti_transformer_weight(gpt, step, GTI_OUT_BIAS), NULL, step->stream);
}

/* out = s + feed-forward(normed), dropped out before the sum */
static gt_status feed_forward(const gti_gpt *gpt, const gt_step *step, const gt_tensor *normed,
                              gt_tensor *out, gt_saved *saved, float dropout)
{
    gt_tp tp = gt_step_tp(step, &step->workspace[GTI_W_TP]);
    gt_tensor *pre = gt_saved_tensor(saved, GTI_S_PRE), *act = gt_saved_tensor(saved, GTI_S_ACT);
    const gt_tensor *sum = gt_saved_tensor(saved, GTI_S_SUM);
    gt_tp_column_params column = GT_TP_COLUMN_PARAMS_INIT;
    column.bias = gti_transformer_weight(gpt, step, GTI_UP_BIAS);
    column.gelu = !gpt->llama;
    column.pre_gelu = gpt->llama || !step->training ? NULL : pre;
    GT_TRY(gt_tp_column_forward(&tp, gpt->llama ? pre : act, normed,
                                gti_transformer_weight(gpt, step, GTI_UP), &column, step->stream));
    if (gpt->llama) {
        GT_TRY(gt_swiglu_forward(step->ctx, act, pre, step->stream));
    }
    GT_TRY(gt_tp_row_forward(&tp, out, act, gti_transformer_weight(gpt, step, GTI_DOWN),
                             gti_transformer_weight(gpt, step, GTI_DOWN_BIAS),
                             dropout > 0.0f ? NULL : sum, step->stream));
    if (dropout > 0.0f) {
        GT_TRY(gti_step_dropout(step, dropout, 1, out, out));
        return gt_axpby(step->ctx, out, sum, 1.0f, 1.0f, step->stream);
    }
    return GT_OK;
}

static gt_status forward(gt_block *block, const gt_step *step, const gt_tensor *in, gt_tensor *out,
                         gt_saved *saved)
{
    const gti_gpt *gpt = block->state;
    float dropout = step->training ? gpt->config.dropout : 0.0f;
    gt_tensor *attended = &step->workspace[GTI_W_ROWS];
    GT_TRY(attention(gpt, step, in, attended, saved));
    if (dropout > 0.0f) {
        GT_TRY(gti_step_dropout(step, dropout, 0, attended, attended));
    }
    gti_norm norm = {.y = gt_saved_tensor(saved, GTI_S_NORMED2),
                     .s = gt_saved_tensor(saved, GTI_S_SUM),
                     .mean = gt_saved_tensor(saved, GTI_S_MEAN2),
                     .rstd = gt_saved_tensor(saved, GTI_S_RSTD2),
                     .x = attended,
                     .residual = in,
                     .gamma = gti_transformer_weight(gpt, step, GTI_NORM2),
                     .beta = gti_transformer_weight(gpt, step, GTI_NORM2_BIAS)};
    GT_TRY(gti_norm_forward(step, gpt, &norm));
    return feed_forward(gpt, step, norm.y, out, saved, dropout);
}

const gt_block_ops gti_transformer_ops = {.type = "transformer",
                                          .declare = gti_transformer_declare,
                                          .plan = gti_transformer_plan,
                                          .forward = forward,
                                          .backward = gti_transformer_backward,
                                          .destroy = gti_gpt_destroy};
