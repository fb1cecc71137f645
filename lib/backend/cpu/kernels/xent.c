/* SPDX-License-Identifier: Apache-2.0
 *
 * Softmax cross entropy with its gradient over a whole vocabulary (formulas: xent.h). Bytes moved:
 * the logits read and written once; the second sweep finds its row in the second-level cache.
 */
#include "backend/cpu/kernels/xent.h"

static double one_row(const struct gti_xent_args *a, const struct xent_loss *k, int64_t n)
{
    int64_t columns = k->vocab, at = n * columns;
    int64_t target = ((const int32_t *)a->targets.data)[n];
    double target_logit = (double)gti_get(&a->logits, at + target);
    struct xent_row r = xent_scan(&a->logits, at, columns, k->label_smoothing != 0);
    if (a->with_grad) {
        xent_row_grad(k, &a->logits, at, columns, r, target);
    }
    return xent_row_loss(k, r, target_logit - (double)r.max);
}

gt_status GTI_KERNEL(xent)
{
    const struct gti_xent_args *a = raw;
    int64_t rows, columns;
    gti_matrix(&a->logits, &rows, &columns);
    GT_TRY(xent_check_targets(&a->targets, rows, columns, a->ignore_index));
    struct xent_loss k = {a->grad_scale, a->label_smoothing, a->z_loss, columns};
    struct xent_stats stats = {{0}, {0}};
    float *losses = a->losses.data;
    const int32_t *targets = a->targets.data;
    int threads = gti_threads_for(device, rows * columns);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int b = 0; b < XENT_BLOCKS; b++) {
        for (int64_t n = rows * b / XENT_BLOCKS; n < rows * (b + 1) / XENT_BLOCKS; n++) {
            bool valid = targets[n] != a->ignore_index;
            double loss = valid ? one_row(a, &k, n) : 0.0;
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
