/* SPDX-License-Identifier: Apache-2.0
 *
 * Dynamic loss scaling. Three published rules, of which traces are in
 * tests/unit/test_loss_scaler.c:
 *
 *   deepspeed  overflow: hysteresis - 1 are forgiven, refilled on growth or, with consecutive, on
 *              every clean step. Growth after window + 1 clean steps, then after every window
 *   megatron   the same overflows, refilled on growth only. Growth after every window clean steps
 *   torch      each overflow halves. Growth after every window clean steps
 *
 * The scale stays within [min_scale, largest power of two that f32 holds], whatever comes.
 */
#include <geektrain/optim.h>

#include <float.h>
#include <math.h>
#include <string.h>

#include "core/fail.h"

static gt_status check_dynamic(const gt_scaler_config *c)
{
    if (c->initial_power < 0 || c->initial_power > 127) {
        return GT_FAIL(GT_ERR_CONFIG, "initial_scale_power is %d, wanted 0 to 127",
                       c->initial_power);
    }
    if (c->window < 1) {
        return GT_FAIL(GT_ERR_CONFIG, "loss_scale_window is %d, wanted 1 or more", c->window);
    }
    if (c->hysteresis < 1) {
        return GT_FAIL(GT_ERR_CONFIG, "hysteresis is %d, wanted 1 or more", c->hysteresis);
    }
    double initial = ldexp(1.0, c->initial_power);
    if (!(c->min_scale >= 0 && c->min_scale <= initial)) {
        return GT_FAIL(GT_ERR_CONFIG, "min_loss_scale is %g, wanted 0 to the initial scale %g",
                       c->min_scale, initial);
    }
    return GT_OK;
}

gt_status gt_loss_scaler_init(gt_loss_scaler *scaler, const gt_scaler_config *config)
{
    if (scaler == NULL || config == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s is NULL", scaler == NULL ? "scaler" : "config");
    }
    gt_loss_scaler s;
    memset(&s, 0, sizeof(s)); /* padding too: the state is copied and hashed as bytes */
    s.scale = 1.0;
    s.last_overflow = -1;
    if (config->enabled && config->static_scale == 0) {
        GT_TRY(check_dynamic(config));
        s.dynamic = true;
        s.scale = ldexp(1.0, config->initial_power);
        s.min_scale = config->min_scale;
        s.window = config->window;
        s.hysteresis = s.hysteresis_left = config->hysteresis;
        s.consecutive = config->consecutive;
    } else if (config->enabled) {
        if (!(config->static_scale > 0 && config->static_scale <= (double)FLT_MAX)) {
            return GT_FAIL(GT_ERR_CONFIG, "loss_scale is %g, wanted 0 (dynamic) to %g",
                           config->static_scale, (double)FLT_MAX);
        }
        s.scale = config->static_scale;
    }
    *scaler = s;
    return GT_OK;
}

static gt_scaler_event shrink(gt_loss_scaler *s)
{
    double floor = fmax(s->min_scale, (double)FLT_MIN);
    if (s->scale <= floor) {
        return GT_SCALER_AT_FLOOR;
    }
    s->scale = fmax(s->scale / 2, floor);
    return GT_SCALER_SHRANK;
}

static gt_scaler_event overflowed(gt_loss_scaler *s)
{
    s->last_overflow = s->iteration;
    if (s->rule == GT_SCALER_TORCH) {
        return shrink(s);
    }
    if (s->rule == GT_SCALER_MEGATRON) {
        s->hysteresis_left -= s->hysteresis_left > 0 ? 1 : 0;
        return s->hysteresis_left > 0 ? GT_SCALER_HELD : shrink(s);
    }
    if (s->hysteresis_left <= 1) {
        return shrink(s);
    }
    s->hysteresis_left--;
    return GT_SCALER_HELD;
}

static gt_scaler_event grow(gt_loss_scaler *s)
{
    if (s->scale > (double)FLT_MAX / 2) {
        return GT_SCALER_AT_CAP;
    }
    s->scale *= 2;
    return GT_SCALER_GREW;
}

static gt_scaler_event clean(gt_loss_scaler *s)
{
    bool deepspeed = s->rule == GT_SCALER_DEEPSPEED;
    if (deepspeed && s->consecutive) {
        s->hysteresis_left = s->hysteresis;
    }
    int64_t run = s->iteration - s->last_overflow - (deepspeed ? 1 : 0);
    if (s->window < 1 || run <= 0 || run % s->window != 0) {
        return GT_SCALER_KEPT;
    }
    s->hysteresis_left = s->hysteresis;
    return grow(s);
}

gt_scaler_event gt_loss_scaler_update(gt_loss_scaler *scaler, bool overflow)
{
    gt_scaler_event event = GT_SCALER_KEPT;
    if (scaler->dynamic) {
        event = overflow ? overflowed(scaler) : clean(scaler);
    } else if (overflow) {
        scaler->last_overflow = scaler->iteration;
    }
    scaler->iteration++;
    return event;
}

const char *gt_scaler_event_name(gt_scaler_event event)
{
    static const char *const names[] = {
        [GT_SCALER_KEPT] = "kept",         [GT_SCALER_GREW] = "grew",
        [GT_SCALER_HELD] = "held",         [GT_SCALER_SHRANK] = "shrank",
        [GT_SCALER_AT_FLOOR] = "at floor", [GT_SCALER_AT_CAP] = "at cap",
    };
    size_t i = (size_t)event;
    return i < sizeof(names) / sizeof(names[0]) ? names[i] : "unknown";
}
