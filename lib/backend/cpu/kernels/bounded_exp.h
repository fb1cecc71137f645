/* SPDX-License-Identifier: Apache-2.0
 *
 * e^x for x that the caller has bounded to [-87, 88]: about half the instructions of gti_expf,
 * whose handling of overflow it lacks. Error below 1.5 ulp; NaN stays NaN.
 *
 * x = n ln 2 + r: adding 1.5 * 2^23 + 127 to x / ln 2 rounds it and leaves n + 127, the biased
 * exponent, in the low bits of the sum, which shifted left by 23 are 2^n. The f32 nearest to ln 2
 * is off by 2e-9 only, so r needs no second constant. e^r is a polynomial of degree 6 (minimax,
 * error 3e-9).
 */
#ifndef GTI_CPU_BOUNDED_EXP_H
#define GTI_CPU_BOUNDED_EXP_H

#include <stdint.h>
#include <string.h>

#define GTI_EXP_LEAST (-87.0f)

static inline float gti_exp_bounded(float x)
{
    const float magic = 12582912.0f + 127.0f;
    float shifted = x * 1.44269504088896341f + magic;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits <<= 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    float r = x - (shifted - magic) * 0.693147180559945309f;
    float p = 1.381447864e-3f;
    p = p * r + 8.368856613e-3f;
    p = p * r + 4.166839905e-2f;
    p = p * r + 1.666651948e-1f;
    p = p * r + 4.999999338e-1f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * power;
}

#endif
