/* SPDX-License-Identifier: Apache-2.0
 *
 * Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011).
 *
 * Element i of the sequence (key, stream) is lane i % 4 of the block whose 128-bit counter holds
 * i / 4 in its low and `stream` in its high 64 bits. So element i depends on nothing but (key,
 * stream, i): not on the vector width, the number of threads, or the shard it lies in.
 */
#ifndef GTI_CORE_PHILOX_H
#define GTI_CORE_PHILOX_H

#include <math.h>
#include <stdint.h>

typedef struct gti_philox_block {
    uint32_t lane[4];
} gti_philox_block;

/* The bare function: four counter words, two key words. */
static inline gti_philox_block gti_philox_rounds(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                                                 uint32_t k0, uint32_t k1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (gti_philox_block){{c0, c1, c2, c3}};
}

/* Elements 4*block ... 4*block + 3. */
static inline gti_philox_block gti_philox4(uint64_t key, uint64_t stream, uint64_t block)
{
    return gti_philox_rounds((uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream,
                             (uint32_t)(stream >> 32), (uint32_t)key, (uint32_t)(key >> 32));
}

/* 32 random bits of element i. */
static inline uint32_t gti_philox_u32(uint64_t key, uint64_t stream, uint64_t i)
{
    return gti_philox4(key, stream, i / 4).lane[i % 4];
}

/* (0, 1), both ends excluded: the 2^23 midpoints, each exact in f32. */
static inline float gti_uniform_of_bits(uint32_t bits)
{
    return ((float)(bits >> 9) + 0.5f) * 0x1p-23f;
}

static inline float gti_philox_uniform(uint64_t key, uint64_t stream, uint64_t i)
{
    return gti_uniform_of_bits(gti_philox_u32(key, stream, i));
}

/* Box and Muller 1958. Elements 2j and 2j+1 share the words of lanes 2j%4 and 2j%4 + 1: the first
 * word gives the radius (all 32 bits, so |value| reaches 6.7), the second the angle; the even
 * element takes the cosine, the odd one the sine. */
static inline void gti_normal_pair(float out[2], uint32_t radius_bits, uint32_t angle_bits)
{
    float u = ((float)radius_bits + 0.5f) * 0x1p-32f;
    float radius = sqrtf(-2.0f * logf(u));
    float angle = 6.2831853071795865f * gti_uniform_of_bits(angle_bits);
    out[0] = radius * cosf(angle);
    out[1] = radius * sinf(angle);
}

/* Standard normal values of elements 4*block ... 4*block + 3. */
static inline void gti_philox_normal4(float out[4], uint64_t key, uint64_t stream, uint64_t block)
{
    gti_philox_block r = gti_philox4(key, stream, block);
    gti_normal_pair(out, r.lane[0], r.lane[1]);
    gti_normal_pair(out + 2, r.lane[2], r.lane[3]);
}

static inline float gti_philox_normal(uint64_t key, uint64_t stream, uint64_t i)
{
    gti_philox_block r = gti_philox4(key, stream, i / 4);
    float pair[2];
    gti_normal_pair(pair, r.lane[i % 4 & ~1u], r.lane[i % 4 | 1u]);
    return pair[i % 2];
}

#endif
