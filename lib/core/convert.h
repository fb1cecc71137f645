/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversions between f32 and the 16-bit floats, for kernels. To 16 bits they round to nearest,
 * ties to even; NaN stays NaN (quiet, upper payload bits kept, as the hardware does), overflow
 * becomes infinity, subnormals are exact. The scalar forms have no branches, so that loops over
 * them vectorise; the _n forms use the processor's instructions where a file is compiled for them.
 */
#ifndef GTI_CORE_CONVERT_H
#define GTI_CORE_CONVERT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

static inline uint32_t gti_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float gti_bits_f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float gti_bf16_to_f32(uint16_t bits)
{
    return gti_bits_f32((uint32_t)bits << 16);
}

static inline uint16_t gti_f32_to_bf16(float value)
{
    uint32_t bits = gti_f32_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet_nan = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

static inline float gti_f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t magnitude = half & 0x7fffu;
    uint32_t normal = (magnitude << 13) + (112u << 23);
    uint32_t special = (magnitude << 13) | 0x7f800000u | (magnitude > 0x7c00u ? 0x400000u : 0u);
    /* 0.5 has its last mantissa bit at 2^-24, the unit of the subnormals: exact. */
    uint32_t subnormal = gti_f32_bits(gti_bits_f32(0x3f000000u | magnitude) - 0.5f);
    uint32_t bits = magnitude >= 0x7c00u ? special : normal;
    return gti_bits_f32(sign | (magnitude < 0x400u ? subnormal : bits));
}

static inline uint16_t gti_f32_to_f16(float value)
{
    uint32_t bits = gti_f32_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    uint32_t quiet_nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    /* The addition rounds to multiples of 2^-24, the unit of the subnormals. */
    uint32_t subnormal = gti_f32_bits(gti_bits_f32(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t finite = magnitude < 0x38800000u ? subnormal : normal; /* below 2^-14     */
    uint32_t special = magnitude > 0x7f800000u ? quiet_nan : 0x7c00u;
    return (uint16_t)(sign | (magnitude >= 0x477ff000u ? special : finite)); /* from 65520 on */
}

static inline void gti_bf16_to_f32_n(float *restrict y, const uint16_t *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = gti_bf16_to_f32(x[i]);
    }
}

static inline void gti_f32_to_bf16_n(uint16_t *restrict y, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = gti_f32_to_bf16(x[i]);
    }
}

static inline void gti_f16_to_f32_n(float *restrict y, const uint16_t *restrict x, size_t n)
{
    size_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16) {
        _mm512_storeu_ps(y + i, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(x + i))));
    }
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(x + i))));
    }
#endif
    for (; i < n; i++) {
        y[i] = gti_f16_to_f32(x[i]);
    }
}

static inline void gti_f32_to_f16_n(uint16_t *restrict y, const float *restrict x, size_t n)
{
    size_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16) {
        __m256i half = _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
        _mm256_storeu_si256((void *)(y + i), half);
    }
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8) {
        __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((void *)(y + i), half);
    }
#endif
    for (; i < n; i++) {
        y[i] = gti_f32_to_f16(x[i]);
    }
}

#endif
