/* SPDX-License-Identifier: Apache-2.0
 * The groups of bench_ops; each adds its cases to the bench. */
#ifndef BENCH_OPS_H
#define BENCH_OPS_H

#include <geektrain/ops.h>

#include "bench.h"

typedef struct ops_bench {
    bench *b;
    gt_context *ctx;
    int sgemm, triad; /* ceilings */
} ops_bench;

void ops_add_matrix(ops_bench *o);    /* matrix products    */
void ops_add_attention(ops_bench *o); /* attention          */
void ops_add_stream(ops_bench *o);    /* bound by memory    */

/* A tensor with varied values, owned by the context until ops_free_tensors(). */
gt_tensor *ops_tensor(ops_bench *o, gt_dtype dtype, int64_t rows, int64_t columns, float scale);
void ops_free_tensors(ops_bench *o);

#endif
