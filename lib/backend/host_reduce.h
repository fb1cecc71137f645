/* SPDX-License-Identifier: Apache-2.0
 *
 * Combining peers' data on host memory, for the communication thread: vectorised, single-threaded,
 * no OpenMP, no allocation, any alignment down to that of one element.
 *
 * 16-bit data is accumulated in f32 and rounded once at the end:
 *
 *     gti_host_widen(acc, rank0, dtype, n);
 *     gti_host_reduce(acc, rank1, dtype, n, kind); ...      in rank order
 *     gti_host_narrow(out, acc, dtype, n);
 *
 * acc has gti_host_acc_dtype(dtype): f32 for f32, f16, bf16, else the dtype itself. Where the two
 * are equal, acc may be the output, and widen and narrow of a buffer onto itself do nothing.
 *
 * MAX and MIN of a NaN and anything is NaN, so that a bad value on one rank reaches all. Integer
 * sums wrap around.
 */
#ifndef GTI_HOST_REDUCE_H
#define GTI_HOST_REDUCE_H

#include "backend/backend.h"

gt_dtype gti_host_acc_dtype(gt_dtype dtype);
/* acc[i] = x[i]; dtype is that of x. */
void gti_host_widen(void *acc, const void *x, gt_dtype dtype, size_t n);
/* acc[i] = acc[i] (+, max, min) x[i]; dtype is that of x. */
void gti_host_reduce(void *acc, const void *x, gt_dtype dtype, size_t n, gti_reduce_kind kind);
/* y[i] = acc[i], rounded to nearest even; dtype is that of y. */
void gti_host_narrow(void *y, const void *acc, gt_dtype dtype, size_t n);

#endif
