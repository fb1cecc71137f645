/* SPDX-License-Identifier: Apache-2.0 */
#include <geektrain/optim.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

/* The gradient [3,4], whose norm is 5. */
static void clip_3_4(void **state)
{
    double f = gt_clip_factor(5, 1);
    assert_true(fabs(3 * f - 0.6) < 1e-6 && fabs(4 * f - 0.8) < 1e-6);
    assert_true(gt_clip_factor(5, 0) == 1.0);
    assert_true(gt_clip_factor(5, INFINITY) == 1.0);
    assert_true(gt_clip_factor(5, 5.1) == 1.0);
    assert_true(gt_clip_factor(0, 1) == 1.0);
}

/* torch's and Megatron's form: max / (norm + 1e-6). */
static void clip_formula(void **state)
{
    assert_true(gt_clip_factor(2, 1) == 1.0 / (2.0 + 1e-6));
    assert_true(gt_clip_factor(1, 1) == 1.0 / (1.0 + 1e-6));
    assert_true(gt_clip_factor(1e300, 1) > 0);
}

static void clip_check_refuses(void **state)
{
    assert_int_equal(gt_clip_check(0), GT_OK);
    assert_int_equal(gt_clip_check(1), GT_OK);
    assert_int_equal(gt_clip_check(INFINITY), GT_OK);
    assert_int_equal(gt_clip_check(-1), GT_ERR_CONFIG);
    assert_non_null(strstr(gt_last_error(), "-1"));
    assert_int_equal(gt_clip_check(NAN), GT_ERR_CONFIG);
    assert_int_equal(gt_clip_check(-INFINITY), GT_ERR_CONFIG);
}

/* A refused value never flips signs or poisons; a non-finite norm never becomes a NaN factor. */
static void clip_factor_is_always_in_0_1(void **state)
{
    const double values[] = {-INFINITY, -1, -0.0, 0, 1e-30, 1, 1e30, INFINITY, NAN};
    for (int i = 0; i < 9; i++) {
        for (int j = 0; j < 9; j++) {
            double f = gt_clip_factor(fabs(values[i]), values[j]);
            assert_true(f >= 0 && f <= 1);
        }
    }
    assert_true(gt_clip_factor(INFINITY, 1) == 0.0);
    assert_true(gt_clip_factor(NAN, 1) == 0.0);
    assert_true(gt_clip_factor(5, -1) == 1.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clip_3_4),
        cmocka_unit_test(clip_formula),
        cmocka_unit_test(clip_check_refuses),
        cmocka_unit_test(clip_factor_is_always_in_0_1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
