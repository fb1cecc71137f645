/* SPDX-License-Identifier: Apache-2.0
 * Single-precision matrix products by OpenBLAS. */
#ifndef GTI_CPU_BLAS_H
#define GTI_CPU_BLAS_H

#include "backend/backend.h"

/* Whether OpenBLAS goes by the calling thread's number of threads and runs on kernels made for
 * processors like this one. */
bool gti_blas_usable(void);
/* c = op(a) op(b) + beta c on so many threads; all f32; bias and epilogue are not looked at. */
void gti_blas_sgemm(const struct gti_gemm_args *g, int threads);

#endif
