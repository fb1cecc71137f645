/* SPDX-License-Identifier: Apache-2.0
 * The transformer block's parameters, saved tensors and workspace, by name. */
#ifndef GTI_NN_TRANSFORMER_H
#define GTI_NN_TRANSFORMER_H

#include "nn/attention.h"
#include "nn/gpt.h"

/* Order of declaration; Llama has no biases, so its indices come from gti_transformer_param(). */
typedef enum gti_layer_param {
    GTI_NORM1,
    GTI_NORM1_BIAS,
    GTI_QKV,
    GTI_QKV_BIAS,
    GTI_OUT,
    GTI_OUT_BIAS,
    GTI_NORM2,
    GTI_NORM2_BIAS,
    GTI_UP, /* Llama: gate and up */
    GTI_UP_BIAS,
    GTI_DOWN,
    GTI_DOWN_BIAS
} gti_layer_param;

/* Saved tensors; those that a configuration does not need are empty. The gradients at the end are
 * kept only for a backward pass in two parts. */
enum {
    GTI_S_MEAN1,
    GTI_S_RSTD1,
    GTI_S_NORMED1,
    GTI_S_QKV, /* after rotation */
    GTI_S_ATTENDED,
    GTI_S_LSE,
    GTI_S_SUM, /* in + attention */
    GTI_S_MEAN2,
    GTI_S_RSTD2,
    GTI_S_NORMED2,
    GTI_S_PRE, /* before GELU or SwiGLU */
    GTI_S_ACT,
    GTI_S_DDOWN,
    GTI_S_DPRE,
    GTI_S_DNORMED2,
    GTI_S_DOUT,
    GTI_S_DQKV,
    GTI_S_DNORMED1
};

enum {
    GTI_W_TP,
    GTI_W_ROWS, /* attention's share of the sum; gradients after dropout */
    GTI_W_DNORMED,
    GTI_W_DACT,
    GTI_W_DGU, /* Llama */
    GTI_W_DATT,
    GTI_W_DQKV,
    GTI_W_RING
};

gti_heads gti_transformer_heads(const gti_gpt *gpt, const gt_layout *layout);
int64_t gti_transformer_ffn(const gti_gpt *gpt, const gt_layout *layout);
/* Declared index, or -1 when the family has none. */
int gti_transformer_param(const gti_gpt *gpt, gti_layer_param which);
/* The parameter, or NULL; its gradient, or NULL. */
const gt_tensor *gti_transformer_weight(const gti_gpt *gpt, const gt_step *step,
                                        gti_layer_param which);
gt_tensor *gti_transformer_grad(const gti_gpt *gpt, const gt_step *step, gti_layer_param which);
gt_status gti_transformer_rope(const gti_gpt *gpt, const gt_step *step, gt_tensor *qkv,
                               bool inverse);

gt_status gti_transformer_declare(gt_block *block, gt_param_list *params);
gt_status gti_transformer_plan(gt_block *block, gt_plan *plan);
gt_status gti_transformer_backward(gt_block *block, const gt_step *step, const gt_tensor *in,
                                   const gt_tensor *dout, gt_tensor *din, gt_saved *saved,
                                   unsigned parts);

#endif
