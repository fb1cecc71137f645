/* SPDX-License-Identifier: Apache-2.0
 * A training step, whole and taken apart: gt_trainer_step is forward_backward and apply in a row,
 * with their two reductions made one. */
#include "trainer/engine.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/params.h"
#include "zero/state.h"

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
    return (unsigned)outcome < sizeof(names) / sizeof(names[0]) ? names[outcome] : "unknown";
}

void gt_step_result_init(gt_step_result *result, size_t size)
{
    gti_params_init(result, size);
}

void gt_apply_params_init(gt_apply_params *params, size_t size)
{
    gti_params_init(params, size);
}

/* ---- what may be called -----------------------------------------------------------------------
 */

gt_status gti_trainer_usable(const gt_trainer *t)
{
    if (t == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the trainer is NULL");
    }
    if (t->cause[0] != '\0') {
        return GT_FAIL(GT_ERR_STATE, "the trainer failed before and cannot go on: %.800s",
                       t->cause);
    }
    return GT_OK;
}

gt_status gti_trainer_fail(gt_trainer *t, gt_status st)
{
    if (t->cause[0] == '\0') {
        snprintf(t->cause, sizeof(t->cause), "%s", gt_last_error());
    }
    return gt_comm_fail(t->world, st);
}

static gt_status check_phase(const gt_trainer *t, const char *call, bool open)
{
    GT_TRY(gti_trainer_usable(t));
    if (open && t->phase == STEP_NONE) {
        return GT_FAIL(GT_ERR_STATE, "%s without gt_trainer_forward_backward before it", call);
    }
    if (!open && t->phase != STEP_NONE) {
        return GT_FAIL(GT_ERR_STATE,
                       "%s within a step that is taken apart: call gt_trainer_apply or "
                       "gt_trainer_discard first",
                       call);
    }
    return GT_OK;
}

/* ---- sums over the world ----------------------------------------------------------------------
 */

/* Every tensor-parallel rank of the last stage has the whole loss of its rows: one of them counts.
 */
gt_status gti_trainer_sum(gt_trainer *t, struct step_sums *out)
{
    if (gt_mesh_index(t->mesh, GT_AXIS_TP) != 0) {
        GT_TRY(gt_fill(t->ctx, &t->loss_stats, 0.0, NULL));
    }
    GT_TRY(gt_all_reduce(t->world, &t->stats, GT_SUM, NULL, NULL));
    double host[3];
    GT_TRY(gt_copy_to_host(t->ctx, host, &t->stats, NULL));
    *out = (struct step_sums){host[0], host[1], host[2]};
    return GT_OK;
}

static gt_status add_norm(gt_trainer *t)
{
    gt_tensor norm;
    GT_TRY(gt_tensor_slice(&norm, &t->stats, 2, 1));
    return gt_zero_norm(t->zero, &norm);
}

/* ---- forward and backward ---------------------------------------------------------------------
 */

static gt_status run_batch(gt_trainer *t, const gt_batch *batch, bool ends_step)
{
    double start = now();
    GT_TRY(gti_batch_upload(t, batch));
    t->timing.data_s += now() - start;
    t->mode = LAYOUT_TRAIN;
    t->training = true;
    t->ends_step = ends_step;
    t->loss_scale = t->scaler.scale;
    gti_stage_reset(t);
    GT_TRY(gt_fill(t->ctx, &t->stats, 0.0, NULL));
    return gt_pipeline_run(t->pipeline, NULL);
}

static void begin_step(gt_trainer *t)
{
    if (t->phase == STEP_NONE) {
        t->sums = (struct step_sums){0};
        t->timing = (gt_step_result){0};
        t->phase = STEP_OPEN;
        t->norm_known = false;
    }
}

static void count_batch(gt_trainer *t, const struct step_sums *sums)
{
    t->sums.loss += sums->loss;
    t->sums.tokens += sums->tokens;
}

/* Waits for the reductions and learns the norm, where that is not done yet. */
static gt_status finish_gradients(gt_trainer *t)
{
    struct step_sums sums;
    if (t->phase == STEP_OPEN) {
        GT_TRY(gt_zero_finish(t->zero));
        t->phase = STEP_FINISHED;
    }
    if (t->norm_known) {
        return GT_OK;
    }
    GT_TRY(gt_fill(t->ctx, &t->stats, 0.0, NULL));
    GT_TRY(add_norm(t));
    GT_TRY(gti_trainer_sum(t, &sums));
    t->sums.norm_sq = sums.norm_sq;
    t->norm_known = true;
    return GT_OK;
}

/* ---- the end of a step ------------------------------------------------------------------------
 */

/* Gradients are of loss_scale * sum / nominal tokens; wanted: of the mean over actual ones. */
static double gradient_factor(const gt_trainer *t)
{
    double correction = t->sums.tokens > 0 ? (double)t->nominal_tokens / t->sums.tokens : 0.0;
    return correction / t->loss_scale;
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

static void judge(const gt_trainer *t, const gt_apply_params *p, gt_step_result *r)
{
    r->tokens = (int64_t)t->sums.tokens;
    r->loss = t->sums.tokens > 0 ? t->sums.loss / t->sums.tokens : 0.0;
    r->loss_scale = t->loss_scale;
    double correction = t->sums.tokens > 0 ? (double)t->nominal_tokens / t->sums.tokens : 0.0;
    r->gradient_norm = sqrt(t->sums.norm_sq) * correction / t->loss_scale;
    r->offender_rank = -1;
    r->clip_factor = 1.0;
    if (!isfinite(t->sums.norm_sq)) {
        r->outcome =
            t->config.scaler.enabled ? GT_STEP_SKIPPED_OVERFLOW : GT_STEP_SKIPPED_NONFINITE;
    } else if (t->sums.tokens == 0) {
        r->outcome = GT_STEP_SKIPPED_NO_TOKENS;
    } else {
        r->outcome = GT_STEP_APPLIED;
        r->clip_factor = p->clip_factor > 0
                             ? p->clip_factor
                             : gt_clip_factor(r->gradient_norm, t->config.gradient_clipping);
    }
}

static gt_status set_rate(const gt_trainer *t, const gt_apply_params *p, gt_step_result *r)
{
    if (p->learning_rate > 0 || !isnan(t->learning_rate)) {
        r->learning_rate = p->learning_rate > 0 ? p->learning_rate : t->learning_rate;
        return GT_OK;
    }
    return gt_lr_at(&r->learning_rate, &t->config.scheduler, t->config.optimizer.lr, t->applied);
}

static gt_status update(gt_trainer *t, gt_step_result *r)
{
    if (r->outcome != GT_STEP_APPLIED) {
        if (r->outcome != GT_STEP_SKIPPED_NO_TOKENS) {
            GT_TRY(find_offender(t, r));
            t->skipped_in_row++;
        }
        t->skipped++;
        return gt_zero_discard(t->zero);
    }
    double start = now();
    double factor = r->clip_factor / t->loss_scale * (double)t->nominal_tokens / (double)r->tokens;
    GT_TRY(gti_zero_update(t->zero, r->learning_rate, factor, t->applied + 1));
    t->applied++;
    t->skipped_in_row = 0;
    r->optimizer_s = now() - start;
    return GT_OK;
}

/* With all sums known: apply or skip, and what follows from it. */
static gt_status end_step(gt_trainer *t, const gt_apply_params *p, gt_step_result *r)
{
    judge(t, p, r);
    GT_TRY(set_rate(t, p, r));
    GT_TRY(update(t, r));
    t->phase = STEP_NONE;
    if (t->config.scaler.enabled && r->outcome != GT_STEP_SKIPPED_NO_TOKENS) {
        r->scaler_event = gt_loss_scaler_update(&t->scaler, r->outcome == GT_STEP_SKIPPED_OVERFLOW);
    }
    return GT_OK;
}

/* A run that diverged would skip for ever. The trainer stays usable: the caller may know better. */
static gt_status check_skips(gt_trainer *t, const gt_step_result *r)
{
    int64_t limit = t->config.max_skipped_steps;
    if (limit <= 0 || t->skipped_in_row < limit) {
        return GT_OK;
    }
    int64_t row = t->skipped_in_row;
    t->skipped_in_row = 0;
    return GT_FAIL(
        GT_ERR_STATE,
        "%lld steps in a row were skipped, the last one for a gradient of %s that is not "
        "finite; lower the learning rate, look at the data, or raise max_skipped_steps",
        (long long)row, r->offender[0] ? r->offender : "a parameter");
}

/* ---- timing -----------------------------------------------------------------------------------
 */

struct stopwatch {
    double start;
    gt_comm_stats before;
};

static struct stopwatch start_watch(const gt_trainer *t)
{
    struct stopwatch w = {.start = now()};
    gt_comm_get_stats(t->world, &w.before);
    return w;
}

static void stop_watch(gt_trainer *t, const struct stopwatch *w)
{
    gt_comm_stats after;
    gt_comm_get_stats(t->world, &after);
    t->timing.seconds += now() - w->start;
    t->timing.exposed_comm_s += after.exposed_s - w->before.exposed_s;
    t->timing.comm_busy_s += after.busy_s - w->before.busy_s;
}

static gt_status give(const gt_trainer *t, gt_step_result *r, gt_step_result *result)
{
    r->struct_size = sizeof(*r);
    r->seconds = t->timing.seconds;
    r->data_s = t->timing.data_s;
    r->exposed_comm_s = t->timing.exposed_comm_s;
    r->comm_busy_s = t->timing.comm_busy_s;
    r->compute_s = fmax(0.0, r->seconds - r->exposed_comm_s - r->optimizer_s - r->data_s);
    r->applied = t->applied;
    r->skipped = t->skipped;
    return result ? gti_params_give(result, r, sizeof(*r), "gt_step_result") : GT_OK;
}

/* ---- public -----------------------------------------------------------------------------------
 */

static gt_status check_result(const gt_step_result *result)
{
    gt_step_result copy = GT_STEP_RESULT_INIT;
    return result ? GTI_PARAMS_COPY(&copy, result, gt_step_result) : GT_OK;
}

static gt_status run_step(gt_trainer *t, const gt_batch *batch, gt_step_result *r)
{
    const gt_apply_params defaults = GT_APPLY_PARAMS_INIT;
    struct step_sums sums;
    begin_step(t);
    GT_TRY(run_batch(t, batch, true));
    GT_TRY(gt_zero_finish(t->zero));
    GT_TRY(add_norm(t));
    GT_TRY(gti_trainer_sum(t, &sums));
    t->sums = sums;
    return end_step(t, &defaults, r);
}

gt_status gt_trainer_step(gt_trainer *t, const gt_batch *batch, gt_step_result *result)
{
    GT_TRY(check_phase(t, "gt_trainer_step", false));
    GT_TRY(check_result(result));
    gt_step_result r = GT_STEP_RESULT_INIT;
    struct stopwatch watch = start_watch(t);
    gt_status st = run_step(t, batch, &r);
    if (st != GT_OK) {
        return gti_trainer_fail(t, st);
    }
    stop_watch(t, &watch);
    GT_TRY(give(t, &r, result));
    return check_skips(t, &r);
}

static gt_status open_step(gt_trainer *t, const gt_batch *batch, struct step_sums *sums)
{
    begin_step(t);
    GT_TRY(run_batch(t, batch, false));
    GT_TRY(gti_trainer_sum(t, sums));
    count_batch(t, sums);
    return GT_OK;
}

gt_status gt_trainer_forward_backward(gt_trainer *t, const gt_batch *batch, double *loss,
                                      int64_t *tokens)
{
    GT_TRY(gti_trainer_usable(t));
    if (t->phase == STEP_FINISHED) {
        return GT_FAIL(GT_ERR_STATE,
                       "gt_trainer_forward_backward after the step's gradients were "
                       "asked for: call gt_trainer_apply or gt_trainer_discard first");
    }
    struct step_sums sums;
    struct stopwatch watch = start_watch(t);
    gt_status st = open_step(t, batch, &sums);
    if (st != GT_OK) {
        return gti_trainer_fail(t, st);
    }
    stop_watch(t, &watch);
    if (loss != NULL) {
        *loss = sums.tokens > 0 ? sums.loss / sums.tokens : 0.0;
    }
    if (tokens != NULL) {
        *tokens = (int64_t)sums.tokens;
    }
    return GT_OK;
}

gt_status gt_trainer_gradient_norm(gt_trainer *t, double *norm)
{
    GT_TRY(check_phase(t, "gt_trainer_gradient_norm", true));
    if (norm == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_trainer_gradient_norm: norm is NULL");
    }
    struct stopwatch watch = start_watch(t);
    gt_status st = finish_gradients(t);
    if (st != GT_OK) {
        return gti_trainer_fail(t, st);
    }
    stop_watch(t, &watch);
    *norm = sqrt(t->sums.norm_sq) * gradient_factor(t);
    return GT_OK;
}

static gt_status check_apply(const gt_trainer *t, const gt_apply_params *params,
                             gt_apply_params *own)
{
    GT_TRY(GTI_PARAMS_COPY(own, params, gt_apply_params));
    if (!(own->clip_factor >= 0) || isinf(own->clip_factor) || !(own->learning_rate >= 0) ||
        isinf(own->learning_rate)) {
        return GT_FAIL(GT_ERR_ARGUMENT,
                       "gt_trainer_apply with clip_factor %g and learning_rate %g, wanted finite "
                       "numbers from 0 on",
                       own->clip_factor, own->learning_rate);
    }
    const double numbers[] = {own->clip_factor, own->learning_rate};
    return gt_comm_check_equal(t->world, "what gt_trainer_apply is given", numbers,
                               sizeof(numbers));
}

gt_status gt_trainer_apply(gt_trainer *t, const gt_apply_params *params, gt_step_result *result)
{
    gt_apply_params p;
    GT_TRY(check_phase(t, "gt_trainer_apply", true));
    GT_TRY(check_result(result));
    GT_TRY(check_apply(t, params, &p));
    gt_step_result r = GT_STEP_RESULT_INIT;
    struct stopwatch watch = start_watch(t);
    gt_status st = finish_gradients(t);
    st = st == GT_OK ? end_step(t, &p, &r) : st;
    if (st != GT_OK) {
        return gti_trainer_fail(t, st);
    }
    stop_watch(t, &watch);
    GT_TRY(give(t, &r, result));
    return check_skips(t, &r);
}

gt_status gt_trainer_discard(gt_trainer *t)
{
    GT_TRY(gti_trainer_usable(t));
    if (t->phase == STEP_NONE) {
        return GT_OK;
    }
    /* What is on its way is waited for: its buffers are the next step's. */
    gt_status st = t->phase == STEP_OPEN ? gt_zero_finish(t->zero) : GT_OK;
    st = st == GT_OK ? gt_zero_discard(t->zero) : st;
    t->phase = STEP_NONE;
    return st == GT_OK ? GT_OK : gti_trainer_fail(t, st);
}

/* ---- settings at run time ---------------------------------------------------------------------
 */

gt_status gt_trainer_set_learning_rate(gt_trainer *t, double learning_rate)
{
    GT_TRY(gti_trainer_usable(t));
    if (isinf(learning_rate) || learning_rate < 0) {
        return GT_FAIL(GT_ERR_ARGUMENT,
                       "learning rate %g, wanted a finite number from 0 on, or NaN "
                       "for the schedule's",
                       learning_rate);
    }
    GT_TRY(
        gt_comm_check_equal(t->world, "the learning rate", &learning_rate, sizeof(learning_rate)));
    t->learning_rate = learning_rate;
    return GT_OK;
}

gt_status gt_trainer_set_weight_decay(gt_trainer *t, double weight_decay)
{
    GT_TRY(gti_trainer_usable(t));
    GT_TRY(gt_comm_check_equal(t->world, "the weight decay", &weight_decay, sizeof(weight_decay)));
    GT_TRY(gt_zero_set_weight_decay(t->zero, weight_decay));
    t->config.optimizer.weight_decay = weight_decay;
    return GT_OK;
}

static gt_status match(const gt_trainer *t, const char *pattern, int *found, int *count)
{
    *count = 0;
    for (int i = 0; i < t->table->count; i++) {
        if (fnmatch(pattern, t->table->param[i].decl.name, 0) == 0) {
            found[(*count)++] = i;
        }
    }
    if (*count == 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "no parameter of the model is named %s", pattern);
    }
    return GT_OK;
}

gt_status gt_trainer_freeze(gt_trainer *t, const char *pattern, bool frozen)
{
    GT_TRY(check_phase(t, "gt_trainer_freeze", false));
    char request[GTI_NAME_MAX] = {frozen};
    int count = 0, *found = calloc((size_t)t->table->count + 1, sizeof(int));
    gt_status st = found ? GT_OK : GT_FAIL(GT_ERR_MEMORY, "no host memory for a list of names");
    if (pattern == NULL || strlen(pattern) >= sizeof(request) - 1) {
        st = GT_FAIL(GT_ERR_ARGUMENT,
                     "gt_trainer_freeze needs a pattern of less than %zu characters",
                     sizeof(request) - 1);
    }
    st = st == GT_OK ? match(t, pattern, found, &count) : st;
    st = gt_comm_agree(t->world, st);
    if (st == GT_OK) {
        snprintf(request + 1, sizeof(request) - 1, "%s", pattern);
        st = gt_comm_check_equal(t->world, "what is to be frozen", request, sizeof(request));
    }
    if (st == GT_OK) {
        st = gt_zero_freeze(t->zero, found, count, frozen);
        st = st == GT_OK ? GT_OK : gti_trainer_fail(t, st);
    }
    free(found);
    return st;
}

void gt_trainer_state_init(gt_trainer_state *state, size_t size)
{
    gti_params_init(state, size);
}

gt_status gt_trainer_get_state(const gt_trainer *t, gt_trainer_state *out)
{
    if (t == NULL || out == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_trainer_get_state needs a trainer and out");
    }
    gt_trainer_state s = {.struct_size = sizeof(s),
                          .applied = t->applied,
                          .skipped = t->skipped,
                          .skipped_in_row = t->skipped_in_row,
                          .scaler = t->scaler};
    return gti_params_give(out, &s, sizeof(s), "gt_trainer_state");
}

static gt_status check_state(const gt_trainer *t, const gt_trainer_state *state,
                             gt_trainer_state *own)
{
    if (state == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_trainer_set_state: state is NULL");
    }
    GT_TRY(GTI_PARAMS_COPY(own, state, gt_trainer_state));
    if (own->applied < 0 || own->skipped < 0 || own->skipped_in_row < 0 ||
        !(own->scaler.scale > 0) || isinf(own->scaler.scale)) {
        return GT_FAIL(
            GT_ERR_ARGUMENT,
            "a trainer's state of %lld applied and %lld skipped steps and loss scale %g, "
            "wanted counts from 0 on and a finite scale above 0",
            (long long)own->applied, (long long)own->skipped, own->scaler.scale);
    }
    return GT_OK;
}

gt_status gt_trainer_set_state(gt_trainer *t, const gt_trainer_state *state)
{
    gt_trainer_state s;
    GT_TRY(check_phase(t, "gt_trainer_set_state", false));
    GT_TRY(gt_comm_agree(t->world, check_state(t, state, &s)));
    const double numbers[] = {(double)s.applied, (double)s.skipped, s.scaler.scale};
    GT_TRY(gt_comm_check_equal(t->world, "the trainer's state", numbers, sizeof(numbers)));
    t->applied = s.applied;
    t->skipped = s.skipped;
    t->skipped_in_row = s.skipped_in_row;
    t->scaler = s.scaler;
    return GT_OK;
}
