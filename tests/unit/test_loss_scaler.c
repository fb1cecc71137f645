/* SPDX-License-Identifier: Apache-2.0 */
#include <geektrain/optim.h>

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static gt_loss_scaler make(int power, int window, int hysteresis, bool consecutive,
                           gt_scaler_rule rule)
{
    gt_scaler_config config = {.enabled = true,
                               .initial_power = power,
                               .window = window,
                               .hysteresis = hysteresis,
                               .consecutive = consecutive,
                               .min_scale = 1};
    gt_loss_scaler s;
    assert_int_equal(gt_loss_scaler_init(&s, &config), GT_OK);
    s.rule = rule;
    return s;
}

/* events: 'O' overflow, '.' clean; powers: log2 of the scale after each step, -1 ends. */
static void trace(gt_loss_scaler s, const char *events, const int *powers)
{
    for (int i = 0; events[i] != '\0'; i++) {
        gt_loss_scaler_update(&s, events[i] == 'O');
        if (s.scale != ldexp(1.0, powers[i])) {
            fail_msg("step %d: scale 2^%g, wanted 2^%d", i, log2(s.scale), powers[i]);
        }
    }
}

/* The published puzzle: hysteresis is used up by the first overflow and refilled by growth only;
 * growth comes on the 4th good step after an overflow for window 3. */
static void deepspeed_hysteresis(void **state)
{
    const char *events = "OOO....O...O....";
    const int plain[] = {4, 3, 2, 2, 2, 2, 3, 3, 3, 3, 3, 2, 2, 2, 2, 3};
    const int consecutive[] = {4, 3, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4};
    trace(make(4, 3, 2, false, GT_SCALER_DEEPSPEED), events, plain);
    trace(make(4, 3, 2, true, GT_SCALER_DEEPSPEED), events, consecutive);
}

static void three_rules_on_one_pattern(void **state)
{
    const char *events = "O.O.O.....";
    const int megatron[] = {16, 16, 15, 15, 14, 14, 14, 14, 15, 15};
    const int deepspeed[] = {16, 16, 15, 15, 14, 14, 14, 14, 14, 15};
    const int torch[] = {15, 15, 14, 14, 13, 13, 13, 13, 14, 14};
    const int never[] = {16, 16, 16, 16, 16, 16, 16, 16, 16, 17};
    trace(make(16, 4, 2, false, GT_SCALER_MEGATRON), events, megatron);
    trace(make(16, 4, 2, false, GT_SCALER_DEEPSPEED), events, deepspeed);
    trace(make(16, 4, 2, false, GT_SCALER_TORCH), events, torch);
    trace(make(16, 4, 2, true, GT_SCALER_DEEPSPEED), events, never);
}

static void growth_without_overflow(void **state)
{
    const char *events = "............";
    const int deepspeed[] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}; /* steps 4, 8 */
    const int megatron[] = {0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3};  /* steps 3, 7, 11 */
    trace(make(0, 4, 2, false, GT_SCALER_DEEPSPEED), events, deepspeed);
    trace(make(0, 4, 2, false, GT_SCALER_MEGATRON), events, megatron);
    trace(make(0, 4, 1, false, GT_SCALER_TORCH), events, megatron);
}

static void hysteresis_1_shrinks_at_once(void **state)
{
    const int powers[] = {2, 1, 0, 0};
    for (int rule = 0; rule < 3; rule++) {
        trace(make(3, 100, 1, false, (gt_scaler_rule)rule), "OOO.", powers);
    }
}

static void events_say_what_happened(void **state)
{
    gt_loss_scaler s = make(1, 2, 2, false, GT_SCALER_DEEPSPEED);
    assert_int_equal(gt_loss_scaler_update(&s, false), GT_SCALER_KEPT);
    assert_int_equal(gt_loss_scaler_update(&s, true), GT_SCALER_HELD);
    assert_int_equal(gt_loss_scaler_update(&s, true), GT_SCALER_SHRANK);
    assert_int_equal(gt_loss_scaler_update(&s, true), GT_SCALER_AT_FLOOR);
    assert_true(s.scale == 1.0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(gt_loss_scaler_update(&s, false), GT_SCALER_KEPT);
    }
    assert_int_equal(gt_loss_scaler_update(&s, false), GT_SCALER_GREW);
    assert_string_equal(gt_scaler_event_name(GT_SCALER_AT_FLOOR), "at floor");
    assert_string_equal(gt_scaler_event_name((gt_scaler_event)77), "unknown");
}

/* However long training runs clean, the scale stays a finite float. */
static void growth_stops_at_the_largest_float(void **state)
{
    for (int rule = 0; rule < 3; rule++) {
        gt_loss_scaler s = make(120, 1, 2, false, (gt_scaler_rule)rule);
        gt_scaler_event last = GT_SCALER_KEPT;
        for (int i = 0; i < 50; i++) {
            last = gt_loss_scaler_update(&s, false);
            assert_true(isfinite((float)s.scale));
        }
        assert_int_equal(last, GT_SCALER_AT_CAP);
        assert_true(s.scale == 0x1p127);
    }
}

/* Without a floor the scale still never reaches 0, whose reciprocal would be infinite. */
static void scale_never_vanishes(void **state)
{
    gt_loss_scaler s = make(2, 10, 1, false, GT_SCALER_TORCH);
    s.min_scale = 0;
    for (int i = 0; i < 3000; i++) {
        gt_loss_scaler_update(&s, true);
        assert_true((float)s.scale > 0 && isfinite(1.0f / (float)s.scale));
    }
}

static void floor_that_is_no_power_of_two(void **state)
{
    gt_loss_scaler s = make(2, 10, 1, false, GT_SCALER_DEEPSPEED);
    s.min_scale = 1.5;
    assert_int_equal(gt_loss_scaler_update(&s, true), GT_SCALER_SHRANK);
    assert_int_equal(gt_loss_scaler_update(&s, true), GT_SCALER_SHRANK);
    assert_true(s.scale == 1.5);
    assert_int_equal(gt_loss_scaler_update(&s, true), GT_SCALER_AT_FLOOR);
}

static void initial_scale(void **state)
{
    assert_true(make(16, 1000, 2, false, GT_SCALER_DEEPSPEED).scale == 65536.0);
    assert_true(make(32, 1000, 2, false, GT_SCALER_DEEPSPEED).scale == 4294967296.0);
    assert_true(make(0, 1000, 2, false, GT_SCALER_DEEPSPEED).scale == 1.0);
}

static void static_scale_stays(void **state)
{
    gt_scaler_config config = {.enabled = true, .static_scale = 128};
    gt_loss_scaler s;
    assert_int_equal(gt_loss_scaler_init(&s, &config), GT_OK);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(gt_loss_scaler_update(&s, i % 2 == 0), GT_SCALER_KEPT);
    }
    assert_true(s.scale == 128 && s.iteration == 10);
    config.enabled = false;
    assert_int_equal(gt_loss_scaler_init(&s, &config), GT_OK);
    assert_true(s.scale == 1);
}

/* A copy taken at any step goes on as the original does. */
static void state_is_copyable(void **state)
{
    const char *events = "O..O.OO......O...";
    for (int rule = 0; rule < 3; rule++) {
        for (size_t cut = 0; cut < strlen(events); cut++) {
            gt_loss_scaler a = make(8, 2, 2, rule == 0, (gt_scaler_rule)rule), b;
            for (size_t i = 0; i < strlen(events); i++) {
                if (i == cut) {
                    memcpy(&b, &a, sizeof(a));
                }
                gt_scaler_event event = gt_loss_scaler_update(&a, events[i] == 'O');
                if (i >= cut) {
                    assert_int_equal(gt_loss_scaler_update(&b, events[i] == 'O'), event);
                }
            }
            assert_memory_equal(&a, &b, sizeof(a));
        }
    }
}

/* Five steps, overflow in the second and third: the rate and Adam's count follow the updates that
 * were applied, not the batches that were seen. */
static void skipped_steps_do_not_move_the_schedule(void **state)
{
    gt_scheduler_config schedule = {.type = GT_LR_WARMUP, .max_lr = 0.01, .warmup_steps = 10};
    gt_loss_scaler s = make(16, 1000, 2, false, GT_SCALER_DEEPSPEED);
    const char *events = ".OO..";
    const double want[] = {0, 0.001, 0.002};
    int64_t applied = 0;
    for (int i = 0; i < 5; i++) {
        bool overflow = events[i] == 'O';
        if (!overflow) {
            double rate = -1;
            assert_int_equal(gt_lr_at(&rate, &schedule, 0, applied), GT_OK);
            assert_true(fabs(rate - want[applied]) <= 1e-15);
            applied++;
        }
        gt_loss_scaler_update(&s, overflow);
    }
    assert_int_equal(applied, 3);
    assert_int_equal(s.iteration, 5);
}

static void refused(gt_scaler_config config, const char *word)
{
    gt_loss_scaler s, before;
    memset(&s, 0x5a, sizeof(s));
    before = s;
    assert_int_equal(gt_loss_scaler_init(&s, &config), GT_ERR_CONFIG);
    assert_non_null(strstr(gt_last_error(), word));
    assert_memory_equal(&s, &before, sizeof(s));
}

static void init_refuses_nonsense(void **state)
{
    gt_scaler_config good = {
        .enabled = true, .initial_power = 16, .window = 1000, .hysteresis = 2, .min_scale = 1};
    gt_scaler_config c = good;
    c.initial_power = 128;
    refused(c, "initial_scale_power");
    c = good;
    c.window = 0;
    refused(c, "loss_scale_window");
    c = good;
    c.hysteresis = 0;
    refused(c, "hysteresis");
    c = good;
    c.min_scale = 1e6;
    refused(c, "min_loss_scale");
    c.min_scale = NAN;
    refused(c, "min_loss_scale");
    c = good;
    c.static_scale = -2;
    refused(c, "loss_scale");
    c.static_scale = NAN;
    refused(c, "loss_scale");
    c.static_scale = 1e39;
    refused(c, "loss_scale");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deepspeed_hysteresis),
        cmocka_unit_test(three_rules_on_one_pattern),
        cmocka_unit_test(growth_without_overflow),
        cmocka_unit_test(hysteresis_1_shrinks_at_once),
        cmocka_unit_test(events_say_what_happened),
        cmocka_unit_test(growth_stops_at_the_largest_float),
        cmocka_unit_test(scale_never_vanishes),
        cmocka_unit_test(floor_that_is_no_power_of_two),
        cmocka_unit_test(initial_scale),
        cmocka_unit_test(static_scale_stays),
        cmocka_unit_test(state_is_copyable),
        cmocka_unit_test(skipped_steps_do_not_move_the_schedule),
        cmocka_unit_test(init_refuses_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
