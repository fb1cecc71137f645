/* SPDX-License-Identifier: Apache-2.0
 * LAMB (You et al. 2020) in two passes; the norms between them need all shards of a tensor. */
#include "backend/cpu/kernels/moment.h"
#include "backend/cpu/kernels/sums.h"

static void lamb_moments(float *restrict u, float *restrict m, float *restrict v,
                         const float *restrict p, const float *restrict g, size_t n,
                         const struct gti_lamb_update_args *a)
{
    const float b1 = a->beta1, b2 = a->beta2, scale = a->grad_scale, eps = a->eps;
    const float one_minus_b1 = 1.0f - b1, one_minus_b2 = 1.0f - b2, decay = a->weight_decay;
    const float inv_c1 = (float)(1.0 / a->c1), inv_c2 = (float)(1.0 / a->c2);
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float grad = g[i] * scale;
        float m1 = b1 * m[i] + one_minus_b1 * grad;
        float v1 = b2 * v[i] + one_minus_b2 * (grad * grad);
        m[i] = m1;
        v[i] = v1;
        u[i] = m1 * inv_c1 / gti_adam_denominator(v1, inv_c2, eps) + decay * p[i];
    }
}

/* One block of the fixed summation order. */
static void lamb_block(const struct gti_lamb_update_args *a, size_t first, size_t count,
                       double *p_sum, double *u_sum)
{
    double p_lanes[GTI_SUM_LANES] = {0}, u_lanes[GTI_SUM_LANES] = {0};
    float mb[GTI_CHUNK], vb[GTI_CHUNK], gb[GTI_CHUNK];
    uint32_t salt = gti_step_salt(a->step);
    GTI_FOR_CHUNKS(i, c, first, count)
    {
        const float *g = gti_chunk_in(gb, a->grad.data, a->grad.dtype, i, c);
        const float *p = (const float *)a->master.data + i;
        float *m = gti_moment_in(mb, &a->m, i, c), *v = gti_moment_in(vb, &a->v, i, c);
        float *u = (float *)a->u.data + i;
        lamb_moments(u, m, v, p, g, c, a);
        gti_moments_out(&a->m, &a->v, i, c, m, v, g, p, salt);
        gti_add_squares(p_lanes, p, c);
        gti_add_squares(u_lanes, u, c);
    }
    *p_sum = gti_sum_in_order(p_lanes, GTI_SUM_LANES);
    *u_sum = gti_sum_in_order(u_lanes, GTI_SUM_LANES);
}

gt_status GTI_KERNEL(lamb_update)
{
    const struct gti_lamb_update_args *a = raw;
    double p_sums[GTI_SUM_BLOCKS], u_sums[GTI_SUM_BLOCKS];
    size_t n = (size_t)gt_tensor_numel(&a->grad), block = gti_sum_block(n);
    size_t blocks = (n + block - 1) / block;
#pragma omp parallel for schedule(static) num_threads(gti_cpu_threads(device)) if (blocks > 2)
    for (size_t b = 0; b < blocks; b++) {
        size_t first = b * block, count = n - first < block ? n - first : block;
        lamb_block(a, first, count, &p_sums[b], &u_sums[b]);
    }
    double *norms = a->norms.data;
    norms[0] += gti_sum_in_order(p_sums, blocks);
    norms[1] += gti_sum_in_order(u_sums, blocks);
    return GT_OK;
}

static void apply_range(const void *args, size_t first, size_t count)
{
    const struct gti_lamb_apply_args *a = args;
    const float rate = a->lr * a->trust;
    GTI_FOR_CHUNKS(i, c, first, count)
    {
        float *p = (float *)a->master.data + i;
        const float *u = (const float *)a->u.data + i;
#pragma omp simd
        for (size_t k = 0; k < c; k++) {
            p[k] -= rate * u[k];
        }
        gti_param_out(&a->param, &a->master, i, c);
    }
}

gt_status GTI_KERNEL(lamb_apply)
{
    const struct gti_lamb_apply_args *a = raw;
    gti_for_ranges(device, (size_t)gt_tensor_numel(&a->u), apply_range, a);
    return GT_OK;
}
