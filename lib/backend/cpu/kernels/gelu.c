/* SPDX-License-Identifier: Apache-2.0
 *
 * GELU in its tanh form (Hendrycks & Gimpel 2016), written with the logistic function:
 *     1 + tanh(u) = 2 / (1 + e^-2u),  so  y = x / (1 + e^-2u),  2u = x (A + B x^2),
 * which keeps full relative precision where tanh is near -1. Derivative, with s = 1 / (1 + e^-2u):
 *     y' = s + x s (1 - s) (A + 3 B x^2).
 * Bytes moved: each tensor once.
 */
#include "backend/cpu/kernels/bounded_exp.h"
#include "backend/cpu/kernels/chunk.h"

#define A 1.5957691216057308f   /* 2 sqrt(2/pi)          */
#define B 0.071354816272600245f /* 2 sqrt(2/pi) 0.044715 */

/* Beyond +-8 the logistic function is 1 or below 1e-21, so x is bounded there. The comparisons let
 * NaN pass. (A wider bound would bring products near the smallest normal number, on lanes that the
 * compiler computes and then does not take, and subnormals cost a hundred times.) */
static inline float at_least(float x, float least)
{
    return x < least ? least : x;
}

static inline float at_most(float x, float most)
{
    return x > most ? most : x;
}

static void forward_chunk(float *y, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float low = at_least(x[i], -8.0f), v = at_most(low, 8.0f);
        y[i] = low / (1.0f + gti_exp_bounded(v * (v * v * -B - A)));
    }
}

static void backward_chunk(float *dx, const float *dy, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float v = at_most(at_least(x[i], -8.0f), 8.0f), q = v * v;
        float s = 1.0f / (1.0f + gti_exp_bounded(v * (q * -B - A)));
        float slope = v * (q * (3.0f * B) + A);
        dx[i] = dy[i] * (s + s * (1.0f - s) * slope);
    }
}

gt_status GTI_KERNEL(gelu_fwd)
{
    const struct gti_gelu_fwd_args *a = raw;
    int64_t count = gt_tensor_numel(&a->x);
    bool stream = gti_streams(&a->y);
    int threads = gti_threads_for(device, count);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        float xbuf[GTI_CHUNK], ybuf[GTI_CHUNK];
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < count; i += GTI_CHUNK) {
            int64_t m = gti_min(GTI_CHUNK, count - i);
            const float *x = gti_chunk_in(xbuf, &a->x, i, m);
            float *y = gti_chunk_out(ybuf, &a->y, i, stream);
            forward_chunk(y, x, m);
            gti_chunk_done(&a->y, i, m, y, stream);
        }
        gti_stream_fence(stream);
    }
    return GT_OK;
}

gt_status GTI_KERNEL(gelu_bwd)
{
    const struct gti_gelu_bwd_args *a = raw;
    int64_t count = gt_tensor_numel(&a->x);
    bool stream = gti_streams(&a->dx);
    int threads = gti_threads_for(device, count);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        float xbuf[GTI_CHUNK], dbuf[GTI_CHUNK], obuf[GTI_CHUNK];
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < count; i += GTI_CHUNK) {
            int64_t m = gti_min(GTI_CHUNK, count - i);
            const float *x = gti_chunk_in(xbuf, &a->x, i, m);
            const float *dy = gti_chunk_in(dbuf, &a->dy, i, m);
            float *dx = gti_chunk_out(obuf, &a->dx, i, stream);
            backward_chunk(dx, dy, x, m);
            gti_chunk_done(&a->dx, i, m, dx, stream);
        }
        gti_stream_fence(stream);
    }
    return GT_OK;
}
