/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums over rows (gradients of biases and norm weights), in an order that depends on the shape
 * only.
 *
 * Rows are cut into at most GTI_ROW_BLOCKS blocks of equal size. Within a block rows are added in
 * order, in f32; the block sums are added as a binary tree, block b with b + stride for strides 1,
 * 2, 4, ...; the result is added to the gradient. Any number of threads may share the blocks: the
 * bits are the same.
 */
#ifndef GTI_CPU_ROWSUM_H
#define GTI_CPU_ROWSUM_H

#include "backend/cpu/kernels/chunk.h"

#define GTI_ROW_BLOCKS 64
#define GTI_ROW_BLOCK_MIN 16

static inline int64_t gti_row_block_size(int64_t rows)
{
    return gti_max(GTI_ROW_BLOCK_MIN, (rows + GTI_ROW_BLOCKS - 1) / GTI_ROW_BLOCKS);
}

static inline int64_t gti_row_blocks(int64_t rows)
{
    int64_t size = gti_row_block_size(rows);
    return (rows + size - 1) / size;
}

/* out[columns] += tree sum of partial[blocks][stride], of which the first `columns` of each block
 * count; partial is overwritten. */
static inline void gti_row_tree(const gt_tensor *out, float *partial, int64_t blocks,
                                int64_t columns, int64_t stride, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t c = 0; c < columns; c += GTI_CHUNK) {
        int64_t m = gti_min(GTI_CHUNK, columns - c);
        for (int64_t step = 1; step < blocks; step *= 2) {
            for (int64_t b = 0; b + step < blocks; b += 2 * step) {
                float *to = partial + b * stride + c;
                const float *from = partial + (b + step) * stride + c;
#pragma omp simd
                for (int64_t i = 0; i < m; i++) {
                    to[i] += from[i];
                }
            }
        }
        float inbuf[GTI_CHUNK], outbuf[GTI_CHUNK];
        const float *old = gti_chunk_in(inbuf, out, c, m);
        float *sum = gti_chunk_out(outbuf, out, c, false);
#pragma omp simd
        for (int64_t i = 0; i < m; i++) {
            sum[i] = old[i] + partial[c + i];
        }
        gti_chunk_done(out, c, m, sum, false);
    }
}

#endif
