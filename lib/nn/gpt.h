/* SPDX-License-Identifier: Apache-2.0
 *
 * What the built-in blocks share: the resolved model configuration, norms of either family, and the
 * tensor-parallel view of a step.
 */
#ifndef GTI_NN_GPT_H
#define GTI_NN_GPT_H

#include <geektrain/model.h>
#include <geektrain/tensor_parallel.h>

/* State of every built-in block; owned by the block. */
typedef struct gti_gpt {
    gt_model_config config;
    bool llama;
    int64_t head_size, kv_heads, ffn;
    float eps, init_std;
    float rope_scale; /* on sines and cosines (YaRN) */
} gti_gpt;

/* Checks, fills in defaults, allocates. */
gt_status gti_gpt_create(gti_gpt **out, const gt_model_config *config);
/* ops->destroy of every built-in block. */
void gti_gpt_destroy(gt_block *block);

extern const gt_block_ops gti_embedding_ops, gti_transformer_ops, gti_head_ops;

/* Declares NAME.weight and, for GPT-2, NAME.bias of a norm. */
gt_status gti_norm_declare(const gti_gpt *gpt, gt_param_list *params, const char *weight,
                           const char *bias);
/* Layer norm or RMS norm; mean and beta are ignored by the latter. Arguments as the operations'. */
typedef struct gti_norm {
    gt_tensor *y, *s, *mean, *rstd;
    const gt_tensor *x, *residual, *gamma, *beta;
} gti_norm;
gt_status gti_norm_forward(const gt_step *step, const gti_gpt *gpt, const gti_norm *norm);
typedef struct gti_norm_grad {
    gt_tensor *dx, *dgamma, *dbeta;
    const gt_tensor *dy, *dresidual, *x, *gamma, *mean, *rstd;
} gti_norm_grad;
gt_status gti_norm_backward(const gt_step *step, const gti_gpt *gpt, const gti_norm_grad *norm);

/* Frequencies of rotary pairs (head_size/2), scaled as the configuration says; the factor on sines
 * and cosines. */
void gti_rope_frequencies(const gt_model_config *config, int64_t head_size, float *freq);
float gti_rope_scale(const gt_model_config *config);

/* As gt_layout_tp_scratch, but 0 when rows are not cut: the built-in blocks gather no columns. */
int64_t gti_plan_tp_scratch(const gt_layout *layout, int64_t width);
/* y = dropout(x) at site k of this block, where x is [rows, C]. */
gt_status gti_step_dropout(const gt_step *step, float p, int k, gt_tensor *y, const gt_tensor *x);
/* Gradient `index`, or NULL where there is none to compute. */
gt_tensor *gti_step_grad(const gt_step *step, int index);
/* Of a parameter with sets_gradient: its gradient is to be written, not added to. */
bool gti_step_unset(const gt_step *step, int index);

static inline bool gti_layout_cut(const gt_layout *layout)
{
    return layout->sequence_parallel && layout->tp_size > 1;
}
/* Checks what every built-in block needs of a layout and of its one input [rows, C]. */
gt_status gti_gpt_check_plan(const gti_gpt *gpt, const gt_plan *plan, int inputs);

#endif
