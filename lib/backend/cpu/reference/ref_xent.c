/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cpu/reference/reference.h"

#include <math.h>
#include <stddef.h>

static double log_sum_exp(const double *z, int64_t v)
{
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < v; j++) {
        max = z[j] > max ? z[j] : max;
    }
    for (int64_t j = 0; j < v; j++) {
        sum += exp(z[j] - max);
    }
    return max + log(sum);
}

double gti_ref_xent_row(const double *logits, int64_t v, int64_t target,
                        const struct gti_ref_xent *p)
{
    double lse = log_sum_exp(logits, v), eps = p->label_smoothing;
    double loss = (1 - eps) * (lse - logits[target]) + p->z_loss * lse * lse;
    for (int64_t j = 0; eps != 0 && j < v; j++) {
        loss += eps / (double)v * (lse - logits[j]);
    }
    return loss;
}

void gti_ref_xent(double *grad, double *losses, double *stats, const double *logits,
                  const double *targets, int64_t n, int64_t v, const struct gti_ref_xent *p)
{
    for (int64_t r = 0; r < n; r++) {
        const double *z = logits + r * v;
        int64_t target = (int64_t)targets[r];
        bool valid = target != p->ignore_index;
        double lse = log_sum_exp(z, v), eps = p->label_smoothing;
        double loss = valid ? gti_ref_xent_row(z, v, target, p) : 0;
        if (losses != NULL) {
            losses[r] = loss;
        }
        stats[0] += loss;
        stats[1] += valid;
        for (int64_t j = 0; grad != NULL && j < v; j++) {
            double g = exp(z[j] - lse) * (1 + 2 * p->z_loss * lse) - eps / (double)v -
                       (j == target ? 1 - eps : 0);
            grad[r * v + j] = valid ? g * p->grad_scale : 0;
        }
    }
}
