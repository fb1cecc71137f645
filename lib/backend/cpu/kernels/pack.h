/* SPDX-License-Identifier: Apache-2.0
 *
 * Panels for the register tile: dst[k][i] (width `wide`) from a piece of a matrix in any float
 * dtype, so that 16-bit operands are widened here, a panel at a time, and never as a whole.
 */
#ifndef GTI_CPU_PACK_H
#define GTI_CPU_PACK_H

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

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

/* dst[k * wide + i] = rows[i][k], i < count <= GTI_TURN, k < steps. */
#if defined(__AVX512F__)
#define GTI_TURN 16
GTI_ALWAYS_INLINE void gti_turn_columns(float *p, ptrdiff_t wide, const __m512 u[16],
                                        __mmask16 mask, int64_t steps, const int j)
{
    const __m512 ab = _mm512_shuffle_f32x4(u[j], u[4 + j], 0x88);
    const __m512 cd = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0x88);
    const __m512 ab_odd = _mm512_shuffle_f32x4(u[j], u[4 + j], 0xdd);
    const __m512 cd_odd = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0xdd);
    const __m512 out[4] = {
        _mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab_odd, cd_odd, 0x88),
        _mm512_shuffle_f32x4(ab, cd, 0xdd), _mm512_shuffle_f32x4(ab_odd, cd_odd, 0xdd)};
    GTI_UNROLL
    for (int l = 0; l < 4; l++) {
        if (4 * l + j < steps) {
            _mm512_mask_storeu_ps(p + (4 * l + j) * wide, mask, out[l]);
        }
    }
}

/* Sixteen steps: pairs of rows, then pairs of pairs within 128 bits, then these among each other.
 */
GTI_ALWAYS_INLINE void gti_turn_16(float *p, ptrdiff_t wide, const float *const *rows,
                                   int64_t count, int64_t k, int64_t steps)
{
    const __mmask16 in = (__mmask16)(0xffffu >> (16 - steps));
    const __mmask16 out = (__mmask16)(0xffffu >> (16 - count));
    __m512 t[16], u[16];
    GTI_UNROLL
    for (int i = 0; i < 16; i += 2) {
        const __m512 x = i < count ? _mm512_maskz_loadu_ps(in, rows[i] + k) : _mm512_setzero_ps();
        const __m512 y =
            i + 1 < count ? _mm512_maskz_loadu_ps(in, rows[i + 1] + k) : _mm512_setzero_ps();
        t[i] = _mm512_unpacklo_ps(x, y);
        t[i + 1] = _mm512_unpackhi_ps(x, y);
    }
    GTI_UNROLL
    for (int i = 0; i < 16; i += 4) {
        for (int j = 0; j < 2; j++) {
            const __m512d x = _mm512_castps_pd(t[i + j]), y = _mm512_castps_pd(t[i + j + 2]);
            u[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
            u[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
        }
    }
    GTI_UNROLL
    for (int j = 0; j < 4; j++) {
        gti_turn_columns(p, wide, u, out, steps, j);
    }
}

GTI_ALWAYS_INLINE void gti_turn(float *dst, ptrdiff_t wide, const float *const *rows, int64_t count,
                                int64_t steps)
{
    int64_t k = 0;
    for (; k + 16 <= steps; k += 16) {
        gti_turn_16(dst + k * wide, wide, rows, count, k, 16);
    }
    if (k < steps) {
        gti_turn_16(dst + k * wide, wide, rows, count, k, steps - k);
    }
}
#else
#define GTI_TURN 4
GTI_ALWAYS_INLINE void gti_turn(float *dst, ptrdiff_t wide, const float *const *rows, int64_t count,
                                int64_t steps)
{
    if (count == 4) {
        gti_transpose_4(dst, wide, rows, steps);
        return;
    }
    for (int64_t k = 0; k < steps; k++) {
        for (int64_t i = 0; i < count; i++) {
            dst[k * wide + i] = rows[i][k];
        }
    }
}
#endif

/* Rows of the source become columns: dst[k][i] = src[(first + i) * ld + k0 + k], i < count. A few
 * steps of k at a time, so that what is written stays in the first cache until its rows are whole.
 */
static inline void gti_pack_transposed(float *dst, ptrdiff_t wide, const void *src, gt_dtype dtype,
                                       int64_t first, int64_t count, int64_t ld, int64_t k0,
                                       int64_t kc)
{
    enum { STEPS = 64 };
    float wider[GTI_TURN][STEPS];
    const float *rows[GTI_TURN];
    for (int64_t k = 0; k < kc; k += STEPS, dst += STEPS * wide) {
        const int64_t steps = kc - k < STEPS ? kc - k : STEPS;
        for (int64_t i = 0; i < count; i += GTI_TURN) {
            const int64_t n = count - i < GTI_TURN ? count - i : GTI_TURN;
            for (int64_t r = 0; r < n; r++) {
                const size_t at = (size_t)((first + i + r) * ld + k0 + k);
                rows[r] = (const float *)src + at;
                if (dtype != GT_F32) {
                    gti_load_f32(wider[r], src, dtype, at, (size_t)steps);
                    rows[r] = wider[r];
                }
            }
            gti_turn(dst + i, wide, rows, n, steps);
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
