/* SPDX-License-Identifier: Apache-2.0
 * How fast are single operations, against what the machine can do? */
#include <stdio.h>
#include <stdlib.h>

#include "ops.h"

enum { TENSORS_MAX = 128 };
static gt_tensor tensors[TENSORS_MAX];
static int tensor_count;

gt_tensor *ops_tensor(ops_bench *o, gt_dtype dtype, int64_t rows, int64_t columns, float scale)
{
    if (tensor_count == TENSORS_MAX) {
        fprintf(stderr, "more than %d tensors\n", TENSORS_MAX);
        exit(1);
    }
    gt_tensor *t = &tensors[tensor_count];
    BENCH_OK(gt_tensor_alloc(o->ctx, t, GT_MEM_OTHER, dtype, 2, (int64_t[]){rows, columns}));
    const gt_init_params init = {.struct_size = sizeof init,
                                 .kind = GT_INIT_UNIFORM,
                                 .std = scale,
                                 .seed = 1,
                                 .stream_id = (uint64_t)tensor_count};
    BENCH_OK(gt_init(o->ctx, t, &init, NULL));
    tensor_count++;
    return t;
}

void ops_free_tensors(ops_bench *o)
{
    for (int i = 0; i < tensor_count; i++) {
        gt_tensor_free(o->ctx, &tensors[i]);
    }
}

int main(int argc, char **argv)
{
    ops_bench o = {.b = bench_open("bench_ops", argc, argv)};
    gt_context_params params = GT_CONTEXT_PARAMS_INIT;
    params.threads = bench_threads(o.b);
    BENCH_OK(gt_context_create(&o.ctx, &params));
    o.sgemm = bench_add_sgemm(o.b);
    o.triad = bench_add_triad(o.b);
    ops_add_matrix(&o);
    ops_add_attention(&o);
    ops_add_stream(&o);
    const int status = bench_close(o.b);
    ops_free_tensors(&o);
    gt_context_destroy(&o.ctx);
    return status;
}
