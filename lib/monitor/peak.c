/* SPDX-License-Identifier: Apache-2.0
 * The rate that a step is measured against. */
#include <math.h>
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

/* Which size is fastest depends on the dtype and the kernels: small ones stay in the caches, large
 * ones feed many cores. */
static const int64_t sizes[] = {512, 1024, 2048};
#define BUDGET 0.1 /* seconds per size */

/* Best rate of products of n x n within the budget, of which at least two are made. */
static gt_status best_of(gt_context *ctx, gt_tensor t[3], int64_t n, double *flops)
{
    const double work = 2.0 * (double)n * (double)n * (double)n, begin = now();
    for (int i = 0; i < 3; i++) {
        GT_TRY(gt_fill(ctx, &t[i], i == 0 ? 0.0 : 0.5, NULL));
    }
    for (int run = 0; run < 2 || now() - begin < BUDGET; run++) {
        GT_TRY(gt_context_synchronize(ctx));
        double start = now();
        GT_TRY(gt_gemm(ctx, &t[0], &t[1], &t[2], NULL, NULL));
        GT_TRY(gt_context_synchronize(ctx));
        double rate = work / fmax(now() - start, 1e-9);
        *flops = rate > *flops ? rate : *flops;
    }
    return GT_OK;
}

static gt_status try_size(gt_context *ctx, gt_dtype dtype, int64_t n, double *flops)
{
    const int64_t shape[2] = {n, n};
    gt_tensor t[3] = {{0}};
    gt_status st = GT_OK;
    for (int i = 0; i < 3 && st == GT_OK; i++) {
        st = gt_tensor_alloc(ctx, &t[i], GT_MEM_WORKSPACE, dtype, 2, shape);
    }
    st = st == GT_OK ? best_of(ctx, t, n, flops) : st;
    for (int i = 0; i < 3; i++) {
        gt_tensor_free(ctx, &t[i]);
    }
    return st;
}

gt_status gt_peak_flops(gt_context *ctx, gt_dtype dtype, double *flops)
{
    double best = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        double n = (double)sizes[i];
        if (i == 0 || 2 * n * n * n / best <= BUDGET) { /* else it would take too long */
            GT_TRY(try_size(ctx, dtype, sizes[i], &best));
        }
    }
    *flops = best;
    return GT_OK;
}
