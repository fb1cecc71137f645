/* SPDX-License-Identifier: Apache-2.0
 *
 * Softmax cross entropy with its gradient over a whole vocabulary (formulas: xent.h). Bytes moved:
 * the logits read and written once; the second sweep finds its row in the second-level cache.
 */
#include "backend/cpu/kernels/xent.h"

/* f32 needs one exponential per logit: the first sweep leaves exp(z - M so far) in place of the
 * logits, and the second only multiplies, each chunk by what its maximum then lacked of the row's.
 */
enum { CHUNKS = 64 };

static struct xent_row replace_row(float *z, int64_t columns, int64_t chunk, float max_of[CHUNKS],
                                   bool with_shifted)
{
    struct xent_row r = {-INFINITY, 0, 0};
    for (int64_t c = 0, i = 0; c < columns; c += chunk, i++) {
        int64_t m = gti_min(chunk, columns - c);
        xent_raise(&r, xent_max_chunk(z + c, m, r.max), c);
        if (with_shifted) {
            r.shifted += xent_sum_shifted(z + c, m, r.max);
        }
        r.sum += xent_replace_exp(z + c, m, r.max);
        max_of[i] = r.max;
    }
    return r;
}

static struct xent_row f32_row(const struct xent_loss *k, float *z, int64_t columns, int64_t target)
{
    float max_of[CHUNKS];
    int64_t chunk = gti_max(GTI_CHUNK, (columns + CHUNKS - 1) / CHUNKS);
    struct xent_row r = replace_row(z, columns, chunk, max_of, k->label_smoothing != 0);
    struct xent_slope slope = xent_slope_of(k, r);
    for (int64_t c = 0, i = 0; c < columns; c += chunk, i++) {
        float *g = z + c;
        int64_t m = gti_min(chunk, columns - c);
        float inv = (float)((double)slope.inv *
                            exp((double)xent_shift(max_of[i]) - (double)xent_shift(r.max)));
#pragma omp simd
        for (int64_t j = 0; j < m; j++) {
            g[j] = g[j] * inv - slope.all;
        }
    }
    z[target] -= slope.hit;
    return r;
}

static double one_row(const struct gti_xent_args *a, const struct xent_loss *k, int64_t n)
{
    int64_t columns = k->vocab, at = n * columns;
    int64_t target = ((const int32_t *)a->targets.data)[n];
    double target_logit = (double)gti_get(&a->logits, at + target);
    struct xent_row r;
    if (a->with_grad && a->logits.dtype == GT_F32) {
        r = f32_row(k, (float *)a->logits.data + at, columns, target);
    } else {
        r = xent_scan(&a->logits, at, columns, k->label_smoothing != 0);
        if (a->with_grad) {
            xent_row_grad(k, &a->logits, at, columns, r, target);
        }
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
