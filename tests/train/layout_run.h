/* SPDX-License-Identifier: Apache-2.0
 *
 * One small training run in a given layout, for tests that compare layouts with one another.
 *
 * The data are made up from the global sample number, so every layout sees the same global batches;
 * some targets are ignored, and dropout is on, since both have been where layouts differ.
 */
#ifndef TESTS_LAYOUT_RUN_H
#define TESTS_LAYOUT_RUN_H

#include <geektrain/geektrain.h>

#include "ranks.h"

enum { LAYOUT_STEPS = 4, LAYOUT_BATCH = 12 };

typedef struct layout {
    int pp, dp, cp, tp; /* 0 = 1 */
    bool sequence_parallel;
    int zero;
    gt_dtype dtype;
    int micro; /* samples per microbatch; 0 = 1 */
    bool recompute;
    const char *schedule; /* NULL: 1f1b */
    int chunks;
    const char *device; /* NULL: cpu */
    bool llama, untied;
    int64_t vocab;  /* 0: 61 */
    int64_t stride; /* between the tokens that occur; 0: 1, all of them below 600 */
    int layers, width, heads, kv_heads; /* 0: 4, 32, 4, and heads or (llama) 2 */
    gt_optimizer_type optimizer;
    gt_dtype communication; /* of gradients; 0 (f32) keeps the default of the dtype */
    gt_dtype accumulation;
    gt_offload offload;
    bool remainder;
    bool no_dropout;
    int64_t persistence;
    int hpz;
} layout;

typedef struct layout_curve {
    double loss[LAYOUT_STEPS], norm[LAYOUT_STEPS];
    double evaluation;
    gt_step_result last;
    gt_memory_stats memory;      /* rank 0, after the last step */
    gt_zero_bytes formula;       /* rank 0 */
    uint64_t steady_allocations; /* of the last step, rank 0 */
    int32_t sampled[4];
} layout_curve;

int layout_ranks(const layout *l);
void layout_config(gt_config *config, const layout *l);
/* This rank's part of global batch number `step`. */
void layout_batch(gt_batch *out, int32_t *tokens, int32_t *targets, const gt_config *config,
                  int step, int dp_rank, int dp_size);
/* Trains LAYOUT_STEPS steps on layout_ranks(l) ranks (see gti_run_ranks). */
void layout_run(layout_curve *out, const layout *l);
/* For messages: "pp2 dp2 tp1 zero3 bf16 micro2 ..." */
const char *layout_name(const layout *l);
/* Losses, norms and evaluation within the relative tolerance of `want`. */
void layout_compare(const layout *l, const layout_curve *got, const layout_curve *want,
                    double tolerance);

#endif
