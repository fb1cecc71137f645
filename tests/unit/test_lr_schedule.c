/* SPDX-License-Identifier: Apache-2.0 */
#include <geektrain/optim.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#define close_to(a, b) assert_true(fabs((a) - (b)) <= 1e-12 * fabs(b))

static double rate(const gt_scheduler_config *s, double lr, int64_t index)
{
    double out = NAN;
    assert_int_equal(gt_lr_at(&out, s, lr, index), GT_OK);
    return out;
}

static void constant_is_the_optimizers(void **state)
{
    gt_scheduler_config s = {.type = GT_LR_CONSTANT, .max_lr = 7};
    close_to(rate(&s, 0.25, 0), 0.25);
    close_to(rate(&s, 0.25, 1000), 0.25);
}

/* DeepSpeed's default warm-up is logarithmic. */
static void warmup_log(void **state)
{
    gt_scheduler_config s = {
        .type = GT_LR_WARMUP, .max_lr = 1e-3, .warmup_steps = 10, .warmup_log = true};
    const int64_t index[] = {0, 1, 2, 4, 8, 9, 10, 1000};
    const double want[] = {0,
                           1e-3 * 0.30102999566398120,
                           1e-3 * 0.47712125471966244,
                           1e-3 * 0.69897000433601880,
                           1e-3 * 0.95424250943932487,
                           1e-3,
                           1e-3,
                           1e-3};
    for (int i = 0; i < 8; i++) {
        close_to(rate(&s, 5, index[i]), want[i]);
    }
}

static void warmup_linear(void **state)
{
    gt_scheduler_config s = {.type = GT_LR_WARMUP, .max_lr = -1, .warmup_steps = 10};
    for (int i = 0; i < 10; i++) {
        close_to(rate(&s, 0.01, i), 0.001 * i);
    }
    close_to(rate(&s, 0.01, 10), 0.01);
    s.min_lr = 0.002;
    close_to(rate(&s, 0.01, 0), 0.002);
    close_to(rate(&s, 0.01, 5), 0.006);
}

static void warmup_of_0_1_2_steps(void **state)
{
    for (int log = 0; log < 2; log++) {
        gt_scheduler_config s = {.type = GT_LR_WARMUP, .max_lr = 1e-3, .warmup_log = log != 0};
        close_to(rate(&s, 1, 0), 1e-3);
        s.warmup_steps = 1; /* counts as 2 */
        close_to(rate(&s, 1, 0), 0.0);
        close_to(rate(&s, 1, 1), log ? 1e-3 : 5e-4);
        close_to(rate(&s, 1, 2), 1e-3);
        s.warmup_steps = 2;
        close_to(rate(&s, 1, 1), log ? 1e-3 : 5e-4);
    }
}

static void warmup_decay(void **state)
{
    gt_scheduler_config s = {
        .type = GT_LR_WARMUP_DECAY, .max_lr = 1.0, .warmup_steps = 4, .total_steps = 10};
    const double want[] = {0, 0.25, 0.5, 0.75, 1, 5 / 6., 4 / 6., 3 / 6., 2 / 6., 1 / 6., 0, 0};
    for (int i = 0; i < 12; i++) {
        close_to(rate(&s, 9, i), want[i]);
    }
}

static void warmup_decay_total_within_warmup(void **state)
{
    for (int64_t total = 5; total <= 10; total += 5) {
        for (int log = 0; log < 2; log++) {
            gt_scheduler_config s = {.type = GT_LR_WARMUP_DECAY,
                                     .max_lr = 1.0,
                                     .warmup_steps = 10,
                                     .warmup_log = log != 0,
                                     .total_steps = total};
            for (int i = -1; i < 40; i++) {
                double r = rate(&s, 1, i);
                assert_true(r >= 0 && r <= 1);
            }
            close_to(rate(&s, 1, 10), 0.0);
        }
    }
}

static void warmup_cosine(void **state)
{
    gt_scheduler_config s = {.type = GT_LR_WARMUP_COSINE,
                             .max_lr = -1,
                             .warmup_steps = 4,
                             .total_steps = 12,
                             .cos_min_ratio = 0.1,
                             .warmup_min_ratio = 0.2};
    close_to(rate(&s, 2, 0), 0.4);
    close_to(rate(&s, 2, 2), 2 * 0.6);
    /* (1 + cos(pi k/8))/2 with k = index - 3 */
    close_to(rate(&s, 2, 4), 2 * (0.1 + 0.9 * 0.96193976625564337));
    close_to(rate(&s, 2, 7), 2 * (0.1 + 0.9 * 0.5));
    close_to(rate(&s, 2, 11), 0.2);
    close_to(rate(&s, 2, 12), 0.2); /* stays, where a bare cosine would rise again */
    close_to(rate(&s, 2, 500), 0.2);
    s.total_steps = 4;
    close_to(rate(&s, 2, 4), 0.2);
}

static void warmup_stable_decay(void **state)
{
    gt_scheduler_config s = {
        .type = GT_LR_WSD, .max_lr = 1, .warmup_steps = 2, .total_steps = 10, .decay_steps = 4};
    const double want[] = {0, 0.5, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0, 0};
    for (int i = 0; i < 12; i++) {
        close_to(rate(&s, 1, i), want[i]);
    }
    s.min_lr = 0.5;
    close_to(rate(&s, 1, 8), 0.75);
    s.decay_steps = 0;
    close_to(rate(&s, 1, 100), 1.0);
}

static void rate_before_the_first_step(void **state)
{
    gt_scheduler_config s = {.type = GT_LR_WARMUP, .max_lr = 1, .min_lr = 0.1, .warmup_steps = 5};
    close_to(rate(&s, 1, -1), 0.1);
}

/* Every type over a grid of lengths: finite, between 0 and the maximum. */
static void rates_are_always_sane(void **state)
{
    for (int type = GT_LR_CONSTANT; type <= GT_LR_WSD; type++) {
        for (int bits = 0; bits < 6 * 6 * 2; bits++) {
            gt_scheduler_config s = {.type = (gt_schedule_type)type,
                                     .max_lr = 0.5,
                                     .warmup_steps = bits % 6,
                                     .total_steps = 1 + bits / 6 % 6,
                                     .warmup_log = bits / 36 != 0,
                                     .decay_steps = 1};
            for (int64_t i = -2; i < 15; i++) {
                double r = rate(&s, 0.25, i);
                assert_true(r >= 0 && r <= 0.5);
            }
            assert_true(isfinite(rate(&s, 0.25, INT64_MAX)));
        }
    }
}

static void refused(const gt_scheduler_config *s, double lr, const char *word)
{
    double out = 42;
    assert_int_equal(gt_lr_at(&out, s, lr, 0), GT_ERR_CONFIG);
    assert_true(out == 42);
    assert_non_null(strstr(gt_last_error(), word));
}

static void check_refuses_nonsense(void **state)
{
    gt_scheduler_config s = {.type = GT_LR_CONSTANT, .max_lr = -1};
    refused(&s, NAN, "lr");
    refused(&s, -1, "lr");
    refused(&s, INFINITY, "lr");
    s.type = GT_LR_WARMUP_DECAY;
    refused(&s, 1, "total_num_steps");
    s.total_steps = 10;
    s.warmup_steps = -1;
    refused(&s, 1, "warmup_num_steps");
    s.warmup_steps = 1;
    s.min_lr = NAN;
    refused(&s, 1, "warmup_min_lr");
    s.min_lr = 0;
    s.max_lr = NAN;
    refused(&s, 1, "warmup_max_lr");
    s.max_lr = 1;
    s.type = GT_LR_WARMUP_COSINE;
    s.cos_min_ratio = 1.5;
    refused(&s, 1, "cos_min_ratio");
    s.type = GT_LR_WSD;
    s.decay_steps = 11;
    refused(&s, 1, "decay_num_steps");
    s.type = (gt_schedule_type)99;
    refused(&s, 1, "99");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constant_is_the_optimizers),
        cmocka_unit_test(warmup_log),
        cmocka_unit_test(warmup_linear),
        cmocka_unit_test(warmup_of_0_1_2_steps),
        cmocka_unit_test(warmup_decay),
        cmocka_unit_test(warmup_decay_total_within_warmup),
        cmocka_unit_test(warmup_cosine),
        cmocka_unit_test(warmup_stable_decay),
        cmocka_unit_test(rate_before_the_first_step),
        cmocka_unit_test(rates_are_always_sane),
        cmocka_unit_test(check_refuses_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
