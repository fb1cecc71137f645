/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cpu/reference/ref_optim.h"

#include <math.h>

/* The direction of Adam, before learning rate and decay. */
static double adam_direction(double *m, double *v, double g, const struct gti_ref_adamw *a)
{
    *m = a->beta1 * *m + (1.0 - a->beta1) * g;
    *v = a->beta2 * *v + (1.0 - a->beta2) * g * g;
    double m_hat = *m / (1.0 - pow(a->beta1, (double)a->step));
    double v_hat = *v / (1.0 - pow(a->beta2, (double)a->step));
    double denominator = sqrt(v_hat) + a->eps;
    return denominator == 0.0 ? 0.0 : m_hat / denominator;
}

void gti_ref_adamw(double *p, double *m, double *v, double grad, const struct gti_ref_adamw *a)
{
    double g = grad * a->grad_scale + (a->l2 ? a->weight_decay * *p : 0.0);
    double decayed = a->l2 ? *p : *p * (1.0 - a->lr * a->weight_decay);
    *p = decayed - a->lr * adam_direction(m, v, g, a);
}

double gti_ref_lamb(double p, double *m, double *v, double grad, const struct gti_ref_adamw *a)
{
    return adam_direction(m, v, grad * a->grad_scale, a) + a->weight_decay * p;
}

void gti_ref_sgd(double *p, double *v, double grad, const struct gti_ref_sgd *a)
{
    double g = grad * a->grad_scale + a->weight_decay * *p;
    if (a->momentum != 0.0) {
        *v = a->first ? g : a->momentum * *v + (1.0 - a->dampening) * g;
        g = a->nesterov ? g + a->momentum * *v : *v;
    }
    *p -= a->lr * g;
}

void gti_ref_lion(double *p, double *m, double grad, const struct gti_ref_lion *a)
{
    double g = grad * a->grad_scale;
    double c = a->beta1 * *m + (1.0 - a->beta1) * g;
    double sign = (c > 0.0) - (c < 0.0);
    *p -= a->lr * (sign + a->weight_decay * *p);
    *m = a->beta2 * *m + (1.0 - a->beta2) * g;
}
