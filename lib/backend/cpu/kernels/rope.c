/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary position embedding in place (Su et al. 2021): in each head the pairs (i, i + D/2) turn by
 * position * freq[i]. Angles in double, reduced before the sine: positions may be in the millions.
 * Sines are computed once per row and used by all its heads.
 */
#include <math.h>

#include "backend/cpu/kernels/convert.h"
#include "backend/cpu/kernels/kernel.h"

#define HALF_MAX GTI_CHUNK /* pairs per pass */

static void turn(float *restrict lo, float *restrict hi, const float *restrict cosine,
                 const float *restrict sine, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float x = lo[i], y = hi[i];
        lo[i] = x * cosine[i] - y * sine[i];
        hi[i] = y * cosine[i] + x * sine[i];
    }
}

/* Pairs [first, first + n) of every head of one row. */
static void turn_row(const struct gti_rope_args *a, int64_t row, int64_t first, int64_t n)
{
    float cosine[HALF_MAX], sine[HALF_MAX], lo[HALF_MAX], hi[HALF_MAX];
    const float *freq = a->freq.data;
    const int64_t position = ((const int64_t *)a->rows.data)[row] % a->seq, half = a->head_size / 2;
    for (int64_t i = 0; i < n; i++) {
        const double angle = (double)position * (double)freq[first + i];
        cosine[i] = (float)(cos(angle) * (double)a->scale);
        sine[i] = (float)(sin(angle) * (double)a->scale * (a->inverse ? -1.0 : 1.0));
    }
    for (int64_t h = 0; h < a->heads; h++) {
        const size_t at = (size_t)(row * a->ld + h * a->head_size + first);
        gti_load_f32(lo, a->x.data, a->x.dtype, at, (size_t)n);
        gti_load_f32(hi, a->x.data, a->x.dtype, at + (size_t)half, (size_t)n);
        turn(lo, hi, cosine, sine, n);
        gti_store_f32(a->x.data, lo, a->x.dtype, at, (size_t)n);
        gti_store_f32(a->x.data, hi, a->x.dtype, at + (size_t)half, (size_t)n);
    }
}

gt_status GTI_KERNEL(rope)
{
    const struct gti_rope_args *a = raw;
    const int64_t rows = gt_tensor_numel(&a->rows), half = a->head_size / 2;
    const int threads = rows * a->heads * a->head_size < 1 << 14 ? 1 : gti_cpu_threads(device);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t first = 0; first < half; first += HALF_MAX) {
            turn_row(a, row, first, half - first < HALF_MAX ? half - first : HALF_MAX);
        }
    }
    return GT_OK;
}
