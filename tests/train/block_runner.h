/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a list of blocks on one microbatch without the engine: parameters are this rank's pieces,
 * and forward and backward are called in order. For tests of blocks, yours too.
 */
#ifndef TESTS_BLOCK_RUNNER_H
#define TESTS_BLOCK_RUNNER_H

#include <geektrain/model.h>

#include "harness.h"
#include "nn/plan.h"

enum { BR_MAX_BLOCKS = 8 };

typedef struct br_block {
    gt_block *block;
    gt_param_list list;
    gt_plan plan;
    gt_tensor *params, *grads, *saved, *workspace, *constants;
    gt_tensor in, out, dout, din;
    gt_saved keep;
} br_block;

/* A microbatch of whole sequences; the runner takes this rank's tokens of it. */
typedef struct br_batch {
    int64_t batch, seq;
    const int32_t *tokens, *targets; /* [batch*seq] */
    float grad_scale;
    int32_t ignore_index;
    int64_t first_sample; /* global number of the first sample, for dropout */
    bool eval;
} br_batch;

typedef struct br_options {
    gt_dtype dtype;
    gt_comm *tp, *cp; /* NULL: 1 */
    bool sequence_parallel, split_backward, no_overlap;
    uint64_t seed;
} br_options;

typedef struct br {
    th *h;
    gt_layout layout;
    br_options options;
    br_block blocks[BR_MAX_BLOCKS];
    int count;
    gt_tensor tokens, targets, rows, positions, stats;
} br;

/* Declares, plans, allocates and initialises; fails the test on any error. */
void br_open(br *r, th *h, gt_model *model, const br_batch *batch, const br_options *options);
/* The same up to planning, for configurations that must be refused. */
gt_status br_plan(br *r, th *h, gt_model *model, const br_batch *batch, const br_options *options);
void br_close(br *r);
/* Zeroes gradients and stats, then forward and (unless eval) backward. */
void br_run(br *r, const br_batch *batch);
/* What block i is called with. */
gt_step br_step(br *r, int i, const br_batch *batch);
/* {sum of losses, valid tokens} of this rank's tokens. */
void br_stats(br *r, double stats[2]);

/* All parameters one after the other, in declaration order, each whole; a tied one where it is
 * first declared. */
int64_t br_total(const br *r);
/* Where parameter `index` of a block begins in that order (-1: tied to another). */
int64_t br_offset(const br *r, int block, int index);
/* Adds this rank's gradients into whole[br_total]; summed over all ranks (from outside, one after
 * the other) that gives the gradient of the whole model. */
void br_add_gradients(br *r, double *whole);
/* This rank's parameters into whole; equal values from every rank that holds them. */
void br_get_params(br *r, double *whole);
/* Elements of a microbatch's tokens that this context-parallel rank has, in order: the sequence is
 * 2*cp pieces, rank r has the pieces r and 2*cp-1-r. */
void br_local_positions(int64_t seq, int cp, int rank, int64_t *positions);

#endif
