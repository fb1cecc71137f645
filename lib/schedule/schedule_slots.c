/* SPDX-License-Identifier: Apache-2.0
 * Which boundary buffer each microbatch uses: fixed once, so that steps only look it up.
 *
 * Inputs and received gradients are taken and given back by the rank's own actions: a scan of the
 * list finds them. How long an output is under way depends on the other side; outputs go round in
 * as many buffers as keep a simulated run from waiting for one. */
#include <stdlib.h>

#include "core/fail.h"
#include "schedule/schedule.h"

/* Smallest free numbers of one chunk's pool. */
typedef struct numbers {
    bool *taken; /* [microbatches] */
    int most;
} numbers;

static int take(numbers *n)
{
    int i = 0;
    while (n->taken[i]) {
        i++;
    }
    n->taken[i] = true;
    if (i + 1 > n->most) {
        n->most = i + 1;
    }
    return i;
}

/* Takes a buffer for (microbatch, chunk) unless it has one. */
static void take_for(gti_slots *slots, gti_pool pool, int index, numbers *n)
{
    if (slots->slot[pool][index] < 0) {
        slots->slot[pool][index] = take(n);
    }
}

static void give_back(const gti_slots *slots, gti_pool pool, int index, numbers *n)
{
    if (slots->slot[pool][index] >= 0) {
        n->taken[slots->slot[pool][index]] = false;
    }
}

typedef struct scan {
    const gt_schedule *s;
    int rank;
    gti_slots *slots;
    numbers *in, *grad; /* [chunks] */
} scan;

static void scan_forward(scan *w, gt_action a)
{
    const gt_schedule *s = w->s;
    int stage = gti_schedule_stage_of(s, w->rank, a), next = s->next[stage];
    if (next >= 0 && !gti_schedule_sends(s, stage)) {
        int chunk = s->stage_chunk[next];
        take_for(w->slots, GTI_POOL_INPUT, a.microbatch * s->chunks + chunk, &w->in[chunk]);
    }
    if (s->forward_only) {
        give_back(w->slots, GTI_POOL_INPUT, gti_schedule_index(s, a), &w->in[a.chunk]);
    }
}

static void scan_backward(scan *w, gt_action a)
{
    const gt_schedule *s = w->s;
    int stage = gti_schedule_stage_of(s, w->rank, a), index = gti_schedule_index(s, a);
    if (s->previous_count[stage] > 0 && !gti_schedule_receives(s, stage)) {
        int chunk = s->stage_chunk[s->previous[stage * GT_MAX_PORTS]];
        take_for(w->slots, GTI_POOL_GRAD, a.microbatch * s->chunks + chunk, &w->grad[chunk]);
    }
    give_back(w->slots, GTI_POOL_GRAD, index, &w->grad[a.chunk]);
    if (a.kind == GT_ACTION_BACKWARD) {
        give_back(w->slots, GTI_POOL_INPUT, index, &w->in[a.chunk]);
    }
}

static void scan_list(scan *w)
{
    const gti_action_list *list = &w->s->lists[w->rank];
    for (int i = 0; i < list->count; i++) {
        gt_action a = list->items[i];
        int index = gti_schedule_index(w->s, a);
        switch (a.kind) {
        case GT_ACTION_RECV_FORWARD:
            take_for(w->slots, GTI_POOL_INPUT, index, &w->in[a.chunk]);
            break;
        case GT_ACTION_RECV_BACKWARD:
            take_for(w->slots, GTI_POOL_GRAD, index, &w->grad[a.chunk]);
            break;
        case GT_ACTION_FORWARD:
            scan_forward(w, a);
            break;
        case GT_ACTION_BACKWARD:
        case GT_ACTION_BACKWARD_INPUT:
            scan_backward(w, a);
            break;
        case GT_ACTION_BACKWARD_WEIGHT:
            give_back(w->slots, GTI_POOL_INPUT, index, &w->in[a.chunk]);
            break;
        default:
            break;
        }
    }
    for (int c = 0; c < w->s->chunks; c++) {
        w->slots->count[GTI_POOL_INPUT][c] = w->in[c].most;
        w->slots->count[GTI_POOL_GRAD][c] = w->grad[c].most;
    }
}

static gt_status scan_rank(gt_schedule *s, int rank)
{
    size_t chunks = (size_t)s->chunks, cells = chunks * (size_t)s->microbatches;
    numbers *n = gti_schedule_calloc(2 * chunks, sizeof(*n), "buffers");
    bool *taken = gti_schedule_calloc(2 * cells, sizeof(bool), "buffers");
    if (!n || !taken) {
        free(n);
        free(taken);
        return GT_ERR_MEMORY;
    }
    for (size_t c = 0; c < 2 * chunks; c++) {
        n[c].taken = taken + c * (size_t)s->microbatches;
    }
    gti_slots *slots = &s->slots[rank];
    for (int pool = 0; pool < GTI_POOL_COUNT; pool++) {
        for (size_t i = 0; i < cells; i++) {
            slots->slot[pool][i] = -1;
        }
    }
    scan w = {s, rank, slots, n, n + chunks};
    scan_list(&w);
    free(n);
    free(taken);
    return GT_OK;
}

/* Time at which microbatch's output (or input gradient) of stage has been sent. */
static double sent(const gti_play *p, int stage, int microbatch, bool backward)
{
    const gt_schedule *s = p->s;
    size_t m = (size_t)s->microbatches;
    if (!backward) {
        return p->arrived[0][(size_t)stage * m + (size_t)microbatch];
    }
    double last = 0;
    for (int i = 0; i < s->previous_count[stage]; i++) {
        double t =
            p->arrived[1][(size_t)s->previous[stage * GT_MAX_PORTS + i] * m + (size_t)microbatch];
        last = t > last ? t : last;
    }
    return last;
}

/* Buffers that let the actions of one kind on one chunk run as in the play, and their number each.
 */
static void rotate(gt_schedule *s, const gti_play *p, int rank, int chunk, bool backward, int least,
                   int *order)
{
    int stage = s->stage[rank * s->chunks + chunk], n = 0, most = 1;
    const gti_action_list *list = &s->lists[rank];
    for (int i = 0; i < list->count; i++) {
        gt_action a = list->items[i];
        bool wanted = backward ? a.kind == GT_ACTION_BACKWARD || a.kind == GT_ACTION_BACKWARD_INPUT
                               : a.kind == GT_ACTION_FORWARD;
        if (a.chunk != chunk || !wanted) {
            continue;
        }
        int under_way = 0;
        while (under_way < n &&
               sent(p, stage, order[n - 1 - under_way], backward) > p->start[rank][i] + 1e-9) {
            under_way++;
        }
        most = under_way + 1 > most ? under_way + 1 : most;
        order[n++] = a.microbatch;
    }
    most = most < least ? least : most;
    most = most > n ? n : most;
    gti_pool pool = backward ? GTI_POOL_INPUT_GRAD : GTI_POOL_OUTPUT;
    s->slots[rank].count[pool][chunk] = most;
    for (int i = 0; i < n; i++) {
        s->slots[rank].slot[pool][order[i] * s->chunks + chunk] = i % most;
    }
}

static gt_status rotate_all(gt_schedule *s, const gti_play *p, int least)
{
    int *order = gti_schedule_calloc((size_t)s->microbatches, sizeof(int), "buffers");
    if (!order) {
        return GT_ERR_MEMORY;
    }
    for (int stage = 0; stage < s->stages; stage++) {
        if (gti_schedule_sends(s, stage)) {
            rotate(s, p, s->stage_rank[stage], s->stage_chunk[stage], false, least, order);
        }
        if (gti_schedule_receives(s, stage) && !s->forward_only) {
            rotate(s, p, s->stage_rank[stage], s->stage_chunk[stage], true, least, order);
        }
    }
    free(order);
    return GT_OK;
}

static bool plays(const gt_schedule *s, gt_status *st)
{
    const gt_stage_cost unit = {1, 1, 1, 0, 0};
    gti_play play;
    bool stuck = false;
    *st = gti_play_run(&play, s, &unit, 1, false, &stuck);
    gti_play_clear(&play);
    return *st == GT_OK && !stuck;
}

gt_status gti_schedule_assign_slots(gt_schedule *s)
{
    for (int r = 0; r < s->ranks; r++) {
        GT_TRY(scan_rank(s, r));
    }
    /* Transfers take a little, so that a second buffer is there to overlap them. */
    const gt_stage_cost typical = {1, 1, 1, 0.25, 0};
    gti_play play;
    bool stuck = false;
    gt_status st = gti_play_run(&play, s, &typical, 1, true, &stuck);
    if (st == GT_OK && stuck) {
        st = gti_play_explain(&play);
    }
    for (int least = 2; st == GT_OK; least *= 2) {
        st = rotate_all(s, &play, least);
        if (st != GT_OK || plays(s, &st) || least >= s->microbatches) {
            break;
        }
    }
    gti_play_clear(&play);
    return st;
}
