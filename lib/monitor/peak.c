/* SPDX-License-Identifier: Apache-2.0
 * The rate that a step is measured against. */
#include <time.h>

#include <geektrain/monitor.h>
#include <geektrain/ops.h>

#include "core/fail.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static gt_status best_of(gt_context *ctx, gt_tensor t[3], int runs, double *seconds)
{
    *seconds = 1e30;
    for (int i = 0; i < 3; i++) {
        GT_TRY(gt_fill(ctx, &t[i], i == 0 ? 0.0 : 0.5, NULL));
    }
    for (int run = 0; run < runs; run++) {
        GT_TRY(gt_context_synchronize(ctx));
        double start = now();
        GT_TRY(gt_gemm(ctx, &t[0], &t[1], &t[2], NULL, NULL));
        GT_TRY(gt_context_synchronize(ctx));
        double took = now() - start;
        *seconds = took < *seconds ? took : *seconds;
    }
    return GT_OK;
}

gt_status gt_peak_flops(gt_context *ctx, gt_dtype dtype, double *flops)
{
    enum { N = 2048, RUNS = 2 };
    const int64_t shape[2] = {N, N};
    gt_tensor t[3] = {{0}};
    double seconds = 0;
    gt_status st = GT_OK;
    for (int i = 0; i < 3 && st == GT_OK; i++) {
        st = gt_tensor_alloc(ctx, &t[i], GT_MEM_WORKSPACE, dtype, 2, shape);
    }
    if (st == GT_OK) {
        st = best_of(ctx, t, RUNS, &seconds);
    }
    for (int i = 0; i < 3; i++) {
        gt_tensor_free(ctx, &t[i]);
    }
    if (st == GT_OK) {
        *flops = 2.0 * N * N * N / seconds;
    }
    return st;
}
