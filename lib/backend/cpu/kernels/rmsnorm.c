/* SPDX-License-Identifier: Apache-2.0
 *
 * RMSNorm (Zhang & Sennrich 2019): y = s * rstd * gamma, rstd = 1/sqrt(avg(s^2) + eps).
 * Backward, with h = x rstd and g = dy gamma: dx = rstd (g - h avg(g h)) (+ dresidual),
 * dgamma += sum dy h. Bytes moved: each large tensor once. Order of the sums over rows: rowsum.h.
 */
#include "backend/cpu/kernels/norm.h"

static float row_rstd(const gt_tensor *s, int64_t at, int64_t columns, float eps)
{
    float buf[GTI_CHUNK];
    double squares = 0;
    for (int64_t c = 0; c < columns; c += GTI_CHUNK) {
        int64_t m = gti_min(GTI_CHUNK, columns - c);
        const float *x = gti_chunk_in(buf, s, at + c, m);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < m; i++) {
            sum += x[i] * x[i];
        }
        squares += (double)sum;
    }
    return (float)(1.0 / sqrt(squares / (double)columns + (double)eps));
}

static void scale_row(const struct gti_rmsnorm_fwd_args *a, const gt_tensor *s, int64_t at,
                      int64_t columns, float rstd, bool stream)
{
    float sbuf[GTI_CHUNK], gbuf[GTI_CHUNK], ybuf[GTI_CHUNK];
    for (int64_t c = 0; c < columns; c += GTI_CHUNK) {
        int64_t m = gti_min(GTI_CHUNK, columns - c);
        const float *x = gti_chunk_in(sbuf, s, at + c, m);
        const float *gamma = gti_chunk_in(gbuf, &a->gamma, c, m);
        float *y = gti_chunk_out(ybuf, &a->y, at + c, stream);
#pragma omp simd
        for (int64_t i = 0; i < m; i++) {
            y[i] = x[i] * rstd * gamma[i];
        }
        gti_chunk_done(&a->y, at + c, m, y, stream);
    }
}

gt_status GTI_KERNEL(rmsnorm_fwd)
{
    const struct gti_rmsnorm_fwd_args *a = raw;
    int64_t rows, columns;
    gti_matrix(&a->x, &rows, &columns);
    bool fused = a->residual.data != NULL;
    const gt_tensor *s = fused ? &a->s : &a->x;
    bool stream = gti_streams(&a->y);
    float *rstd = a->rstd.data;
    int threads = gti_threads_for(device, rows * columns);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(static) nowait
        for (int64_t n = 0; n < rows; n++) {
            if (fused) {
                gti_residual_row(s, &a->x, &a->residual, n * columns, columns);
            }
            float r = row_rstd(s, n * columns, columns, a->eps);
            scale_row(a, s, n * columns, columns, r, stream);
            if (rstd != NULL) {
                rstd[n] = r;
            }
        }
        gti_stream_fence(stream);
    }
    return GT_OK;
}

static float row_avg_gh(const struct gti_rmsnorm_bwd_args *a, int64_t n, int64_t columns,
                        float rstd)
{
    float xbuf[GTI_CHUNK], dbuf[GTI_CHUNK], gbuf[GTI_CHUNK];
    double gh = 0;
    for (int64_t c = 0; c < columns; c += GTI_CHUNK) {
        int64_t m = gti_min(GTI_CHUNK, columns - c), at = n * columns + c;
        const float *x = gti_chunk_in(xbuf, &a->x, at, m);
        const float *dy = gti_chunk_in(dbuf, &a->dy, at, m);
        const float *gamma = gti_chunk_in(gbuf, &a->gamma, c, m);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < m; i++) {
            sum += dy[i] * gamma[i] * (x[i] * rstd);
        }
        gh += (double)sum;
    }
    return (float)(gh / (double)columns);
}

static void input_chunk(const struct gti_rmsnorm_bwd_args *a, int64_t at, int64_t c, int64_t m,
                        const float *dy, const float *x, float rstd, float avg_gh, bool stream)
{
    float gbuf[GTI_CHUNK], rbuf[GTI_CHUNK], obuf[GTI_CHUNK];
    const float *gamma = gti_chunk_in(gbuf, &a->gamma, c, m);
    float *dx = gti_chunk_out(obuf, &a->dx, at, stream);
    if (a->dresidual.data != NULL) {
        const float *dr = gti_chunk_in(rbuf, &a->dresidual, at, m);
#pragma omp simd
        for (int64_t i = 0; i < m; i++) {
            dx[i] = dr[i] + (dy[i] * gamma[i] - x[i] * rstd * avg_gh) * rstd;
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < m; i++) {
            dx[i] = (dy[i] * gamma[i] - x[i] * rstd * avg_gh) * rstd;
        }
    }
    gti_chunk_done(&a->dx, at, m, dx, stream);
}

static void backward_row(const struct gti_rmsnorm_bwd_args *a, int64_t n, int64_t columns,
                         float *dgamma, bool stream)
{
    float xbuf[GTI_CHUNK], dbuf[GTI_CHUNK];
    float rstd = ((const float *)a->rstd.data)[n];
    float avg_gh = a->dx.data != NULL ? row_avg_gh(a, n, columns, rstd) : 0.0f;
    for (int64_t c = 0; c < columns; c += GTI_CHUNK) {
        int64_t m = gti_min(GTI_CHUNK, columns - c), at = n * columns + c;
        const float *x = gti_chunk_in(xbuf, &a->x, at, m);
        const float *dy = gti_chunk_in(dbuf, &a->dy, at, m);
        if (dgamma != NULL) {
            float *sum = dgamma + c;
#pragma omp simd
            for (int64_t i = 0; i < m; i++) {
                sum[i] += dy[i] * (x[i] * rstd);
            }
        }
        if (a->dx.data != NULL) {
            input_chunk(a, at, c, m, dy, x, rstd, avg_gh, stream);
        }
    }
}

gt_status GTI_KERNEL(rmsnorm_bwd)
{
    const struct gti_rmsnorm_bwd_args *a = raw;
    int64_t rows, columns;
    gti_matrix(&a->x, &rows, &columns);
    if (rows == 0 || columns == 0) {
        return GT_OK;
    }
    int64_t size = gti_row_block_size(rows), blocks = gti_row_blocks(rows);
    bool stream = gti_streams(&a->dx);
    int threads = gti_threads_for(device, rows * columns);
    float *partial;
    GT_TRY(gti_norm_partials(&partial, rows, columns, a->dgamma.data != NULL));
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(static) nowait
        for (int64_t b = 0; b < blocks; b++) {
            float *dgamma = partial != NULL ? partial + b * columns : NULL;
            gti_clear(dgamma, columns);
            for (int64_t n = b * size; n < gti_min((b + 1) * size, rows); n++) {
                backward_row(a, n, columns, dgamma, stream);
            }
        }
        gti_stream_fence(stream);
    }
    if (partial != NULL) {
        gti_row_tree(&a->dgamma, partial, blocks, columns, columns, threads);
    }
    return GT_OK;
}
