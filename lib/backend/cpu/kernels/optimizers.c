/* SPDX-License-Identifier: Apache-2.0
 * SGD, Lion, and the bf16 + remainder form of f32 masters: one pass each. */
#include "backend/cpu/kernels/moment.h"

/* ---- SGD --------------------------------------------------------------------------------------
 */
static void sgd_momentum(float *restrict p, float *restrict v, const float *restrict g, size_t n,
                         const struct gti_sgd_args *a)
{
    const float scale = a->grad_scale, decay = a->weight_decay, lr = a->lr;
    const float keep = a->first ? 0.0f : a->momentum;
    const float take = a->first ? 1.0f : 1.0f - a->dampening;
    const float grad_part = a->nesterov ? 1.0f : 0.0f;
    const float velocity_part = a->nesterov ? a->momentum : 1.0f;
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float grad = g[i] * scale + decay * p[i];
        /* at the first step the old velocity may be anything */
        float old = keep == 0.0f ? 0.0f : keep * v[i];
        float velocity = old + take * grad;
        v[i] = velocity;
        p[i] -= lr * (grad_part * grad + velocity_part * velocity);
    }
}

static void sgd_plain(float *restrict p, const float *restrict g, size_t n, float lr, float scale,
                      float decay)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        p[i] -= lr * (g[i] * scale + decay * p[i]);
    }
}

static void sgd_range(const void *args, size_t first, size_t count)
{
    const struct gti_sgd_args *a = args;
    float vb[GTI_CHUNK], gb[GTI_CHUNK];
    GTI_FOR_CHUNKS(i, c, first, count)
    {
        const float *g = gti_chunk_in(gb, a->grad.data, a->grad.dtype, i, c);
        float *p = (float *)a->master.data + i;
        if (a->v.data == NULL) {
            sgd_plain(p, g, c, a->lr, a->grad_scale, a->weight_decay);
        } else {
            float *v = gti_moment_in(vb, &a->v, i, c);
            sgd_momentum(p, v, g, c, a);
            gti_moment_out(&a->v, i, c, v, g, p, gti_step_salt(a->step));
        }
        gti_param_out(&a->param, &a->master, i, c);
    }
}

gt_status GTI_KERNEL(sgd)
{
    const struct gti_sgd_args *a = raw;
    gti_for_ranges(device, (size_t)gt_tensor_numel(&a->grad), sgd_range, a);
    return GT_OK;
}

/* ---- Lion -------------------------------------------------------------------------------------
 */
static void lion_update(float *restrict p, float *restrict m, const float *restrict g, size_t n,
                        const struct gti_lion_args *a)
{
    const float b1 = a->beta1, b2 = a->beta2, scale = a->grad_scale, lr = a->lr;
    const float one_minus_b1 = 1.0f - b1, one_minus_b2 = 1.0f - b2, decay = lr * a->weight_decay;
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float grad = g[i] * scale;
        float c = b1 * m[i] + one_minus_b1 * grad;
        /* sign, with NaN kept */
        float u = c > 0.0f ? lr : (c < 0.0f ? -lr : c);
        p[i] -= u + decay * p[i];
        m[i] = b2 * m[i] + one_minus_b2 * grad;
    }
}

static void lion_range(const void *args, size_t first, size_t count)
{
    const struct gti_lion_args *a = args;
    float mb[GTI_CHUNK], gb[GTI_CHUNK];
    GTI_FOR_CHUNKS(i, c, first, count)
    {
        const float *g = gti_chunk_in(gb, a->grad.data, a->grad.dtype, i, c);
        float *m = gti_moment_in(mb, &a->m, i, c);
        lion_update((float *)a->master.data + i, m, g, c, a);
        /* the parameter moves by lr in every step, which makes the salt */
        gti_moment_out(&a->m, i, c, m, g, (const float *)a->master.data + i, 0);
        gti_param_out(&a->param, &a->master, i, c);
    }
}

gt_status GTI_KERNEL(lion)
{
    const struct gti_lion_args *a = raw;
    gti_for_ranges(device, (size_t)gt_tensor_numel(&a->grad), lion_range, a);
    return GT_OK;
}

/* ---- masters as bf16 + remainder --------------------------------------------------------------
 */
static void split_range(const void *args, size_t first, size_t count)
{
    const struct gti_master_split_args *a = args;
    gti_master_split_n((uint16_t *)a->param.data + first, (uint16_t *)a->remainder.data + first,
                       (const float *)a->x.data + first, count);
}

gt_status GTI_KERNEL(master_split)
{
    const struct gti_master_split_args *a = raw;
    gti_for_ranges(device, (size_t)gt_tensor_numel(&a->x), split_range, a);
    return GT_OK;
}

static void join_range(const void *args, size_t first, size_t count)
{
    const struct gti_master_join_args *a = args;
    gti_master_join_n((float *)a->x.data + first, (const uint16_t *)a->param.data + first,
                      (const uint16_t *)a->remainder.data + first, count);
}

gt_status GTI_KERNEL(master_join)
{
    const struct gti_master_join_args *a = raw;
    gti_for_ranges(device, (size_t)gt_tensor_numel(&a->x), join_range, a);
    return GT_OK;
}
