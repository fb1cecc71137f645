/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversions between f32 and the 16-bit floats, as loops that vectorise in every instruction set.
 * To 16 bits they round to nearest even; NaN stays NaN, overflow becomes infinity, subnormals are
 * kept: the same bits as gt_f32_to_bf16 and its fellows.
 *
 * Kernels that take any float dtype work on chunks of GTI_CHUNK elements: gti_chunk_in() gives a
 * chunk as f32 (in place where it is f32 already), the arithmetic is written once, and
 * gti_store_f32() rounds the result back. The chunk buffers stay in the first-level cache.
 */
#ifndef GTI_CPU_CONVERT_H
#define GTI_CPU_CONVERT_H

#include <stdint.h>
#include <string.h>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include <geektrain/tensor.h>

#define GTI_CHUNK 512

static inline uint32_t gti_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float gti_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline float gti_from_bf16(uint16_t h)
{
    return gti_float((uint32_t)h << 16);
}

static inline uint16_t gti_to_bf16(float value)
{
    uint32_t u = gti_bits(value);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    uint32_t nan = (u >> 16) | 0x40u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/* Without hardware: normal numbers are rebiased, subnormal ones scaled by the FPU. */
static inline float gti_from_f16_soft(uint16_t h)
{
    uint32_t a = h & 0x7fffu;
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t normal = (a << 13) + (112u << 23);
    uint32_t special = (a << 13) + (224u << 23);
    uint32_t tiny = gti_bits((float)(int32_t)a * 0x1p-24f);
    uint32_t magnitude = a < 0x400u ? tiny : (a >= 0x7c00u ? special : normal);
    /* a signalling NaN becomes quiet, as in hardware */
    magnitude |= a > 0x7c00u ? 0x400000u : 0u;
    return gti_float(sign | magnitude);
}

static inline uint16_t gti_to_f16_soft(float value)
{
    uint32_t u = gti_bits(value);
    uint32_t a = u & 0x7fffffffu;
    uint32_t sign = (u >> 16) & 0x8000u;
    uint32_t normal = (a + 0xfffu + ((a >> 13) & 1u) - (112u << 23)) >> 13;
    /* 0.5 has the spacing of f16's subnormals: adding it rounds there */
    uint32_t tiny = gti_bits(gti_float(a) + 0.5f) - 0x3f000000u;
    uint32_t r = a < 0x38800000u ? tiny : normal;
    r = r > 0x7c00u ? 0x7c00u : r;
    r = a > 0x7f800000u ? (0x7e00u | ((a >> 13) & 0x1ffu)) : r;
    return (uint16_t)(sign | r);
}

static inline float gti_from_f16(uint16_t h)
{
#if defined(__F16C__)
    return _cvtsh_ss(h);
#else
    return gti_from_f16_soft(h);
#endif
}

static inline uint16_t gti_to_f16(float value)
{
#if defined(__F16C__)
    return (uint16_t)_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
#else
    return gti_to_f16_soft(value);
#endif
}

static inline void gti_load_f16(float *restrict y, const uint16_t *restrict x, size_t n)
{
    size_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16) {
        __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        _mm512_storeu_ps(y + i, _mm512_cvtph_ps(h));
    }
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8) {
        __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(x + i));
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(h));
    }
#endif
    for (; i < n; i++) {
        y[i] = gti_from_f16(x[i]);
    }
}

static inline void gti_store_f16(uint16_t *restrict y, const float *restrict x, size_t n)
{
    size_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16) {
        __m256i h = _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
        _mm256_storeu_si256((__m256i *)(void *)(y + i), h);
    }
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8) {
        __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)(y + i), h);
    }
#endif
    for (; i < n; i++) {
        y[i] = gti_to_f16(x[i]);
    }
}

static inline void gti_load_bf16(float *restrict y, const uint16_t *restrict x, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        y[i] = gti_from_bf16(x[i]);
    }
}

static inline void gti_store_bf16(uint16_t *restrict y, const float *restrict x, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        y[i] = gti_to_bf16(x[i]);
    }
}

/* y[n] f32 from x[first..] of a float dtype. */
static inline void gti_load_f32(float *restrict y, const void *restrict x, gt_dtype dtype,
                                size_t first, size_t n)
{
    if (dtype == GT_BF16) {
        gti_load_bf16(y, (const uint16_t *)x + first, n);
    } else if (dtype == GT_F16) {
        gti_load_f16(y, (const uint16_t *)x + first, n);
    } else {
        memcpy(y, (const float *)x + first, n * sizeof(float));
    }
}

/* y[first..] of a float dtype from x[n] f32. */
static inline void gti_store_f32(void *restrict y, const float *restrict x, gt_dtype dtype,
                                 size_t first, size_t n)
{
    if (dtype == GT_BF16) {
        gti_store_bf16((uint16_t *)y + first, x, n);
    } else if (dtype == GT_F16) {
        gti_store_f16((uint16_t *)y + first, x, n);
    } else {
        memcpy((float *)y + first, x, n * sizeof(float));
    }
}

/* The chunk x[first, first + n) as f32: x itself, or converted into buffer (GTI_CHUNK floats). */
static inline const float *gti_chunk_in(float *buffer, const void *x, gt_dtype dtype, size_t first,
                                        size_t n)
{
    if (dtype == GT_F32) {
        return (const float *)x + first;
    }
    gti_load_f32(buffer, x, dtype, first, n);
    return buffer;
}

#endif
