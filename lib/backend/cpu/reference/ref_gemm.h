/* SPDX-License-Identifier: Apache-2.0
 * Oracle of the matrix product, plain loops in double, for tests. */
#ifndef GTI_CPU_REF_GEMM_H
#define GTI_CPU_REF_GEMM_H

#include <stdbool.h>
#include <stdint.h>

/* value[M,N] = op(a) op(b) + bias + (accumulate ? c : 0); c = gelu ? gelu(value) : value. bias and
 * value may be NULL. Dense. */
struct gti_ref_gemm {
    int64_t m, n, k;
    bool trans_a, trans_b, accumulate, gelu;
};
void gti_ref_gemm(double *c, double *value, const double *a, const double *b, const double *bias,
                  const struct gti_ref_gemm *p);

#endif
