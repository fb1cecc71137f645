/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of squares in double, in an order that depends on the number of elements only, never on the
 * number of threads or the instruction set: the data is cut into at most GTI_SUM_BLOCKS blocks; in
 * a block, element i goes to lane i % GTI_SUM_LANES; lanes, then blocks, are added in order. The
 * square of an f32 is exact in double, so fused multiply-add changes nothing.
 */
#ifndef GTI_CPU_SUMS_H
#define GTI_CPU_SUMS_H

#include "backend/cpu/kernels/range.h"

#define GTI_SUM_LANES 32 /* divides GTI_CHUNK */
#define GTI_SUM_BLOCKS 512

/* Elements per block; a multiple of GTI_CHUNK. */
static inline size_t gti_sum_block(size_t n)
{
    size_t chunks = (n + GTI_CHUNK - 1) / GTI_CHUNK;
    size_t per_block = (chunks + GTI_SUM_BLOCKS - 1) / GTI_SUM_BLOCKS;
    per_block = per_block < 16 ? 16 : per_block;
    return per_block * GTI_CHUNK;
}

static inline void gti_add_squares(double *restrict lanes, const float *restrict x, size_t n)
{
    size_t i = 0;
    for (; i + GTI_SUM_LANES <= n; i += GTI_SUM_LANES) {
#pragma omp simd
        for (size_t k = 0; k < GTI_SUM_LANES; k++) {
            double value = (double)x[i + k];
            lanes[k] += value * value;
        }
    }
    for (size_t k = 0; i + k < n; k++) {
        double value = (double)x[i + k];
        lanes[k] += value * value;
    }
}

static inline double gti_sum_in_order(const double *x, size_t n)
{
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        sum += x[i];
    }
    return sum;
}

#endif
