/* SPDX-License-Identifier: Apache-2.0
 * Matrix products against the double oracle: dtypes, transposes, epilogues, odd and empty sizes. */
#include "ops_test.h"

#include <math.h>

#include <geektrain/ops.h>

#include "backend/cpu/reference/ref_gemm.h"

typedef struct shape {
    int64_t m, n, k;
} shape;

/* Empty, 1, primes, tile widths +-1, more than one block of k (768) and of rows; for two threads
 * row blocks that are one job and some that are cut; two panels of b. */
static const shape shapes[] = {
    {0, 3, 2},    {3, 0, 2},     {3, 5, 0},    {1, 1, 1},     {1, 7, 33},
    {2, 1, 5},    {3, 31, 4},    {13, 32, 17}, {14, 33, 384}, {15, 64, 7},
    {17, 16, 16}, {5, 6, 769},   {61, 67, 71}, {97, 8, 385},  {128, 96, 31},
    {29, 101, 3}, {85, 40, 100}, {7, 130, 1},  {600, 41, 40}, {5, 1400, 768},
};

enum { WITH_BIAS = 1, WITH_GELU = 2, WITH_AUX = 4, ACCUMULATE = 8, C_F32 = 16 };

static void check_one(th *h, const shape *s, gt_dtype dtype, bool ta, bool tb, int with)
{
    const gt_dtype c_dtype = with & C_F32 ? GT_F32 : dtype;
    gt_tensor a =
        ta ? th_new(h, dtype, TH_SHAPE(s->k, s->m)) : th_new(h, dtype, TH_SHAPE(s->m, s->k));
    gt_tensor b =
        tb ? th_new(h, dtype, TH_SHAPE(s->n, s->k)) : th_new(h, dtype, TH_SHAPE(s->k, s->n));
    gt_tensor c = th_new(h, c_dtype, TH_SHAPE(s->m, s->n));
    gt_tensor aux = th_new(h, c_dtype, TH_SHAPE(s->m, s->n));
    gt_tensor bias = th_new(h, dtype, TH_SHAPE(s->n));
    const double spread = s->k > 0 ? 1.0 / sqrt((double)s->k) : 1.0;
    th_random(h, &a, 1, 1.0);
    th_random(h, &b, 2, spread);
    th_random(h, &bias, 3, 1.0);
    double *want = th_host(h, s->m * s->n), *value = th_host(h, s->m * s->n);
    gt_gemm_params p = GT_GEMM_PARAMS_INIT;
    p.trans_a = ta;
    p.trans_b = tb;
    p.accumulate = (with & ACCUMULATE) != 0;
    p.gelu = (with & WITH_GELU) != 0;
    p.bias = with & WITH_BIAS ? &bias : NULL;
    p.pre_gelu = with & WITH_AUX ? &aux : NULL;
    if (p.accumulate) {
        th_random(h, &c, 4, 1.0);
        const double *before = th_get(h, &c);
        memcpy(want, before, sizeof(double) * (size_t)(s->m * s->n));
    }
    const struct gti_ref_gemm r = {s->m, s->n, s->k, ta, tb, p.accumulate, p.gelu};
    gti_ref_gemm(want, value, th_get(h, &a), th_get(h, &b), p.bias ? th_get(h, &bias) : NULL, &r);
    TH_OK(gt_gemm(h->ctx, &c, &a, &b, &p, NULL));
    th_compare(h, "c", &c, want, 2.0);
    if (p.pre_gelu != NULL) {
        th_compare(h, "pre_gelu", &aux, value, 2.0);
    }
}

static void gemm_matches_oracle(void **state)
{
    static const int withs[] = {0,          WITH_BIAS,          WITH_BIAS | WITH_GELU | WITH_AUX,
                                ACCUMULATE, ACCUMULATE | C_F32, WITH_BIAS | WITH_GELU | C_F32};
    static const gt_dtype dtypes[] = {GT_F32, GT_BF16, GT_F16};
    for (size_t d = 0; d < 3; d++) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            TH_ON_DEVICES(h)
            {
                h.shift = i % 3;
                for (int t = 0; t < 4; t++) {
                    const size_t w = (i + (size_t)t) % (sizeof withs / sizeof withs[0]);
                    check_one(&h, &shapes[i], dtypes[d], t & 1, t & 2, withs[w]);
                }
            }
        }
    }
}

/* Partial sums of 16-bit results stay in f32 over blocks of k: 1 + 1200 * 2^-10 in bf16. */
static void gemm_16_bit_sums_are_f32(void **state)
{
    TH_ON_DEVICES(h)
    {
        gt_tensor a = th_new(&h, GT_BF16, TH_SHAPE(1, 1201)),
                  b = th_new(&h, GT_BF16, TH_SHAPE(1201, 1));
        gt_tensor c = th_new(&h, GT_BF16, TH_SHAPE(1, 1));
        double *x = th_host(&h, 1201);
        for (int i = 0; i < 1201; i++) {
            x[i] = i == 0 ? 1.0 : 0x1p-10;
        }
        th_set(&h, &a, x);
        th_fill(&h, &b, 1.0);
        TH_OK(gt_gemm(h.ctx, &c, &a, &b, NULL, NULL));
        const double want = 2.171875; /* 1 + 1200/1024 exactly */
        th_compare(&h, "c", &c, &want, 0.0);
    }
}

static void gemm_same_bits_for_any_threads(void **state)
{
    enum { M = 610, N = 170, K = 800 };
    double *first = NULL;
    for (int threads = 1; threads <= 4; threads++) {
        gt_context_params params = GT_CONTEXT_PARAMS_INIT;
        params.threads = threads;
        th h = {0};
        th_open(&h, "cpu");
        gt_context *ctx = NULL;
        TH_OK(gt_context_create(&ctx, &params));
        gt_tensor a = th_new(&h, GT_F32, TH_SHAPE(M, K)), b = th_new(&h, GT_F32, TH_SHAPE(K, N));
        gt_tensor c = th_new(&h, GT_F32, TH_SHAPE(M, N));
        th_random(&h, &a, 1, 1.0);
        th_random(&h, &b, 2, 1.0);
        TH_OK(gt_gemm(ctx, &c, &a, &b, NULL, NULL));
        const double *got = th_get(&h, &c);
        if (first == NULL) {
            first = malloc(sizeof(double) * M * N);
            assert_non_null(first);
            memcpy(first, got, sizeof(double) * M * N);
        }
        assert_memory_equal(first, got, sizeof(double) * M * N);
        gt_context_destroy(&ctx);
        th_close(&h);
    }
    free(first);
}

/* Ranks are threads with a context each; they multiply at the same time. */
static void multiply_alone(int rank, int size, void *user)
{
    const shape s = {70, 45, 500};
    th h = {0};
    th_open(&h, "cpu");
    for (int i = 0; i < 3; i++) {
        check_one(&h, &s, i == 1 ? GT_BF16 : GT_F32, rank & 1, i & 1, WITH_BIAS);
    }
    th_close(&h);
}

static void gemm_from_several_threads(void **state)
{
    th_threads(3, multiply_alone, NULL);
}

static void linear_matches_oracle(void **state)
{
    static const gt_dtype dtypes[] = {GT_F32, GT_BF16, GT_F16};
    for (size_t d = 0; d < 3; d++) {
        TH_ON_DEVICES(h)
        {
            const int64_t n = 19, i = 23, o = 37;
            gt_tensor x = th_new(&h, dtypes[d], TH_SHAPE(1, n, i)),
                      w = th_new(&h, dtypes[d], TH_SHAPE(o, i));
            gt_tensor y = th_new(&h, dtypes[d], TH_SHAPE(1, n, o)),
                      b = th_new(&h, dtypes[d], TH_SHAPE(o));
            gt_tensor dy = th_new(&h, dtypes[d], TH_SHAPE(1, n, o)),
                      dx = th_new(&h, dtypes[d], TH_SHAPE(n, i));
            gt_tensor dw = th_new(&h, GT_F32, TH_SHAPE(o, i));
            th_random(&h, &x, 1, 1.0);
            th_random(&h, &w, 2, 0.2);
            th_random(&h, &b, 3, 1.0);
            th_random(&h, &dy, 4, 0.2);
            th_fill(&h, &dw, 0.5);
            double *want = th_host(&h, n * o), *wx = th_host(&h, n * i), *ww = th_host(&h, o * i);
            const double *hx = th_get(&h, &x), *hw = th_get(&h, &w), *hdy = th_get(&h, &dy);
            gti_ref_gemm(want, NULL, hx, hw, th_get(&h, &b),
                         &(struct gti_ref_gemm){.m = n, .n = o, .k = i, .trans_b = true});
            TH_OK(gt_linear_forward(h.ctx, &y, &x, &w, &b, NULL));
            th_compare(&h, "y", &y, want, 2.0);
            gti_ref_gemm(wx, NULL, hdy, hw, NULL, &(struct gti_ref_gemm){.m = n, .n = i, .k = o});
            for (int64_t e = 0; e < o * i; e++) {
                ww[e] = 0.5;
            }
            gti_ref_gemm(ww, NULL, hdy, hx, NULL,
                         &(struct gti_ref_gemm){
                             .m = o, .n = i, .k = n, .trans_a = true, .accumulate = true});
            TH_OK(gt_linear_backward(h.ctx, &dx, &dw, NULL, &dy, &x, &w, NULL));
            th_compare(&h, "dx", &dx, wx, 2.0);
            th_compare(&h, "dw", &dw, ww, 2.0);
        }
    }
}

static void gemm_refuses_bad_arguments(void **state)
{
    th h = {0};
    th_open(&h, "cpu");
    gt_tensor a = th_new(&h, GT_F32, TH_SHAPE(2, 3)), b = th_new(&h, GT_F32, TH_SHAPE(4, 5));
    gt_tensor c = th_new(&h, GT_F32, TH_SHAPE(2, 5)), b3 = th_new(&h, GT_F32, TH_SHAPE(3, 5));
    gt_tensor i32 = th_new(&h, GT_I32, TH_SHAPE(2, 3)), bias = th_new(&h, GT_F32, TH_SHAPE(4));
    TH_FAILS(gt_gemm(h.ctx, &c, &a, &b, NULL, NULL), GT_ERR_SHAPE, "a has K=3, b has K=4");
    TH_FAILS(gt_gemm(h.ctx, &a, &a, &b3, NULL, NULL), GT_ERR_SHAPE,
             "c is [2,3], wanted [M,N]=[2,5]");
    TH_FAILS(gt_gemm(h.ctx, &c, NULL, &b, NULL, NULL), GT_ERR_ARGUMENT, "a is NULL");
    TH_FAILS(gt_gemm(h.ctx, &c, &i32, &b, NULL, NULL), GT_ERR_DTYPE, "a is i32");
    gt_gemm_params p = GT_GEMM_PARAMS_INIT;
    p.bias = &bias;
    TH_FAILS(gt_gemm(h.ctx, &c, &a, &b3, &p, NULL), GT_ERR_SHAPE,
             "bias has 4 elements, wanted N=5");
    p.bias = NULL;
    p.pre_gelu = &c;
    TH_FAILS(gt_gemm(h.ctx, &c, &a, &b3, &p, NULL), GT_ERR_ARGUMENT, "gelu is false");
    p.struct_size = 0;
    TH_FAILS(gt_gemm(h.ctx, &c, &a, &b3, &p, NULL), GT_ERR_ARGUMENT, "struct_size");
    th_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm_matches_oracle),
        cmocka_unit_test(gemm_16_bit_sums_are_f32),
        cmocka_unit_test(gemm_same_bits_for_any_threads),
        cmocka_unit_test(gemm_from_several_threads),
        cmocka_unit_test(linear_matches_oracle),
        cmocka_unit_test(gemm_refuses_bad_arguments),
    };
    return OPS_RUN(tests);
}
