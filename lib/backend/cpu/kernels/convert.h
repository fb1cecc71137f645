/* SPDX-License-Identifier: Apache-2.0
 *
 * Float data of any dtype seen as f32. Kernels work on chunks of GTI_CHUNK elements: gti_chunk_in()
 * gives a chunk as f32 (in place where it is f32 already), the arithmetic is written once, and
 * gti_store_f32() rounds the result back. The chunk buffers stay in the first-level cache.
 */
#ifndef GTI_CPU_CONVERT_H
#define GTI_CPU_CONVERT_H

#include <string.h>

#include <geektrain/tensor.h>

#include "core/convert.h"

#define GTI_CHUNK 512

/* y[n] f32 from x[first..] of a float dtype. */
static inline void gti_load_f32(float *restrict y, const void *restrict x, gt_dtype dtype,
                                size_t first, size_t n)
{
    if (dtype == GT_BF16) {
        gti_bf16_to_f32_n(y, (const uint16_t *)x + first, n);
    } else if (dtype == GT_F16) {
        gti_f16_to_f32_n(y, (const uint16_t *)x + first, n);
    } else {
        memcpy(y, (const float *)x + first, n * sizeof(float));
    }
}

/* y[first..] of a float dtype from x[n] f32. */
static inline void gti_store_f32(void *restrict y, const float *restrict x, gt_dtype dtype,
                                 size_t first, size_t n)
{
    if (dtype == GT_BF16) {
        gti_f32_to_bf16_n((uint16_t *)y + first, x, n);
    } else if (dtype == GT_F16) {
        gti_f32_to_f16_n((uint16_t *)y + first, x, n);
    } else {
        memcpy((float *)y + first, x, n * sizeof(float));
    }
}

/* The chunk x[first, first + n) as f32: x itself, or converted into buffer (GTI_CHUNK floats). */
static inline const float *gti_chunk_in(float *buffer, const void *x, gt_dtype dtype, size_t first,
                                        size_t n)
{
    if (dtype == GT_F32) {
        return (const float *)x + first;
    }
    gti_load_f32(buffer, x, dtype, first, n);
    return buffer;
}

#endif
