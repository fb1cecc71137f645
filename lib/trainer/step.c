/* SPDX-License-Identifier: Apache-2.0
 * A training step, and evaluation. */
#include "trainer/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/fail.h"

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

const char *gt_step_outcome_name(gt_step_outcome outcome)
{
    static const char *const names[] = {"applied", "skipped: overflow", "skipped: not finite",
                                        "skipped: no tokens"};
    return outcome >= 0 && outcome <= GT_STEP_SKIPPED_NO_TOKENS ? names[outcome] : "unknown";
}

/* ---- the one reduction of a step --------------------------------------------------------------
 */

struct sums {
    double loss, tokens, norm_sq;
};

/* Every tensor-parallel rank of the last stage has the whole loss of its rows: one of them counts.
 */
static gt_status sum_over_world(gt_trainer *t, struct sums *out)
{
    if (gt_mesh_index(t->mesh, GT_AXIS_TP) != 0) {
        GT_TRY(gt_fill(t->ctx, &t->loss_stats, 0.0, NULL));
    }
    GT_TRY(gt_all_reduce(t->world, &t->stats, GT_SUM, NULL, NULL));
    double host[3];
    GT_TRY(gt_copy_to_host(t->ctx, host, &t->stats, NULL));
    *out = (struct sums){host[0], host[1], host[2]};
    return GT_OK;
}

/* The first offending parameter of the lowest rank that has one. */
static gt_status find_offender(gt_trainer *t, gt_step_result *r)
{
    char mine[GTI_NAME_MAX] = {0};
    GT_TRY(gt_zero_find_nonfinite(t->zero, mine, sizeof(mine)));
    int size = gt_comm_size(t->world);
    char *all = calloc((size_t)size, sizeof(mine));
    if (all == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for %d names", size);
    }
    gt_tensor in = gt_tensor_1d(mine, GT_U8, (int64_t)sizeof(mine));
    gt_tensor out = gt_tensor_1d(all, GT_U8, (int64_t)sizeof(mine) * size);
    gt_status st = gt_all_gather(t->world, &out, &in, NULL, NULL);
    for (int i = 0; st == GT_OK && i < size; i++) {
        const char *name = all + (size_t)i * sizeof(mine);
        if (name[0] != '\0') {
            snprintf(r->offender, sizeof(r->offender), "%s", name);
            r->offender_rank = i;
            break;
        }
    }
    free(all);
    return st;
}

/* ---- step -------------------------------------------------------------------------------------
 */

static gt_status compute_gradients(gt_trainer *t, const gt_batch *batch, gt_step_result *r)
{
    double start = now();
    GT_TRY(gti_batch_upload(t, batch));
    r->data_s = now() - start;
    t->mode = LAYOUT_TRAIN;
    t->training = true;
    t->loss_scale = t->scaler.scale;
    gti_stage_reset(t);
    GT_TRY(gt_fill(t->ctx, &t->stats, 0.0, NULL));
    GT_TRY(gt_pipeline_run(t->pipeline, NULL));
    GT_TRY(gt_zero_finish(t->zero));
    gt_tensor norm;
    GT_TRY(gt_tensor_slice(&norm, &t->stats, 2, 1));
    return gt_zero_norm(t->zero, &norm);
}

static void judge(const gt_trainer *t, const struct sums *sums, gt_step_result *r)
{
    /* Gradients are of loss_scale * sum / nominal tokens; wanted: of the mean over actual ones. */
    double correction = sums->tokens > 0 ? (double)t->nominal_tokens / sums->tokens : 0.0;
    r->tokens = (int64_t)sums->tokens;
    r->loss = sums->tokens > 0 ? sums->loss / sums->tokens : 0.0;
    r->loss_scale = t->loss_scale;
    r->gradient_norm = sqrt(sums->norm_sq) * correction / t->loss_scale;
    r->offender_rank = -1;
    r->clip_factor = 1.0;
    if (!isfinite(sums->norm_sq)) {
        r->outcome =
            t->config.scaler.enabled ? GT_STEP_SKIPPED_OVERFLOW : GT_STEP_SKIPPED_NONFINITE;
    } else if (sums->tokens == 0) {
        r->outcome = GT_STEP_SKIPPED_NO_TOKENS;
    } else {
        r->outcome = GT_STEP_APPLIED;
        r->clip_factor = gt_clip_factor(r->gradient_norm, t->config.gradient_clipping);
    }
}

static gt_status apply(gt_trainer *t, gt_step_result *r)
{
    GT_TRY(gt_lr_at(&r->learning_rate, &t->config.scheduler, t->config.optimizer.lr, t->applied));
    if (r->outcome != GT_STEP_APPLIED) {
        if (r->outcome != GT_STEP_SKIPPED_NO_TOKENS) {
            GT_TRY(find_offender(t, r));
        }
        t->skipped++;
        return gt_zero_discard(t->zero);
    }
    double start = now();
    double factor = r->clip_factor / t->loss_scale * (double)t->nominal_tokens / (double)r->tokens;
    GT_TRY(gt_zero_update(t->zero, r->learning_rate, factor, t->applied + 1));
    t->applied++;
    r->optimizer_s = now() - start;
    return GT_OK;
}

static gt_status run_step(gt_trainer *t, const gt_batch *batch, gt_step_result *r)
{
    struct sums sums;
    GT_TRY(compute_gradients(t, batch, r));
    GT_TRY(sum_over_world(t, &sums));
    judge(t, &sums, r);
    GT_TRY(apply(t, r));
    if (t->config.scaler.enabled && r->outcome != GT_STEP_SKIPPED_NO_TOKENS) {
        r->scaler_event = gt_loss_scaler_update(&t->scaler, r->outcome == GT_STEP_SKIPPED_OVERFLOW);
    }
    return GT_OK;
}

static gt_status usable(const gt_trainer *t)
{
    if (t == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the trainer is NULL");
    }
    if (t->broken) {
        return GT_FAIL(GT_ERR_STATE, "the trainer failed before and cannot go on");
    }
    return GT_OK;
}

/* A failure inside a step is told to all ranks, whatever they are waiting for. */
static gt_status fail(gt_trainer *t, gt_status st)
{
    t->broken = true;
    return gt_comm_fail(t->world, st);
}

gt_status gt_trainer_step(gt_trainer *t, const gt_batch *batch, gt_step_result *result)
{
    GT_TRY(usable(t));
    gt_step_result r = {0};
    gt_comm_stats before, after;
    double start = now();
    gt_comm_get_stats(t->world, &before);
    gt_status st = run_step(t, batch, &r);
    if (st != GT_OK) {
        return fail(t, st);
    }
    gt_comm_get_stats(t->world, &after);
    r.seconds = now() - start;
    r.exposed_comm_s = after.exposed_s - before.exposed_s;
    r.comm_busy_s = after.busy_s - before.busy_s;
    r.compute_s = fmax(0.0, r.seconds - r.exposed_comm_s - r.optimizer_s - r.data_s);
    r.applied = t->applied;
    r.skipped = t->skipped;
    if (result != NULL) {
        *result = r;
    }
    return GT_OK;
}

static gt_status run_evaluation(gt_trainer *t, const gt_batch *batch, struct sums *sums)
{
    GT_TRY(gti_batch_upload(t, batch));
    t->mode = LAYOUT_TRAIN;
    t->training = false;
    gti_stage_reset(t);
    GT_TRY(gt_fill(t->ctx, &t->stats, 0.0, NULL));
    GT_TRY(gt_pipeline_forward(t->pipeline, (int)t->config.grad_accum, NULL));
    return sum_over_world(t, sums);
}

gt_status gt_trainer_evaluate(gt_trainer *t, const gt_batch *batch, double *loss, int64_t *tokens)
{
    GT_TRY(usable(t));
    struct sums sums;
    gt_status st = run_evaluation(t, batch, &sums);
    if (st != GT_OK) {
        return fail(t, st);
    }
    if (loss != NULL) {
        *loss = sums.tokens > 0 ? sums.loss / sums.tokens : 0.0;
    }
    if (tokens != NULL) {
        *tokens = (int64_t)sums.tokens;
    }
    return GT_OK;
}
