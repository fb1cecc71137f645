/* SPDX-License-Identifier: Apache-2.0
 * Plays a schedule in time: the one model of what waits for what, for validator, simulator,
 * pictures and buffer counts. */
#include <stdlib.h>

#include "core/fail.h"
#include "schedule/schedule.h"

static size_t cell(const gt_schedule *s, int stage, int microbatch)
{
    return (size_t)stage * (size_t)s->microbatches + (size_t)microbatch;
}

static const gt_stage_cost *cost_of(const gti_play *p, int stage)
{
    return &p->cost[p->costs == 1 ? 0 : stage];
}

static double *never(size_t n)
{
    double *times = gti_schedule_calloc(n, sizeof(double), "a play");
    for (size_t i = 0; times && i < n; i++) {
        times[i] = -1;
    }
    return times;
}

static gt_status prepare(gti_play *p)
{
    const gt_schedule *s = p->s;
    size_t ranks = (size_t)s->ranks, cells = (size_t)s->stages * (size_t)s->microbatches;
    p->position = gti_schedule_calloc(ranks, sizeof(int), "a play");
    p->clock = gti_schedule_calloc(ranks, sizeof(double), "a play");
    p->start = gti_schedule_calloc(ranks, sizeof(double *), "a play");
    p->end = gti_schedule_calloc(ranks, sizeof(double *), "a play");
    if (!p->position || !p->clock || !p->start || !p->end) {
        return GT_ERR_MEMORY;
    }
    for (int r = 0; r < s->ranks; r++) {
        p->start[r] = never((size_t)s->lists[r].count);
        p->end[r] = never((size_t)s->lists[r].count);
        if (!p->start[r] || !p->end[r]) {
            return GT_ERR_MEMORY;
        }
    }
    for (int k = 0; k < GT_ACTION_KIND_COUNT; k++) {
        p->done[k] = never(cells);
        p->begun[k] = gti_action_is_compute((gt_action_kind)k) ? never(cells) : NULL;
        if (!p->done[k] || (gti_action_is_compute((gt_action_kind)k) && !p->begun[k])) {
            return GT_ERR_MEMORY;
        }
    }
    for (int d = 0; d < 2; d++) {
        p->arrived[d] = never(cells);
        p->owner[d] = gti_schedule_calloc(cells, sizeof(int), "a play");
        if (!p->arrived[d] || !p->owner[d]) {
            return GT_ERR_MEMORY;
        }
        for (size_t i = 0; i < cells; i++) {
            p->owner[d][i] = -1;
        }
    }
    return GT_OK;
}

void gti_play_clear(gti_play *p)
{
    for (int r = 0; p->s && r < p->s->ranks; r++) {
        free(p->start ? p->start[r] : NULL);
        free(p->end ? p->end[r] : NULL);
    }
    for (int k = 0; k < GT_ACTION_KIND_COUNT; k++) {
        free(p->done[k]);
        free(p->begun[k]);
    }
    for (int d = 0; d < 2; d++) {
        free(p->arrived[d]);
        free(p->owner[d]);
    }
    free(p->position);
    free(p->clock);
    free(p->start);
    free(p->end);
    *p = (gti_play){0};
}

/* End of the (input part of the) backward of a stage. */
static double backward_end(const gti_play *p, int stage, int microbatch)
{
    size_t at = cell(p->s, stage, microbatch);
    double whole = p->done[GT_ACTION_BACKWARD][at];
    return whole >= 0 ? whole : p->done[GT_ACTION_BACKWARD_INPUT][at];
}

/* *ready becomes the later of itself and t; false if t has not happened. */
static bool need(double *ready, double t)
{
    if (t < 0) {
        return false;
    }
    if (t > *ready) {
        *ready = t;
    }
    return true;
}

/* The buffer that this output (0) or input gradient (1) goes to must have been sent. */
static bool buffer_free(const gti_play *p, int rank, gt_action a, int direction, double *ready)
{
    const gt_schedule *s = p->s;
    gti_pool pool = direction ? GTI_POOL_INPUT_GRAD : GTI_POOL_OUTPUT;
    int slot = s->slots[rank].slot[pool][gti_schedule_index(s, a)];
    if (p->unbounded || slot < 0) {
        return true;
    }
    int stage = gti_schedule_stage_of(s, rank, a);
    int owner = p->owner[direction][cell(s, stage, slot)];
    if (owner < 0) {
        return true;
    }
    if (direction == 0) {
        return need(ready, p->arrived[0][cell(s, stage, owner)]);
    }
    for (int i = 0; i < s->previous_count[stage]; i++) {
        int from = s->previous[stage * GT_MAX_PORTS + i];
        if (!need(ready, p->arrived[1][cell(s, from, owner)])) {
            return false;
        }
    }
    return true;
}

static bool forward_ready(const gti_play *p, int rank, gt_action a, double *ready)
{
    const gt_schedule *s = p->s;
    int stage = gti_schedule_stage_of(s, rank, a);
    for (int i = 0; i < s->previous_count[stage]; i++) {
        int from = s->previous[stage * GT_MAX_PORTS + i];
        const double *t = gti_schedule_sends(s, from) ? p->arrived[0] : p->done[GT_ACTION_FORWARD];
        if (!need(ready, t[cell(s, from, a.microbatch)])) {
            return false;
        }
    }
    return buffer_free(p, rank, a, 0, ready);
}

static bool backward_ready(const gti_play *p, int rank, gt_action a, double *ready)
{
    const gt_schedule *s = p->s;
    int stage = gti_schedule_stage_of(s, rank, a);
    int next = s->next[stage];
    double t = next < 0 ? p->done[GT_ACTION_FORWARD][cell(s, stage, a.microbatch)]
               : gti_schedule_sends(s, stage) ? p->arrived[1][cell(s, stage, a.microbatch)]
                                              : backward_end(p, next, a.microbatch);
    return need(ready, t) && buffer_free(p, rank, a, 1, ready);
}

static bool action_ready(const gti_play *p, int rank, gt_action a, double *ready)
{
    switch (a.kind) {
    case GT_ACTION_FORWARD:
        return forward_ready(p, rank, a, ready);
    case GT_ACTION_BACKWARD:
    case GT_ACTION_BACKWARD_INPUT:
        return backward_ready(p, rank, a, ready);
    default:
        return true;
    }
}

static double duration(const gti_play *p, int stage, gt_action_kind kind)
{
    const gt_stage_cost *c = cost_of(p, stage);
    switch (kind) {
    case GT_ACTION_FORWARD:
        return c->forward;
    case GT_ACTION_BACKWARD:
        return c->backward_input + c->backward_weight;
    case GT_ACTION_BACKWARD_INPUT:
        return c->backward_input;
    case GT_ACTION_BACKWARD_WEIGHT:
        return c->backward_weight;
    default:
        return 0;
    }
}

/* The transfer of stage's output (0) or of its gradient (1) runs once both ends are posted. */
static void transfer(gti_play *p, int stage, int microbatch, int direction)
{
    const gt_schedule *s = p->s;
    size_t here = cell(s, stage, microbatch), there = cell(s, s->next[stage], microbatch);
    double send =
        direction ? p->done[GT_ACTION_SEND_BACKWARD][there] : p->done[GT_ACTION_SEND_FORWARD][here];
    double receive =
        direction ? p->done[GT_ACTION_RECV_BACKWARD][here] : p->done[GT_ACTION_RECV_FORWARD][there];
    if (send >= 0 && receive >= 0) {
        p->arrived[direction][here] =
            (send > receive ? send : receive) + cost_of(p, stage)->transfer;
    }
}

static void take_buffer(gti_play *p, int rank, gt_action a, int direction)
{
    gti_pool pool = direction ? GTI_POOL_INPUT_GRAD : GTI_POOL_OUTPUT;
    int slot = p->s->slots[rank].slot[pool][gti_schedule_index(p->s, a)];
    if (!p->unbounded && slot >= 0) {
        int stage = gti_schedule_stage_of(p->s, rank, a);
        p->owner[direction][cell(p->s, stage, slot)] = a.microbatch;
    }
}

static void act(gti_play *p, int rank, gt_action a, double ready)
{
    const gt_schedule *s = p->s;
    int stage = gti_schedule_stage_of(s, rank, a), at = p->position[rank]++;
    size_t here = cell(s, stage, a.microbatch);
    p->start[rank][at] = ready;
    p->end[rank][at] = p->clock[rank] = ready + duration(p, stage, a.kind);
    p->done[a.kind][here] = p->clock[rank];
    if (gti_action_is_compute(a.kind)) {
        p->begun[a.kind][here] = ready;
    }
    switch (a.kind) {
    case GT_ACTION_FORWARD:
        take_buffer(p, rank, a, 0);
        break;
    case GT_ACTION_BACKWARD:
    case GT_ACTION_BACKWARD_INPUT:
        take_buffer(p, rank, a, 1);
        break;
    case GT_ACTION_SEND_FORWARD:
        transfer(p, stage, a.microbatch, 0);
        break;
    case GT_ACTION_RECV_BACKWARD:
        transfer(p, stage, a.microbatch, 1);
        break;
    case GT_ACTION_RECV_FORWARD:
    case GT_ACTION_SEND_BACKWARD:
        for (int i = 0; i < s->previous_count[stage]; i++) {
            transfer(p, s->previous[stage * GT_MAX_PORTS + i], a.microbatch,
                     a.kind == GT_ACTION_SEND_BACKWARD);
        }
        break;
    default:
        break;
    }
}

gt_status gti_play_run(gti_play *p, const gt_schedule *s, const gt_stage_cost *cost, int costs,
                       bool unbounded, bool *stuck)
{
    *p = (gti_play){.s = s, .cost = cost, .costs = costs, .unbounded = unbounded};
    GT_TRY(prepare(p));
    bool moved = true, finished = false;
    while (moved && !finished) {
        moved = false;
        finished = true;
        for (int r = 0; r < s->ranks; r++) {
            while (p->position[r] < s->lists[r].count) {
                gt_action a = s->lists[r].items[p->position[r]];
                double ready = p->clock[r];
                if (!action_ready(p, r, a, &ready)) {
                    break;
                }
                act(p, r, a, ready);
                moved = true;
            }
            finished &= p->position[r] == s->lists[r].count;
        }
    }
    *stuck = !finished;
    return GT_OK;
}

/* What rank's next action waits for, as a sentence's end. */
static void missing(const gti_play *p, int rank, gt_action a, char *text, size_t size)
{
    const gt_schedule *s = p->s;
    int stage = gti_schedule_stage_of(s, rank, a);
    bool forward = a.kind == GT_ACTION_FORWARD;
    double ready = 0;
    int other = s->next[stage];
    for (int i = 0; forward && i < s->previous_count[stage]; i++) {
        int from = s->previous[stage * GT_MAX_PORTS + i];
        if (p->done[GT_ACTION_FORWARD][cell(s, from, a.microbatch)] < 0 ||
            (gti_schedule_sends(s, from) && p->arrived[0][cell(s, from, a.microbatch)] < 0)) {
            snprintf(text, size, "the output of stage %d (rank %d) for it", from,
                     s->stage_rank[from]);
            return;
        }
    }
    if (!forward && other >= 0 && !(backward_end(p, other, a.microbatch) >= 0)) {
        snprintf(text, size, "the gradient from stage %d (rank %d) for it", other,
                 s->stage_rank[other]);
    } else if (!buffer_free(p, rank, a, !forward, &ready)) {
        snprintf(text, size, "a free buffer: stage %d has not posted a receive for an earlier one",
                 forward ? other : s->previous[stage * GT_MAX_PORTS]);
    } else {
        snprintf(text, size, "an action that comes later in its own list");
    }
}

gt_status gti_play_explain(const gti_play *p)
{
    const gt_schedule *s = p->s;
    char text[400] = "", what[80], why[128];
    int length = 0, shown = 0;
    for (int r = 0; r < s->ranks && shown < 2; r++) {
        if (p->position[r] >= s->lists[r].count) {
            continue;
        }
        gt_action a = s->lists[r].items[p->position[r]];
        missing(p, r, a, why, sizeof(why));
        length += snprintf(text + length, sizeof(text) - (size_t)length,
                           "%srank %d, action %d (%s) waits for %s", shown ? "; " : "", r,
                           p->position[r], gti_action_text(a, what), why);
        shown++;
    }
    return GT_FAIL(GT_ERR_FORMAT, "schedule %s deadlocks: %s", s->name, text);
}
