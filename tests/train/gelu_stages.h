/* SPDX-License-Identifier: Apache-2.0
 *
 * Stages for tests of the pipeline executor: y = gelu(x w^T), x being the sum of the stage's
 * inputs; the loss is half the sum of squares of the last stage's y.
 */
#ifndef TESTS_GELU_STAGES_H
#define TESTS_GELU_STAGES_H

#include <geektrain/pipeline.h>
#include <geektrain/ops.h>

#include "ranks.h"

#define GS_WIDTH 6
#define GS_MICROBATCHES 16
#define GS_CHUNKS 3

/* One stage with what it saves per microbatch. */
typedef struct gs_stage {
    int number, inputs;
    bool last;
    gt_tensor w, dw;
    gt_tensor x[GS_MICROBATCHES]; /* sum of the inputs, or the first stage's data */
    gt_tensor u[GS_MICROBATCHES]; /* x w^T                                        */
    gt_tensor du[GS_MICROBATCHES];
    gt_tensor y[GS_MICROBATCHES]; /* last stage only                              */
} gs_stage;

/* The stages of one rank; the user pointer of its stage functions. */
typedef struct gs_rank {
    gt_context *ctx;
    const gt_schedule *schedule;
    int rank, chunks;
    int64_t full;                  /* rows of a full microbatch        */
    int64_t rows[GS_MICROBATCHES]; /* of this run     */
    gs_stage stages[GS_CHUNKS];
    int calls, reduces;
    bool last_reduced;
    int fail_backward; /* of this microbatch; -1: none */
} gs_rank;

void gs_stage_open(gs_stage *st, th *h, int number, int inputs, bool last, int64_t rows);
gt_status gs_forward(gt_context *ctx, gs_stage *st, int m, int64_t rows, const gt_tensor *in,
                     gt_tensor *out);
gt_status gs_backward(gt_context *ctx, gs_stage *st, int m, int64_t rows, const gt_tensor *in,
                      const gt_tensor *dout, gt_tensor *din, unsigned parts);

/* rank's stages of the schedule, on microbatches of `rows` rows. */
void gs_rank_open(gs_rank *r, gt_context *ctx, const gt_schedule *s, int rank, int64_t rows);
/* Params whose functions run these stages; in and out [chunks] are filled. */
gt_pipeline_params gs_params(gs_rank *r, gt_bundle *in, gt_bundle *out);
/* Compares every stage of the rank with the same microbatches run one after the other on all
 * stages, without executor; bit for bit. rows: [m]. */
void gs_check(gs_rank *r, int m, const int64_t *rows, bool trained);

#endif
