/* SPDX-License-Identifier: Apache-2.0
 * fill, copy, cast, axpby and the elementwise reduction of collectives. */
#include "ops_test.h"

#include <math.h>

#include <geektrain/ops.h>

#include "ops/reduce.h"

static const int64_t sizes[] = {0, 1, 7, 15, 16, 17, 511, 512, 513, 40009};
#define SIZES (sizeof sizes / sizeof sizes[0])
static const gt_dtype floats[] = {GT_F32, GT_BF16, GT_F16};

static void fill_every_dtype(void **state)
{
    static const gt_dtype dtypes[] = {GT_F32, GT_F16, GT_BF16, GT_I32, GT_I64, GT_U8, GT_F64};
    static const double values[] = {0, 1, 200, 3};
    TH_ON_DEVICES(h)
    {
        for (size_t s = 0; s < SIZES; s++) {
            h.shift = s % 3;
            for (int d = 0; d < 7; d++) {
                gt_tensor y = th_new(&h, dtypes[d], TH_SHAPE(sizes[s]));
                for (int k = 0; k < 4; k++) {
                    TH_OK(gt_fill(h.ctx, &y, values[k], NULL));
                    const double *got = th_get(&h, &y);
                    for (int64_t i = 0; i < sizes[s]; i++) {
                        TH_TRUE(got[i] == values[k]);
                    }
                }
            }
        }
        gt_tensor i64 = th_new(&h, GT_I64, TH_SHAPE(3)), f = th_new(&h, GT_F32, TH_SHAPE(3));
        TH_OK(gt_fill(h.ctx, &i64, -1, NULL));
        TH_TRUE(th_get(&h, &i64)[2] == -1);
        TH_OK(gt_fill(h.ctx, &f, NAN, NULL));
        TH_TRUE(isnan(th_get(&h, &f)[2]));
        TH_OK(gt_fill(h.ctx, &f, -0.0, NULL));
        TH_TRUE(signbit(th_get(&h, &f)[1]));
    }
}

static void fill_refuses_what_does_not_fit(void **state)
{
    TH_ON_DEVICES(h)
    {
        gt_tensor u8 = th_new(&h, GT_U8, TH_SHAPE(3)), i32 = th_new(&h, GT_I32, TH_SHAPE(3));
        TH_FAILS(gt_fill(h.ctx, &u8, 256, NULL), GT_ERR_ARGUMENT, "256");
        TH_FAILS(gt_fill(h.ctx, &u8, -1, NULL), GT_ERR_ARGUMENT, "-1");
        TH_FAILS(gt_fill(h.ctx, &i32, 1.5, NULL), GT_ERR_ARGUMENT, "1.5");
        TH_FAILS(gt_fill(h.ctx, &i32, NAN, NULL), GT_ERR_ARGUMENT, "nan");
        TH_FAILS(gt_fill(h.ctx, NULL, 0, NULL), GT_ERR_ARGUMENT, "y");
    }
}

static void copy_every_dtype(void **state)
{
    static const gt_dtype dtypes[] = {GT_F32, GT_F16, GT_BF16, GT_I32, GT_I64, GT_U8, GT_F64};
    TH_ON_DEVICES(h)
    {
        for (size_t s = 0; s < SIZES; s++) {
            h.shift = s % 3;
            gt_dtype dtype = dtypes[s % 7];
            gt_tensor x = th_new(&h, dtype, TH_SHAPE(sizes[s]));
            gt_tensor y = th_new(&h, dtype, TH_SHAPE(sizes[s]));
            th_random(&h, &x, s, 100.0);
            TH_OK(gt_copy(h.ctx, &y, &x, NULL));
            th_compare(&h, "y", &y, th_get(&h, &x), 0);
            TH_OK(gt_copy(h.ctx, &y, &y, NULL)); /* onto itself: nothing */
            th_compare(&h, "y", &y, th_get(&h, &x), 0);
        }
        gt_tensor x = th_new(&h, GT_F32, TH_SHAPE(8)), a, b;
        TH_OK(gt_tensor_slice(&a, &x, 0, 5));
        TH_OK(gt_tensor_slice(&b, &x, 3, 5));
        TH_FAILS(gt_copy(h.ctx, &a, &b, NULL), GT_ERR_ARGUMENT, "overlap");
        gt_tensor y = th_new(&h, GT_F32, TH_SHAPE(7)), f16 = th_new(&h, GT_F16, TH_SHAPE(8));
        TH_FAILS(gt_copy(h.ctx, &y, &x, NULL), GT_ERR_SHAPE, "x has 8");
        TH_FAILS(gt_copy(h.ctx, &f16, &x, NULL), GT_ERR_DTYPE, "x is f32");
    }
}

/* All pairs of float dtypes: exactly the value rounded to y's dtype, as th_set() rounds. */
static void cast_every_pair(void **state)
{
    TH_ON_DEVICES(h)
    {
        for (size_t s = 0; s < SIZES; s++) {
            h.shift = s % 3;
            for (int from = 0; from < 3; from++) {
                for (int to = 0; to < 3; to++) {
                    gt_tensor x = th_new(&h, floats[from], TH_SHAPE(sizes[s]));
                    gt_tensor y = th_new(&h, floats[to], TH_SHAPE(sizes[s]));
                    gt_tensor want = th_new(&h, floats[to], TH_SHAPE(sizes[s]));
                    th_random(&h, &x, s, 300.0);
                    th_set(&h, &want, th_get(&h, &x));
                    TH_OK(gt_cast(h.ctx, &y, &x, NULL));
                    th_compare(&h, "y", &y, th_get(&h, &want), 0);
                }
            }
        }
    }
}

static void cast_special_values(void **state)
{
    const double values[] = {0.0,   -0.0, INFINITY, -INFINITY, NAN,       65504,    65519,
                             65520, 1e38, 0x1p-24,  0x1p-25,   0x1.8p-25, 0x1p-149, 1.00390625};
    const double f16[] = {0.0,      -0.0,     INFINITY, -INFINITY, NAN,     65504, 65504,
                          INFINITY, INFINITY, 0x1p-24,  0,         0x1p-24, 0,     1.00390625};
    TH_ON_DEVICES(h)
    {
        gt_tensor x = th_new(&h, GT_F32, TH_SHAPE(14)), y = th_new(&h, GT_F16, TH_SHAPE(14));
        gt_tensor b = th_new(&h, GT_BF16, TH_SHAPE(14));
        th_set(&h, &x, values);
        TH_OK(gt_cast(h.ctx, &y, &x, NULL));
        th_compare(&h, "f16", &y, f16, 0);
        TH_TRUE(signbit(th_get(&h, &y)[1]));
        TH_OK(gt_cast(h.ctx, &b, &x, NULL));
        const double *got = th_get(&h, &b);
        TH_TRUE(isnan(got[4]) && isinf(got[2]) && got[13] == 1.0); /* tie to even */
    }
}

static void cast_f64_and_in_place(void **state)
{
    TH_ON_DEVICES(h)
    {
        gt_tensor d = th_new(&h, GT_F64, TH_SHAPE(1001)), f = th_new(&h, GT_F32, TH_SHAPE(1001));
        gt_tensor half = th_new(&h, GT_F16, TH_SHAPE(1001)), back;
        th_random(&h, &f, 1, 1.0);
        TH_OK(gt_cast(h.ctx, &d, &f, NULL));
        th_compare(&h, "d", &d, th_get(&h, &f), 0);
        th_poison(&h, &f);
        TH_OK(gt_cast(h.ctx, &f, &d, NULL));
        th_compare(&h, "f", &f, th_get(&h, &d), 0);
        TH_FAILS(gt_cast(h.ctx, &half, &d, NULL), GT_ERR_DTYPE, "x is f64");
        /* f16 to bf16 in the same memory */
        TH_OK(gt_cast(h.ctx, &half, &f, NULL));
        gt_tensor want = th_new(&h, GT_BF16, TH_SHAPE(1001));
        th_set(&h, &want, th_get(&h, &half));
        back = half;
        back.dtype = GT_BF16;
        TH_OK(gt_cast(h.ctx, &back, &half, NULL));
        th_compare(&h, "in place", &back, th_get(&h, &want), 0);
        /* f32 to f16 in the same memory would overtake itself */
        back = f;
        back.dtype = GT_F16;
        TH_FAILS(gt_cast(h.ctx, &back, &f, NULL), GT_ERR_ARGUMENT, "overlap");
    }
}

static void axpby_every_pair(void **state)
{
    static const float factors[][2] = {{2, 0}, {0.5f, 1}, {-1.25f, 0.75f}, {0, 2}};
    TH_ON_DEVICES(h)
    {
        for (size_t s = 0; s < SIZES; s++) {
            h.shift = s % 3;
            int64_t n = sizes[s];
            for (int k = 0; k < 9; k++) {
                gt_tensor x = th_new(&h, floats[k / 3], TH_SHAPE(n));
                gt_tensor y = th_new(&h, floats[k % 3], TH_SHAPE(n));
                const float *f = factors[(s + (size_t)k) % 4];
                th_random(&h, &x, 1, 1.0);
                double *want = th_host(&h, n);
                if (f[1] != 0.0f) { /* beta 0 must not read the NaN that y holds */
                    th_random(&h, &y, 2, 1.0);
                    memcpy(want, th_get(&h, &y), sizeof(double) * (size_t)n);
                }
                const double *in = th_get(&h, &x);
                for (int64_t i = 0; i < n; i++) {
                    double before = f[1] != 0.0f ? (double)f[1] * want[i] : 0.0;
                    want[i] = (double)f[0] * in[i] + before;
                }
                TH_OK(gt_axpby(h.ctx, &y, &x, f[0], f[1], NULL));
                th_compare(&h, "y", &y, want, 1.0);
            }
        }
        gt_tensor x = th_new(&h, GT_F32, TH_SHAPE(100));
        th_fill(&h, &x, 3.0);
        TH_OK(gt_axpby(h.ctx, &x, &x, 2.0f, 0.5f, NULL)); /* onto itself */
        TH_TRUE(th_get(&h, &x)[99] == 7.5);
        gt_tensor i32 = th_new(&h, GT_I32, TH_SHAPE(100));
        TH_FAILS(gt_axpby(h.ctx, &i32, &x, 1, 1, NULL), GT_ERR_DTYPE, "y is i32");
    }
}

static double combined(gti_reduce_kind kind, double a, double b)
{
    return kind == GTI_REDUCE_SUM ? a + b : kind == GTI_REDUCE_MAX ? fmax(a, b) : fmin(a, b);
}

static void reduce_every_dtype(void **state)
{
    static const gt_dtype dtypes[] = {GT_F32, GT_F16, GT_BF16, GT_I32, GT_I64, GT_U8, GT_F64};
    TH_ON_DEVICES(h)
    {
        for (size_t s = 0; s < SIZES; s++) {
            int64_t n = sizes[s];
            for (int d = 0; d < 7 * 2; d++) {
                gt_dtype b_dtype = dtypes[d % 7];
                gt_dtype out_dtype = d >= 7 && gt_dtype_size(b_dtype) == 2 ? GT_F32 : b_dtype;
                gti_reduce_kind kind = (gti_reduce_kind)((s + (size_t)d) % 3);
                gt_tensor a = th_new(&h, out_dtype, TH_SHAPE(n)),
                          b = th_new(&h, b_dtype, TH_SHAPE(n));
                gt_tensor out = th_new(&h, out_dtype, TH_SHAPE(n));
                th_random(&h, &a, 1, 100.0);
                th_random(&h, &b, 2, 100.0);
                const double *x = th_get(&h, &a), *y = th_get(&h, &b);
                double *want = th_host(&h, n);
                for (int64_t i = 0; i < n; i++) {
                    want[i] = combined(kind, x[i], y[i]);
                }
                gt_tensor rounded = th_new(&h, out_dtype, TH_SHAPE(n));
                th_set(&h, &rounded, want);
                TH_OK(gti_reduce(h.ctx, &out, &a, &b, kind, NULL));
                th_compare(&h, "out", &out, th_get(&h, &rounded), 0);
                TH_OK(gti_reduce(h.ctx, &a, &a, &b, kind, NULL)); /* in place */
                th_compare(&h, "a", &a, th_get(&h, &rounded), 0);
            }
        }
    }
}

/* Eight parts of 10000 pass f16's largest value on the way, eight of 2^-24 its smallest: summed in
 * f32 and then averaged, both come out exactly. */
static void reduce_of_8_f16_parts(void **state)
{
    const double values[] = {10000.0, 0x1p-24, -10000.0};
    TH_ON_DEVICES(h)
    {
        gt_tensor part = th_new(&h, GT_F16, TH_SHAPE(3)), sum = th_new(&h, GT_F32, TH_SHAPE(3));
        gt_tensor mean = th_new(&h, GT_F16, TH_SHAPE(3));
        th_set(&h, &part, values);
        th_fill(&h, &sum, 0);
        for (int rank = 0; rank < 8; rank++) {
            TH_OK(gti_reduce(h.ctx, &sum, &sum, &part, GTI_REDUCE_SUM, NULL));
        }
        TH_OK(gt_axpby(h.ctx, &mean, &sum, 0.125f, 0.0f, NULL));
        th_compare(&h, "mean", &mean, values, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fill_every_dtype),      cmocka_unit_test(fill_refuses_what_does_not_fit),
        cmocka_unit_test(copy_every_dtype),      cmocka_unit_test(cast_every_pair),
        cmocka_unit_test(cast_special_values),   cmocka_unit_test(cast_f64_and_in_place),
        cmocka_unit_test(axpby_every_pair),      cmocka_unit_test(reduce_every_dtype),
        cmocka_unit_test(reduce_of_8_f16_parts),
    };
    return OPS_RUN(tests);
}
