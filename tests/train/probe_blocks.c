/* SPDX-License-Identifier: Apache-2.0 */
#include "train/probe_blocks.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/fail.h"

typedef struct probe {
    int number;
    const probe_fault *fault;
} probe;

static gt_status declare(gt_block *block, gt_param_list *params)
{
    const gt_param p = {.struct_size = sizeof(p),
                        .name = "unused",
                        .ndim = 1,
                        .shape = {8},
                        .tp_axis = GT_REPLICATED};
    (void)block;
    return gt_param_add(params, &p);
}

static gt_status plan(gt_block *block, gt_plan *plan)
{
    const gt_layout *l = gt_plan_layout(plan);
    const int64_t saved = PROBE_SAVED * l->batch;
    const int64_t out[2] = {l->rows, PROBE_OUTPUT / PROBE_ROWS / (int64_t)sizeof(float)};
    GT_TRY(gt_plan_save(plan, GT_U8, 1, &saved));
    gt_plan_flops(plan, 1.0);
    return block->ops->is_loss ? GT_OK : gt_plan_output(plan, GT_F32, 2, out);
}

static gt_status fail_if_told(const gt_block *block, const gt_step *step, bool backward)
{
    const probe *p = block->state;
    const probe_fault *f = p->fault;
    if (f == NULL || f->block != p->number || f->microbatch != step->microbatch ||
        f->backward != backward) {
        return GT_OK;
    }
    return GT_FAIL(GT_ERR_DEVICE, "probe %d fails", p->number);
}

static gt_status forward(gt_block *block, const gt_step *step, const gt_tensor *in, gt_tensor *out,
                         gt_saved *saved)
{
    const probe *p = block->state;
    (void)saved;
    GT_TRY(fail_if_told(block, step, false));
    if (block->ops->is_loss) { /* a loss of 1 and one token in all */
        return gt_fill(step->ctx, step->stats, 1.0, step->stream);
    }
    return p->number == 0 ? gt_fill(step->ctx, &out[0], 1.0, step->stream)
                          : gt_copy(step->ctx, &out[0], &in[0], step->stream);
}

static gt_status backward(gt_block *block, const gt_step *step, const gt_tensor *in,
                          const gt_tensor *dout, gt_tensor *din, gt_saved *saved, unsigned parts)
{
    const probe *p = block->state;
    (void)in;
    (void)saved;
    GT_TRY(fail_if_told(block, step, true));
    if (!(parts & GT_BACKWARD_INPUT) || p->number == 0) {
        return GT_OK;
    }
    return block->ops->is_loss ? gt_fill(step->ctx, &din[0], 0.0, step->stream)
                               : gt_copy(step->ctx, &din[0], &dout[0], step->stream);
}

static void destroy(gt_block *block)
{
    free(block->state);
}

static const gt_block_ops layer = {.type = "probe",
                                   .declare = declare,
                                   .plan = plan,
                                   .forward = forward,
                                   .backward = backward,
                                   .destroy = destroy};
static const gt_block_ops loss = {.type = "probe loss",
                                  .declare = declare,
                                  .plan = plan,
                                  .forward = forward,
                                  .backward = backward,
                                  .destroy = destroy,
                                  .is_loss = true};

gt_status probe_add(gt_model *model, int blocks, const probe_fault *fault)
{
    for (int i = 0; i < blocks; i++) {
        char name[32];
        probe *p = malloc(sizeof(*p));
        if (p == NULL) {
            return GT_FAIL(GT_ERR_MEMORY, "no host memory for a probe");
        }
        *p = (probe){.number = i, .fault = fault};
        snprintf(name, sizeof(name), "probe.%d", i);
        GT_TRY(gt_model_add(model, name, i == blocks - 1 ? &loss : &layer, p));
    }
    return GT_OK;
}
