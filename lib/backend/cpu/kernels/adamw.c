/* SPDX-License-Identifier: Apache-2.0
 *
 * AdamW (Loshchilov & Hutter 2019) in one pass over a flat shard: unscale, clip, moments, update
 * and the rounding to the parameter's dtype. Bytes moved per element: 28 with everything f32; the
 * same with a bf16 parameter and gradient beside f32 master and moments.
 */
#include "backend/cpu/kernels/moment.h"

struct factors {
    float beta1, beta2, one_minus_beta1, one_minus_beta2;
    float rate;       /* lr / c1                             */
    float inv_c2;     /* 1 / c2                              */
    float eps, decay; /* decay: lr * weight_decay, decoupled */
    float l2, grad_scale;
};

struct work {
    const struct gti_adamw_args *a;
    struct factors f;
    uint32_t salt;
};

static void update(float *restrict p, float *restrict m, float *restrict v, const float *restrict g,
                   size_t n, const struct factors f)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float grad = g[i] * f.grad_scale + f.l2 * p[i];
        float m1 = f.beta1 * m[i] + f.one_minus_beta1 * grad;
        float v1 = f.beta2 * v[i] + f.one_minus_beta2 * (grad * grad);
        m[i] = m1;
        v[i] = v1;
        p[i] -= f.rate * m1 / gti_adam_denominator(v1, f.inv_c2, f.eps) + f.decay * p[i];
    }
}

static void adamw_range(const void *args, size_t first, size_t count)
{
    const struct work *w = args;
    const struct gti_adamw_args *a = w->a;
    float pb[GTI_CHUNK], mb[GTI_CHUNK], vb[GTI_CHUNK], gb[GTI_CHUNK];
    GTI_FOR_CHUNKS(i, c, first, count)
    {
        const float *g = gti_chunk_in(gb, a->grad.data, a->grad.dtype, i, c);
        float *m = gti_moment_in(mb, &a->m, i, c), *v = gti_moment_in(vb, &a->v, i, c);
        float *p = pb;
        if (a->master_is_remainder) {
            gti_master_join_n(p, (const uint16_t *)a->param.data + i,
                              (const uint16_t *)a->master.data + i, c);
        } else {
            p = (float *)a->master.data + i;
        }
        update(p, m, v, g, c, w->f);
        gti_moments_out(&a->m, &a->v, i, c, m, v, g, p, w->salt);
        if (a->master_is_remainder) {
            gti_master_split_n((uint16_t *)a->param.data + i, (uint16_t *)a->master.data + i, p, c);
        } else {
            gti_param_out(&a->param, &a->master, i, c);
        }
    }
}

gt_status GTI_KERNEL(adamw)
{
    const struct gti_adamw_args *a = raw;
    struct work w = {.a = a, .salt = gti_step_salt(a->step)};
    w.f = (struct factors){
        .beta1 = a->beta1,
        .beta2 = a->beta2,
        .one_minus_beta1 = 1.0f - a->beta1,
        .one_minus_beta2 = 1.0f - a->beta2,
        .rate = (float)((double)a->lr / a->c1),
        .inv_c2 = (float)(1.0 / a->c2),
        .eps = a->eps,
        .decay = a->l2 ? 0.0f : a->lr * a->weight_decay,
        .l2 = a->l2 ? a->weight_decay : 0.0f,
        .grad_scale = a->grad_scale,
    };
    gti_for_ranges(device, (size_t)gt_tensor_numel(&a->grad), adamw_range, &w);
    return GT_OK;
}
