/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/gpt.h"

#include <stdlib.h>

#include "core/fail.h"
#include "tensor_parallel/tp_exchange.h"

gt_tp gt_step_tp(const gt_step *step, const gt_tensor *scratch)
{
    gt_tp tp = GT_TP_INIT;
    tp.ctx = step->ctx;
    tp.comm = step->tp;
    tp.sequence_parallel = step->layout->sequence_parallel;
    tp.no_overlap = step->layout->no_overlap;
    if (scratch != NULL) {
        tp.scratch = *scratch;
    }
    return tp;
}

int64_t gt_layout_all_rows(const gt_layout *layout)
{
    return layout->batch * layout->seq_local;
}

size_t gt_layout_tp_scratch(const gt_layout *layout, int64_t width)
{
    return gti_tp_scratch(layout->tp_size, layout->dtype, gt_layout_all_rows(layout), width);
}

int64_t gti_plan_tp_scratch(const gt_layout *layout, int64_t width)
{
    return gti_layout_cut(layout) ? (int64_t)gt_layout_tp_scratch(layout, width) : 0;
}

gt_tensor gt_step_rows(const gt_step *step)
{
    gt_tensor v = *step->rows;
    if (gti_layout_cut(step->layout)) {
        v.data = (char *)v.data + (size_t)step->layout->row_first * sizeof(int64_t);
        v.ndim = 1;
        v.shape[0] = step->layout->rows;
    }
    return v;
}

gt_status gti_step_dropout(const gt_step *step, float p, int k, gt_tensor *y, const gt_tensor *x)
{
    gt_dropout_params params = GT_DROPOUT_PARAMS_INIT;
    gt_tensor rows = gt_step_rows(step);
    params.p = p;
    params.seed = step->seed;
    params.site = (uint64_t)step->block_index * 16 + (uint64_t)k;
    return gt_dropout(step->ctx, y, x, &rows, &params, step->stream);
}

bool gti_step_unset(const gt_step *step, int index)
{
    return index >= 0 && step->unset != NULL && step->unset[index];
}

gt_tensor *gti_step_grad(const gt_step *step, int index)
{
    return index >= 0 && step->grads != NULL && step->grads[index].data != NULL
               ? &step->grads[index]
               : NULL;
}

gt_status gti_gpt_check_plan(const gti_gpt *gpt, const gt_plan *plan, int inputs)
{
    const gt_layout *l = gt_plan_layout(plan);
    int64_t all = gt_layout_all_rows(l), c = gpt->config.width;
    if (l->seq > gpt->config.seq) {
        return GT_FAIL(GT_ERR_CONFIG, "a sequence of %lld tokens, but the model has %lld positions",
                       (long long)l->seq, (long long)gpt->config.seq);
    }
    if (gti_layout_cut(l) && all % l->tp_size != 0) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "sequence parallelism cuts the %lld x %lld = %lld rows of a microbatch over "
                       "tp = %d ranks, which does not divide",
                       (long long)l->batch, (long long)l->seq_local, (long long)all, l->tp_size);
    }
    int64_t want = gti_layout_cut(l) ? all / l->tp_size : all;
    if (l->rows != want) {
        return GT_FAIL(GT_ERR_SHAPE, "the layout has %lld rows here, wanted %lld",
                       (long long)l->rows, (long long)want);
    }
    if (inputs == 0) {
        return GT_OK;
    }
    const gt_shape *in = gt_plan_input(plan, 0);
    if (gt_plan_inputs(plan) != 1 || in->ndim != 2 || in->dims[0] != l->rows || in->dims[1] != c ||
        in->dtype != l->dtype) {
        return GT_FAIL(GT_ERR_SHAPE, "a block of width %lld wants one input, [%lld,%lld] %s",
                       (long long)c, (long long)l->rows, (long long)c, gt_dtype_name(l->dtype));
    }
    return GT_OK;
}

void gti_gpt_destroy(gt_block *block)
{
    free(block->state);
    block->state = NULL;
}

static gt_status add_builtin(gt_model *model, const char *name, const gt_model_config *config,
                             const gt_block_ops *ops)
{
    gti_gpt *gpt;
    GT_TRY(gti_gpt_create(&gpt, config));
    return gt_model_add(model, name, ops, gpt);
}

gt_status gt_model_add_embedding(gt_model *model, const char *name, const gt_model_config *config)
{
    return add_builtin(model, name, config, &gti_embedding_ops);
}

gt_status gt_model_add_transformer(gt_model *model, const char *name, const gt_model_config *config)
{
    return add_builtin(model, name, config, &gti_transformer_ops);
}

gt_status gt_model_add_head(gt_model *model, const char *name, const gt_model_config *config)
{
    return add_builtin(model, name, config, &gti_head_ops);
}
