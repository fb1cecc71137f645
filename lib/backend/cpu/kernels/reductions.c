/* SPDX-License-Identifier: Apache-2.0
 * Squared norm and the search for non-finite values: each reads its input once. */
#include "backend/cpu/kernels/sums.h"

static double block_sum_sq(const gt_tensor *x, size_t first, size_t count)
{
    double lanes[GTI_SUM_LANES] = {0};
    float buffer[GTI_CHUNK];
    if (x->dtype == GT_F32) {
        gti_add_squares(lanes, (const float *)x->data + first, count);
        return gti_sum_in_order(lanes, GTI_SUM_LANES);
    }
    GTI_FOR_CHUNKS(i, c, first, count)
    {
        gti_load_f32(buffer, x->data, x->dtype, i, c);
        gti_add_squares(lanes, buffer, c);
    }
    return gti_sum_in_order(lanes, GTI_SUM_LANES);
}

gt_status GTI_KERNEL(sum_sq)
{
    const struct gti_sum_sq_args *a = raw;
    double partial[GTI_SUM_BLOCKS];
    size_t n = (size_t)gt_tensor_numel(&a->x), block = gti_sum_block(n);
    size_t blocks = (n + block - 1) / block;
#pragma omp parallel for schedule(static) num_threads(gti_cpu_threads(device)) if (blocks > 2)
    for (size_t b = 0; b < blocks; b++) {
        size_t first = b * block, count = n - first < block ? n - first : block;
        partial[b] = block_sum_sq(&a->x, first, count);
    }
    double *acc = a->acc.data;
    *acc += a->factor * gti_sum_in_order(partial, blocks);
    return GT_OK;
}

/* All exponent bits set: infinity or NaN. */
static bool chunk_has_nonfinite(const gt_tensor *x, size_t first, size_t n)
{
    uint32_t found = 0;
    if (x->dtype == GT_F32) {
        const float *f = (const float *)x->data + first;
#pragma omp simd reduction(| : found)
        for (size_t i = 0; i < n; i++) {
            found |= (uint32_t)((gti_f32_bits(f[i]) & 0x7f800000u) == 0x7f800000u);
        }
    } else {
        const uint16_t *h = (const uint16_t *)x->data + first;
        const uint32_t mask = x->dtype == GT_BF16 ? 0x7f80u : 0x7c00u;
#pragma omp simd reduction(| : found)
        for (size_t i = 0; i < n; i++) {
            found |= (uint32_t)((h[i] & mask) == mask);
        }
    }
    return found != 0;
}

gt_status GTI_KERNEL(find_nonfinite)
{
    const struct gti_find_nonfinite_args *a = raw;
    int64_t *index = a->index.data;
    size_t n = (size_t)gt_tensor_numel(&a->x);
    *index = -1;
    GTI_FOR_CHUNKS(i, c, 0, n)
    {
        if (chunk_has_nonfinite(&a->x, i, c)) {
            size_t k = i;
            while (!chunk_has_nonfinite(&a->x, k, 1)) {
                k++;
            }
            *index = (int64_t)k;
            break;
        }
    }
    return GT_OK;
}
