/* SPDX-License-Identifier: Apache-2.0
 * oneDNN's bf16 products equal those of our own panels, whether or not they are preferred here. */
#include <math.h>

#include <geektrain/ops.h>

#include "backend/cpu/onednn.h"
#include "harness.h"

struct shape {
    int64_t m, n, k;
    bool trans_a, trans_b, wide, accumulate, bias;
};

static void compare(th *h, const struct shape *s)
{
    gt_tensor a = s->trans_a ? th_new(h, GT_BF16, TH_SHAPE(s->k, s->m))
                             : th_new(h, GT_BF16, TH_SHAPE(s->m, s->k));
    gt_tensor b = s->trans_b ? th_new(h, GT_BF16, TH_SHAPE(s->n, s->k))
                             : th_new(h, GT_BF16, TH_SHAPE(s->k, s->n));
    gt_tensor c = th_new(h, s->wide ? GT_F32 : GT_BF16, TH_SHAPE(s->m, s->n));
    gt_tensor want = th_new(h, s->wide ? GT_F32 : GT_BF16, TH_SHAPE(s->m, s->n));
    gt_tensor bias = th_new(h, GT_BF16, TH_SHAPE(s->n));
    th_random(h, &a, 1, 1.0);
    th_random(h, &b, 2, 1.0);
    th_random(h, &bias, 3, 1.0);
    th_random(h, &c, 4, 1.0);
    th_random(h, &want, 4, 1.0);
    gt_gemm_params p = GT_GEMM_PARAMS_INIT;
    p.trans_a = s->trans_a;
    p.trans_b = s->trans_b;
    p.accumulate = s->accumulate;
    p.bias = s->bias ? &bias : NULL;
    TH_OK(gt_gemm(h->ctx, &want, &a, &b, &p, NULL));
    const struct gti_gemm_args args = {.c = c,
                                       .a = a,
                                       .b = b,
                                       .bias = s->bias ? bias : (gt_tensor){0},
                                       .m = s->m,
                                       .n = s->n,
                                       .k = s->k,
                                       .lda = s->trans_a ? s->m : s->k,
                                       .ldb = s->trans_b ? s->k : s->n,
                                       .ldc = s->n,
                                       .trans_a = s->trans_a,
                                       .trans_b = s->trans_b,
                                       .beta = s->accumulate ? 1.0f : 0.0f};
    TH_OK(gti_onednn_gemm(&args));
    th_compare(h, "c", &c, th_get(h, &want), sqrt((double)s->k));
}

static void products(void **state)
{
    if (!gti_onednn_usable()) {
        skip();
    }
    static const struct shape shapes[] = {
        {64, 96, 48, false, true, false, false, true},
        {64, 96, 48, false, false, false, false, false},
        {33, 17, 65, true, false, true, true, false},
        {128, 1, 40, false, true, true, false, true},
        {1, 130, 7, true, true, false, false, true},
        {200, 61, 300, true, false, true, true, false},
        {64, 96, 48, false, true, false, false, true},
    };
    TH_ON_DEVICES(h)
    {
        for (size_t i = 0; h.device_number == 0 && i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            compare(&h, &shapes[i]);
        }
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(products)};
    return cmocka_run_group_tests_name("onednn", tests, NULL, NULL);
}
