/* SPDX-License-Identifier: Apache-2.0
 *
 * LayerNorm forward (Ba et al. 2016): y = (s - mean) * rstd * gamma + beta over rows of C.
 * Two passes over a row that stays in the first-level cache, then the output pass; the second pass
 * also takes the mean of what the rounded first mean left over (`rest`), so that rows far from zero
 * (mean 1e4, deviation 1) are right to f32 rounding. Bytes moved: x and y once.
 */
#include "backend/cpu/kernels/norm.h"

struct moments {
    float mean, rest, rstd; /* the row's mean is mean + rest */
};

static struct moments row_moments(const gt_tensor *s, int64_t at, int64_t columns, float eps)
{
    float buf[GTI_CHUNK];
    double total = 0, d1 = 0, d2 = 0;
    for (int64_t c = 0; c < columns; c += GTI_CHUNK) {
        int64_t m = gti_min(GTI_CHUNK, columns - c);
        total += (double)gti_sum(gti_chunk_in(buf, s, at + c, m), m);
    }
    float mean = (float)(total / (double)columns);
    for (int64_t c = 0; c < columns; c += GTI_CHUNK) {
        int64_t m = gti_min(GTI_CHUNK, columns - c);
        const float *x = gti_chunk_in(buf, s, at + c, m);
        float sum = 0, squares = 0, sum2 = 0, squares2 = 0;
        int64_t half = m / 2;
#pragma omp simd reduction(+ : sum, squares, sum2, squares2)
        for (int64_t i = 0; i < half; i++) {
            float d = x[i] - mean, e = x[half + i] - mean;
            sum += d;
            squares += d * d;
            sum2 += e;
            squares2 += e * e;
        }
        if (m % 2 != 0) {
            float d = x[m - 1] - mean;
            sum += d;
            squares += d * d;
        }
        d1 += (double)sum + (double)sum2;
        d2 += (double)squares + (double)squares2;
    }
    double rest = d1 / (double)columns;
    double variance = d2 / (double)columns - rest * rest;
    variance = variance < 0 ? 0 : variance;
    return (struct moments){mean, (float)rest, (float)(1.0 / sqrt(variance + (double)eps))};
}

static void normalise_row(const struct gti_layernorm_fwd_args *a, const gt_tensor *s, int64_t at,
                          int64_t columns, struct moments k, bool stream)
{
    float sbuf[GTI_CHUNK], gbuf[GTI_CHUNK], bbuf[GTI_CHUNK], ybuf[GTI_CHUNK];
    for (int64_t c = 0; c < columns; c += GTI_CHUNK) {
        int64_t m = gti_min(GTI_CHUNK, columns - c);
        const float *x = gti_chunk_in(sbuf, s, at + c, m);
        const float *gamma = gti_chunk_in(gbuf, &a->gamma, c, m);
        const float *beta = gti_chunk_in(bbuf, &a->beta, c, m);
        float *y = gti_chunk_out(ybuf, &a->y, at + c, stream);
#pragma omp simd
        for (int64_t i = 0; i < m; i++) {
            y[i] = ((x[i] - k.mean) - k.rest) * k.rstd * gamma[i] + beta[i];
        }
        gti_chunk_done(&a->y, at + c, m, y, stream);
    }
}

gt_status GTI_KERNEL(layernorm_fwd)
{
    const struct gti_layernorm_fwd_args *a = raw;
    int64_t rows, columns;
    gti_matrix(&a->x, &rows, &columns);
    bool fused = a->residual.data != NULL;
    const gt_tensor *s = fused ? &a->s : &a->x;
    bool stream = gti_streams(&a->y);
    float *mean = a->mean.data, *rstd = a->rstd.data;
    int threads = gti_threads_for(device, rows * columns);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(static) nowait
        for (int64_t n = 0; n < rows; n++) {
            if (fused) {
                gti_residual_row(s, &a->x, &a->residual, n * columns, columns);
            }
            struct moments k = row_moments(s, n * columns, columns, a->eps);
            normalise_row(a, s, n * columns, columns, k, stream);
            if (mean != NULL) {
                mean[n] = k.mean + k.rest;
            }
            if (rstd != NULL) {
                rstd[n] = k.rstd;
            }
        }
        gti_stream_fence(stream);
    }
    return GT_OK;
}
