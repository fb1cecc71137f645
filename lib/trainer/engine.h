/* SPDX-License-Identifier: Apache-2.0
 *
 * What a gt_trainer is made of. Every rank declares and plans the whole model (host memory only),
 * then gives memory to the blocks of its own stages:
 *
 *   create.c          order of construction and destruction
 *   placement.c       the schedule, and the model cut over its stages
 *   trainer_params.c  declarations -> the parameter table and its units
 *   whole_values.c    whole states and gradients in and out, by name
 *   trainer_memory.c  slots, scratch, constants
 *   stage.c           running blocks forward, backward
 *   batch.c           tokens and rows on the device
 *   step.c            a step, whole and taken apart
 *   evaluate.c        the loss of a batch
 *   generate.c        sampling
 */
#ifndef GTI_TRAINER_ENGINE_H
#define GTI_TRAINER_ENGINE_H

#include <geektrain/pipeline.h>
#include <geektrain/trainer.h>

#include "core/fail.h"
#include "nn/plan.h"
#include "params/table.h"

#define GTI_NAME_MAX (2 * GT_PARAM_NAME_MAX)

/* Layouts that blocks are planned for: a microbatch, and one sample for generation. */
enum { LAYOUT_TRAIN = 0, LAYOUT_GENERATE, LAYOUT_COUNT };

/* Of a parameter of the table (a tied one has one row): where it is used. */
struct param_use {
    int block;   /* that declares it        */
    bool shared; /* other blocks are tied to it */
};

struct engine_block {
    gt_block *block;
    int index; /* in the model */
    gt_param_list declared;
    int *param; /* [declared] its row of the table */
    gt_plan plan[LAYOUT_COUNT];
    double flops; /* forward pass of one microbatch, of the tensor-parallel rank with the most */
    /* Only where the block is on this rank: */
    bool local;
    int *units, unit_count;
    gt_tensor *params, *grads; /* [declared] views, valid during a call */
    bool *unset;               /* [declared] gradients that hold nothing yet */
    gt_tensor *workspace[LAYOUT_COUNT], *constants[LAYOUT_COUNT];
};

/* What one microbatch leaves behind in a chunk between forward and backward. */
struct slot {
    int microbatch; /* -1: free */
    void *memory;
    gt_tensor (*outputs)[GT_MAX_PORTS]; /* [blocks of the chunk] */
    gt_saved *saved;                    /* [blocks of the chunk] */
};

struct chunk {
    int first, count; /* blocks of the model */
    int stage;
    bool is_first, is_last; /* stage of the model */
    int slot_count;
    struct slot *slots;
};

struct engine_unit {
    int unit;         /* in gt_zero                                            */
    int reduce_after; /* model block after whose backward a microbatch's gradient is given away */
    int uses;         /* blocks of this rank that add to it                     */
    int done;         /* times they did in this step so far                     */
};

/* Over the batches of a step, summed over the world. */
struct step_sums {
    double loss, tokens, norm_sq;
};

struct gt_trainer {
    gt_context *ctx;
    gt_comm *world;
    gt_model *model;
    gt_config config;
    gt_mesh *mesh;
    gt_comm *tp, *cp; /* NULL where of size 1 */
    gt_schedule *schedule;
    gt_pipeline *pipeline;
    gt_zero *zero;
    gt_layout layout[LAYOUT_COUNT];

    int block_count;
    struct engine_block *blocks;
    gt_params *table;
    struct param_use *uses; /* [rows of the table] */
    gt_optimizer rule;      /* a user's; its struct_size is 0 without */
    void *rule_user;
    int64_t parameters;
    double step_flops;

    int chunk_count;
    struct chunk *chunks;
    bool slots_shared; /* slot i of every chunk is the same memory: only one of them has it */
    int unit_count;
    struct engine_unit *units;

    void *workspace, *recompute_saved, *recompute_out, *gradient[2];
    gt_saved recompute;
    size_t recompute_capacity;

    /* A step's data: this rank's samples, padded with ignored ones. */
    int64_t samples; /* per step on this rank */
    int64_t nominal_tokens;
    gt_tensor tokens, targets, rows, positions, logits;
    gt_tensor stats;      /* f64[3]: sum of losses, tokens, squared norm */
    gt_tensor loss_stats; /* its first two, which loss blocks add to     */
    int32_t *host_tokens, *host_targets;
    int64_t *host_rows, *host_positions;

    /* How the stage functions are to run. */
    int mode; /* LAYOUT_* */
    bool training;
    double loss_scale;
    int64_t generate_row; /* local row whose logits are wanted, -1: on another rank */

    /* A step between its first batch and its end. */
    enum { STEP_NONE = 0, STEP_OPEN, STEP_FINISHED } phase;
    bool ends_step;  /* the batch under way is the step's last     */
    bool norm_known; /* sums.norm_sq is of the gradients as they are */
    struct step_sums sums;
    gt_step_result timing; /* seconds so far */

    gt_loss_scaler scaler;
    int64_t applied, skipped, skipped_in_row;
    double learning_rate;      /* NaN: the schedule's */
    char cause[GTI_ERROR_MAX]; /* why nothing more can be done; "": it can */
};

/* trainer_params.c */
gt_status gti_trainer_declare(gt_trainer *t);
gt_status gti_trainer_make_units(gt_trainer *t);
/* Of everything that blocks declare: the same on all ranks, or they do not train one model. */
uint64_t gti_trainer_model_hash(const gt_trainer *t);

/* step.c */
/* The trainer is there, and nothing that ended its work happened: else the first cause. */
gt_status gti_trainer_usable(const gt_trainer *t);
/* A failure after which this trainer cannot go on, told to all ranks, whatever they wait for. */
gt_status gti_trainer_fail(gt_trainer *t, gt_status st);
/* Adds this rank's statistics up over the world. norm: gt_zero_norm's with it. */
gt_status gti_trainer_sum(gt_trainer *t, struct step_sums *out);

/* placement.c */
gt_status gti_trainer_make_schedule(gt_trainer *t, const gt_stage_cost *cost);
/* After planning: the blocks' FLOPs. Collective over t->tp. */
gt_status gti_trainer_share_costs(gt_trainer *t);
/* Which blocks are on which rank; the schedule is made again where it depends on their costs. */
gt_status gti_trainer_place(gt_trainer *t);

/* trainer_memory.c */
gt_status gti_trainer_plan(gt_trainer *t);
/* Collective: refuses what cannot fit, before the system kills somebody for it. */
gt_status gti_trainer_check_memory(gt_trainer *t);
gt_status gti_trainer_allocate(gt_trainer *t);
void gti_trainer_free_memory(gt_trainer *t);

/* stage.c */
gt_status gti_stage_forward(void *user, int microbatch, int chunk, const gt_tensor *in,
                            gt_tensor *out);
gt_status gti_stage_backward(void *user, int microbatch, int chunk, const gt_tensor *in,
                             const gt_tensor *dout, gt_tensor *din, unsigned parts);
void gti_stage_reset(gt_trainer *t);
bool gti_block_uses_unit(const struct engine_block *b, int unit);

/* batch.c */
gt_status gti_batch_allocate(gt_trainer *t);
gt_status gti_batch_upload(gt_trainer *t, const gt_batch *batch);
void gti_batch_free(gt_trainer *t);
/* The position of local token i, and the local token of a position (-1: on another rank). */
int64_t gti_batch_position(const gt_trainer *t, int64_t local);
int64_t gti_batch_local(const gt_trainer *t, int64_t position);

#endif
