/* SPDX-License-Identifier: Apache-2.0
 * What LayerNorm and RMSNorm kernels share: the fused residual sum, sums over a chunk, and the
 * bookkeeping of weight gradients per row block. */
#ifndef GTI_CPU_NORM_H
#define GTI_CPU_NORM_H

#include <math.h>

#include "backend/cpu/kernels/rowsum.h"
#include "backend/cpu/scratch.h"

/* s = x + residual over one row; the norm then reads s, rounded to its dtype, as backward will. */
static inline void gti_residual_row(const gt_tensor *s, const gt_tensor *x,
                                    const gt_tensor *residual, int64_t at, int64_t columns)
{
    float xbuf[GTI_CHUNK], rbuf[GTI_CHUNK], sbuf[GTI_CHUNK];
    for (int64_t c = 0; c < columns; c += GTI_CHUNK) {
        int64_t m = gti_min(GTI_CHUNK, columns - c);
        const float *px = gti_chunk_in(xbuf, x, at + c, m);
        const float *pr = gti_chunk_in(rbuf, residual, at + c, m);
        float *ps = gti_chunk_out(sbuf, s, at + c, false);
#pragma omp simd
        for (int64_t i = 0; i < m; i++) {
            ps[i] = px[i] + pr[i];
        }
        gti_chunk_done(s, at + c, m, ps, false);
    }
}

/* Four chains of sums hide the latency of an addition. */
static inline float gti_sum(const float *x, int64_t n)
{
    float a = 0, b = 0, c = 0, d = 0;
    int64_t q = n / 4;
#pragma omp simd reduction(+ : a, b, c, d)
    for (int64_t i = 0; i < q; i++) {
        a += x[i];
        b += x[q + i];
        c += x[2 * q + i];
        d += x[3 * q + i];
    }
    for (int64_t i = 4 * q; i < n; i++) {
        a += x[i];
    }
    return (a + b) + (c + d);
}

/* Weight-gradient accumulators of all row blocks: `parts` vectors of `columns` per block, which
 * whoever takes a block clears. NULL with parts 0. */
static inline gt_status gti_norm_partials(float **out, int64_t rows, int64_t columns, int parts)
{
    int64_t blocks = gti_row_blocks(rows);
    size_t bytes = (size_t)(blocks * columns * parts) * sizeof **out;
    *out = parts == 0 ? NULL : gti_cpu_scratch(GTI_SCRATCH_SUMS, bytes);
    if (parts > 0 && *out == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "norm backward: no memory for %lld block sums",
                       (long long)blocks);
    }
    return GT_OK;
}

static inline void gti_clear(float *sums, int64_t columns)
{
    if (sums != NULL) {
        memset(sums, 0, (size_t)columns * sizeof *sums);
    }
}

#endif
