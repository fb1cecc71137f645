/* SPDX-License-Identifier: Apache-2.0 */
#include <geektrain/zero.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void partition_of_small_lengths(void **state)
{
    static const struct {
        int64_t n, size, real[4];
    } cases[] = {
        {10, 3, {3, 3, 3, 1}}, {3, 1, {1, 1, 1, 0}},  {1, 1, {1, 0, 0, 0}},
        {5, 2, {2, 2, 1, 0}},  {16, 4, {4, 4, 4, 4}}, {0, 0, {0, 0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(gt_partition_size(cases[i].n, 4), cases[i].size);
        for (int part = 0; part < 4; part++) {
            assert_int_equal(gt_partition_real(cases[i].n, 4, part), cases[i].real[part]);
        }
    }
}

/* Scattered into padded parts whose padding is NaN, and gathered: 0 .. n-1, no NaN. */
static void partition_gathers_what_it_scattered(void **state)
{
    for (int parts = 1; parts <= 9; parts++) {
        for (int64_t n = 0; n <= 70; n++) {
            int64_t size = gt_partition_size(n, parts), total = 0;
            float *padded = malloc(((size_t)(size * parts) + 1) * sizeof(float));
            for (int part = 0; part < parts; part++) {
                int64_t real = gt_partition_real(n, parts, part);
                assert_true(real >= 0 && real <= size);
                for (int64_t i = 0; i < size; i++) {
                    padded[part * size + i] = i < real ? (float)(part * size + i) : NAN;
                }
                total += real;
            }
            assert_int_equal(total, n);
            for (int64_t i = 0; i < n; i++) {
                assert_true(padded[i] == (float)i);
            }
            free(padded);
        }
    }
}

static void partition_of_huge_and_senseless_sizes(void **state)
{
    assert_int_equal(gt_partition_size(INT64_MAX, 1), INT64_MAX);
    assert_int_equal(gt_partition_real(INT64_MAX, 1, 0), INT64_MAX);
    int64_t size = gt_partition_size(INT64_MAX, 1000), sum = 0;
    for (int part = 0; part < 1000; part++) {
        sum += gt_partition_real(INT64_MAX, 1000, part);
    }
    assert_true(size == INT64_MAX / 1000 + 1 && sum == INT64_MAX);
    assert_int_equal(gt_partition_real(1, 1000000, 999999), 0);
    assert_int_equal(gt_partition_size(-1, 4), 0);
    assert_int_equal(gt_partition_size(4, 0), 0);
    assert_int_equal(gt_partition_real(4, 2, 2), 0);
    assert_int_equal(gt_partition_real(4, 2, -1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(partition_of_small_lengths),
        cmocka_unit_test(partition_gathers_what_it_scattered),
        cmocka_unit_test(partition_of_huge_and_senseless_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
