/* SPDX-License-Identifier: Apache-2.0
 *
 * What the optimizers share: moments in f32 or bf16, parameters rounded from their masters.
 */
#ifndef GTI_CPU_MOMENT_H
#define GTI_CPU_MOMENT_H

#include <math.h>

#include "backend/cpu/kernels/range.h"

/* A chunk of a moment to be updated in place: in the tensor itself, or converted into buffer. */
static inline float *gti_moment_in(float *buffer, const gt_tensor *t, size_t first, size_t n)
{
    if (t->dtype == GT_F32) {
        return (float *)t->data + first;
    }
    gti_bf16_to_f32_n(buffer, (const uint16_t *)t->data + first, n);
    return buffer;
}

/* Adam's denominator, by which a moment is divided. It is 0 where eps is (or underflows to) 0 and
 * no gradient has come yet, or none whose square an f32 holds: then there is no direction to go in,
 * and the quotient is to be 0. A NaN moment still shows. */
static inline float gti_adam_denominator(float v, float inv_c2, float eps)
{
    const float d = sqrtf(v * inv_c2) + eps;
    return d == 0.0f ? INFINITY : d;
}

/* 32 well-mixed bits of an element's values: the lower half for one moment, the upper for another.
 */
static inline uint32_t gti_dither(uint32_t moment, uint32_t grad, uint32_t param, uint32_t salt)
{
    uint32_t x = (moment ^ salt) * 0x9e3779b1u;
    x = (x ^ (x >> 15) ^ grad ^ (param << 13)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

/* Stochastic rounding: up with the probability of the discarded part. Non-finite values and those
 * that would overflow are rounded to nearest. */
static inline uint16_t gti_bf16_stochastic(float value, uint32_t random)
{
    uint32_t bits = gti_f32_bits(value);
    uint32_t rounded = (bits + (random & 0xffffu)) >> 16;
    uint16_t nearest = gti_f32_to_bf16(value);
    return (bits & 0x7fffffffu) >= 0x7f7f0000u ? nearest : (uint16_t)rounded;
}

/* Writes a bf16 moment back; grad and param only feed the dither. Nothing to do for f32. */
static inline void gti_moment_out(const gt_tensor *t, size_t first, size_t n,
                                  const float *restrict moment, const float *restrict grad,
                                  const float *restrict param, uint32_t salt)
{
    if (t->dtype == GT_F32) {
        return;
    }
    uint16_t *restrict y = (uint16_t *)t->data + first;
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        uint32_t random = gti_dither(gti_f32_bits(moment[i]), gti_f32_bits(grad[i]),
                                     gti_f32_bits(param[i]), salt);
        y[i] = gti_bf16_stochastic(moment[i], random);
    }
}

/* Both moments of the Adam family, from one draw where both are bf16. */
static inline void gti_moments_out(const gt_tensor *m_t, const gt_tensor *v_t, size_t first,
                                   size_t n, const float *restrict m, const float *restrict v,
                                   const float *restrict grad, const float *restrict param,
                                   uint32_t salt)
{
    if (m_t->dtype == GT_F32 || v_t->dtype == GT_F32) {
        gti_moment_out(m_t, first, n, m, grad, param, salt);
        gti_moment_out(v_t, first, n, v, grad, param, salt);
        return;
    }
    uint16_t *restrict my = (uint16_t *)m_t->data + first;
    uint16_t *restrict vy = (uint16_t *)v_t->data + first;
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        uint32_t random = gti_dither(gti_f32_bits(v[i]), gti_f32_bits(grad[i]) ^ gti_f32_bits(m[i]),
                                     gti_f32_bits(param[i]), salt);
        my[i] = gti_bf16_stochastic(m[i], random);
        vy[i] = gti_bf16_stochastic(v[i], random >> 16);
    }
}

/* The step as salt: different in every update, the same on every rank. */
static inline uint32_t gti_step_salt(int64_t step)
{
    return (uint32_t)step * 0xc2b2ae35u;
}

/* The parameter, where there is one apart from its master. */
static inline void gti_param_out(const gt_tensor *param, const gt_tensor *master, size_t first,
                                 size_t n)
{
    if (param->data != NULL && param->data != master->data) {
        gti_store_f32(param->data, (const float *)master->data + first, param->dtype, first, n);
    }
}

/* The f32 in a bf16 parameter and its remainder, and back; see gt_master_split. */
static inline float gti_master_join(uint16_t param, uint16_t remainder)
{
    uint32_t upper = (uint32_t)param - (uint32_t)(remainder >> 15);
    return gti_bits_f32(upper << 16 | remainder);
}

static inline uint32_t gti_master_bits(float value)
{
    uint32_t bits = gti_f32_bits(value);
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits;
}

static inline void gti_master_join_n(float *restrict x, const uint16_t *restrict param,
                                     const uint16_t *restrict remainder, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        x[i] = gti_master_join(param[i], remainder[i]);
    }
}

static inline void gti_master_split_n(uint16_t *restrict param, uint16_t *restrict remainder,
                                      const float *restrict x, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = gti_master_bits(x[i]);
        param[i] = (uint16_t)((bits >> 16) + ((bits >> 15) & 1u));
        remainder[i] = (uint16_t)bits;
    }
}

#endif
