/* SPDX-License-Identifier: Apache-2.0
 *
 * What GEMM's panels hold where an instruction multiplies pairs of bf16 (AVX512_BF16): two steps of
 * k side by side in 32 bits, the second zero at an odd end. Products are exact, sums f32, subnormal
 * numbers count as zero.
 */
#ifndef GTI_CPU_GEMM_PAIRS_H
#define GTI_CPU_GEMM_PAIRS_H

#include <immintrin.h>

#include "backend/cpu/kernels/pack.h"

GTI_ALWAYS_INLINE int64_t gti_panel_steps(int64_t kc)
{
    return (kc + 1) / 2;
}

GTI_ALWAYS_INLINE gti_vec gti_dot_pairs(gti_vec sum, gti_vec a, gti_vec b)
{
    return (gti_vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}

/* gti_tile with pairs for elements: t->k counts pairs. Pairs are moved as floats, which keeps every
 * bit. */
GTI_ALWAYS_INLINE void gti_tile_pairs(const gti_tile_args *t, const int rows, const ptrdiff_t row,
                                      const ptrdiff_t step, const int add)
{
    gti_vec acc[GTI_MR][2];
    const float *a = t->a, *b = t->b;
    GTI_UNROLL
    for (int i = 0; i < rows; i++) {
        acc[i][0] = acc[i][1] = (gti_vec){0};
        __builtin_prefetch(t->c + i * t->ldc, 1);
    }
    for (int64_t k = 0; k < t->k; k++) {
        const gti_vec b0 = gti_load(b), b1 = gti_load(b + GTI_LANES);
        GTI_UNROLL
        for (int i = 0; i < rows; i++) {
            const gti_vec x = (gti_vec)_mm512_set1_ps(a[i * row]);
            acc[i][0] = gti_dot_pairs(acc[i][0], x, b0);
            acc[i][1] = gti_dot_pairs(acc[i][1], x, b1);
        }
        a += step;
        b += t->ldb;
    }
    GTI_UNROLL
    for (int i = 0; i < rows; i++) {
        float *r = t->c + i * t->ldc;
        gti_store(r, add ? gti_load(r) + acc[i][0] : acc[i][0]);
        gti_store(r + GTI_LANES, add ? gti_load(r + GTI_LANES) + acc[i][1] : acc[i][1]);
    }
}
#define GTI_PANEL_TILE gti_tile_pairs

/* dst[s][i] = pair s of row first + i. */
static inline void gti_panel_transposed(float *dst, ptrdiff_t wide, const void *src, gt_dtype dtype,
                                        int64_t first, int64_t count, int64_t ld, int64_t k0,
                                        int64_t kc)
{
    float pairs[4][GTI_KC / 2];
    const int64_t steps = gti_panel_steps(kc);
    for (int64_t i = 0; i < count; i += 4) {
        if (i + 4 > count && count >= 4) {
            i = count - 4;
        }
        const float *rows[4];
        const int64_t n = count - i < 4 ? count - i : 4;
        for (int64_t r = 0; r < n; r++) {
            const uint16_t *from = (const uint16_t *)src + (first + i + r) * ld + k0;
            if (kc % 2 != 0) {
                pairs[r][steps - 1] = 0.0f;
            }
            memcpy(pairs[r], from, (size_t)kc * sizeof *from);
            rows[r] = pairs[r];
        }
        if (n == 4) {
            gti_transpose_4(dst + i, wide, rows, steps);
            continue;
        }
        for (int64_t s = 0; s < steps; s++) {
            for (int64_t r = 0; r < n; r++) {
                memcpy(&dst[s * wide + i + r], &rows[r][s], sizeof(float));
            }
        }
    }
}

/* dst[s][i] = rows k0 + 2s and k0 + 2s + 1 of column first + i. */
static inline void gti_panel_rows(float *dst, ptrdiff_t wide, const void *src, gt_dtype dtype,
                                  int64_t first, int64_t count, int64_t ld, int64_t k0, int64_t kc)
{
    static const uint16_t zeros[GTI_NR];
    for (int64_t s = 0; s < gti_panel_steps(kc); s++) {
        const uint16_t *even = (const uint16_t *)src + (k0 + 2 * s) * ld + first;
        const uint16_t *odd = 2 * s + 1 < kc ? even + ld : zeros;
        uint32_t pairs[GTI_NR];
        for (int64_t i = 0; i < count; i++) {
            pairs[i] = (uint32_t)even[i] | (uint32_t)odd[i] << 16;
        }
        memcpy(dst + s * wide, pairs, (size_t)count * sizeof pairs[0]);
    }
}

#endif
