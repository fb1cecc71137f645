/* SPDX-License-Identifier: Apache-2.0
 * Oracles of the optimizers in double, for tests: one element at a time, the formulas as published.
 */
#ifndef GTI_CPU_REF_OPTIM_H
#define GTI_CPU_REF_OPTIM_H

#include <stdbool.h>
#include <stdint.h>

struct gti_ref_adamw {
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
    int64_t step;
    bool l2;
};
void gti_ref_adamw(double *p, double *m, double *v, double grad, const struct gti_ref_adamw *a);
/* Returns LAMB's u; the caller scales it by the trust ratio. */
double gti_ref_lamb(double p, double *m, double *v, double grad, const struct gti_ref_adamw *a);

struct gti_ref_sgd {
    double lr, momentum, dampening, weight_decay, grad_scale;
    bool nesterov, first;
};
void gti_ref_sgd(double *p, double *v, double grad, const struct gti_ref_sgd *a);

struct gti_ref_lion {
    double lr, beta1, beta2, weight_decay, grad_scale;
};
void gti_ref_lion(double *p, double *m, double grad, const struct gti_ref_lion *a);

#endif
