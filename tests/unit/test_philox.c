/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "core/philox.h"

/* The known answers that Random123 publishes for philox4x32 with 10 rounds. */
static void rounds_known_answers(void **state)
{
    static const uint32_t rows[][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        const uint32_t *r = rows[i];
        gti_philox_block b = gti_philox_rounds(r[0], r[1], r[2], r[3], r[4], r[5]);
        assert_memory_equal(b.lane, r + 6, sizeof b.lane);
    }
}

static void words_of_key_stream_and_block(void **state)
{
    const uint32_t want[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
    uint64_t key = 0x299f31d0a4093822, stream = 0x0370734413198a2e, block = 0x85a308d3243f6a88;
    assert_memory_equal(gti_philox4(key, stream, block).lane, want, sizeof want);
    block &= 0x3fffffffffffffff; /* so that 4*block is a 64-bit element index */
    for (uint64_t lane = 0; lane < 4; lane++) {
        assert_int_equal(gti_philox_u32(key, stream, 4 * block + lane),
                         gti_philox4(key, stream, block).lane[lane]);
    }
}

static void normal_is_the_same_one_by_one(void **state)
{
    for (uint64_t block = 0; block < 1000; block++) {
        float four[4];
        gti_philox_normal4(four, 7, 9, block);
        for (uint64_t lane = 0; lane < 4; lane++) {
            float one = gti_philox_normal(7, 9, 4 * block + lane);
            assert_memory_equal(&one, &four[lane], sizeof one);
        }
    }
}

static void uniform_ends(void **state)
{
    assert_true(gti_uniform_of_bits(0) == 0x1p-24f);
    assert_true(gti_uniform_of_bits(0xffffffff) == 1.0f - 0x1p-24f);
    float pair[2];
    gti_normal_pair(pair, 0, 0);
    assert_true(pair[0] > 6.6f && pair[0] < 6.8f);
    gti_normal_pair(pair, 0xffffffff, 0);
    assert_true(pair[0] == 0.0f);
}

/* Moments of a million elements, within six standard errors. */
static void moments(void **state)
{
    enum { N = 1 << 20 };
    double u1 = 0, u2 = 0, z1 = 0, z2 = 0, z4 = 0, neighbours = 0, before = 0;
    for (uint64_t i = 0; i < N; i++) {
        double u = gti_philox_uniform(42, 1, i), z = gti_philox_normal(42, 2, i);
        u1 += u;
        u2 += (u - 0.5) * (u - 0.5);
        z1 += z;
        z2 += z * z;
        z4 += z * z * z * z;
        neighbours += z * before;
        before = z;
    }
    const double six = 6 / sqrt((double)N);
    assert_true(fabs(u1 / N - 0.5) < six * sqrt(1.0 / 12));
    assert_true(fabs(u2 / N - 1.0 / 12) < six * sqrt(1.0 / 180));
    assert_true(fabs(z1 / N) < six);
    assert_true(fabs(z2 / N - 1) < six * sqrt(2.0));
    assert_true(fabs(z4 / N - 3) < six * sqrt(96.0));
    assert_true(fabs(neighbours / N) < six);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_known_answers),
        cmocka_unit_test(words_of_key_stream_and_block),
        cmocka_unit_test(normal_is_the_same_one_by_one),
        cmocka_unit_test(uniform_ends),
        cmocka_unit_test(moments),
    };
    return cmocka_run_group_tests_name("philox", tests, NULL, NULL);
}
