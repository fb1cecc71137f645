/* SPDX-License-Identifier: Apache-2.0
 *
 * Pipeline schedules as data: pure, no communicator, no device. pipeline.h runs them.
 *
 * A model is cut into *stages*. Rank r holds `chunks` stages; which ones is the schedule's
 * placement (stage = chunk * ranks + r, except "zb-v"). A schedule is, per rank, a list of actions
 *
 *     forward | backward | backward_input | backward_weight | send/recv forward/backward | reduce
 *     of one (microbatch, chunk)
 *
 * made by a generator, read from a file, or put together by you. A valid schedule is proved valid
 * once, when it is made.
 *
 * Meaning of the transfers in a list: recv_* *posts* a receive into a buffer, the compute action
 * that needs the data waits for it; send_* starts a send, whose buffer's next user waits for it. So
 * a list says when buffers are taken and when transfers may overlap. Between stages on one rank
 * there are no transfers.
 */
#ifndef GEEKTRAIN_SCHEDULE_H
#define GEEKTRAIN_SCHEDULE_H

#include <stdio.h>
#include <stdbool.h>
#include <stdint.h>

#include <geektrain/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GT_MAX_PORTS 4 /* tensors in an activation bundle; stages before one */

/* Parts of a backward pass. */
enum { GT_BACKWARD_INPUT = 1, GT_BACKWARD_WEIGHT = 2, GT_BACKWARD_BOTH = 3 };

typedef enum gt_action_kind {
    GT_ACTION_FORWARD = 0,
    GT_ACTION_BACKWARD,        /* input and weight part together                                  */
    GT_ACTION_BACKWARD_INPUT,  /* gradient of the stage's input: others wait for it               */
    GT_ACTION_BACKWARD_WEIGHT, /* gradients of the parameters: may come any time later            */
    GT_ACTION_SEND_FORWARD,    /* output of the chunk to the next stage                           */
    GT_ACTION_RECV_FORWARD,    /* input of the chunk from the stage(s) before                     */
    GT_ACTION_SEND_BACKWARD,   /* gradient of the chunk's input to the stage(s) before            */
    GT_ACTION_RECV_BACKWARD,   /* gradient of the chunk's output from the next stage              */
    GT_ACTION_REDUCE,          /* the chunk's gradients are complete: their reduction may start   */
    GT_ACTION_KIND_COUNT
} gt_action_kind;
GT_API const char *gt_action_name(gt_action_kind kind); /* "forward", ...; never NULL */

typedef struct gt_action {
    gt_action_kind kind;
    int microbatch; /* 0 for reduce */
    int chunk;
} gt_action;

/* How long the parts of one stage take for one microbatch, in any unit. */
typedef struct gt_stage_cost {
    double forward, backward_input, backward_weight;
    double transfer;    /* of the stage's output (and of that output's gradient) between ranks    */
    double weight_held; /* share of a microbatch's activations still held between the input and the
                           weight part of its backward, 0..1; 0: 1 (all)                          */
} gt_stage_cost;

typedef struct gt_schedule gt_schedule;

typedef struct gt_schedule_params {
    size_t struct_size;
    const char *name; /* "1f1b" (default), "gpipe", "interleaved", "zb-h1", "zb-h2", "zb-v", or the
                         path of a CSV file (anything that has a '.' or a '/') */
    int ranks;        /* pipeline ranks; 0: 1 (file: what it has)                                 */
    int microbatches; /* any number from 1 on; 0: 1 (file: what it has)                           */
    int chunks;       /* stages per rank; 0: 1, interleaved and zb-v 2 (file: what it has)        */
    const gt_stage_cost *cost; /* [ranks*chunks] zero-bubble schedules arrange themselves for it;
                                  NULL: equal times without transfers */
    int max_live; /* zb-h1, zb-h2: most activations a rank may hold, those in which only the weight
                     part is left counting cost.weight_held; 0: ranks, 2*ranks-1              */
    const int *next; /* graph of stages [ranks*chunks]: the stage that takes stage s's output, -1
                        for the last one; NULL: a chain. Two towers that meet: two stages with the
                        same next. "gpipe" and "1f1b", chunks 1; numbered so that next[s] > s */
} gt_schedule_params;
#define GT_SCHEDULE_PARAMS_INIT GT_PARAMS_INIT(gt_schedule_params)
GT_API void gt_schedule_params_init(gt_schedule_params *params, size_t size);

/* Makes and validates a schedule. Errors: GT_ERR_ARGUMENT (numbers out of range, an unknown name:
 * the sentence lists the known ones), GT_ERR_CONFIG (chunks that this schedule cannot have),
 * GT_ERR_IO, GT_ERR_FORMAT (file), and gt_schedule_validate's. */
GT_API gt_status gt_schedule_create_params(gt_schedule **out, const gt_schedule_params *params);
/* The same with the common parameters. */
GT_API gt_status gt_schedule_create(gt_schedule **out, const char *name_or_path, int ranks,
                                    int microbatches, int chunks);
/* From lists of yours: lists[r] has counts[r] actions. stages[r*chunks + c] is the stage of chunk c
 * of rank r; NULL: c*ranks + r. Lists without any send and recv get them inserted, and reduces too.
 * next as in gt_schedule_params. */
GT_API gt_status gt_schedule_create_actions(gt_schedule **out, int ranks, int microbatches,
                                            int chunks, const int *stages, const int *next,
                                            const gt_action *const *lists, const int *counts);
GT_API void gt_schedule_destroy(gt_schedule **schedule);

GT_API const char *gt_schedule_name(const gt_schedule *s);
GT_API int gt_schedule_ranks(const gt_schedule *s);
GT_API int gt_schedule_microbatches(const gt_schedule *s);
GT_API int gt_schedule_chunks(const gt_schedule *s);
GT_API int gt_schedule_stages(const gt_schedule *s); /* ranks * chunks */
/* Stage of a rank's chunk, and back. */
GT_API int gt_schedule_stage(const gt_schedule *s, int rank, int chunk);
GT_API int gt_schedule_stage_rank(const gt_schedule *s, int stage);
GT_API int gt_schedule_stage_chunk(const gt_schedule *s, int stage);
/* The stage that takes this one's output; -1 for the last. */
GT_API int gt_schedule_next(const gt_schedule *s, int stage);
/* The stages whose outputs a stage takes, ascending: returns their number, 0 for a first stage. */
GT_API int gt_schedule_previous(const gt_schedule *s, int stage, int previous[GT_MAX_PORTS]);
/* true if any backward is split into input and weight part (blocks then plan for it). */
GT_API bool gt_schedule_splits_backward(const gt_schedule *s);
/* Rank's list: its length, and in *actions a borrowed pointer. */
GT_API int gt_schedule_actions(const gt_schedule *s, int rank, const gt_action **actions);

/* Proves: every stage sees every microbatch exactly once in each part; dependencies are met; each
 * send has its receive; nobody waits for ever when a send ends only once its receive has been
 * posted and buffers are as few as the executor's. Errors: GT_ERR_FORMAT naming rank, position,
 * action and what is missing. */
GT_API gt_status gt_schedule_validate(const gt_schedule *s);

typedef struct gt_schedule_report {
    double makespan; /* from the first action to the last, of all ranks                           */
    double period;   /* time per step when steps follow one another and ranks do not wait for all
                        others in between: the longest (last end - first start) of one rank        */
    double compute;  /* of the busiest rank                                                       */
    double bubble;   /* makespan - compute                                                        */
    double bubble_share; /* bubble / makespan                                                     */
    int peak_live; /* largest of the ranks                                                      */
    double peak_memory;
} gt_schedule_report;

typedef struct gt_rank_report {
    double start, end, busy;
    int peak_live; /* (microbatch, chunk) pairs between forward and last backward part, at most */
    double peak_memory; /* the same, counting weight_held where only the weight part is left     */
    int input_buffers;  /* boundary buffers that the executor keeps: stage inputs,              */
    int output_buffers; /* outputs under way, and the same for gradients                        */
    int gradient_buffers; /* (of outputs, received)                                               */
    int input_gradient_buffers;
} gt_rank_report;

/* Simulates one step. cost: [costs] with costs 1 (all stages alike) or the number of stages. ranks:
 * [gt_schedule_ranks] or NULL. */
GT_API gt_status gt_schedule_simulate(gt_schedule_report *report, gt_rank_report *ranks,
                                      const gt_schedule *s, const gt_stage_cost *cost, int costs);

/* Text timeline, one line per rank; with width 0 as wide as it needs. */
GT_API gt_status gt_schedule_print(const gt_schedule *s, const gt_stage_cost *cost, int costs,
                                   int width, FILE *to);
GT_API gt_status gt_schedule_write_svg(const gt_schedule *s, const gt_stage_cost *cost, int costs,
                                       const char *path);
/* One line per rank, cells "<stage><kind><microbatch>" with kind F, B, I, W, SEND_F, RECV_F,
 * SEND_B, RECV_B, REDUCE_GRAD: PyTorch's format. with_transfers false: only F, B, I, W. */
GT_API gt_status gt_schedule_write_csv(const gt_schedule *s, const char *path, bool with_transfers);

/* ---- partition of layers (pure) -------------------------------------------------------------- */
/* Cuts `layers` things into `stages` runs: stage s gets first[s] .. first[s+1]-1; first has
 * stages+1. How:
 *
 *   "uniform" (or NULL)  quotient and remainder, earlier stages get one more
 *   "cost"               minimises the largest sum of cost[layers] (FLOPs or parameter counts),
 * then the unevenness; before and after are added to the first and the last stage (embedding and
 * head) "6,6,5,7"            exactly that
 *
 * Errors: GT_ERR_CONFIG with the numbers: fewer layers than stages (an empty stage), a list whose
 * length or sum is wrong; GT_ERR_ARGUMENT: a negative or non-finite cost. */
GT_API gt_status gt_partition_layers(int *first, const char *how, int layers, int stages,
                                     const double *cost, double before, double after);

#ifdef __cplusplus
}
#endif
#endif
