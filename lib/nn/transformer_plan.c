/* SPDX-License-Identifier: Apache-2.0
 * What a transformer block declares and plans. */
#include <math.h>
#include <stdlib.h>

#include "core/fail.h"
#include "nn/transformer.h"

gti_heads gti_transformer_heads(const gti_gpt *gpt, const gt_layout *layout)
{
    int tp = layout->tp_size;
    return (gti_heads){.b = layout->batch,
                       .t = layout->seq_local,
                       .heads = gpt->config.heads / tp,
                       .kv_heads = gpt->kv_heads >= tp ? gpt->kv_heads / tp : 1,
                       .d = gpt->head_size,
                       .dtype = layout->dtype,
                       .cp = layout->cp_size};
}

int64_t gti_transformer_ffn(const gti_gpt *gpt, const gt_layout *layout)
{
    return gt_split_count(gpt->ffn, layout->tp_size, layout->tp_rank);
}

int gti_transformer_param(const gti_gpt *gpt, gti_layer_param which)
{
    if (!gpt->llama) {
        return (int)which;
    }
    return which % 2 == 0 ? (int)which / 2 : -1; /* weights are the even ones */
}

static gt_status add_weight(gt_param_list *params, const gti_gpt *gpt, gt_param p, const char *bias)
{
    p.ndim = 2;
    p.init = GT_INIT_NORMAL;
    p.sets_gradient = true;
    GT_TRY(gt_param_add(params, &p));
    if (gpt->llama) {
        return GT_OK;
    }
    /* A column-parallel bias is cut with its weight, a row-parallel one is whole: applied once. */
    p.name = bias;
    p.ndim = 1;
    p.shape[1] = 0;
    p.init = GT_INIT_CONSTANT;
    p.std = 0.0f;
    p.no_decay = true;
    p.sets_gradient = false;
    if (p.tp_axis != 0) {
        p.tp_axis = GT_REPLICATED;
        p.tp_unit = 0;
        p.sequence_partial = true;
    }
    return gt_param_add(params, &p);
}

gt_status gti_transformer_declare(gt_block *block, gt_param_list *params)
{
    const gti_gpt *gpt = block->state;
    int64_t c = gpt->config.width, d = gpt->head_size, q = gpt->config.heads * d;
    int64_t kv = gpt->kv_heads * d, f = gpt->ffn;
    float std = gpt->init_std, residual = std / sqrtf(2.0f * (float)gpt->config.layers);
    gt_param qkv = {.struct_size = sizeof(gt_param),
                    .name = "attn.qkv.weight",
                    .shape = {q + 2 * kv, c},
                    .tp_unit = d,
                    .sections = 3,
                    .section = {q, kv, kv},
                    .tp_share = true,
                    .std = std};
    gt_param out = {.struct_size = sizeof(out),
                    .name = "attn.out.weight",
                    .shape = {c, q},
                    .tp_axis = 1,
                    .tp_unit = d,
                    .std = residual};
    gt_param up = {
        .struct_size = sizeof(gt_param), .name = "mlp.up.weight", .shape = {f, c}, .std = std};
    gt_param gate_up = {.struct_size = sizeof(gt_param),
                        .name = "mlp.gate_up.weight",
                        .shape = {2 * f, c},
                        .sections = 2,
                        .section = {f, f},
                        .std = std};
    gt_param down = {.struct_size = sizeof(gt_param),
                     .name = "mlp.down.weight",
                     .shape = {c, f},
                     .tp_axis = 1,
                     .std = residual};
    GT_TRY(gti_norm_declare(gpt, params, "norm1.weight", "norm1.bias"));
    GT_TRY(add_weight(params, gpt, qkv, "attn.qkv.bias"));
    GT_TRY(add_weight(params, gpt, out, "attn.out.bias"));
    GT_TRY(gti_norm_declare(gpt, params, "norm2.weight", "norm2.bias"));
    GT_TRY(add_weight(params, gpt, gpt->llama ? gate_up : up, "mlp.up.bias"));
    return add_weight(params, gpt, down, "mlp.down.bias");
}

enum { VECTOR = -1 }; /* columns of a saved tensor with one dimension */

static gt_status save(gt_plan *plan, gt_dtype dtype, bool needed, int64_t rows, int64_t columns)
{
    int64_t dims[2] = {needed ? rows : 0, columns};
    return gt_plan_save(plan, dtype, columns == VECTOR ? 1 : 2, dims);
}

static gt_status plan_saved(gt_plan *plan, const gti_gpt *gpt, const gt_layout *l)
{
    gti_heads h = gti_transformer_heads(gpt, l);
    int64_t rows = l->rows, all = gt_layout_all_rows(l), c = gpt->config.width;
    int64_t f = gti_transformer_ffn(gpt, l), pre = gpt->llama ? 2 * f : f;
    int64_t lse[3] = {h.b, h.heads, h.t};
    bool split = l->split_backward;
    GT_TRY(save(plan, GT_F32, !gpt->llama, rows, VECTOR));
    GT_TRY(save(plan, GT_F32, true, rows, VECTOR));
    GT_TRY(save(plan, l->dtype, true, rows, c));
    GT_TRY(save(plan, l->dtype, true, all, gti_heads_row(&h)));
    GT_TRY(save(plan, l->dtype, true, all, h.heads * h.d));
    GT_TRY(gt_plan_save(plan, GT_F32, 3, lse));
    GT_TRY(save(plan, l->dtype, true, rows, c));
    GT_TRY(save(plan, GT_F32, !gpt->llama, rows, VECTOR));
    GT_TRY(save(plan, GT_F32, true, rows, VECTOR));
    GT_TRY(save(plan, l->dtype, true, rows, c));
    GT_TRY(save(plan, l->dtype, true, all, pre));
    GT_TRY(save(plan, l->dtype, true, all, f));
    GT_TRY(save(plan, l->dtype, split, rows, c));
    GT_TRY(save(plan, l->dtype, split, all, pre));
    GT_TRY(save(plan, l->dtype, split, rows, c));
    GT_TRY(save(plan, l->dtype, split, rows, c));
    GT_TRY(save(plan, l->dtype, split, all, gti_heads_row(&h)));
    return save(plan, l->dtype, split, rows, c);
}

static gt_status work(gt_plan *plan, gt_dtype dtype, bool needed, int64_t rows, int64_t columns)
{
    int64_t dims[2] = {needed ? rows : 0, columns};
    return gt_plan_workspace(plan, dtype, 2, dims);
}

static gt_status plan_workspace(gt_plan *plan, const gti_gpt *gpt, const gt_layout *l)
{
    gti_heads h = gti_transformer_heads(gpt, l);
    int64_t rows = l->rows, all = gt_layout_all_rows(l), c = gpt->config.width;
    int64_t f = gti_transformer_ffn(gpt, l), scratch = gti_plan_tp_scratch(l, c);
    bool once = !l->split_backward;
    GT_TRY(gt_plan_workspace(plan, GT_U8, 1, &scratch));
    GT_TRY(work(plan, l->dtype, true, rows, c));
    GT_TRY(work(plan, l->dtype, once, rows, c));
    GT_TRY(work(plan, l->dtype, once || gpt->llama, all, f));
    GT_TRY(work(plan, l->dtype, once && gpt->llama, all, 2 * f));
    GT_TRY(work(plan, l->dtype, true, all, h.heads * h.d));
    GT_TRY(work(plan, l->dtype, once, all, gti_heads_row(&h)));
    return gti_attention_plan(plan, &h);
}

static gt_status plan_rope(gt_plan *plan, const gti_gpt *gpt)
{
    int64_t half = gpt->head_size / 2;
    float *freq = malloc((size_t)half * sizeof(float) + 1);
    if (freq == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for %lld rotary frequencies",
                       (long long)half);
    }
    gti_rope_frequencies(&gpt->config, gpt->head_size, freq);
    gt_status st = gt_plan_constant(plan, GT_F32, 1, &half, freq);
    free(freq);
    return st;
}

/* Causal attention: half of the pairs. */
static double forward_flops(const gti_gpt *gpt, const gt_layout *l)
{
    gti_heads h = gti_transformer_heads(gpt, l);
    double rows = (double)gt_layout_all_rows(l), c = (double)gpt->config.width;
    double f = (double)gti_transformer_ffn(gpt, l);
    double width = (double)(gti_heads_row(&h) + h.heads * h.d) + (gpt->llama ? 3.0 : 2.0) * f;
    return rows * (2.0 * c * width + 2.0 * (double)(h.heads * h.d) * (double)l->seq);
}

gt_status gti_transformer_plan(gt_block *block, gt_plan *plan)
{
    const gti_gpt *gpt = block->state;
    const gt_layout *l = gt_plan_layout(plan);
    const gt_mesh_config mesh = {.tp = l->tp_size};
    int64_t out[2] = {l->rows, gpt->config.width};
    GT_TRY(gti_gpt_check_plan(gpt, plan, 1));
    GT_TRY(gt_model_config_check(&gpt->config, &mesh));
    GT_TRY(gt_plan_output(plan, l->dtype, 2, out));
    GT_TRY(plan_saved(plan, gpt, l));
    GT_TRY(plan_workspace(plan, gpt, l));
    gt_plan_flops(plan, forward_flops(gpt, l));
    return gpt->llama ? plan_rope(plan, gpt) : GT_OK;
}
