/* SPDX-License-Identifier: Apache-2.0 */
#include "data/shuffle.h"

#include "core/philox.h"

enum { ROUNDS = 6 };

static uint64_t feistel(uint64_t seed, uint64_t epoch, int half_bits, uint64_t x)
{
    uint64_t mask = ((uint64_t)1 << half_bits) - 1, left = x >> half_bits, right = x & mask;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        gti_philox_block b =
            gti_philox_rounds((uint32_t)right, round, (uint32_t)epoch, (uint32_t)(epoch >> 32),
                              (uint32_t)seed, (uint32_t)(seed >> 32));
        uint64_t next = left ^ (b.lane[0] & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

int64_t gti_shuffle(uint64_t seed, int64_t epoch, int64_t n, int64_t i)
{
    int half_bits = 1;
    while (half_bits < 31 && ((int64_t)1 << (2 * half_bits)) < n) {
        half_bits++;
    }
    uint64_t x = (uint64_t)i;
    do { /* at most four times the domain: a few turns */
        x = feistel(seed, (uint64_t)epoch, half_bits, x);
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}
