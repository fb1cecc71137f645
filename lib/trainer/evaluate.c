/* SPDX-License-Identifier: Apache-2.0
 * The loss of a batch, without gradients. */
#include "trainer/engine.h"

static gt_status run_evaluation(gt_trainer *t, const gt_batch *batch, struct step_sums *sums)
{
    GT_TRY(gti_batch_upload(t, batch));
    t->mode = LAYOUT_TRAIN;
    t->training = false;
    gti_stage_reset(t);
    GT_TRY(gt_fill(t->ctx, &t->stats, 0.0, NULL));
    GT_TRY(gt_pipeline_forward(t->pipeline, (int)t->config.grad_accum, NULL));
    return gti_trainer_sum(t, sums);
}

gt_status gt_trainer_evaluate(gt_trainer *t, const gt_batch *batch, double *loss, int64_t *tokens)
{
    GT_TRY(gti_trainer_usable(t));
    struct step_sums sums;
    gt_status st = run_evaluation(t, batch, &sums);
    if (st != GT_OK) {
        return gti_trainer_fail(t, st);
    }
    if (loss != NULL) {
        *loss = sums.tokens > 0 ? sums.loss / sums.tokens : 0.0;
    }
    if (tokens != NULL) {
        *tokens = (int64_t)sums.tokens;
    }
    return GT_OK;
}
