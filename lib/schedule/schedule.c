/* SPDX-License-Identifier: Apache-2.0
 * Schedules: memory, placement, access. */
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "schedule/schedule.h"

#define MOST_RANKS 4096
#define MOST_CHUNKS 256
#define MOST_ACTIONS ((int64_t)1 << 24) /* of a whole schedule: ranks * microbatches * chunks */

static const char *const action_names[GT_ACTION_KIND_COUNT] = {
    "forward",      "backward",      "backward_input", "backward_weight", "send_forward",
    "recv_forward", "send_backward", "recv_backward",  "reduce"};

const char *gt_action_name(gt_action_kind kind)
{
    return (unsigned)kind < GT_ACTION_KIND_COUNT ? action_names[kind] : "unknown action";
}

const char *gti_action_text(gt_action action, char text[80])
{
    if (action.kind == GT_ACTION_REDUCE) {
        snprintf(text, 80, "reduce of chunk %d", action.chunk);
    } else {
        snprintf(text, 80, "%s of microbatch %d, chunk %d", gt_action_name(action.kind),
                 action.microbatch, action.chunk);
    }
    return text;
}

void *gti_schedule_calloc(size_t n, size_t size, const char *what)
{
    void *p = calloc(n ? n : 1, size);
    if (!p) {
        (void)GT_FAIL(GT_ERR_MEMORY, "no memory for %s of a schedule (%zu x %zu bytes)", what, n,
                      size);
    }
    return p;
}

static gt_status place(gt_schedule *s, const int *stages)
{
    for (int i = 0; i < s->stages; i++) {
        s->stage_rank[i] = -1;
    }
    for (int r = 0; r < s->ranks; r++) {
        for (int c = 0; c < s->chunks; c++) {
            int at = r * s->chunks + c;
            int stage = stages ? stages[at] : c * s->ranks + r;
            if (stage < 0 || stage >= s->stages) {
                return GT_FAIL(GT_ERR_ARGUMENT, "chunk %d of rank %d is stage %d; stages are 0..%d",
                               c, r, stage, s->stages - 1);
            }
            if (s->stage_rank[stage] >= 0) {
                return GT_FAIL(GT_ERR_ARGUMENT, "stage %d is placed on rank %d and on rank %d",
                               stage, s->stage_rank[stage], r);
            }
            s->stage[at] = stage;
            s->stage_rank[stage] = r;
            s->stage_chunk[stage] = c;
        }
    }
    return GT_OK;
}

static gt_status link_stages(gt_schedule *s, const int *next)
{
    if (next && s->chunks != 1) {
        return GT_FAIL(GT_ERR_ARGUMENT, "a graph of stages needs 1 chunk per rank, got %d",
                       s->chunks);
    }
    for (int i = 0; i < s->stages; i++) {
        int to = next ? next[i] : i + 1 < s->stages ? i + 1 : -1;
        bool last = i == s->stages - 1;
        if (last ? to != -1 : to <= i || to >= s->stages) {
            return GT_FAIL(GT_ERR_ARGUMENT,
                           "next stage of stage %d is %d; want a later one (-1 for the last, %d)",
                           i, to, s->stages - 1);
        }
        s->next[i] = to;
        if (to < 0) {
            continue;
        }
        if (s->previous_count[to] == GT_MAX_PORTS) {
            return GT_FAIL(GT_ERR_ARGUMENT, "stage %d takes more than %d stages' outputs", to,
                           GT_MAX_PORTS);
        }
        s->previous[to * GT_MAX_PORTS + s->previous_count[to]++] = i;
    }
    return GT_OK;
}

static gt_status allocate(gt_schedule *s, const char *name)
{
    size_t stages = (size_t)s->stages, cells = (size_t)s->microbatches * (size_t)s->chunks;
    s->name = gti_schedule_calloc(strlen(name) + 1, 1, "the name");
    s->stage = gti_schedule_calloc(stages, sizeof(int), "stages");
    s->stage_rank = gti_schedule_calloc(stages, sizeof(int), "stages");
    s->stage_chunk = gti_schedule_calloc(stages, sizeof(int), "stages");
    s->next = gti_schedule_calloc(stages, sizeof(int), "stages");
    s->previous = gti_schedule_calloc(stages * GT_MAX_PORTS, sizeof(int), "stages");
    s->previous_count = gti_schedule_calloc(stages, sizeof(int), "stages");
    s->lists = gti_schedule_calloc((size_t)s->ranks, sizeof(*s->lists), "lists");
    s->slots = gti_schedule_calloc((size_t)s->ranks, sizeof(*s->slots), "buffers");
    if (!s->name || !s->stage || !s->stage_rank || !s->stage_chunk || !s->next || !s->previous ||
        !s->previous_count || !s->lists || !s->slots) {
        return GT_ERR_MEMORY;
    }
    memcpy(s->name, name, strlen(name) + 1);
    for (int r = 0; r < s->ranks; r++) {
        for (int pool = 0; pool < GTI_POOL_COUNT; pool++) {
            s->slots[r].slot[pool] = gti_schedule_calloc(cells, sizeof(int), "buffers");
            s->slots[r].count[pool] =
                gti_schedule_calloc((size_t)s->chunks, sizeof(int), "buffers");
            if (!s->slots[r].slot[pool] || !s->slots[r].count[pool]) {
                return GT_ERR_MEMORY;
            }
        }
    }
    return GT_OK;
}

gt_status gti_schedule_new(gt_schedule **out, const char *name, int ranks, int microbatches,
                           int chunks, const int *stages, const int *next)
{
    if (ranks < 1 || ranks > MOST_RANKS || chunks < 1 || chunks > MOST_CHUNKS || microbatches < 1 ||
        (int64_t)ranks * chunks * microbatches > MOST_ACTIONS) {
        return GT_FAIL(GT_ERR_ARGUMENT,
                       "schedule %s for %d ranks, %d microbatches, %d chunks: want ranks in 1..%d, "
                       "chunks in 1..%d, microbatches from 1, their product up to %lld",
                       name, ranks, microbatches, chunks, MOST_RANKS, MOST_CHUNKS,
                       (long long)MOST_ACTIONS);
    }
    gt_schedule *s = gti_schedule_calloc(1, sizeof(*s), "itself");
    if (!s) {
        return GT_ERR_MEMORY;
    }
    s->ranks = ranks;
    s->microbatches = microbatches;
    s->chunks = chunks;
    s->stages = ranks * chunks;
    gt_status st = allocate(s, name);
    if (st == GT_OK) {
        st = place(s, stages);
    }
    if (st == GT_OK) {
        st = link_stages(s, next);
    }
    if (st != GT_OK) {
        gt_schedule_destroy(&s);
        return st;
    }
    *out = s;
    return GT_OK;
}

gt_status gti_schedule_add(gt_schedule *s, int rank, gt_action_kind kind, int microbatch, int chunk)
{
    gti_action_list *list = &s->lists[rank];
    if (list->count == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 64;
        gt_action *items = realloc(list->items, (size_t)capacity * sizeof(*items));
        if (!items) {
            return GT_FAIL(GT_ERR_MEMORY, "no memory for %d actions of a schedule", capacity);
        }
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = (gt_action){kind, microbatch, chunk};
    s->splits_backward |= kind == GT_ACTION_BACKWARD_INPUT;
    return GT_OK;
}

gt_status gti_schedule_finish(gt_schedule *s)
{
    GT_TRY(gti_schedule_lower(s));
    GT_TRY(gti_schedule_check(s));
    GT_TRY(gti_schedule_assign_slots(s));
    return gt_schedule_validate(s);
}

gt_status gt_schedule_create_actions(gt_schedule **out, int ranks, int microbatches, int chunks,
                                     const int *stages, const int *next,
                                     const gt_action *const *lists, const int *counts)
{
    if (!out || !lists || !counts) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_schedule_create_actions: out, lists or counts is NULL");
    }
    gt_schedule *s = NULL;
    GT_TRY(gti_schedule_new(&s, "actions", ranks, microbatches, chunks, stages, next));
    gt_status st = GT_OK;
    for (int r = 0; r < ranks && st == GT_OK; r++) {
        for (int i = 0; i < counts[r] && st == GT_OK; i++) {
            st =
                gti_schedule_add(s, r, lists[r][i].kind, lists[r][i].microbatch, lists[r][i].chunk);
        }
    }
    if (st == GT_OK) {
        st = gti_schedule_finish(s);
    }
    if (st != GT_OK) {
        gt_schedule_destroy(&s);
        return st;
    }
    *out = s;
    return GT_OK;
}

void gt_schedule_destroy(gt_schedule **schedule)
{
    if (!schedule || !*schedule) {
        return;
    }
    gt_schedule *s = *schedule;
    for (int r = 0; r < s->ranks && s->lists; r++) {
        free(s->lists[r].items);
    }
    for (int r = 0; r < s->ranks && s->slots; r++) {
        for (int pool = 0; pool < GTI_POOL_COUNT; pool++) {
            free(s->slots[r].slot[pool]);
            free(s->slots[r].count[pool]);
        }
    }
    free(s->lists);
    free(s->slots);
    free(s->stage);
    free(s->stage_rank);
    free(s->stage_chunk);
    free(s->next);
    free(s->previous);
    free(s->previous_count);
    free(s->name);
    free(s);
    *schedule = NULL;
}

const char *gt_schedule_name(const gt_schedule *s)
{
    return s->name;
}

int gt_schedule_ranks(const gt_schedule *s)
{
    return s->ranks;
}

int gt_schedule_microbatches(const gt_schedule *s)
{
    return s->microbatches;
}

int gt_schedule_chunks(const gt_schedule *s)
{
    return s->chunks;
}

int gt_schedule_stages(const gt_schedule *s)
{
    return s->stages;
}

int gt_schedule_stage(const gt_schedule *s, int rank, int chunk)
{
    return s->stage[rank * s->chunks + chunk];
}

int gt_schedule_stage_rank(const gt_schedule *s, int stage)
{
    return s->stage_rank[stage];
}

int gt_schedule_stage_chunk(const gt_schedule *s, int stage)
{
    return s->stage_chunk[stage];
}

int gt_schedule_next(const gt_schedule *s, int stage)
{
    return s->next[stage];
}

int gt_schedule_previous(const gt_schedule *s, int stage, int previous[GT_MAX_PORTS])
{
    for (int i = 0; i < s->previous_count[stage]; i++) {
        previous[i] = s->previous[stage * GT_MAX_PORTS + i];
    }
    return s->previous_count[stage];
}

bool gt_schedule_splits_backward(const gt_schedule *s)
{
    return s->splits_backward;
}

int gt_schedule_actions(const gt_schedule *s, int rank, const gt_action **actions)
{
    *actions = s->lists[rank].items;
    return s->lists[rank].count;
}
