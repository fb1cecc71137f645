/* SPDX-License-Identifier: Apache-2.0
 *
 * SwiGLU (Shazeer 2020): gu[N,2F] = (gate, up), y = gate s up with s = 1 / (1 + e^-gate).
 *     dup = dy gate s,  dgate = dy up s (1 + gate (1 - s)).
 * Bytes moved: each tensor once.
 */
#include "backend/cpu/kernels/bounded_exp.h"
#include "backend/cpu/kernels/chunk.h"

/* Beyond +-50 the logistic function is 1 or below 1e-21, so the gate is bounded there (why not
 * further: gelu.c). The comparisons let NaN pass. */
static inline float at_least(float x, float least)
{
    return x < least ? least : x;
}

static inline float at_most(float x, float most)
{
    return x > most ? most : x;
}

static void forward_chunk(float *y, const float *gate, const float *up, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float low = at_least(gate[i], -50.0f), g = at_most(low, 50.0f);
        y[i] = low / (1.0f + gti_exp_bounded(-g)) * up[i];
    }
}

static void backward_chunk(float *dgate, float *dup, const float *dy, const float *gate,
                           const float *up, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float low = at_least(gate[i], -50.0f), g = at_most(low, 50.0f);
        float u = up[i], d = dy[i], s = 1.0f / (1.0f + gti_exp_bounded(-g));
        dup[i] = d * (low * s);
        dgate[i] = d * u * (s + g * s * (1.0f - s));
    }
}

gt_status GTI_KERNEL(swiglu_fwd)
{
    const struct gti_swiglu_fwd_args *a = raw;
    int64_t rows, width;
    gti_matrix(&a->y, &rows, &width);
    bool stream = gti_streams(&a->y);
    int threads = gti_threads_for(device, 2 * rows * width);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        float gbuf[GTI_CHUNK], ubuf[GTI_CHUNK], ybuf[GTI_CHUNK];
#pragma omp for collapse(2) schedule(static) nowait
        for (int64_t n = 0; n < rows; n++) {
            for (int64_t c = 0; c < width; c += GTI_CHUNK) {
                int64_t m = gti_min(GTI_CHUNK, width - c);
                const float *gate = gti_chunk_in(gbuf, &a->gu, 2 * n * width + c, m);
                const float *up = gti_chunk_in(ubuf, &a->gu, (2 * n + 1) * width + c, m);
                float *y = gti_chunk_out(ybuf, &a->y, n * width + c, stream);
                forward_chunk(y, gate, up, m);
                gti_chunk_done(&a->y, n * width + c, m, y, stream);
            }
        }
        gti_stream_fence(stream);
    }
    return GT_OK;
}

gt_status GTI_KERNEL(swiglu_bwd)
{
    const struct gti_swiglu_bwd_args *a = raw;
    int64_t rows, width;
    gti_matrix(&a->dy, &rows, &width);
    bool stream = gti_streams(&a->dgu);
    int threads = gti_threads_for(device, 2 * rows * width);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        float gbuf[GTI_CHUNK], ubuf[GTI_CHUNK], dbuf[GTI_CHUNK], dgbuf[GTI_CHUNK], dubuf[GTI_CHUNK];
#pragma omp for collapse(2) schedule(static) nowait
        for (int64_t n = 0; n < rows; n++) {
            for (int64_t c = 0; c < width; c += GTI_CHUNK) {
                int64_t m = gti_min(GTI_CHUNK, width - c);
                int64_t g_at = 2 * n * width + c, u_at = g_at + width;
                const float *gate = gti_chunk_in(gbuf, &a->gu, g_at, m);
                const float *up = gti_chunk_in(ubuf, &a->gu, u_at, m);
                const float *dy = gti_chunk_in(dbuf, &a->dy, n * width + c, m);
                float *dgate = gti_chunk_out(dgbuf, &a->dgu, g_at, stream);
                float *dup = gti_chunk_out(dubuf, &a->dgu, u_at, stream);
                backward_chunk(dgate, dup, dy, gate, up, m);
                gti_chunk_done(&a->dgu, g_at, m, dgate, stream);
                gti_chunk_done(&a->dgu, u_at, m, dup, stream);
            }
        }
        gti_stream_fence(stream);
    }
    return GT_OK;
}
