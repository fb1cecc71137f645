/* SPDX-License-Identifier: Apache-2.0
 * Initial values: a shard holds what the whole tensor holds there, whatever the cut. */
#include "ops_test.h"

#include <math.h>

#include <geektrain/ops.h>

#include "core/philox.h"

static const gt_dtype floats[] = {GT_F32, GT_BF16, GT_F16};

static gt_init_params normal(uint64_t seed)
{
    gt_init_params p = GT_INIT_PARAMS_INIT;
    p.kind = GT_INIT_NORMAL;
    p.mean = 0.25f;
    p.std = 0.02f;
    p.seed = seed;
    p.stream_id = 77;
    return p;
}

/* Exactly mean + std * the scalar generator's value, on every instruction set. */
static void init_is_the_scalar_generator(void **state)
{
    TH_ON_DEVICES(h)
    {
        for (int k = 0; k < 2; k++) {
            const int64_t n = 40003;
            gt_tensor y = th_new(&h, GT_F32, TH_SHAPE(n));
            gt_init_params p = normal(5);
            p.kind = k ? GT_INIT_UNIFORM : GT_INIT_NORMAL;
            TH_OK(gt_init(h.ctx, &y, &p, NULL));
            double *want = th_host(&h, n);
            for (int64_t i = 0; i < n; i++) {
                float z = k ? 2.0f * gti_philox_uniform(5, 77, (uint64_t)i) - 1.0f
                            : gti_philox_normal(5, 77, (uint64_t)i);
                want[i] = (double)(float)((double)p.mean + (double)p.std * (double)z);
            }
            th_compare(&h, "y", &y, want, 0);
        }
    }
}

/* Pieces of any length at any offset, concatenated, are the whole. */
static void init_at_any_offset(void **state)
{
    TH_ON_DEVICES(h)
    {
        const int64_t n = 1200;
        for (int d = 0; d < 3; d++) {
            gt_tensor whole = th_new(&h, floats[d], TH_SHAPE(n));
            gt_tensor pieces = th_new(&h, floats[d], TH_SHAPE(n));
            gt_init_params p = normal(9);
            TH_OK(gt_init(h.ctx, &whole, &p, NULL));
            for (int64_t length = 1; p.offset < n; p.offset += length, length = length * 2 + 1) {
                int64_t count = length < n - p.offset ? length : n - p.offset;
                gt_tensor piece;
                TH_OK(gt_tensor_slice(&piece, &pieces, p.offset, count));
                TH_OK(gt_init(h.ctx, &piece, &p, NULL));
            }
            th_compare(&h, "pieces", &pieces, th_get(&h, &whole), 0);
        }
    }
}

/* [outer, axis, inner] cut along the axis over 1, 2, 3 and 5 ranks, unevenly, and each local tensor
 * once more in two flat halves, as ZeRO does. */
static void init_of_shards_equals_slices(void **state)
{
    static const int64_t shapes[][3] = {{1, 7, 5}, {3, 10, 4}, {4, 6, 1}, {2, 5, 33}, {1, 11, 1}};
    TH_ON_DEVICES(h)
    {
        for (int s = 0; s < 5; s++) {
            const int64_t outer = shapes[s][0], axis = shapes[s][1], inner = shapes[s][2];
            gt_tensor whole = th_new(&h, GT_F32, TH_SHAPE(outer, axis, inner));
            gt_init_params p = normal(3);
            TH_OK(gt_init(h.ctx, &whole, &p, NULL));
            const double *want = th_get(&h, &whole);
            for (int ranks = 1; ranks <= 5; ranks++) {
                for (int rank = 0; rank < ranks; rank++) {
                    int64_t first = axis * rank / ranks, end = axis * (rank + 1) / ranks;
                    int64_t local = end - first, n = outer * local * inner;
                    gt_tensor y = th_new(&h, GT_F32, TH_SHAPE(n)), half;
                    p.axis_local = local;
                    p.axis_first = first;
                    p.axis_global = axis;
                    p.inner = inner;
                    for (int part = 0; part < 2; part++) {
                        p.offset = part ? n / 2 : 0;
                        TH_OK(gt_tensor_slice(&half, &y, p.offset, part ? n - n / 2 : n / 2));
                        TH_OK(gt_init(h.ctx, &half, &p, NULL));
                    }
                    p.offset = 0;
                    const double *got = th_get(&h, &y);
                    for (int64_t i = 0; i < n; i++) {
                        int64_t o = i / (local * inner), within = i % (local * inner);
                        TH_TRUE(got[i] == want[(o * axis + first) * inner + within]);
                    }
                }
            }
        }
    }
}

/* Mean, deviation, skewness, kurtosis, tails and neighbour correlation of 400 000 values. */
static void init_normal_statistics(void **state)
{
    TH_ON_DEVICES(h)
    {
        const int64_t n = 400000;
        gt_tensor y = th_new(&h, GT_F32, TH_SHAPE(n));
        gt_init_params p = GT_INIT_PARAMS_INIT;
        p.kind = GT_INIT_NORMAL;
        p.std = 1.0f;
        p.seed = 12345;
        TH_OK(gt_init(h.ctx, &y, &p, NULL));
        const double *z = th_get(&h, &y);
        double m[5] = {0}, neighbours = 0, beyond_2 = 0;
        for (int64_t i = 0; i < n; i++) {
            double power = 1;
            for (int k = 0; k < 5; k++, power *= z[i]) {
                m[k] += power / (double)n;
            }
            neighbours += i > 0 ? z[i] * z[i - 1] / (double)n : 0;
            beyond_2 += fabs(z[i]) > 2 ? 1.0 / (double)n : 0;
        }
        double sigma = 1 / sqrt((double)n); /* five standard errors each */
        TH_TRUE(fabs(m[1]) < 5 * sigma);
        TH_TRUE(fabs(m[2] - 1) < 5 * sigma * sqrt(2));
        TH_TRUE(fabs(m[3]) < 5 * sigma * sqrt(15));
        TH_TRUE(fabs(m[4] - 3) < 5 * sigma * sqrt(96));
        TH_TRUE(fabs(neighbours) < 5 * sigma);
        TH_TRUE(fabs(beyond_2 - 0.04550026) < 5 * sigma * sqrt(0.0434));
    }
}

static void init_uniform_and_constant(void **state)
{
    TH_ON_DEVICES(h)
    {
        const int64_t n = 100000;
        gt_tensor y = th_new(&h, GT_F32, TH_SHAPE(n));
        gt_init_params p = GT_INIT_PARAMS_INIT;
        p.kind = GT_INIT_UNIFORM;
        p.mean = 1.0f;
        p.std = 0.5f;
        TH_OK(gt_init(h.ctx, &y, &p, NULL));
        const double *got = th_get(&h, &y);
        double mean = 0, low = 9, high = -9;
        for (int64_t i = 0; i < n; i++) {
            mean += got[i] / (double)n;
            low = fmin(low, got[i]);
            high = fmax(high, got[i]);
        }
        TH_TRUE(low >= 0.5 && low < 0.501 && high < 1.5 && high > 1.499);
        TH_TRUE(fabs(mean - 1) < 5 * 0.29 / sqrt((double)n));
        gt_tensor c = th_new(&h, GT_BF16, TH_SHAPE(1000));
        p.kind = GT_INIT_CONSTANT;
        TH_OK(gt_init(h.ctx, &c, &p, NULL));
        TH_TRUE(th_get(&h, &c)[0] == 1.0 && th_get(&h, &c)[999] == 1.0);
    }
}

/* Other seeds and streams give other values; 16-bit values are the f32 ones rounded. */
static void init_streams_and_dtypes(void **state)
{
    TH_ON_DEVICES(h)
    {
        const int64_t n = 1000;
        gt_tensor a = th_new(&h, GT_F32, TH_SHAPE(n)), b = th_new(&h, GT_F32, TH_SHAPE(n));
        gt_init_params p = normal(1);
        TH_OK(gt_init(h.ctx, &a, &p, NULL));
        for (int k = 0; k < 2; k++) {
            gt_init_params q = normal(k ? 2 : 1);
            q.stream_id = k ? 77 : 78;
            TH_OK(gt_init(h.ctx, &b, &q, NULL));
            const double *x = th_get(&h, &a), *y = th_get(&h, &b);
            int equal = 0;
            for (int64_t i = 0; i < n; i++) {
                equal += x[i] == y[i];
            }
            TH_TRUE(equal < 3);
        }
        for (int d = 1; d < 3; d++) {
            gt_tensor y = th_new(&h, floats[d], TH_SHAPE(n)),
                      want = th_new(&h, floats[d], TH_SHAPE(n));
            th_set(&h, &want, th_get(&h, &a));
            TH_OK(gt_init(h.ctx, &y, &p, NULL));
            th_compare(&h, "y", &y, th_get(&h, &want), 0);
        }
    }
}

static void init_refuses_bad_pieces(void **state)
{
    TH_ON_DEVICES(h)
    {
        gt_tensor y = th_new(&h, GT_F32, TH_SHAPE(8)), i = th_new(&h, GT_I32, TH_SHAPE(8));
        gt_tensor empty = th_new(&h, GT_F32, TH_SHAPE(0));
        gt_init_params p = normal(1);
        TH_FAILS(gt_init(h.ctx, &i, &p, NULL), GT_ERR_DTYPE, "y is i32");
        TH_OK(gt_init(h.ctx, &empty, &p, NULL));
        p.axis_local = 4;
        p.axis_global = 6;
        p.axis_first = 3;
        p.inner = 2;
        TH_FAILS(gt_init(h.ctx, &y, &p, NULL), GT_ERR_SHAPE, "axis of 6");
        p = normal(1);
        p.offset = -1;
        TH_FAILS(gt_init(h.ctx, &y, &p, NULL), GT_ERR_SHAPE, "-1");
        p = normal(1);
        p.std = NAN;
        TH_FAILS(gt_init(h.ctx, &y, &p, NULL), GT_ERR_ARGUMENT, "std nan");
        p = normal(1);
        p.kind = (gt_init_kind)9;
        TH_FAILS(gt_init(h.ctx, &y, &p, NULL), GT_ERR_ARGUMENT, "kind is 9");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(init_is_the_scalar_generator), cmocka_unit_test(init_at_any_offset),
        cmocka_unit_test(init_of_shards_equals_slices), cmocka_unit_test(init_normal_statistics),
        cmocka_unit_test(init_uniform_and_constant),    cmocka_unit_test(init_streams_and_dtypes),
        cmocka_unit_test(init_refuses_bad_pieces),
    };
    return OPS_RUN(tests);
}
