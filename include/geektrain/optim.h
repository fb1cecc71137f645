/* SPDX-License-Identifier: Apache-2.0
 *
 * Learning-rate schedules (pure) and the loss scaler, each usable alone.
 */
#ifndef GEEKTRAIN_OPTIM_H
#define GEEKTRAIN_OPTIM_H

#include <geektrain/config.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The rate used by applied update number `index`, from 0. optimizer_lr is what max_lr < 0 stands
 * for. Never NaN or negative. DeepSpeed's formulas; with n = warmup_steps (1 counts as 2, 0: no
 * warm-up):
 *
 *   warm-up  index < n: min_lr + (max - min_lr) * w, w = ln(index+1)/ln(n), or index/n if linear
 *   decay    index >= n: min_lr + (max - min_lr) * (total - index) / (total - n)
 *   cosine   index < n: max * (warmup_min_ratio + w * (1 - warmup_min_ratio)); then
 *            max * (r + (1 - r) * (1 + cos(pi (index-n+1)/(total-n)))/2), r = cos_min_ratio
 *   wsd      max until total - decay_steps, then linear to min_lr at total
 *
 * and the last value after the end. Errors: GT_ERR_CONFIG for a schedule that makes no sense. */
GT_API gt_status gt_lr_at(double *out, const gt_scheduler_config *schedule, double optimizer_lr,
                          int64_t index);
/* gt_lr_at's checks alone. GT_ERR_CONFIG naming the value. */
GT_API gt_status gt_lr_check(const gt_scheduler_config *schedule, double optimizer_lr);

/* The factor by which gradients are clipped: min(1, max_norm / (norm + 1e-6)); 1 when max_norm is 0
 * (off) or infinite, or when gt_clip_check refuses it. A non-finite norm gives 0: no factor mends
 * such gradients, skip the step. */
GT_API double gt_clip_factor(double norm, double max_norm);
/* GT_ERR_CONFIG when max_norm is NaN or negative. */
GT_API gt_status gt_clip_check(double max_norm);

/* ---- loss scaler ------------------------------------------------------------------------------
 * DeepSpeed's rules (docs/mixed-precision.md): a plain struct, no memory, copy it to save it. */
typedef enum gt_scaler_event {
    GT_SCALER_KEPT = 0,
    GT_SCALER_GREW,
    GT_SCALER_HELD, /* overflow used up hysteresis, the scale stays             */
    GT_SCALER_SHRANK,
    GT_SCALER_AT_FLOOR, /* overflow, but the scale is at its minimum already        */
    GT_SCALER_AT_CAP    /* would have grown past the largest finite float           */
} gt_scaler_event;

typedef enum gt_scaler_rule {
    GT_SCALER_DEEPSPEED = 0, /* grows after window + 1 good steps, then every window             */
    GT_SCALER_MEGATRON, /* every window good steps; hysteresis refills on growth only           */
    GT_SCALER_TORCH     /* every window good steps; no hysteresis                               */
} gt_scaler_rule;

typedef struct gt_loss_scaler {
    double scale; /* multiply the loss by it; 1 when scaling is off                    */
    double min_scale;
    int64_t window, iteration, last_overflow; /* steps; last_overflow -1: none yet                */
    int hysteresis, hysteresis_left;
    bool dynamic, consecutive;
    gt_scaler_rule rule; /* set it after gt_loss_scaler_init for another than DeepSpeed's     */
} gt_loss_scaler;

/* Errors: GT_ERR_CONFIG naming the value. */
GT_API gt_status gt_loss_scaler_init(gt_loss_scaler *scaler, const gt_scaler_config *config);
/* After each step, skipped ones too: `overflow` as agreed by all ranks. Returns what happened to
 * the scale. */
GT_API gt_scaler_event gt_loss_scaler_update(gt_loss_scaler *scaler, bool overflow);
GT_API const char *gt_scaler_event_name(gt_scaler_event event);

#ifdef __cplusplus
}
#endif
#endif
