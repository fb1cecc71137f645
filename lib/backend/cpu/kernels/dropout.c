/* SPDX-License-Identifier: Apache-2.0
 *
 * Dropout drawn from the global element number rows[n]*columns + first_column + c, so that shards
 * joined by rows or columns are the whole tensor's draw. An element is dropped when its 32 random
 * bits are below p * 2^32.
 */
#include "backend/cpu/kernels/chunk.h"
#include "backend/cpu/kernels/draw.h"

struct mask {
    uint64_t key, stream;
    uint32_t threshold;
    float scale;
};

/* y = masked x for elements whose global number begins at `element`. */
static void drop_chunk(float *y, const float *x, int64_t n, uint64_t element, const struct mask *k)
{
    uint32_t bits[4 * GTI_DRAW_BLOCKS];
    for (int64_t i = 0; i < n;) {
        uint64_t global = element + (uint64_t)i;
        int64_t skip = (int64_t)(global % 4);
        int64_t m = gti_min(4 * GTI_DRAW_BLOCKS - skip, n - i);
        gti_draw(bits, k->key, k->stream, global / 4);
#pragma omp simd
        for (int64_t j = 0; j < m; j++) {
            float kept = x[i + j] * k->scale;
            y[i + j] = bits[skip + j] >= k->threshold ? kept : 0.0f;
        }
        i += m;
    }
}

gt_status GTI_KERNEL(dropout)
{
    const struct gti_dropout_args *a = raw;
    int64_t rows, columns;
    gti_matrix(&a->x, &rows, &columns);
    struct mask mask = {a->key, a->stream, (uint32_t)((double)a->p * 4294967296.0),
                        (float)(1.0 / (1.0 - (double)a->p))};
    int threads = gti_threads_for(device, rows * columns * 4);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t n = 0; n < rows; n++) {
        uint64_t row = (uint64_t)((const int64_t *)a->rows.data)[n];
        uint64_t element = row * (uint64_t)a->columns + (uint64_t)a->first_column;
        float xbuf[GTI_CHUNK], ybuf[GTI_CHUNK];
        for (int64_t c = 0; c < columns; c += GTI_CHUNK) {
            int64_t m = gti_min(GTI_CHUNK, columns - c);
            const float *x = gti_chunk_in(xbuf, &a->x, n * columns + c, m);
            float *y = gti_chunk_out(ybuf, &a->y, n * columns + c, false);
            drop_chunk(y, x, m, element + (uint64_t)c, &mask);
            gti_chunk_done(&a->y, n * columns + c, m, y, false);
        }
    }
    return GT_OK;
}
