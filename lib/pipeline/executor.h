/* SPDX-License-Identifier: Apache-2.0
 * Inside of the pipeline executor. */
#ifndef GTI_PIPELINE_EXECUTOR_H
#define GTI_PIPELINE_EXECUTOR_H

#include <geektrain/pipeline.h>

#include "schedule/schedule.h"

/* One buffer for an activation bundle (or its gradient) at a stage's boundary, and the transfers
 * that are filling or emptying it. */
typedef struct gti_boundary {
    gt_tensor ports[GT_MAX_PORTS]; /* full size; data NULL where a port has no gradient */
    gt_work *works[GT_MAX_PORTS];
} gti_boundary;

/* A schedule with the buffers it needs on this rank. */
typedef struct gti_program {
    const gt_schedule *schedule;
    gt_schedule *own;                     /* the same, when the program made it */
    gti_boundary **pools[GTI_POOL_COUNT]; /* [chunks][buffers] */
    size_t bytes;
} gti_program;

#define GTI_FORWARD_PROGRAMS 4 /* numbers of microbatches that forward-only runs keep ready */

/* What is known of a chunk's stage. */
typedef struct gti_stage_info {
    int stage, next_rank;           /* -1: no next stage                        */
    bool sends, receives;           /* to and from other ranks                  */
    int next_chunk, previous_chunk; /* of the neighbour on this rank, or -1     */
    int previous_count;
    int previous_rank[GT_MAX_PORTS], previous_tag_chunk[GT_MAX_PORTS];
    int first_port[GT_MAX_PORTS + 1]; /* of each previous stage in the input bundle */
    gt_bundle in, out;
    double spent[3]; /* in the last run's calls: forward, backward (input), backward weight */
    int calls[3];
} gti_stage_info;

struct gt_pipeline {
    gt_context *ctx;
    gt_comm *comm;
    const gt_schedule *schedule;
    int rank, chunks;
    void *user;
    gt_stage_forward_fn forward;
    gt_stage_backward_fn backward;
    gt_stage_reduce_fn reduce;
    int64_t rows;
    gti_stage_info *stages; /* [chunks] */
    gti_program training;
    gti_program forwards[GTI_FORWARD_PROGRAMS];
    int next_forward; /* program that is replaced next */
    gt_status broken;
    gt_pipeline_stats stats;
};

gt_status gti_program_open(gti_program *program, const gt_pipeline *pl, const gt_schedule *s);
/* Waits for its transfers, frees its buffers. */
void gti_program_close(gti_program *program, const gt_pipeline *pl);
/* Exchanges what each stage takes and gives; fills pl->stages' ports. */
gt_status gti_pipeline_agree_shapes(gt_pipeline *pl);

#endif
