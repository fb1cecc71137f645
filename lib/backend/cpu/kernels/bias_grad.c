/* SPDX-License-Identifier: Apache-2.0
 *
 * Column sums of dy[N,C], added to db[C] (order: rowsum.h). Bytes moved: dy once; a column tile's
 * accumulator stays in the first-level cache while its rows pass.
 */
#include "backend/cpu/kernels/rowsum.h"
#include "backend/cpu/scratch.h"

#define TILE 512

static void sum_rows(float *sum, const gt_tensor *dy, int64_t first, int64_t rows, int64_t columns,
                     int64_t column, int64_t width)
{
    float buf[GTI_CHUNK];
    memset(sum, 0, (size_t)width * sizeof *sum);
    for (int64_t n = first; n < first + rows; n++) {
        const float *row = gti_chunk_in(buf, dy, n * columns + column, width);
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            sum[i] += row[i];
        }
    }
}

gt_status GTI_KERNEL(bias_grad)
{
    const struct gti_bias_grad_args *a = raw;
    int64_t rows, columns;
    gti_matrix(&a->dy, &rows, &columns);
    if (rows == 0 || columns == 0) {
        return GT_OK;
    }
    int64_t size = gti_row_block_size(rows), blocks = gti_row_blocks(rows);
    int64_t tiles = (columns + TILE - 1) / TILE;
    int threads = gti_threads_for(device, rows * columns);
    float *partial =
        gti_cpu_scratch(GTI_SCRATCH_SUMS, (size_t)(blocks * columns) * sizeof *partial);
    if (partial == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "bias gradient: no memory for %lld block sums",
                       (long long)blocks);
    }
#pragma omp parallel for collapse(2) num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t b = 0; b < blocks; b++) {
        for (int64_t tile = 0; tile < tiles; tile++) {
            int64_t column = tile * TILE;
            sum_rows(partial + b * columns + column, &a->dy, b * size,
                     gti_min(size, rows - b * size), columns, column,
                     gti_min(TILE, columns - column));
        }
    }
    gti_row_tree(&a->db, partial, blocks, columns, columns, threads);
    return GT_OK;
}
