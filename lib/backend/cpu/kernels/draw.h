/* SPDX-License-Identifier: Apache-2.0
 *
 * Random bits of 64 consecutive counter blocks of core/philox.h, 256 elements, in their order. The
 * compiler multiplies 64 by 64 bits where 32 by 32 are wanted, hence the intrinsics: each counter
 * word has a 64-bit lane, whose upper half may hold anything.
 */
#ifndef GTI_CPU_DRAW_H
#define GTI_CPU_DRAW_H

#include "core/philox.h"

#define GTI_DRAW_BLOCKS 64

#if defined(__AVX512F__)
#include <immintrin.h>

static inline void gti_draw(uint32_t *bits, uint64_t key, uint64_t stream, uint64_t first)
{
    const __m512i m0 = _mm512_set1_epi64(0xD2511F53), m1 = _mm512_set1_epi64(0xCD9E8D57);
    const __m512i low = _mm512_set1_epi64(0xFFFFFFFF);
    const __m512i even = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
    const __m512i odd = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
    for (int b = 0; b < GTI_DRAW_BLOCKS; b += 8) {
        __m512i c0 = _mm512_add_epi64(_mm512_set1_epi64((int64_t)first + b),
                                      _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
        __m512i c1 = _mm512_srli_epi64(c0, 32);
        __m512i c2 = _mm512_set1_epi64((int64_t)stream), c3 = _mm512_srli_epi64(c2, 32);
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
        for (int round = 0; round < 10; round++) {
            __m512i p0 = _mm512_mul_epu32(m0, c0), p1 = _mm512_mul_epu32(m1, c2);
            c0 = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(p1, 32), c1),
                                  _mm512_set1_epi64(k0));
            c2 = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(p0, 32), c3),
                                  _mm512_set1_epi64(k1));
            c1 = p1;
            c3 = p0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        __m512i c01 = _mm512_or_si512(_mm512_and_si512(c0, low), _mm512_slli_epi64(c1, 32));
        __m512i c23 = _mm512_or_si512(_mm512_and_si512(c2, low), _mm512_slli_epi64(c3, 32));
        _mm512_storeu_si512(bits + 4 * b, _mm512_permutex2var_epi64(c01, even, c23));
        _mm512_storeu_si512(bits + 4 * b + 16, _mm512_permutex2var_epi64(c01, odd, c23));
    }
}

#elif defined(__AVX2__)
#include <immintrin.h>

static inline void gti_draw(uint32_t *bits, uint64_t key, uint64_t stream, uint64_t first)
{
    const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
    const __m256i low = _mm256_set1_epi64x(0xFFFFFFFF);
    for (int b = 0; b < GTI_DRAW_BLOCKS; b += 4) {
        __m256i c0 =
            _mm256_add_epi64(_mm256_set1_epi64x((int64_t)first + b), _mm256_set_epi64x(3, 2, 1, 0));
        __m256i c1 = _mm256_srli_epi64(c0, 32);
        __m256i c2 = _mm256_set1_epi64x((int64_t)stream), c3 = _mm256_srli_epi64(c2, 32);
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
        for (int round = 0; round < 10; round++) {
            __m256i p0 = _mm256_mul_epu32(m0, c0), p1 = _mm256_mul_epu32(m1, c2);
            c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1),
                                  _mm256_set1_epi64x(k0));
            c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3),
                                  _mm256_set1_epi64x(k1));
            c1 = p1;
            c3 = p0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        __m256i c01 = _mm256_or_si256(_mm256_and_si256(c0, low), _mm256_slli_epi64(c1, 32));
        __m256i c23 = _mm256_or_si256(_mm256_and_si256(c2, low), _mm256_slli_epi64(c3, 32));
        __m256i a = _mm256_unpacklo_epi64(c01, c23), c = _mm256_unpackhi_epi64(c01, c23);
        __m256i *to = (__m256i *)(void *)(bits + 4 * b);
        _mm256_storeu_si256(to, _mm256_permute2x128_si256(a, c, 0x20));
        _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(a, c, 0x31));
    }
}

#else

static inline void gti_draw(uint32_t *bits, uint64_t key, uint64_t stream, uint64_t first)
{
    for (int b = 0; b < GTI_DRAW_BLOCKS; b++) {
        gti_philox_block r = gti_philox4(key, stream, first + (uint64_t)b);
        for (int lane = 0; lane < 4; lane++) {
            bits[4 * b + lane] = r.lane[lane];
        }
    }
}

#endif
#endif
