/* SPDX-License-Identifier: Apache-2.0
 *
 * Pipeline parallelism: one executor for any schedule (schedule.h).
 */
#ifndef GEEKTRAIN_PIPELINE_H
#define GEEKTRAIN_PIPELINE_H

#include <geektrain/comm.h>
#include <geektrain/context.h>
#include <geektrain/schedule.h>
#include <geektrain/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- executor -------------------------------------------------------------------------------- */
/* What a stage takes or gives: an activation bundle. Ports of an integer dtype, and those with
 * no_gradient set, have no gradient (its tensor's data is NULL). */
typedef struct gt_bundle {
    int ports;
    gt_shape shape[GT_MAX_PORTS];
    bool no_gradient[GT_MAX_PORTS];
} gt_bundle;

/* Stage functions of one rank. They enqueue on the compute stream and return; nothing is copied:
 * `out` and `din` are the very buffers that are sent, `in` and `dout` those received into. Each
 * points to as many tensors as the bundle has ports (a first stage's in and din, a last stage's out
 * and dout have none: data NULL). Dimension 0 follows the microbatch's rows. A microbatch of 0 rows
 * calls none. */
typedef gt_status (*gt_stage_forward_fn)(void *user, int microbatch, int chunk, const gt_tensor *in,
                                         gt_tensor *out);
/* parts: GT_BACKWARD_BOTH, or GT_BACKWARD_INPUT and later GT_BACKWARD_WEIGHT (dout and din are then
 * not valid, data NULL). `in` is what forward got and is kept until the last part. */
typedef gt_status (*gt_stage_backward_fn)(void *user, int microbatch, int chunk,
                                          const gt_tensor *in, const gt_tensor *dout,
                                          gt_tensor *din, unsigned parts);
/* The chunk's gradients are complete (last: and those of all chunks of this rank). */
typedef gt_status (*gt_stage_reduce_fn)(void *user, int chunk, bool last);

typedef struct gt_pipeline gt_pipeline;

typedef struct gt_pipeline_params {
    size_t struct_size;
    void *user;
    gt_stage_forward_fn forward;
    gt_stage_backward_fn backward; /* NULL: forward only */
    gt_stage_reduce_fn reduce; /* NULL: none                                                   */
    const gt_bundle *inputs;   /* [chunks] of this rank; may be NULL with one stage. The bundle of a
                                  stage after several others is theirs, one after the other         */
    const gt_bundle *outputs;  /* [chunks]  */
    int64_t rows; /* rows of a full microbatch, for runs with fewer: dimension 0 of every port must
                     be a multiple of it. 0: microbatches are always full */
} gt_pipeline_params;
#define GT_PIPELINE_PARAMS_INIT GT_PARAMS_INIT(gt_pipeline_params)
GT_API void gt_pipeline_params_init(gt_pipeline_params *params, size_t size);

/* Collective over comm, whose size must be the schedule's ranks; comm may be NULL for one rank.
 * Borrows ctx, comm and schedule. All ranks get the same error when a stage's output is not what
 * the next one takes (the sentence names both stages, ranks and shapes) or when their schedules
 * differ. Boundary buffers for training are allocated here (GT_MEM_ACTIVATIONS), as many as
 * gt_rank_report says. */
GT_API gt_status gt_pipeline_create(gt_pipeline **out, gt_context *ctx, gt_comm *comm,
                                    const gt_schedule *schedule, const gt_pipeline_params *params);
GT_API void gt_pipeline_destroy(gt_pipeline **pipeline);

/* One pass over the schedule. rows: [microbatches] or NULL = all full; equal on all ranks; 0 = that
 * microbatch is missing. When a stage function fails on one rank, all ranks return an error (the
 * world is then broken, see comm.h). Allocates nothing. Collective over comm. */
GT_API gt_status gt_pipeline_run(gt_pipeline *pipeline, const int64_t *rows);
/* Forward only (evaluation, generation), of any number of microbatches. Collective over comm. */
GT_API gt_status gt_pipeline_forward(gt_pipeline *pipeline, int microbatches, const int64_t *rows);

typedef struct gt_pipeline_stats {
    double seconds;   /* last run, wall time                                                      */
    double compute_s; /* in stage functions                                                       */
    double wait_s;    /* waiting for transfers                                                    */
    size_t buffer_bytes; /* boundary buffers */
} gt_pipeline_stats;
GT_API void gt_pipeline_get_stats(const gt_pipeline *pipeline, gt_pipeline_stats *out);
/* Mean seconds that the last run's calls took, for each chunk of this rank: what
 * gt_schedule_simulate and the zero-bubble schedules take. cost: [chunks]; a whole backward pass
 * counts as its input part; transfer and weight_held are 0. On a device that runs behind the host:
 * of the enqueueing only. */
GT_API void gt_pipeline_get_costs(const gt_pipeline *pipeline, gt_stage_cost *cost);

#ifdef __cplusplus
}
#endif
#endif
