/* SPDX-License-Identifier: Apache-2.0
 * What makes a list of actions a schedule. */
#include <stdlib.h>

#include "core/fail.h"
#include "schedule/schedule.h"

/* Position of each (kind, stage, microbatch) in its rank's list, -1: absent. */
typedef struct positions {
    const gt_schedule *s;
    int *at; /* [kinds][stages*microbatches] */
} positions;

static int *position(const positions *p, gt_action_kind kind, int stage, int microbatch)
{
    size_t cells = (size_t)p->s->stages * (size_t)p->s->microbatches;
    return &p->at[(size_t)kind * cells + (size_t)stage * (size_t)p->s->microbatches +
                  (size_t)microbatch];
}

static gt_status find_positions(positions *p)
{
    const gt_schedule *s = p->s;
    size_t n = (size_t)GT_ACTION_KIND_COUNT * (size_t)s->stages * (size_t)s->microbatches;
    char text[80];
    p->at = gti_schedule_calloc(n, sizeof(int), "positions");
    if (!p->at) {
        return GT_ERR_MEMORY;
    }
    for (size_t i = 0; i < n; i++) {
        p->at[i] = -1;
    }
    for (int r = 0; r < s->ranks; r++) {
        for (int i = 0; i < s->lists[r].count; i++) {
            gt_action a = s->lists[r].items[i];
            int *at = position(p, a.kind, gti_schedule_stage_of(s, r, a), a.microbatch);
            if (*at >= 0) {
                return GT_FAIL(GT_ERR_FORMAT,
                               "schedule %s: rank %d, action %d: %s again (first at action %d)",
                               s->name, r, i, gti_action_text(a, text), *at);
            }
            *at = i;
        }
    }
    return GT_OK;
}

/* Action `kind` of (stage, microbatch) must be there, after `before` (if that is one). */
static gt_status want(const positions *p, gt_action_kind kind, gt_action_kind before, int stage,
                      int microbatch)
{
    const gt_schedule *s = p->s;
    int rank = s->stage_rank[stage];
    gt_action a = {kind, microbatch, s->stage_chunk[stage]};
    char text[80];
    int at = *position(p, kind, stage, microbatch);
    if (at < 0) {
        return GT_FAIL(GT_ERR_FORMAT, "schedule %s: rank %d (stage %d) lacks %s", s->name, rank,
                       stage, gti_action_text(a, text));
    }
    if (before<GT_ACTION_KIND_COUNT && * position(p, before, stage, microbatch)> at) {
        return GT_FAIL(GT_ERR_FORMAT, "schedule %s: rank %d, action %d: %s comes before its %s",
                       s->name, rank, at, gti_action_text(a, text), gt_action_name(before));
    }
    return GT_OK;
}

static gt_status unwanted(const positions *p, gt_action_kind kind, int stage, int microbatch,
                          const char *why)
{
    const gt_schedule *s = p->s;
    char text[80];
    int at = *position(p, kind, stage, microbatch);
    if (at < 0) {
        return GT_OK;
    }
    gt_action a = {kind, microbatch, s->stage_chunk[stage]};
    return GT_FAIL(GT_ERR_FORMAT, "schedule %s: rank %d, action %d: %s, but %s", s->name,
                   s->stage_rank[stage], at, gti_action_text(a, text), why);
}

static gt_status check_transfers(const positions *p, int stage, int microbatch,
                                 gt_action_kind backward)
{
    const gt_schedule *s = p->s;
    if (gti_schedule_receives(s, stage)) {
        GT_TRY(want(p, GT_ACTION_RECV_FORWARD, GT_ACTION_KIND_COUNT, stage, microbatch));
        GT_TRY(want(p, GT_ACTION_FORWARD, GT_ACTION_RECV_FORWARD, stage, microbatch));
    } else {
        GT_TRY(unwanted(p, GT_ACTION_RECV_FORWARD, stage, microbatch,
                        "no stage on another rank comes before"));
    }
    if (gti_schedule_sends(s, stage)) {
        GT_TRY(want(p, GT_ACTION_SEND_FORWARD, GT_ACTION_FORWARD, stage, microbatch));
    } else {
        GT_TRY(unwanted(p, GT_ACTION_SEND_FORWARD, stage, microbatch,
                        "no stage on another rank follows"));
    }
    if (!s->forward_only && gti_schedule_receives(s, stage)) {
        GT_TRY(want(p, GT_ACTION_SEND_BACKWARD, backward, stage, microbatch));
    } else {
        GT_TRY(unwanted(p, GT_ACTION_SEND_BACKWARD, stage, microbatch,
                        "no stage on another rank comes before"));
    }
    if (!s->forward_only && gti_schedule_sends(s, stage)) {
        GT_TRY(want(p, GT_ACTION_RECV_BACKWARD, GT_ACTION_KIND_COUNT, stage, microbatch));
        GT_TRY(want(p, backward, GT_ACTION_RECV_BACKWARD, stage, microbatch));
    } else {
        GT_TRY(unwanted(p, GT_ACTION_RECV_BACKWARD, stage, microbatch,
                        "no stage on another rank follows"));
    }
    return GT_OK;
}

static gt_status check_one(const positions *p, int stage, int microbatch)
{
    GT_TRY(want(p, GT_ACTION_FORWARD, GT_ACTION_KIND_COUNT, stage, microbatch));
    if (p->s->forward_only) {
        return check_transfers(p, stage, microbatch, GT_ACTION_BACKWARD);
    }
    gt_action_kind backward = GT_ACTION_BACKWARD;
    if (*position(p, GT_ACTION_BACKWARD, stage, microbatch) < 0) {
        backward = GT_ACTION_BACKWARD_INPUT;
        if (*position(p, GT_ACTION_BACKWARD_INPUT, stage, microbatch) < 0) {
            backward = GT_ACTION_BACKWARD; /* the sentence should name the whole one */
        }
    }
    GT_TRY(want(p, backward, GT_ACTION_FORWARD, stage, microbatch));
    if (backward == GT_ACTION_BACKWARD) {
        const char *why = "its whole backward is in the list too";
        GT_TRY(unwanted(p, GT_ACTION_BACKWARD_INPUT, stage, microbatch, why));
        GT_TRY(unwanted(p, GT_ACTION_BACKWARD_WEIGHT, stage, microbatch, why));
    } else {
        GT_TRY(want(p, GT_ACTION_BACKWARD_WEIGHT, GT_ACTION_BACKWARD_INPUT, stage, microbatch));
    }
    return check_transfers(p, stage, microbatch, backward);
}

/* The chunk's reduce comes after every weight gradient of it. */
static gt_status check_reduce(const positions *p, int stage)
{
    const gt_schedule *s = p->s;
    int rank = s->stage_rank[stage], chunk = s->stage_chunk[stage];
    int at = *position(p, GT_ACTION_REDUCE, stage, 0);
    if (at < 0) {
        return GT_FAIL(GT_ERR_FORMAT, "schedule %s: rank %d lacks the reduce of chunk %d", s->name,
                       rank, chunk);
    }
    for (int i = at + 1; i < s->lists[rank].count; i++) {
        gt_action a = s->lists[rank].items[i];
        char text[80];
        if (a.chunk == chunk &&
            (a.kind == GT_ACTION_BACKWARD || a.kind == GT_ACTION_BACKWARD_WEIGHT)) {
            return GT_FAIL(
                GT_ERR_FORMAT,
                "schedule %s: rank %d, action %d: reduce of chunk %d comes before the %s", s->name,
                rank, at, chunk, gti_action_text(a, text));
        }
    }
    return GT_OK;
}

gt_status gti_schedule_check(const gt_schedule *s)
{
    positions p = {.s = s, .at = NULL};
    gt_status st = find_positions(&p);
    for (int stage = 0; stage < s->stages && st == GT_OK; stage++) {
        for (int m = 0; m < s->microbatches && st == GT_OK; m++) {
            st = check_one(&p, stage, m);
        }
        if (st == GT_OK && !s->forward_only) {
            st = check_reduce(&p, stage);
        }
    }
    free(p.at);
    return st;
}

gt_status gt_schedule_validate(const gt_schedule *s)
{
    if (!s) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_schedule_validate: schedule is NULL");
    }
    GT_TRY(gti_schedule_check(s));
    const gt_stage_cost unit = {1, 1, 1, 0, 0};
    gti_play play;
    bool stuck = false;
    gt_status st = gti_play_run(&play, s, &unit, 1, false, &stuck);
    if (st == GT_OK && stuck) {
        st = gti_play_explain(&play);
    }
    gti_play_clear(&play);
    return st;
}
