/* SPDX-License-Identifier: Apache-2.0
 * What the tests of the tensor-parallel primitives share: whole tensors and a rank's pieces. */
#ifndef TESTS_TP_SHARD_H
#define TESTS_TP_SHARD_H

#include <geektrain/tensor_parallel.h>

#include "ranks.h"

enum { N = 12, I = 10, O = 9 };

typedef struct tp_case {
    gt_dtype dtype;
    bool sequence_parallel, no_overlap;
    int chunks;
    int64_t ffn;
} tp_case;

typedef struct shard {
    th *h;
    const tp_case *c;
    gt_tp tp;
    int size, rank;
    int64_t f, f_first; /* this rank's part of the hidden width */
    int64_t n, n_first; /* its rows outside the pair            */
} shard;

/* Before a call that fails: the other ranks return from the one before, or would fail in it. */
void let_others_return(void);
/* This rank's part of a case, with scratch. */
shard shard_of(gt_comm *world, gt_context *ctx, const tp_case *c);
/* A deterministic whole tensor in double, as rounded to the dtype. */
double *whole(th *h, gt_dtype dtype, int64_t n, uint64_t seed);
gt_tensor upload(th *h, gt_dtype dtype, int64_t rows, int64_t columns, const double *values);
/* Columns [first, first + count) of x[rows, columns]. */
double *columns_of(th *h, const double *x, int64_t rows, int64_t columns, int64_t first,
                   int64_t count);

#endif
