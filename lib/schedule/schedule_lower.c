/* SPDX-License-Identifier: Apache-2.0
 * From compute actions to the full list: receives posted one transfer ahead, sends after the action
 * that makes their data, reduces after a chunk's last weight gradient. */
#include <stdlib.h>

#include "core/fail.h"
#include "schedule/schedule.h"

/* The receive that a compute action needs; kind GT_ACTION_KIND_COUNT: none. */
static gt_action receive_for(const gt_schedule *s, int rank, gt_action a)
{
    int stage = gti_schedule_stage_of(s, rank, a);
    gt_action none = {GT_ACTION_KIND_COUNT, 0, 0};
    if (a.kind == GT_ACTION_FORWARD) {
        a.kind = GT_ACTION_RECV_FORWARD;
        return gti_schedule_receives(s, stage) ? a : none;
    }
    if (a.kind == GT_ACTION_BACKWARD || a.kind == GT_ACTION_BACKWARD_INPUT) {
        a.kind = GT_ACTION_RECV_BACKWARD;
        return gti_schedule_sends(s, stage) ? a : none;
    }
    return none;
}

static gt_action send_after(const gt_schedule *s, int rank, gt_action a)
{
    int stage = gti_schedule_stage_of(s, rank, a);
    gt_action none = {GT_ACTION_KIND_COUNT, 0, 0};
    if (a.kind == GT_ACTION_FORWARD) {
        a.kind = GT_ACTION_SEND_FORWARD;
        return gti_schedule_sends(s, stage) ? a : none;
    }
    if (a.kind == GT_ACTION_BACKWARD || a.kind == GT_ACTION_BACKWARD_INPUT) {
        a.kind = GT_ACTION_SEND_BACKWARD;
        return gti_schedule_receives(s, stage) ? a : none;
    }
    return none;
}

static gt_status add(gt_schedule *s, int rank, gt_action a)
{
    if (a.kind == GT_ACTION_KIND_COUNT) {
        return GT_OK;
    }
    return gti_schedule_add(s, rank, a.kind, a.microbatch, a.chunk);
}

/* Weight parts left per chunk, counted down to the reduce. */
static gt_status add_reduce(gt_schedule *s, int rank, gt_action a, int *weights_left)
{
    bool weight = a.kind == GT_ACTION_BACKWARD || a.kind == GT_ACTION_BACKWARD_WEIGHT;
    if (!weight || --weights_left[a.chunk] != 0) {
        return GT_OK;
    }
    return gti_schedule_add(s, rank, GT_ACTION_REDUCE, 0, a.chunk);
}

static gt_status lower_rank(gt_schedule *s, int rank, gti_action_list compute, bool transfers,
                            bool reduces, int *weights_left)
{
    for (int c = 0; c < s->chunks; c++) {
        weights_left[c] = s->microbatches;
    }
    int posted = 0; /* receives of the first `posted` actions are in the list */
    for (int i = 0; i < compute.count; i++) {
        gt_action a = compute.items[i];
        bool ahead = false;
        while (transfers && posted < compute.count && !ahead) {
            gt_action receive = receive_for(s, rank, compute.items[posted]);
            GT_TRY(add(s, rank, receive));
            ahead = posted > i && receive.kind != GT_ACTION_KIND_COUNT;
            posted++;
        }
        GT_TRY(add(s, rank, a));
        if (transfers) {
            GT_TRY(add(s, rank, send_after(s, rank, a)));
        }
        if (reduces) {
            GT_TRY(add_reduce(s, rank, a, weights_left));
        }
    }
    return GT_OK;
}

gt_status gti_schedule_lower(gt_schedule *s)
{
    bool transfers = true, reduces = !s->forward_only;
    for (int r = 0; r < s->ranks; r++) {
        for (int i = 0; i < s->lists[r].count; i++) {
            gt_action a = s->lists[r].items[i];
            if ((unsigned)a.kind >= GT_ACTION_KIND_COUNT || a.chunk < 0 || a.chunk >= s->chunks ||
                a.microbatch < 0 || a.microbatch >= s->microbatches) {
                return GT_FAIL(
                    GT_ERR_FORMAT,
                    "rank %d, action %d: %s of microbatch %d, chunk %d; the schedule has "
                    "%d microbatches and %d chunks",
                    r, i, gt_action_name(a.kind), a.microbatch, a.chunk, s->microbatches,
                    s->chunks);
            }
            transfers &= a.kind < GT_ACTION_SEND_FORWARD || a.kind > GT_ACTION_RECV_BACKWARD;
            reduces &= a.kind != GT_ACTION_REDUCE;
        }
    }
    if (!transfers && !reduces) {
        return GT_OK;
    }
    int *weights_left = gti_schedule_calloc((size_t)s->chunks, sizeof(int), "chunks");
    if (!weights_left) {
        return GT_ERR_MEMORY;
    }
    gt_status st = GT_OK;
    for (int r = 0; r < s->ranks && st == GT_OK; r++) {
        gti_action_list compute = s->lists[r];
        s->lists[r] = (gti_action_list){NULL, 0, 0};
        st = lower_rank(s, r, compute, transfers, reduces, weights_left);
        free(compute.items);
    }
    free(weights_left);
    return st;
}
