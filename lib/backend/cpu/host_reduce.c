/* SPDX-License-Identifier: Apache-2.0
 * Chooses the instruction set of the host-side combining functions. */
#include "backend/host_reduce.h"

#include "backend/cpu/kernels/combine.h"

static const gti_combine_table *table(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        return &gti_cpu_combine_avx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return &gti_cpu_combine_avx2;
    }
#endif
    return &gti_cpu_combine_base;
}

gt_dtype gti_host_acc_dtype(gt_dtype dtype)
{
    return dtype == GT_F16 || dtype == GT_BF16 ? GT_F32 : dtype;
}

void gti_host_widen(void *acc, const void *x, gt_dtype dtype, size_t n)
{
    table()->widen(acc, x, dtype, n);
}

void gti_host_reduce(void *acc, const void *x, gt_dtype dtype, size_t n, gti_reduce_kind kind)
{
    table()->reduce(acc, x, dtype, n, kind);
}

void gti_host_narrow(void *y, const void *acc, gt_dtype dtype, size_t n)
{
    table()->narrow(y, acc, dtype, n);
}
