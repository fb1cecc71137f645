/* SPDX-License-Identifier: Apache-2.0
 * Rotary embedding against the double oracle; the inverse undoes it. */
#include "ops_test.h"

#include <math.h>

#include <geektrain/ops.h>

#include "backend/cpu/reference/ref_attention.h"

static void check(th *h, gt_dtype dtype, int64_t n, int64_t heads, int64_t half, int64_t extra)
{
    const int64_t ld = heads * 2 * half + extra, seq = 100000;
    gt_tensor x = th_new(h, dtype, TH_SHAPE(n, ld)), rows = th_new(h, GT_I64, TH_SHAPE(n));
    gt_tensor freq = th_new(h, GT_F32, TH_SHAPE(half));
    double *r = th_host(h, n), *f = th_host(h, half), *want = th_host(h, n * ld);
    for (int64_t i = 0; i < n; i++) {
        r[i] = (double)(i * 30011 + 99990);
    }
    for (int64_t i = 0; i < half; i++) {
        f[i] = pow(10000.0, -(double)i / (double)half);
    }
    th_random(h, &x, 1, 1.0);
    th_set(h, &rows, r);
    th_set(h, &freq, f);
    const double *before = th_get(h, &x);
    memcpy(want, before, sizeof(double) * (size_t)(n * ld));
    gti_ref_rope(want, r, th_get(h, &freq), n, ld, heads, 2 * half, seq, 1.5, false);
    TH_OK(gt_rope(h->ctx, &x, &rows, &freq, ld, heads, seq, 1.5f, false, NULL));
    th_compare(h, "x", &x, want, 2.0);
    TH_OK(gt_rope(h->ctx, &x, &rows, &freq, ld, heads, seq, 1.0f / 1.5f, true, NULL));
    th_compare(h, "x turned back", &x, before, 4.0);
}

static void rope_matches_oracle(void **state)
{
    static const gt_dtype dtypes[] = {GT_F32, GT_BF16, GT_F16};
    for (int d = 0; d < 3; d++) {
        TH_ON_DEVICES(h)
        {
            h.shift = (size_t)d;
            check(&h, dtypes[d], 1, 1, 1, 0);
            check(&h, dtypes[d], 7, 3, 4, 5);
            check(&h, dtypes[d], 33, 2, 17, 0);
            check(&h, dtypes[d], 100, 4, 32, 128);
            check(&h, dtypes[d], 2, 1, 600, 1);
            check(&h, dtypes[d], 0, 2, 4, 0);
        }
    }
}

static void rope_refuses_bad_arguments(void **state)
{
    th h = {0};
    th_open(&h, "cpu");
    gt_tensor x = th_new(&h, GT_F32, TH_SHAPE(2, 8)), rows = th_new(&h, GT_I64, TH_SHAPE(3));
    gt_tensor freq = th_new(&h, GT_F32, TH_SHAPE(4));
    TH_FAILS(gt_rope(h.ctx, &x, &rows, &freq, 8, 1, 16, 1.0f, false, NULL), GT_ERR_SHAPE,
             "x has 16 elements, wanted 24 or more");
    TH_FAILS(gt_rope(h.ctx, &x, &rows, &freq, 8, 2, 16, 1.0f, false, NULL), GT_ERR_SHAPE, "ld=8");
    TH_FAILS(gt_rope(h.ctx, &x, &rows, &freq, 8, 1, 0, 1.0f, false, NULL), GT_ERR_SHAPE, "seq=0");
    th_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_matches_oracle),
        cmocka_unit_test(rope_refuses_bad_arguments),
    };
    return OPS_RUN(tests);
}
