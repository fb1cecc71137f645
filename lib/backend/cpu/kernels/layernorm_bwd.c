/* SPDX-License-Identifier: Apache-2.0
 *
 * LayerNorm backward. With h = (x - mean) rstd and g = dy gamma:
 *     dx = rstd (g - avg(g) - h avg(g h)) (+ dresidual),  dgamma += sum dy h,  dbeta += sum dy.
 * The stored mean is rounded to f32, which for rows far from zero shifts h; the average of h over
 * the row is that shift, found in the same pass and taken off. Bytes moved: dy, x, dx once; a row
 * is read from the first-level cache the second time. Order of the sums over rows: rowsum.h.
 */
#include "backend/cpu/kernels/norm.h"

struct row {
    float mean, rstd, shift; /* h = (x - mean) rstd - shift */
    float avg_g, avg_gh;
};

static struct row row_sums(const struct gti_layernorm_bwd_args *a, int64_t n, int64_t columns)
{
    float xbuf[GTI_CHUNK], dbuf[GTI_CHUNK], gbuf[GTI_CHUNK];
    float mean = ((const float *)a->mean.data)[n], rstd = ((const float *)a->rstd.data)[n];
    double h1 = 0, g1 = 0, gh = 0;
    for (int64_t c = 0; c < columns; c += GTI_CHUNK) {
        int64_t m = gti_min(GTI_CHUNK, columns - c), at = n * columns + c;
        const float *x = gti_chunk_in(xbuf, &a->x, at, m);
        const float *dy = gti_chunk_in(dbuf, &a->dy, at, m);
        const float *gamma = gti_chunk_in(gbuf, &a->gamma, c, m);
        float sh = 0, sg = 0, sgh = 0;
#pragma omp simd reduction(+ : sh, sg, sgh)
        for (int64_t i = 0; i < m; i++) {
            float h = (x[i] - mean) * rstd;
            float g = dy[i] * gamma[i];
            sh += h;
            sg += g;
            sgh += g * h;
        }
        h1 += (double)sh;
        g1 += (double)sg;
        gh += (double)sgh;
    }
    double inv = 1.0 / (double)columns, shift = h1 * inv;
    return (struct row){mean, rstd, (float)shift, (float)(g1 * inv),
                        (float)((gh - shift * g1) * inv)};
}

/* dgamma, dbeta: this block's sums, or NULL. Before input_chunk, which may overwrite dy. */
static void weight_chunk(float *dgamma, float *dbeta, const float *dy, const float *x, struct row k,
                         int64_t m)
{
    if (dgamma != NULL) {
#pragma omp simd
        for (int64_t i = 0; i < m; i++) {
            dgamma[i] += dy[i] * ((x[i] - k.mean) * k.rstd - k.shift);
        }
    }
    if (dbeta != NULL) {
#pragma omp simd
        for (int64_t i = 0; i < m; i++) {
            dbeta[i] += dy[i];
        }
    }
}

static void input_chunk(const struct gti_layernorm_bwd_args *a, int64_t at, int64_t c, int64_t m,
                        const float *dy, const float *x, struct row k, bool stream)
{
    float gbuf[GTI_CHUNK], rbuf[GTI_CHUNK], obuf[GTI_CHUNK];
    const float *gamma = gti_chunk_in(gbuf, &a->gamma, c, m);
    float *dx = gti_chunk_out(obuf, &a->dx, at, stream);
    if (a->dresidual.data != NULL) {
        const float *dr = gti_chunk_in(rbuf, &a->dresidual, at, m);
#pragma omp simd
        for (int64_t i = 0; i < m; i++) {
            float h = (x[i] - k.mean) * k.rstd - k.shift;
            dx[i] = dr[i] + (dy[i] * gamma[i] - k.avg_g - h * k.avg_gh) * k.rstd;
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < m; i++) {
            float h = (x[i] - k.mean) * k.rstd - k.shift;
            dx[i] = (dy[i] * gamma[i] - k.avg_g - h * k.avg_gh) * k.rstd;
        }
    }
    gti_chunk_done(&a->dx, at, m, dx, stream);
}

static void backward_row(const struct gti_layernorm_bwd_args *a, int64_t n, int64_t columns,
                         float *dgamma, float *dbeta, bool stream)
{
    float xbuf[GTI_CHUNK], dbuf[GTI_CHUNK];
    struct row k = row_sums(a, n, columns);
    for (int64_t c = 0; c < columns; c += GTI_CHUNK) {
        int64_t m = gti_min(GTI_CHUNK, columns - c), at = n * columns + c;
        const float *x = gti_chunk_in(xbuf, &a->x, at, m);
        const float *dy = gti_chunk_in(dbuf, &a->dy, at, m);
        weight_chunk(dgamma != NULL ? dgamma + c : NULL, dbeta != NULL ? dbeta + c : NULL, dy, x, k,
                     m);
        if (a->dx.data != NULL) {
            input_chunk(a, at, c, m, dy, x, k, stream);
        }
    }
}

gt_status GTI_KERNEL(layernorm_bwd)
{
    const struct gti_layernorm_bwd_args *a = raw;
    int64_t rows, columns;
    gti_matrix(&a->x, &rows, &columns);
    if (rows == 0 || columns == 0) {
        return GT_OK;
    }
    int64_t size = gti_row_block_size(rows), blocks = gti_row_blocks(rows);
    bool with_gamma = a->dgamma.data != NULL, with_beta = a->dbeta.data != NULL;
    bool stream = gti_streams(&a->dx);
    int threads = gti_threads_for(device, rows * columns);
    float *partial;
    GT_TRY(gti_norm_partials(&partial, rows, columns, with_gamma + with_beta));
    float *beta_partial = with_gamma ? partial + blocks * columns : partial;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(static) nowait
        for (int64_t b = 0; b < blocks; b++) {
            float *dgamma = with_gamma ? partial + b * columns : NULL;
            float *dbeta = with_beta ? beta_partial + b * columns : NULL;
            gti_clear(dgamma, columns);
            gti_clear(dbeta, columns);
            for (int64_t n = b * size; n < gti_min((b + 1) * size, rows); n++) {
                backward_row(a, n, columns, dgamma, dbeta, stream);
            }
        }
        gti_stream_fence(stream);
    }
    if (with_gamma) {
        gti_row_tree(&a->dgamma, partial, blocks, columns, columns, threads);
    }
    if (with_beta) {
        gti_row_tree(&a->dbeta, beta_partial, blocks, columns, columns, threads);
    }
    return GT_OK;
}
