/* SPDX-License-Identifier: Apache-2.0
 * Copies a range of columns between matrices. */
#include <string.h>

#include "backend/cpu/kernels/kernel.h"

gt_status GTI_KERNEL(copy_columns)
{
    const struct gti_copy_columns_args *a = raw;
    size_t size = gt_dtype_size(a->y.dtype), bytes = (size_t)a->count * size;
    char *y = (char *)a->y.data + (size_t)a->y_first * size;
    const char *x = (const char *)a->x.data + (size_t)a->x_first * size;
    size_t y_step = (size_t)a->ldy * size, x_step = (size_t)a->ldx * size;
    int threads = (double)a->rows * (double)bytes < 65536.0 ? 1 : gti_cpu_threads(device);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t n = 0; n < a->rows; n++) {
        memcpy(y + (size_t)n * y_step, x + (size_t)n * x_step, bytes);
    }
    return GT_OK;
}
