/* SPDX-License-Identifier: Apache-2.0
 * Squared norm and the search for non-finite values. */
#include "ops_test.h"

#include <math.h>

#include <geektrain/ops.h>

static const int64_t sizes[] = {0, 1, 7, 31, 32, 33, 511, 512, 513, 8191, 8193, 70001};
#define SIZES (sizeof sizes / sizeof sizes[0])
static const gt_dtype floats[] = {GT_F32, GT_BF16, GT_F16};

static double sum_sq(th *h, const gt_tensor *x, double before, double factor)
{
    gt_tensor acc = th_new(h, GT_F64, TH_SHAPE(1));
    th_fill(h, &acc, before);
    TH_OK(gt_sum_sq(h->ctx, &acc, x, factor, NULL));
    return th_get(h, &acc)[0];
}

static void sum_sq_matches_oracle(void **state)
{
    TH_ON_DEVICES(h)
    {
        for (size_t s = 0; s < SIZES; s++) {
            for (int d = 0; d < 3; d++) {
                h.shift = (s + (size_t)d) % 3;
                gt_tensor x = th_new(&h, floats[d], TH_SHAPE(sizes[s]));
                th_random(&h, &x, s, 3.0);
                const double *value = th_get(&h, &x);
                long double want = 0;
                for (int64_t i = 0; i < sizes[s]; i++) {
                    want += (long double)value[i] * (long double)value[i];
                }
                double wanted = (double)(0.25L * want) + 5.0;
                double got = sum_sq(&h, &x, 5.0, 0.25);
                TH_TRUE(fabs(got - wanted) <= 1e-13 * wanted);
            }
        }
    }
}

/* The documented order, spelled out: the same bits on every instruction set. */
static double in_documented_order(const double *x, int64_t n)
{
    enum { LANES = 32, CHUNK = 512, BLOCKS = 512 };
    int64_t chunks = (n + CHUNK - 1) / CHUNK, per_block = (chunks + BLOCKS - 1) / BLOCKS;
    int64_t block = (per_block < 16 ? 16 : per_block) * CHUNK;
    double total = 0;
    for (int64_t first = 0; first < n; first += block) {
        double lanes[LANES] = {0}, sum = 0;
        for (int64_t i = first; i < n && i < first + block; i++) {
            lanes[(i - first) % LANES] += x[i] * x[i];
        }
        for (int k = 0; k < LANES; k++) {
            sum += lanes[k];
        }
        total += sum;
    }
    return total;
}

static void sum_sq_order_is_fixed(void **state)
{
    for (int threads = 1; threads <= 4; threads++) {
        gt_context_params params = GT_CONTEXT_PARAMS_INIT;
        params.threads = threads;
        gt_context *ctx;
        TH_OK(gt_context_create(&ctx, &params));
        for (size_t s = 0; s < SIZES; s++) {
            int64_t n = sizes[s];
            float *x = malloc(((size_t)n + 1) * sizeof(*x));
            double *d = malloc(((size_t)n + 1) * sizeof(*d)), acc = 0;
            for (int64_t i = 0; i < n; i++) {
                x[i] = sinf((float)i) * 1.0001f;
                d[i] = (double)x[i];
            }
            gt_tensor t = gt_tensor_1d(x, GT_F32, n), a = gt_tensor_1d(&acc, GT_F64, 1);
            TH_OK(gt_sum_sq(ctx, &a, &t, 1.0, NULL));
            TH_TRUE(acc == in_documented_order(d, n));
            free(x);
            free(d);
        }
        gt_context_destroy(&ctx);
    }
}

/* 5000 squared is beyond f16: the norm of four is 10000 all the same, and clipped to 1 each becomes
 * 0.5. A million values of 2^-12, whose squares f16 cannot hold either, have norm 0.244140625. */
static void sum_sq_of_f16_is_exact(void **state)
{
    TH_ON_DEVICES(h)
    {
        gt_tensor x = th_new(&h, GT_F16, TH_SHAPE(4)), y = th_new(&h, GT_F32, TH_SHAPE(4));
        TH_OK(gt_fill(h.ctx, &x, 5000.0, NULL));
        double norm = sqrt(sum_sq(&h, &x, 0, 1));
        TH_TRUE(norm == 10000.0);
        TH_OK(gt_axpby(h.ctx, &y, &x, (float)(1.0 / (norm + 1e-6)), 0.0f, NULL));
        TH_TRUE(fabs(th_get(&h, &y)[3] - 0.5) < 1e-6);
        gt_tensor small = th_new(&h, GT_F16, TH_SHAPE(1000000));
        TH_OK(gt_fill(h.ctx, &small, 0x1p-12, NULL));
        TH_TRUE(sqrt(sum_sq(&h, &small, 0, 1)) == 0.244140625);
        gt_tensor huge = th_new(&h, GT_F32, TH_SHAPE(100));
        TH_OK(gt_fill(h.ctx, &huge, 3e38, NULL)); /* large is not non-finite */
        TH_TRUE(isfinite(sum_sq(&h, &huge, 0, 1)));
    }
}

static void nonfinite_is_found_wherever_it_is(void **state)
{
    const double bad[] = {NAN, INFINITY, -INFINITY};
    TH_ON_DEVICES(h)
    {
        gt_tensor index = th_new(&h, GT_I64, TH_SHAPE(1));
        for (int d = 0; d < 3; d++) {
            const int64_t n = 1543, at[] = {0, 1, 31, 511, 512, 1025, 1542};
            gt_tensor x = th_new(&h, floats[d], TH_SHAPE(n));
            double *value = th_host(&h, n);
            for (int64_t i = 0; i < n; i++) {
                value[i] = d == 2 ? 65504.0 : 3e38; /* the largest finite values */
            }
            th_set(&h, &x, value);
            TH_OK(gt_find_nonfinite(h.ctx, &index, &x, NULL));
            TH_TRUE(th_get(&h, &index)[0] == -1);
            for (int k = 0; k < 7; k++) {
                double keep = value[at[k]], last = value[n - 1];
                value[n - 1] = INFINITY; /* the first one counts */
                value[at[k]] = bad[k % 3];
                th_set(&h, &x, value);
                value[at[k]] = keep;
                value[n - 1] = last;
                TH_OK(gt_find_nonfinite(h.ctx, &index, &x, NULL));
                TH_TRUE(th_get(&h, &index)[0] == (double)at[k]);
                TH_TRUE(!isfinite(sum_sq(&h, &x, 0, 1)));
                TH_TRUE(!isfinite(sum_sq(&h, &x, 0, 0))); /* also in a replica that weighs 0 */
            }
        }
        gt_tensor empty = th_new(&h, GT_F32, TH_SHAPE(0));
        TH_OK(gt_find_nonfinite(h.ctx, &index, &empty, NULL));
        TH_TRUE(th_get(&h, &index)[0] == -1);
    }
}

static void reductions_refuse_bad_arguments(void **state)
{
    TH_ON_DEVICES(h)
    {
        gt_tensor x = th_new(&h, GT_F32, TH_SHAPE(8)), i = th_new(&h, GT_I32, TH_SHAPE(8));
        gt_tensor acc = th_new(&h, GT_F64, TH_SHAPE(2));
        TH_FAILS(gt_sum_sq(h.ctx, &acc, &x, 1, NULL), GT_ERR_SHAPE, "acc has 2");
        TH_FAILS(gt_sum_sq(h.ctx, &x, &x, 1, NULL), GT_ERR_DTYPE, "acc is f32");
        TH_FAILS(gt_find_nonfinite(h.ctx, &acc, &x, NULL), GT_ERR_DTYPE, "index is f64");
        gt_tensor one = th_new(&h, GT_F64, TH_SHAPE(1));
        TH_FAILS(gt_sum_sq(h.ctx, &one, &i, 1, NULL), GT_ERR_DTYPE, "x is i32");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sum_sq_matches_oracle),
        cmocka_unit_test(sum_sq_order_is_fixed),
        cmocka_unit_test(sum_sq_of_f16_is_exact),
        cmocka_unit_test(nonfinite_is_found_wherever_it_is),
        cmocka_unit_test(reductions_refuse_bad_arguments),
    };
    return OPS_RUN(tests);
}
