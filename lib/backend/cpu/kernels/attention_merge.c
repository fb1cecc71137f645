/* SPDX-License-Identifier: Apache-2.0
 *
 * Joins attention over two disjoint key sets. With m = max(lse, part_lse), the weights are
 * e^(lse - m) and e^(part_lse - m), divided by their sum; lse = m + log(sum). Bytes: out read and
 * written, part read.
 */
#include <math.h>

#include "backend/cpu/kernels/convert.h"
#include "backend/cpu/kernels/kernel.h"

typedef struct weights {
    float out, part, lse;
} weights;

static weights weigh(float lse, float part_lse)
{
    const float m = lse > part_lse ? lse : part_lse;
    if (m == -INFINITY) {
        return (weights){0.0f, 0.0f, -INFINITY}; /* neither saw a key */
    }
    const double x = exp((double)lse - (double)m), y = exp((double)part_lse - (double)m);
    return (weights){(float)(x / (x + y)), (float)(y / (x + y)), (float)((double)m + log(x + y))};
}

static void join_row(const struct gti_attention_merge_args *a, int64_t at, weights w)
{
    float out_buffer[GTI_CHUNK], part_buffer[GTI_CHUNK];
    for (int64_t c = 0; c < a->d; c += GTI_CHUNK) {
        const size_t n = (size_t)(a->d - c < GTI_CHUNK ? a->d - c : GTI_CHUNK);
        const size_t first = (size_t)(at + c);
        const float *part = gti_chunk_in(part_buffer, a->part.data, a->part.dtype, first, n);
        gti_load_f32(out_buffer, a->out.data, a->out.dtype, first, n);
#pragma omp simd
        for (size_t i = 0; i < n; i++) {
            out_buffer[i] = w.out * out_buffer[i] + w.part * part[i];
        }
        gti_store_f32(a->out.data, out_buffer, a->out.dtype, first, n);
    }
}

gt_status GTI_KERNEL(attention_merge)
{
    const struct gti_attention_merge_args *a = raw;
    float *lse = a->lse.data;
    const float *part_lse = a->part_lse.data;
    const int64_t rows = a->b * a->t;
    const int threads = rows * a->h * a->d < 1 << 15 ? 1 : gti_cpu_threads(device);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t h = 0; h < a->h; h++) {
            const int64_t s = (row / a->t * a->h + h) * a->t + row % a->t;
            const weights w = weigh(lse[s], part_lse[s]);
            join_row(a, (row * a->h + h) * a->d, w);
            lse[s] = w.lse;
        }
    }
    return GT_OK;
}
