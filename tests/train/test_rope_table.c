/* SPDX-License-Identifier: Apache-2.0
 * Rotary frequencies against values of the published formulas, computed apart in double (Python).
 */
#include <stdio.h>

#include "harness.h"
#include "nn/gpt.h"

enum { D = 128, PICKS = 12 };
static const int picked[PICKS] = {0, 1, 10, 20, 21, 25, 30, 33, 34, 40, 45, 63};

static void check(const gt_model_config *c, const double want[PICKS])
{
    float freq[D / 2];
    double got[PICKS];
    gti_rope_frequencies(c, D, freq);
    for (int i = 0; i < PICKS; i++) {
        got[i] = (double)freq[picked[i]];
    }
    th_compare_values(c->rope_scaling, got, want, PICKS, (th_tolerance){.relative = 3e-7});
}

static gt_model_config config(const char *scaling, float base, float factor, int64_t original)
{
    gt_model_config c = {.rope_base = base, .rope_factor = factor, .rope_original_seq = original};
    snprintf(c.rope_scaling, sizeof(c.rope_scaling), "%s", scaling);
    return c;
}

static void scaled_frequencies_match_the_formulas(void **state)
{
    (void)state;
    gt_model_config llama3 = config("llama3", 500000.0f, 8.0f, 8192);
    check(&llama3, (double[]){1, 0.814617234, 0.128687373, 0.0165604401, 0.0134904199,
                              0.00594073038, 0.00137189357, 0.00031269375, 0.000178507813,
                              3.4281022e-05, 1.22976387e-05, 3.06892599e-07});
    gt_model_config yarn = config("yarn", 10000.0f, 4.0f, 4096);
    check(&yarn, (double[]){1, 0.865964323, 0.237137371, 0.0562341325, 0.0472920385, 0.0234345526,
                            0.00948851788, 0.00541227702, 0.00447052317, 0.0013378867,
                            0.000429402589, 2.88695496e-05});
    double scale = (double)gti_rope_scale(&yarn), want = 1.138629436;
    th_compare_values("yarn scale", &scale, &want, 1, (th_tolerance){.relative = 1e-7});
}

static void plain_and_linear_frequencies_are_powers(void **state)
{
    (void)state;
    gt_model_config c = config("none", 10000.0f, 0.0f, 0);
    float freq[D / 2], scaled[D / 2];
    gti_rope_frequencies(&c, D, freq);
    assert_true(freq[0] == 1.0f);
    double got = (double)freq[32], want = 0.01;
    th_compare_values("none", &got, &want, 1, (th_tolerance){.relative = 1e-7});
    gt_model_config linear = config("linear", 10000.0f, 4.0f, 0);
    gti_rope_frequencies(&linear, D, scaled);
    for (int i = 0; i < D / 2; i++) {
        assert_true(scaled[i] == freq[i] / 4.0f);
    }
    assert_true(gti_rope_scale(&linear) == 1.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scaled_frequencies_match_the_formulas),
        cmocka_unit_test(plain_and_linear_frequencies_are_powers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
