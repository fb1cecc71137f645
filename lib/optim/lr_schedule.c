/* SPDX-License-Identifier: Apache-2.0
 *
 * Learning-rate schedules as functions of the number of the update, with DeepSpeed's formulas
 * (deepspeed/runtime/lr_schedules.py), so that an existing ds_config.json gives the same rates.
 *
 * Edges, where others divide by zero: a warm-up of 0 steps is none; one of 1 step counts as 2, as
 * in DeepSpeed (ln 1 = 0 cannot be divided by); past the end a schedule stays at its last value;
 * total
 * <= warm-up gives a decay that is over at once.
 */
#include <geektrain/optim.h>

#include <math.h>

#include "core/fail.h"

static double base_rate(const gt_scheduler_config *s, double optimizer_lr)
{
    return s->type == GT_LR_CONSTANT || s->max_lr < 0 ? optimizer_lr : s->max_lr;
}

static int64_t warmup_steps(const gt_scheduler_config *s)
{
    return s->warmup_steps == 1 ? 2 : s->warmup_steps;
}

/* Share of the way from the first rate to the full one; only while index < warmup_steps(s). */
static double warmup_share(const gt_scheduler_config *s, int64_t index)
{
    double steps = (double)warmup_steps(s);
    return s->warmup_log ? 1.0 / log(steps) * log((double)index + 1.0) : (double)index / steps;
}

/* Share of the full rate after warm-up. */
static double decay_share(const gt_scheduler_config *s, int64_t index)
{
    double left = (double)(s->total_steps - index);
    double window = fmax(1.0, (double)(s->total_steps - warmup_steps(s)));
    if (s->type == GT_LR_WARMUP_DECAY) {
        return fmin(1.0, fmax(0.0, left / window));
    }
    if (s->type == GT_LR_WARMUP_COSINE) {
        double progress = fmin(1.0, ((double)(index - warmup_steps(s)) + 1.0) / window);
        double share = (1.0 + cos(M_PI * progress)) / 2.0;
        return fmax(0.0, s->cos_min_ratio + (1.0 - s->cos_min_ratio) * share);
    }
    if (s->type == GT_LR_WSD && s->decay_steps > 0) {
        return fmin(1.0, fmax(0.0, left / (double)s->decay_steps));
    }
    return 1.0;
}

static gt_status check_rate(const char *name, double value)
{
    if (!isfinite(value) || value < 0) {
        return GT_FAIL(GT_ERR_CONFIG, "%s is %g, wanted a finite number that is not negative", name,
                       value);
    }
    return GT_OK;
}

static gt_status check_ratio(const char *name, double value)
{
    if (!(value >= 0 && value <= 1)) {
        return GT_FAIL(GT_ERR_CONFIG, "%s is %g, wanted a number from 0 to 1", name, value);
    }
    return GT_OK;
}

static gt_status check_steps(const gt_scheduler_config *s)
{
    if (s->warmup_steps < 0) {
        return GT_FAIL(GT_ERR_CONFIG, "warmup_num_steps is %lld, wanted 0 or more",
                       (long long)s->warmup_steps);
    }
    if (s->type == GT_LR_WARMUP) {
        return GT_OK;
    }
    if (s->total_steps <= 0) {
        return GT_FAIL(GT_ERR_CONFIG, "total_num_steps is %lld, wanted 1 or more",
                       (long long)s->total_steps);
    }
    if (s->type == GT_LR_WSD && (s->decay_steps < 0 || s->decay_steps > s->total_steps)) {
        return GT_FAIL(GT_ERR_CONFIG, "decay_num_steps is %lld, wanted 0 to total_num_steps %lld",
                       (long long)s->decay_steps, (long long)s->total_steps);
    }
    return GT_OK;
}

gt_status gt_lr_check(const gt_scheduler_config *schedule, double optimizer_lr)
{
    if (schedule == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "schedule is NULL");
    }
    const gt_scheduler_config *s = schedule;
    if (s->type < GT_LR_CONSTANT || s->type > GT_LR_WSD) {
        return GT_FAIL(GT_ERR_CONFIG, "scheduler type is %d, wanted one of gt_schedule_type",
                       (int)s->type);
    }
    if (isnan(s->max_lr)) {
        return GT_FAIL(GT_ERR_CONFIG, "warmup_max_lr is NaN, wanted a number");
    }
    GT_TRY(check_rate(base_rate(s, optimizer_lr) == optimizer_lr ? "lr" : "warmup_max_lr",
                      base_rate(s, optimizer_lr)));
    if (s->type == GT_LR_CONSTANT) {
        return GT_OK;
    }
    GT_TRY(check_steps(s));
    if (s->type == GT_LR_WARMUP_COSINE) {
        GT_TRY(check_ratio("cos_min_ratio", s->cos_min_ratio));
        return check_ratio("warmup_min_ratio", s->warmup_min_ratio);
    }
    return check_rate("warmup_min_lr", s->min_lr);
}

gt_status gt_lr_at(double *out, const gt_scheduler_config *schedule, double optimizer_lr,
                   int64_t index)
{
    if (out == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "out is NULL");
    }
    GT_TRY(gt_lr_check(schedule, optimizer_lr));
    const gt_scheduler_config *s = schedule;
    double base = base_rate(s, optimizer_lr);
    index = index < 0 ? 0 : index; /* the rate asked for before the first update */
    if (s->type == GT_LR_CONSTANT) {
        *out = base;
        return GT_OK;
    }
    bool warming = index < warmup_steps(s);
    double share = warming ? warmup_share(s, index) : decay_share(s, index);
    if (s->type == GT_LR_WARMUP_COSINE) {
        double ratio = warming ? s->warmup_min_ratio + share * (1.0 - s->warmup_min_ratio) : share;
        *out = base * ratio;
    } else {
        *out = s->min_lr + (base - s->min_lr) * share;
    }
    return GT_OK;
}
