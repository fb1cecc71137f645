/* SPDX-License-Identifier: Apache-2.0
 * Inside of a schedule, shared by the schedule_*.c files and the executor. */
#ifndef GTI_SCHEDULE_H
#define GTI_SCHEDULE_H

#include <geektrain/schedule.h>

typedef struct gti_action_list {
    gt_action *items;
    int count, capacity;
} gti_action_list;

/* The boundary buffers of one chunk, by use. OUTPUT and INPUT_GRAD are only for what leaves the
 * rank: between stages of one rank the later one's INPUT (GRAD) is written directly. */
typedef enum gti_pool {
    GTI_POOL_INPUT = 0, /* from its receive until the last backward part                         */
    GTI_POOL_OUTPUT,    /* from forward until sent                                                */
    GTI_POOL_GRAD,      /* of the output: from its receive until the backward (input) part        */
    GTI_POOL_INPUT_GRAD, /* from backward until sent */
    GTI_POOL_COUNT
} gti_pool;

typedef struct gti_slots {
    int *slot[GTI_POOL_COUNT];  /* [microbatches * chunks]: buffer number in its chunk's pool, or -1
                                 */
    int *count[GTI_POOL_COUNT]; /* [chunks]: buffers of that pool */
} gti_slots;

struct gt_schedule {
    char *name;
    int ranks, microbatches, chunks, stages;
    bool splits_backward;
    bool forward_only; /* evaluation: no backward, no reduce */
    int *stage;        /* [ranks*chunks] stage of (rank, chunk)                   */
    int *stage_rank;   /* [stages]                                                */
    int *stage_chunk;  /* [stages]                                                */
    int *next;         /* [stages], -1: last                                      */
    int *previous;     /* [stages*GT_MAX_PORTS]                                   */
    int *previous_count;
    gti_action_list *lists; /* [ranks]                                           */
    gti_slots *slots;       /* [ranks]                                           */
};

/* Host memory for n things, zeroed; NULL with the error sentence set. */
void *gti_schedule_calloc(size_t n, size_t size, const char *what);

/* An empty schedule. stages and next as in gt_schedule_create_actions. */
gt_status gti_schedule_new(gt_schedule **out, const char *name, int ranks, int microbatches,
                           int chunks, const int *stages, const int *next);
gt_status gti_schedule_add(gt_schedule *s, int rank, gt_action_kind kind, int microbatch,
                           int chunk);
/* Inserts transfers (unless there are some) and reduces (unless there are some), assigns buffers,
 * validates. */
gt_status gti_schedule_finish(gt_schedule *s);
gt_status gti_schedule_lower(gt_schedule *s);
/* Checks that need no play: ranges, counts, order within a rank, matching transfers. */
gt_status gti_schedule_check(const gt_schedule *s);
gt_status gti_schedule_assign_slots(gt_schedule *s);

static inline int gti_schedule_index(const gt_schedule *s, gt_action action)
{
    return action.microbatch * s->chunks + action.chunk;
}
/* Stage that an action of a rank is about. */
static inline int gti_schedule_stage_of(const gt_schedule *s, int rank, gt_action action)
{
    return s->stage[rank * s->chunks + action.chunk];
}
/* The next stage lives on another rank: its input is sent. */
static inline bool gti_schedule_sends(const gt_schedule *s, int stage)
{
    return s->next[stage] >= 0 && s->stage_rank[s->next[stage]] != s->stage_rank[stage];
}
static inline bool gti_schedule_receives(const gt_schedule *s, int stage)
{
    return s->previous_count[stage] > 0 &&
           s->stage_rank[s->previous[stage * GT_MAX_PORTS]] != s->stage_rank[stage];
}
static inline bool gti_action_is_compute(gt_action_kind kind)
{
    return kind <= GT_ACTION_BACKWARD_WEIGHT;
}
/* "forward of microbatch 3, chunk 0" */
const char *gti_action_text(gt_action action, char text[80]);

/* ---- playing a schedule -----------------------------------------------------------------------
 */
/* One run in time: a transfer starts when both its ends are posted, a compute action when what it
 * needs is there. Times are negative for what has not happened. Cells are [stages * microbatches].
 */
typedef struct gti_play {
    const gt_schedule *s;
    const gt_stage_cost *cost;
    int costs;             /* 1 or stages                                                        */
    bool unbounded;        /* as many output buffers as one likes                                */
    int *position;         /* [ranks] actions done: less than the list's when stuck              */
    double *clock;         /* [ranks]                                                            */
    double **start, **end; /* [ranks][actions]                                                  */
    double *done[GT_ACTION_KIND_COUNT];  /* cells: end of compute actions, posting of transfers  */
    double *begun[GT_ACTION_KIND_COUNT]; /* cells: start of compute actions                     */
    double *arrived[2]; /* cells, of the stage whose output (0) or whose output's gradient (1)
                           is transferred                                                     */
    int *owner[2];      /* cells (stage, buffer): microbatch that last took the output (0) or
                           input gradient (1) buffer, -1: none                                */
} gti_play;

/* Returns GT_OK also when stuck: see *stuck. Clear the play in any case. */
gt_status gti_play_run(gti_play *play, const gt_schedule *s, const gt_stage_cost *cost, int costs,
                       bool unbounded, bool *stuck);
void gti_play_clear(gti_play *play);
/* Checks the costs, plays to the end; an error (and nothing to clear) when stuck. */
gt_status gti_play_finished(gti_play *play, const gt_schedule *s, const gt_stage_cost *cost,
                            int costs);
/* The error for a stuck play: which rank waits where, and for what. */
gt_status gti_play_explain(const gti_play *play);
gt_status gti_schedule_check_costs(const gt_schedule *s, const gt_stage_cost *cost, int costs);

/* ---- generators: compute actions only -----------------------------------------------------------
 */
gt_status gti_generate_gpipe(gt_schedule *s);
gt_status gti_generate_1f1b(gt_schedule *s);
gt_status gti_generate_interleaved(gt_schedule *s);
/* Finished: the forwards alone, on the stages of `like`. */
gt_status gti_generate_forward(gt_schedule **out, const gt_schedule *like, int microbatches);
/* limit: most activations held by a rank; scale 1: zb-h1, 2: zb-h2. */
gt_status gti_generate_zero_bubble(gt_schedule **out, int ranks, int microbatches, int scale,
                                   int limit, const gt_stage_cost *cost);
gt_status gti_generate_zb_v(gt_schedule **out, int ranks, int microbatches,
                            const gt_stage_cost *cost);
gt_status gti_schedule_read(gt_schedule **out, const gt_schedule_params *params);

#endif
