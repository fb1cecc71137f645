/* SPDX-License-Identifier: Apache-2.0
 *
 * Softmax cross entropy over columns [first, first + Vlocal) of the vocabulary, in three steps with
 * an all-reduce between (formulas: xent.h; Megatron-LM's order, Shoeybi et al. 2019).
 */
#include "backend/cpu/kernels/xent.h"

gt_status GTI_KERNEL(xent_max)
{
    const struct gti_xent_max_args *a = raw;
    int64_t rows, columns;
    gti_matrix(&a->logits, &rows, &columns);
    float *max = a->max.data;
    int threads = gti_threads_for(device, rows * columns);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t n = 0; n < rows; n++) {
        float buf[GTI_CHUNK], top = -INFINITY;
        for (int64_t c = 0; c < columns; c += GTI_CHUNK) {
            int64_t m = gti_min(GTI_CHUNK, columns - c);
            top = xent_max_chunk(gti_chunk_in(buf, &a->logits, n * columns + c, m), m, top);
        }
        max[n] = top;
    }
    return GT_OK;
}

static void sum_row(const struct gti_xent_sums_args *a, int64_t n, int64_t rows, int64_t columns)
{
    float buf[GTI_CHUNK], max = ((const float *)a->max.data)[n];
    int64_t at = n * columns, target = ((const int32_t *)a->targets.data)[n] - a->first;
    double sum = 0, shifted = 0;
    for (int64_t c = 0; c < columns; c += GTI_CHUNK) {
        int64_t m = gti_min(GTI_CHUNK, columns - c);
        const float *z = gti_chunk_in(buf, &a->logits, at + c, m);
        sum += xent_sum_exp(z, m, max);
        shifted += xent_sum_shifted(z, m, max);
    }
    float *sums = a->sums.data;
    bool here = target >= 0 && target < columns;
    sums[n] = (float)sum;
    sums[rows + n] = here ? gti_get(&a->logits, at + target) - xent_shift(max) : 0.0f;
    sums[2 * rows + n] = (float)shifted;
}

gt_status GTI_KERNEL(xent_sums)
{
    const struct gti_xent_sums_args *a = raw;
    int64_t rows, columns;
    gti_matrix(&a->logits, &rows, &columns);
    GT_TRY(xent_check_targets(&a->targets, rows, a->vocab, a->ignore_index));
    float *sums = a->sums.data;
    const int32_t *targets = a->targets.data;
    int threads = gti_threads_for(device, rows * columns);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t n = 0; n < rows; n++) {
        if (targets[n] == a->ignore_index) {
            sums[n] = sums[rows + n] = sums[2 * rows + n] = 0.0f;
        } else {
            sum_row(a, n, rows, columns);
        }
    }
    return GT_OK;
}

static double grad_row(const struct gti_xent_grad_args *a, const struct xent_loss *k, int64_t n,
                       int64_t rows, int64_t columns)
{
    const float *sums = a->sums.data;
    struct xent_row r = {((const float *)a->max.data)[n], (double)sums[n],
                         (double)sums[2 * rows + n]};
    int64_t target = ((const int32_t *)a->targets.data)[n] - a->first;
    bool here = target >= 0 && target < columns;
    if (a->with_grad) {
        xent_row_grad(k, &a->logits, n * columns, columns, r, here ? target : -1);
    }
    return xent_row_loss(k, r, (double)sums[rows + n]);
}

gt_status GTI_KERNEL(xent_grad)
{
    const struct gti_xent_grad_args *a = raw;
    int64_t rows, columns;
    gti_matrix(&a->logits, &rows, &columns);
    GT_TRY(xent_check_targets(&a->targets, rows, a->vocab, a->ignore_index));
    struct xent_loss k = {a->grad_scale, a->label_smoothing, a->z_loss, a->vocab};
    struct xent_stats stats = {{0}, {0}};
    float *losses = a->losses.data;
    const int32_t *targets = a->targets.data;
    int threads = gti_threads_for(device, rows * columns);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int b = 0; b < XENT_BLOCKS; b++) {
        for (int64_t n = rows * b / XENT_BLOCKS; n < rows * (b + 1) / XENT_BLOCKS; n++) {
            bool valid = targets[n] != a->ignore_index;
            double loss = valid ? grad_row(a, &k, n, rows, columns) : 0.0;
            if (!valid && a->with_grad) {
                xent_zero_row(&a->logits, n * columns, columns);
            }
            if (losses != NULL) {
                losses[n] = (float)loss;
            }
            stats.loss[b] += loss;
            stats.valid[b] += valid;
        }
    }
    xent_add_stats(&a->stats, &stats);
    return GT_OK;
}
