/* SPDX-License-Identifier: Apache-2.0
 *
 * Panels for the register tile: dst[k][i] (width `wide`) from a piece of a matrix in any float
 * dtype, so that 16-bit operands are widened here, a panel at a time, and never as a whole.
 */
#ifndef GTI_CPU_PACK_H
#define GTI_CPU_PACK_H

#include "backend/cpu/kernels/convert.h"
#include "backend/cpu/kernels/tile.h"

#define GTI_KC                                                                                     \
    768 /* steps of k per panel: longer ones save passes over c, to what a 512 KiB cache holds */

typedef float gti_vec4 __attribute__((vector_size(16)));
typedef float gti_vec4_u __attribute__((vector_size(16), aligned(4)));
typedef int gti_idx4 __attribute__((vector_size(16)));

#if defined(__clang__)
#define GTI_SHUFFLE4(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define GTI_SHUFFLE4(a, b, i, j, k, l) __builtin_shuffle(a, b, (gti_idx4){i, j, k, l})
#endif

/* dst[k * wide + 0..3] = rows[0..3][k] */
GTI_ALWAYS_INLINE void gti_transpose_4(float *dst, ptrdiff_t wide, const float *const rows[4],
                                       int64_t kc)
{
    int64_t k = 0;
    float *p = dst;
    for (; k + 4 <= kc; k += 4, p += 4 * wide) {
        gti_vec4 a = *(const gti_vec4_u *)(rows[0] + k), b = *(const gti_vec4_u *)(rows[1] + k);
        gti_vec4 c = *(const gti_vec4_u *)(rows[2] + k), d = *(const gti_vec4_u *)(rows[3] + k);
        gti_vec4 ab0 = GTI_SHUFFLE4(a, b, 0, 4, 1, 5), ab1 = GTI_SHUFFLE4(a, b, 2, 6, 3, 7);
        gti_vec4 cd0 = GTI_SHUFFLE4(c, d, 0, 4, 1, 5), cd1 = GTI_SHUFFLE4(c, d, 2, 6, 3, 7);
        *(gti_vec4_u *)p = GTI_SHUFFLE4(ab0, cd0, 0, 1, 4, 5);
        *(gti_vec4_u *)(p + wide) = GTI_SHUFFLE4(ab0, cd0, 2, 3, 6, 7);
        *(gti_vec4_u *)(p + 2 * wide) = GTI_SHUFFLE4(ab1, cd1, 0, 1, 4, 5);
        *(gti_vec4_u *)(p + 3 * wide) = GTI_SHUFFLE4(ab1, cd1, 2, 3, 6, 7);
    }
    for (int rest = (int)(kc % 4), r = 0; r < rest; r++, p += wide) {
        for (int i = 0; i < 4; i++) {
            p[i] = rows[i][k + r];
        }
    }
}

/* Rows of the source become columns: dst[k][i] = src[(first + i) * ld + k0 + k], i < count. Blocks
 * of four rows; the last overlaps the one before where count is no multiple of four. */
static inline void gti_pack_transposed(float *dst, ptrdiff_t wide, const void *src, gt_dtype dtype,
                                       int64_t first, int64_t count, int64_t ld, int64_t k0,
                                       int64_t kc)
{
    float wider[4][GTI_KC];
    for (int64_t i = 0; i < count; i += 4) {
        if (i + 4 > count && count >= 4) {
            i = count - 4;
        }
        const float *rows[4];
        const int64_t n = count - i < 4 ? count - i : 4;
        for (int64_t r = 0; r < n; r++) {
            const size_t at = (size_t)((first + i + r) * ld + k0);
            rows[r] = (const float *)src + at;
            if (dtype != GT_F32) {
                gti_load_f32(wider[r], src, dtype, at, (size_t)kc);
                rows[r] = wider[r];
            }
        }
        if (n == 4) {
            gti_transpose_4(dst + i, wide, rows, kc);
            continue;
        }
        for (int64_t k = 0; k < kc; k++) {
            for (int64_t r = 0; r < n; r++) {
                dst[k * wide + i + r] = rows[r][k];
            }
        }
    }
}

/* Rows of the source stay rows: dst[k][i] = src[(k0 + k) * ld + first + i], i < count. */
static inline void gti_pack_rows(float *dst, ptrdiff_t wide, const void *src, gt_dtype dtype,
                                 int64_t first, int64_t count, int64_t ld, int64_t k0, int64_t kc)
{
    for (int64_t k = 0; k < kc; k++) {
        const size_t at = (size_t)((k0 + k) * ld + first);
        if (dtype != GT_F32) {
            gti_load_f32(dst + k * wide, src, dtype, at, (size_t)count);
        } else if (count == GTI_NR) {
            memcpy(dst + k * wide, (const float *)src + at, GTI_NR * sizeof(float));
        } else if (count == GTI_MR) {
            memcpy(dst + k * wide, (const float *)src + at, GTI_MR * sizeof(float));
        } else {
            memcpy(dst + k * wide, (const float *)src + at, (size_t)count * sizeof(float));
        }
    }
}

#endif
