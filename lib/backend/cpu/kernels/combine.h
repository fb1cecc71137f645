/* SPDX-License-Identifier: Apache-2.0
 * The host-side combining functions of one instruction set; see backend/host_reduce.h. */
#ifndef GTI_CPU_COMBINE_H
#define GTI_CPU_COMBINE_H

#include "backend/backend.h"

typedef struct gti_combine_table {
    void (*widen)(void *acc, const void *x, gt_dtype dtype, size_t n);
    void (*reduce)(void *acc, const void *x, gt_dtype dtype, size_t n, gti_reduce_kind kind);
    void (*narrow)(void *y, const void *acc, gt_dtype dtype, size_t n);
} gti_combine_table;

extern const gti_combine_table gti_cpu_combine_base;
#if defined(__x86_64__)
extern const gti_combine_table gti_cpu_combine_avx2;
extern const gti_combine_table gti_cpu_combine_avx512;
#endif

#endif
