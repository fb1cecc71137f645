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

/* The whole groups of GTI_SUM_LANES among n elements; returns how many elements that is. The
 * compilers keep neither an array nor a vector-type of lanes in registers, hence the intrinsics. */
static inline size_t gti_add_square_groups(double *restrict lanes, const float *restrict x,
                                           size_t n)
{
    size_t i = 0;
#if defined(__AVX512F__)
    __m512d sum[4];
    for (int k = 0; k < 4; k++) {
        sum[k] = _mm512_loadu_pd(lanes + 8 * k);
    }
    for (; i + GTI_SUM_LANES <= n; i += GTI_SUM_LANES) {
        for (int k = 0; k < 4; k++) {
            __m512d value = _mm512_cvtps_pd(_mm256_loadu_ps(x + i + 8 * k));
            sum[k] = _mm512_fmadd_pd(value, value, sum[k]);
        }
    }
    for (int k = 0; k < 4; k++) {
        _mm512_storeu_pd(lanes + 8 * k, sum[k]);
    }
#elif defined(__AVX2__)
    __m256d sum[8];
    for (int k = 0; k < 8; k++) {
        sum[k] = _mm256_loadu_pd(lanes + 4 * k);
    }
    for (; i + GTI_SUM_LANES <= n; i += GTI_SUM_LANES) {
        for (int k = 0; k < 8; k++) {
            __m256d value = _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4 * k));
            sum[k] = _mm256_fmadd_pd(value, value, sum[k]);
        }
    }
    for (int k = 0; k < 8; k++) {
        _mm256_storeu_pd(lanes + 4 * k, sum[k]);
    }
#else
    for (; i + GTI_SUM_LANES <= n; i += GTI_SUM_LANES) {
        for (size_t k = 0; k < GTI_SUM_LANES; k++) {
            double value = (double)x[i + k];
            lanes[k] += value * value;
        }
    }
#endif
    return i;
}

static inline void gti_add_squares(double *restrict lanes, const float *restrict x, size_t n)
{
    size_t i = gti_add_square_groups(lanes, x, n);
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
