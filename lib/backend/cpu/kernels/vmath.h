/* SPDX-License-Identifier: Apache-2.0
 *
 * exp and tanh that vectorise: straight-line code, no calls, no tables, so that a loop under
 * "#pragma omp simd" (or plain auto-vectorisation) runs at the width of the instruction set.
 *
 *     gti_expf    < 1.1 ulp; exp(-inf) = 0, exp(+inf) = inf, NaN stays NaN; results below the
 *                 smallest normal number are 0
 *     gti_tanhf   < 1.5 ulp, odd, +-1 at the ends, NaN stays NaN
 *     gti_sigmoidf  < 3 ulp, 1 / (1 + exp(-x)), no overflow
 */
#ifndef GTI_CPU_VMATH_H
#define GTI_CPU_VMATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* 2^n for integral n in [-126, 127]. */
static inline float gti_pow2i(int32_t n)
{
    uint32_t bits = (uint32_t)(n + 127) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* e^r - 1 - r for |r| <= ln(2)/2: Cephes' expf, polynomial times r^2. */
static inline float gti_exp_tail(float r)
{
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return p * (r * r);
}

/* Splits x = n ln 2 + r; returns r, *n by 1.5*2^23 rounding (nearest even, no rint call). */
static inline float gti_exp_reduce(float x, int32_t *n)
{
    float shifted = x * 1.44269504088896341f + 12582912.0f;
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    *n = bits - 0x4B400000;
    float k = shifted - 12582912.0f;
    float r = x - k * 0.693359375f;
    return r + k * 2.12194440e-4f;
}

static inline float gti_expf(float x)
{
    /* The clamp is written so that NaN passes through. */
    float c = x > 88.72284f ? 88.72284f : x;
    c = c < -87.33655f ? -87.33655f : c;
    int32_t n;
    float r = gti_exp_reduce(c, &n);
    float y = 1.0f + (r + gti_exp_tail(r));
    /* n reaches 128: scale in two steps. */
    int32_t half = n >> 1;
    y = y * gti_pow2i(half) * gti_pow2i(n - half);
    y = x > 88.72284f ? INFINITY : y;
    return x < -87.33655f ? 0.0f : y;
}

static inline float gti_sigmoidf(float x)
{
    float e = gti_expf(-fabsf(x));
    float d = 1.0f / (1.0f + e);
    return x >= 0.0f ? d : (x != x ? x : e * d);
}

static inline float gti_tanhf(float x)
{
    float a = fabsf(x);
    /* Large: 1 - 2/(e^2a + 1). */
    float e = gti_expf(2.0f * (a > 10.0f ? 10.0f : a));
    float large = 1.0f - 2.0f / (e + 1.0f);
    /* Small: Cephes' tanhf polynomial, where the form above would cancel. */
    float z = x * x;
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    float small = p * z * x + x;
    float t = a < 0.625f ? small : copysignf(large, x);
    return x != x ? x : t;
}

#endif
