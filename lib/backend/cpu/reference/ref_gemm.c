/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cpu/reference/ref_gemm.h"

#include <math.h>
#include <stddef.h>

static double tanh_gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

void gti_ref_gemm(double *c, double *value, const double *a, const double *b, const double *bias,
                  const struct gti_ref_gemm *p)
{
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) {
            double sum = p->accumulate ? c[i * p->n + j] : 0.0;
            for (int64_t k = 0; k < p->k; k++) {
                const double x = p->trans_a ? a[k * p->m + i] : a[i * p->k + k];
                const double y = p->trans_b ? b[j * p->k + k] : b[k * p->n + j];
                sum += x * y;
            }
            sum += bias != NULL ? bias[j] : 0.0;
            if (value != NULL) {
                value[i * p->n + j] = sum;
            }
            c[i * p->n + j] = p->gelu ? tanh_gelu(sum) : sum;
        }
    }
}
