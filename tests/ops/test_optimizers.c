/* SPDX-License-Identifier: Apache-2.0
 * Every optimizer against its double oracle: dtypes, odd and empty sizes, several steps. */
#include "ops_test.h"

#include <math.h>

#include <geektrain/ops.h>

#include "backend/cpu/reference/ref_optim.h"

/* Empty, 1, primes, vector widths and chunk length +-1, more than one thread's share. */
static const int64_t sizes[] = {0, 1, 7, 15, 16, 17, 511, 512, 513, 1031, 40009};
#define SIZES (sizeof sizes / sizeof sizes[0])
static const gt_dtype floats[] = {GT_F32, GT_BF16, GT_F16};

static const th_tolerance p_tolerance = {2e-7, 1e-6}, m_tolerance = {1e-7, 1e-6},
                          v_tolerance = {1e-12, 2e-6};

static void fill_host(double *x, int64_t n, double value)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] = value;
    }
}

/* param is the master rounded to nearest, exactly. */
static void check_rounded(th *h, gt_tensor *param, const gt_tensor *master)
{
    int64_t n = gt_tensor_numel(master);
    gt_tensor want = th_new(h, param->dtype, TH_SHAPE(n));
    th_set(h, &want, th_get(h, master));
    th_compare(h, "param", param, th_get(h, &want), 0);
}

/* ---- AdamW ------------------------------------------------------------------------------------
 */
typedef enum param_kind { NO_PARAM, OWN_PARAM, MASTER_ITSELF } param_kind;

static void adamw_one(th *h, int64_t n, gt_dtype param_dtype, param_kind kind, gt_dtype grad_dtype,
                      bool l2)
{
    gt_tensor master = th_new(h, GT_F32, TH_SHAPE(n)), m = th_new(h, GT_F32, TH_SHAPE(n));
    gt_tensor v = th_new(h, GT_F32, TH_SHAPE(n)), grad = th_new(h, grad_dtype, TH_SHAPE(n));
    gt_tensor param = th_new(h, param_dtype, TH_SHAPE(n));
    gt_tensor *out = kind == NO_PARAM ? NULL : kind == OWN_PARAM ? &param : &master;
    th_random(h, &master, 1, 1.0);
    th_fill(h, &m, 0);
    th_fill(h, &v, 0);
    double *wp = th_get(h, &master), *wm = th_host(h, n), *wv = th_host(h, n);
    fill_host(wm, n, 0);
    fill_host(wv, n, 0);
    gt_adamw_params p = GT_ADAMW_PARAMS_INIT;
    p.lr = 0.01f;
    p.weight_decay = 0.1f;
    p.grad_scale = 0.25f;
    p.l2 = l2;
    for (p.step = 1; p.step <= 4; p.step++) {
        th_random(h, &grad, 10 + (uint64_t)p.step, 4.0);
        const double *g = th_get(h, &grad);
        struct gti_ref_adamw r = {
            (double)p.lr,           (double)p.beta1,      (double)p.beta2, (double)p.eps,
            (double)p.weight_decay, (double)p.grad_scale, p.step,          l2};
        for (int64_t i = 0; i < n; i++) {
            gti_ref_adamw(&wp[i], &wm[i], &wv[i], g[i], &r);
        }
        TH_OK(gt_adamw(h->ctx, out, &master, &m, &v, &grad, &p, NULL));
    }
    th_compare_values("master", th_get(h, &master), wp, n, p_tolerance);
    th_compare_values("m", th_get(h, &m), wm, n, m_tolerance);
    th_compare_values("v", th_get(h, &v), wv, n, v_tolerance);
    if (kind == OWN_PARAM) {
        check_rounded(h, &param, &master);
    }
}

static void adamw_matches_oracle(void **state)
{
    TH_ON_DEVICES(h)
    {
        for (size_t s = 0; s < SIZES; s++) {
            h.shift = s % 3;
            adamw_one(&h, sizes[s], GT_F32, NO_PARAM, GT_F32, false);
            adamw_one(&h, sizes[s], GT_F32, MASTER_ITSELF, floats[s % 3], true);
            for (int d = 0; d < 3; d++) {
                adamw_one(&h, sizes[s], floats[d], OWN_PARAM, floats[(s + (size_t)d) % 3], d == 1);
            }
        }
    }
}

/* The first update is lr * sign(gradient), whatever the size and however the parameters are cut; a
 * count that is one ahead would give 0.744 of it. */
static void adamw_counts_steps_once(void **state)
{
    TH_ON_DEVICES(h)
    {
        for (int parts = 1; parts <= 3; parts++) {
            const int64_t n = 30;
            gt_tensor t[4];
            for (int k = 0; k < 4; k++) {
                t[k] = th_new(&h, GT_F32, TH_SHAPE(n));
                th_fill(&h, &t[k], k == 3 ? 1.0 : 0.0);
            }
            gt_adamw_params p = GT_ADAMW_PARAMS_INIT;
            double first = 0;
            for (p.step = 1; p.step <= 300; p.step++) {
                for (int part = 0; part < parts; part++) {
                    gt_tensor s[4];
                    for (int k = 0; k < 4; k++) {
                        TH_OK(gt_tensor_slice(&s[k], &t[k], part * n / parts, n / parts));
                    }
                    TH_OK(gt_adamw(h.ctx, NULL, &s[0], &s[1], &s[2], &s[3], &p, NULL));
                }
                const double *got = th_get(&h, &t[0]);
                first = p.step == 1 ? got[0] : first;
                for (int64_t i = 0; i < n; i++) {
                    TH_TRUE(got[i] == got[0]);
                }
            }
            TH_TRUE(fabs(first + 0.00099999999) < 1e-10);
            /* a constant gradient moves by lr in every step, exactly corrected */
            TH_TRUE(fabs(th_get(&h, &t[0])[0] + 0.3) < 3e-5);
        }
    }
}

/* 16-bit gradients times the loss scale: unscaled and clipped in the same pass. */
static void adamw_unscales_and_clips(void **state)
{
    TH_ON_DEVICES(h)
    {
        const int64_t n = 100;
        gt_tensor a = th_new(&h, GT_F32, TH_SHAPE(n)), b = th_new(&h, GT_F32, TH_SHAPE(n));
        gt_tensor ma = th_new(&h, GT_F32, TH_SHAPE(n)), va = th_new(&h, GT_F32, TH_SHAPE(n));
        gt_tensor mb = th_new(&h, GT_F32, TH_SHAPE(n)), vb = th_new(&h, GT_F32, TH_SHAPE(n));
        gt_tensor plain = th_new(&h, GT_F32, TH_SHAPE(n));
        gt_tensor scaled = th_new(&h, GT_F16, TH_SHAPE(n));
        th_random(&h, &a, 1, 1.0);
        th_random(&h, &b, 1, 1.0);
        gt_tensor *zero[] = {&ma, &va, &mb, &vb};
        for (int k = 0; k < 4; k++) {
            th_fill(&h, zero[k], 0);
        }
        th_random(&h, &scaled, 2, 1024.0);
        double *g = th_get(&h, &scaled);
        for (int64_t i = 0; i < n; i++) {
            g[i] = g[i] / 1024.0 * 0.5;
        }
        th_set(&h, &plain, g);
        gt_adamw_params p = GT_ADAMW_PARAMS_INIT;
        TH_OK(gt_adamw(h.ctx, NULL, &a, &ma, &va, &plain, &p, NULL));
        p.grad_scale = 0.5f / 1024.0f;
        TH_OK(gt_adamw(h.ctx, NULL, &b, &mb, &vb, &scaled, &p, NULL));
        th_compare(&h, "clipped", &b, th_get(&h, &a), 0);
    }
}

/* Non-finite gradients show, in the element where they are and in no other. */
static void adamw_lets_nonfinite_through(void **state)
{
    TH_ON_DEVICES(h)
    {
        const int64_t n = 37;
        gt_tensor t[4];
        for (int k = 0; k < 4; k++) {
            t[k] = th_new(&h, GT_F32, TH_SHAPE(n));
            th_fill(&h, &t[k], 0.0);
        }
        double *g = th_host(&h, n);
        fill_host(g, n, 1.0);
        g[5] = NAN;
        g[36] = INFINITY;
        th_set(&h, &t[3], g);
        gt_adamw_params p = GT_ADAMW_PARAMS_INIT;
        TH_OK(gt_adamw(h.ctx, NULL, &t[0], &t[1], &t[2], &t[3], &p, NULL));
        const double *got = th_get(&h, &t[0]);
        for (int64_t i = 0; i < n; i++) {
            TH_EQUAL(isfinite(got[i]) != 0, i != 5 && i != 36);
        }
    }
}

/* ---- bf16 moments -----------------------------------------------------------------------------
 */
static double bf16_step(double value)
{
    int exponent;
    frexp(value, &exponent);
    return ldexp(1.0, exponent - 8); /* spacing of bf16 at value */
}

/* A stored moment is one of the two neighbours of the exact one, and on average it is right. */
static void adamw_bf16_moments_round_without_bias(void **state)
{
    TH_ON_DEVICES(h)
    {
        const int64_t n = 40000;
        gt_tensor p = th_new(&h, GT_F32, TH_SHAPE(n)), g = th_new(&h, GT_BF16, TH_SHAPE(n));
        gt_tensor m = th_new(&h, GT_BF16, TH_SHAPE(n)), v = th_new(&h, GT_BF16, TH_SHAPE(n));
        th_random(&h, &p, 1, 1.0);
        th_random(&h, &g, 2, 1.0);
        th_random(&h, &m, 3, 1.0);
        th_fill(&h, &v, 1.0);
        double *wp = th_get(&h, &p), *wm = th_get(&h, &m), *wv = th_get(&h, &v);
        const double *grad = th_get(&h, &g);
        gt_adamw_params a = GT_ADAMW_PARAMS_INIT;
        a.step = 7;
        struct gti_ref_adamw r = {
            (double)a.lr, (double)a.beta1, (double)a.beta2, (double)a.eps, 0, 1.0, 7, false};
        for (int64_t i = 0; i < n; i++) {
            gti_ref_adamw(&wp[i], &wm[i], &wv[i], grad[i], &r);
        }
        TH_OK(gt_adamw(h.ctx, NULL, &p, &m, &v, &g, &a, NULL));
        th_compare_values("master", th_get(&h, &p), wp, n, p_tolerance);
        const double *gm = th_get(&h, &m), *gv = th_get(&h, &v);
        double bias_m = 0, bias_v = 0;
        for (int64_t i = 0; i < n; i++) {
            double em = (gm[i] - wm[i]) / bf16_step(wm[i]), ev = (gv[i] - wv[i]) / bf16_step(wv[i]);
            TH_TRUE(fabs(gm[i] - wm[i]) <= 1.001 * bf16_step(wm[i]) + 1e-7);
            TH_TRUE(fabs(ev) <= 1.001);
            em = fabs(em) <= 1.0 ? em : 0; /* m near 0, where f32 itself cancels */
            bias_m += em / (double)n;
            bias_v += ev / (double)n;
        }
        /* standard error of the mean: at most 0.5 / sqrt(40000) = 0.0025 */
        TH_TRUE(fabs(bias_m) < 0.0125 && fabs(bias_v) < 0.0125);
    }
}

/* With no gradient left a second moment dies away by beta2 a step: rounded to nearest it would stay
 * where it is for ever, and so would one rounded by the same draw in every step. */
static void adamw_bf16_second_moment_does_not_stall(void **state)
{
    TH_ON_DEVICES(h)
    {
        const int64_t n = 500;
        gt_tensor p = th_new(&h, GT_F32, TH_SHAPE(n)), g = th_new(&h, GT_F32, TH_SHAPE(n));
        gt_tensor m = th_new(&h, GT_BF16, TH_SHAPE(n)), v = th_new(&h, GT_BF16, TH_SHAPE(n));
        th_random(&h, &p, 1, 1.0);
        th_fill(&h, &g, 0);
        th_fill(&h, &m, 0);
        th_fill(&h, &v, 1.0);
        gt_adamw_params a = GT_ADAMW_PARAMS_INIT;
        for (a.step = 1; a.step <= 1000; a.step++) {
            TH_OK(gt_adamw(h.ctx, NULL, &p, &m, &v, &g, &a, NULL));
        }
        const double *gv = th_get(&h, &v);
        double mean = 0, highest = 0;
        for (int64_t i = 0; i < n; i++) {
            mean += gv[i] / (double)n;
            highest = gv[i] > highest ? gv[i] : highest;
        }
        double want = pow(0.999, 1000);
        TH_TRUE(fabs(mean - want) < 0.02 * want);
        TH_TRUE(highest < 1.5 * want);
    }
}

/* The draws depend on the elements, not on where they lie: a shard gives the bits of the whole. */
static void adamw_bf16_moments_are_shard_free(void **state)
{
    TH_ON_DEVICES(h)
    {
        const int64_t n = 3001, cut = 1234;
        gt_tensor whole[4], pieces[4];
        for (int k = 0; k < 4; k++) {
            gt_dtype dtype = k == 1 || k == 2 ? GT_BF16 : GT_F32;
            whole[k] = th_new(&h, dtype, TH_SHAPE(n));
            pieces[k] = th_new(&h, dtype, TH_SHAPE(n));
            th_random(&h, &whole[k], (uint64_t)k, 1.0);
            if (k == 2) {
                th_fill(&h, &whole[k], 0.5);
            }
            th_set(&h, &pieces[k], th_get(&h, &whole[k]));
        }
        gt_adamw_params a = GT_ADAMW_PARAMS_INIT;
        for (a.step = 1; a.step <= 5; a.step++) {
            TH_OK(gt_adamw(h.ctx, NULL, &whole[0], &whole[1], &whole[2], &whole[3], &a, NULL));
            for (int part = 0; part < 2; part++) {
                gt_tensor s[4];
                for (int k = 0; k < 4; k++) {
                    TH_OK(gt_tensor_slice(&s[k], &pieces[k], part ? cut : 0, part ? n - cut : cut));
                }
                TH_OK(gt_adamw(h.ctx, NULL, &s[0], &s[1], &s[2], &s[3], &a, NULL));
            }
        }
        for (int k = 0; k < 3; k++) {
            th_compare(&h, "piece", &pieces[k], th_get(&h, &whole[k]), 0);
        }
    }
}

/* ---- master as bf16 + remainder ----------------------------------------------------------------
 */
static void master_split_is_exact(void **state)
{
    static const uint32_t lowers[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    enum { N = 65536 * 6 };
    TH_ON_DEVICES(h)
    {
        gt_tensor x = th_new(&h, GT_F32, TH_SHAPE(N)), back = th_new(&h, GT_F32, TH_SHAPE(N));
        gt_tensor param = th_new(&h, GT_BF16, TH_SHAPE(N)),
                  rest = th_new(&h, GT_U8, TH_SHAPE(2 * N));
        uint32_t *bits = malloc(N * sizeof(*bits)), *got = malloc(N * sizeof(*got));
        uint16_t *half = malloc(N * sizeof(*half));
        for (uint32_t i = 0; i < N; i++) {
            bits[i] = (i / 6) << 16 | lowers[i % 6];
        }
        TH_OK(gt_copy_from_host(h.ctx, &x, bits, NULL));
        TH_OK(gt_master_split(h.ctx, &param, &rest, &x, NULL));
        TH_OK(gt_master_join(h.ctx, &back, &param, &rest, NULL));
        TH_OK(gt_copy_to_host(h.ctx, got, &back, NULL));
        TH_OK(gt_copy_to_host(h.ctx, half, &param, NULL));
        for (uint32_t i = 0; i < N; i++) {
            float value, rounded = gt_bf16_to_f32(half[i]);
            memcpy(&value, &bits[i], sizeof(value));
            if (isnan(value)) {
                TH_TRUE(isnan(rounded) && got[i] == 0x7fc00000u);
                continue;
            }
            TH_EQUAL(got[i], bits[i]);
            bool tie = (bits[i] & 0xffffu) == 0x8000u;
            TH_TRUE(tie ? half[i] == (bits[i] >> 16) + 1 : half[i] == gt_f32_to_bf16(value));
        }
        free(bits);
        free(got);
        free(half);
    }
}

/* 50 steps with a remainder give the bits of 50 steps with an f32 master. */
static void adamw_remainder_equals_master(void **state)
{
    TH_ON_DEVICES(h)
    {
        const int64_t n = 2003;
        gt_tensor p = th_new(&h, GT_F32, TH_SHAPE(n)), half = th_new(&h, GT_BF16, TH_SHAPE(n));
        gt_tensor rest = th_new(&h, GT_U8, TH_SHAPE(2 * n)),
                  joined = th_new(&h, GT_F32, TH_SHAPE(n));
        gt_tensor m[2], v[2], g = th_new(&h, GT_BF16, TH_SHAPE(n));
        for (int k = 0; k < 2; k++) {
            m[k] = th_new(&h, GT_F32, TH_SHAPE(n));
            v[k] = th_new(&h, GT_F32, TH_SHAPE(n));
            th_fill(&h, &m[k], 0);
            th_fill(&h, &v[k], 0);
        }
        th_random(&h, &p, 1, 1.0);
        TH_OK(gt_master_split(h.ctx, &half, &rest, &p, NULL));
        gt_adamw_params a = GT_ADAMW_PARAMS_INIT;
        a.weight_decay = 0.1f;
        for (a.step = 1; a.step <= 50; a.step++) {
            th_random(&h, &g, (uint64_t)a.step, 1.0);
            TH_OK(gt_adamw(h.ctx, NULL, &p, &m[0], &v[0], &g, &a, NULL));
            TH_OK(gt_adamw(h.ctx, &half, &rest, &m[1], &v[1], &g, &a, NULL));
        }
        TH_OK(gt_master_join(h.ctx, &joined, &half, &rest, NULL));
        th_compare(&h, "joined", &joined, th_get(&h, &p), 0);
    }
}

/* ---- SGD, Lion, LAMB --------------------------------------------------------------------------
 */
static void sgd_one(th *h, int64_t n, gt_dtype param_dtype, gt_dtype grad_dtype, int variant)
{
    gt_tensor master = th_new(h, GT_F32, TH_SHAPE(n)), param = th_new(h, param_dtype, TH_SHAPE(n));
    gt_tensor v = th_new(h, GT_F32, TH_SHAPE(n)), g = th_new(h, grad_dtype, TH_SHAPE(n));
    gt_sgd_params p = GT_SGD_PARAMS_INIT;
    p.lr = 0.1f;
    p.weight_decay = 0.01f;
    p.grad_scale = 0.5f;
    p.momentum = variant == 0 ? 0.0f : 0.9f;
    p.nesterov = variant == 2;
    p.dampening = variant == 3 ? 0.3f : 0.0f;
    th_random(h, &master, 1, 1.0);
    double *wp = th_get(h, &master), *wv = th_host(h, n);
    for (p.step = 1; p.step <= 3; p.step++) { /* the velocity starts as NaN */
        th_random(h, &g, 5 + (uint64_t)p.step, 1.0);
        const double *grad = th_get(h, &g);
        struct gti_ref_sgd r = {
            (double)p.lr,         (double)p.momentum, (double)p.dampening, (double)p.weight_decay,
            (double)p.grad_scale, p.nesterov,         p.step == 1};
        for (int64_t i = 0; i < n; i++) {
            gti_ref_sgd(&wp[i], &wv[i], grad[i], &r);
        }
        TH_OK(gt_sgd(h->ctx, &param, &master, variant ? &v : NULL, &g, &p, NULL));
    }
    th_compare_values("master", th_get(h, &master), wp, n, p_tolerance);
    if (variant != 0) {
        th_compare_values("velocity", th_get(h, &v), wv, n, p_tolerance);
    }
    check_rounded(h, &param, &master);
}

static void sgd_matches_oracle(void **state)
{
    TH_ON_DEVICES(h)
    {
        for (size_t s = 0; s < SIZES; s++) {
            for (int variant = 0; variant < 4; variant++) {
                sgd_one(&h, sizes[s], floats[variant % 3], floats[s % 3], variant);
            }
        }
    }
}

static void lion_one(th *h, int64_t n, gt_dtype param_dtype, gt_dtype grad_dtype)
{
    gt_tensor master = th_new(h, GT_F32, TH_SHAPE(n)), param = th_new(h, param_dtype, TH_SHAPE(n));
    gt_tensor m = th_new(h, GT_F32, TH_SHAPE(n)), g = th_new(h, grad_dtype, TH_SHAPE(n));
    gt_lion_params p = GT_LION_PARAMS_INIT;
    p.lr = 0.01f;
    p.weight_decay = 0.1f;
    p.grad_scale = 2.0f;
    th_random(h, &master, 1, 1.0);
    th_fill(h, &m, 0);
    double *wp = th_get(h, &master), *wm = th_host(h, n);
    fill_host(wm, n, 0);
    for (int step = 0; step < 3; step++) {
        th_random(h, &g, 5 + (uint64_t)step, 1.0);
        double *grad = th_get(h, &g);
        if (step == 0 && n > 0) {
            grad[n / 2] = 0; /* sign 0: only decay */
            th_set(h, &g, grad);
        }
        struct gti_ref_lion r = {(double)p.lr, (double)p.beta1, (double)p.beta2,
                                 (double)p.weight_decay, (double)p.grad_scale};
        for (int64_t i = 0; i < n; i++) {
            gti_ref_lion(&wp[i], &wm[i], grad[i], &r);
        }
        TH_OK(gt_lion(h->ctx, &param, &master, &m, &g, &p, NULL));
    }
    th_compare_values("master", th_get(h, &master), wp, n, p_tolerance);
    th_compare_values("m", th_get(h, &m), wm, n, m_tolerance);
    check_rounded(h, &param, &master);
}

static void lion_matches_oracle(void **state)
{
    TH_ON_DEVICES(h)
    {
        for (size_t s = 0; s < SIZES; s++) {
            lion_one(&h, sizes[s], floats[s % 3], floats[(s + 1) % 3]);
        }
    }
}

static void lamb_one(th *h, int64_t n, gt_dtype grad_dtype)
{
    gt_tensor master = th_new(h, GT_F32, TH_SHAPE(n)), param = th_new(h, GT_BF16, TH_SHAPE(n));
    gt_tensor m = th_new(h, GT_F32, TH_SHAPE(n)), v = th_new(h, GT_F32, TH_SHAPE(n));
    gt_tensor u = th_new(h, GT_F32, TH_SHAPE(n)), g = th_new(h, grad_dtype, TH_SHAPE(n));
    gt_tensor norms = th_new(h, GT_F64, TH_SHAPE(2));
    th_random(h, &master, 1, 1.0);
    th_fill(h, &m, 0);
    th_fill(h, &v, 0);
    double *wp = th_get(h, &master), *wm = th_host(h, n), *wv = th_host(h, n), *wu = th_host(h, n);
    fill_host(wm, n, 0);
    fill_host(wv, n, 0);
    gt_adamw_params p = GT_ADAMW_PARAMS_INIT;
    p.lr = 0.01f;
    p.weight_decay = 0.1f;
    for (p.step = 1; p.step <= 3; p.step++) {
        th_random(h, &g, 5 + (uint64_t)p.step, 1.0);
        th_fill(h, &norms, 100.0); /* added to */
        const double *grad = th_get(h, &g);
        struct gti_ref_adamw r = {(double)p.lr,
                                  (double)p.beta1,
                                  (double)p.beta2,
                                  (double)p.eps,
                                  (double)p.weight_decay,
                                  1.0,
                                  p.step,
                                  false};
        double want[2] = {100, 100};
        for (int64_t i = 0; i < n; i++) {
            wu[i] = gti_ref_lamb(wp[i], &wm[i], &wv[i], grad[i], &r);
            want[0] += wp[i] * wp[i];
            want[1] += wu[i] * wu[i];
        }
        TH_OK(gt_lamb_update(h->ctx, &u, &m, &v, &norms, &master, &g, &p, NULL));
        th_compare_values("norms", th_get(h, &norms), want, 2, (th_tolerance){1e-9, 2e-6});
        th_compare_values("u", th_get(h, &u), wu, n, (th_tolerance){2e-6, 2e-6});
        float trust = n > 0 ? (float)sqrt(want[0] / want[1]) : 1.0f;
        TH_OK(gt_lamb_apply(h->ctx, &param, &master, &u, p.lr, trust, NULL));
        for (int64_t i = 0; i < n; i++) {
            wp[i] -= (double)(p.lr * trust) * wu[i];
        }
    }
    th_compare_values("master", th_get(h, &master), wp, n, p_tolerance);
    check_rounded(h, &param, &master);
}

static void lamb_matches_oracle(void **state)
{
    TH_ON_DEVICES(h)
    {
        for (size_t s = 0; s < SIZES; s++) {
            lamb_one(&h, sizes[s], floats[s % 3]);
        }
    }
}

/* The ratio of the norms, within its bounds; 1 where there is no ratio. */
static void lamb_trust_is_bounded(void **state)
{
    const struct {
        double norms[2], want, free;
    } cases[] = {
        {{4.0, 1.0}, 2.0, 2.0},           {{1e6, 1.0}, 10.0, 1000.0}, {{1e-8, 1.0}, 0.01, 1e-4},
        {{0.0, 1.0}, 1.0, 1.0},           {{1.0, 0.0}, 1.0, 1.0},     {{NAN, 1.0}, 1.0, 1.0},
        {{INFINITY, INFINITY}, 1.0, 1.0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        TH_TRUE(gt_lamb_trust(cases[i].norms, 0.01, 10.0) == cases[i].want);
        TH_TRUE(fabs(gt_lamb_trust(cases[i].norms, 0.0, INFINITY) / cases[i].free - 1.0) < 1e-12);
    }
    TH_TRUE(gt_lamb_trust(NULL, 0.01, 10.0) == 1.0);
}

/* ---- no gradient, no epsilon ------------------------------------------------------------------
 */
/* Elements 0 mod 3 never have a gradient; those 1 mod 3 have one whose square no f32 holds; the
 * others an ordinary one. */
static double sparse_gradient(int64_t i)
{
    return i % 3 == 0 ? 0.0 : i % 3 == 1 ? 1e-30 : 0.5;
}

typedef enum family { ADAMW, ADAM, LAMB, LION, SGD, FAMILIES } family;

static void step_of(th *h, family f, gt_tensor *t, gt_tensor *norms, float eps, int64_t step)
{
    gt_adamw_params a = GT_ADAMW_PARAMS_INIT;
    gt_sgd_params s = GT_SGD_PARAMS_INIT;
    gt_lion_params l = GT_LION_PARAMS_INIT;
    a.lr = s.lr = l.lr = 0.01f;
    a.step = s.step = step;
    a.eps = eps;
    a.l2 = f == ADAM;
    s.momentum = 0.9f;
    if (f == ADAMW || f == ADAM) {
        TH_OK(gt_adamw(h->ctx, NULL, &t[0], &t[1], &t[2], &t[3], &a, NULL));
    } else if (f == LION) {
        TH_OK(gt_lion(h->ctx, NULL, &t[0], &t[1], &t[3], &l, NULL));
    } else if (f == SGD) {
        TH_OK(gt_sgd(h->ctx, NULL, &t[0], &t[1], &t[3], &s, NULL));
    } else {
        TH_OK(gt_lamb_update(h->ctx, &t[4], &t[1], &t[2], norms, &t[0], &t[3], &a, NULL));
        TH_OK(gt_lamb_apply(h->ctx, NULL, &t[0], &t[4], a.lr, 1.0f, NULL));
    }
}

static void without_gradient_and_eps(th *h, family f, float eps)
{
    const int64_t n = 67;
    gt_tensor t[5], norms = th_new(h, GT_F64, TH_SHAPE(2)); /* param, m, v, gradient, update */
    double *grad = th_host(h, n);
    for (int k = 0; k < 5; k++) {
        t[k] = th_new(h, GT_F32, TH_SHAPE(n));
        th_fill(h, &t[k], 0.0);
    }
    for (int64_t i = 0; i < n; i++) {
        grad[i] = sparse_gradient(i);
    }
    th_random(h, &t[0], 1, 1.0);
    th_set(h, &t[3], grad);
    th_fill(h, &norms, 0.0);
    const double *before = th_get(h, &t[0]);
    for (int64_t step = 1; step <= 3; step++) {
        step_of(h, f, t, &norms, eps, step);
    }
    const double *after = th_get(h, &t[0]);
    for (int64_t i = 0; i < n; i++) {
        const double moved = before[i] - after[i];
        const double want = f == SGD ? 0.5 * 0.01 * (1.0 + 1.9 + 2.71) : 3 * 0.01;
        const bool moves = i % 3 == 2 || (i % 3 == 1 && f == LION);
        TH_TRUE(fabs(moved - (moves ? want : 0.0)) <= (moves ? 1e-3 * want : 0.0));
    }
}

static void elements_without_gradient_stay_without_eps(void **state)
{
    TH_ON_DEVICES(h)
    {
        for (int f = 0; f < FAMILIES; f++) {
            without_gradient_and_eps(&h, (family)f, 0.0f);
            without_gradient_and_eps(&h, (family)f, (float)1e-46);
        }
        /* What has no direction must not hide a NaN. */
        gt_tensor t[4];
        for (int k = 0; k < 4; k++) {
            t[k] = th_new(&h, GT_F32, TH_SHAPE(3));
            th_fill(&h, &t[k], 0.0);
        }
        th_set(&h, &t[3], (const double[]){0.0, NAN, 1.0});
        gt_adamw_params a = GT_ADAMW_PARAMS_INIT;
        a.eps = 0.0f;
        TH_OK(gt_adamw(h.ctx, NULL, &t[0], &t[1], &t[2], &t[3], &a, NULL));
        const double *got = th_get(&h, &t[0]);
        TH_TRUE(got[0] == 0.0 && isnan(got[1]) && fabs(got[2] + 1e-3) < 1e-9);
    }
}

/* ---- refusals ---------------------------------------------------------------------------------
 */
static void optimizers_refuse_bad_arguments(void **state)
{
    TH_ON_DEVICES(h)
    {
        gt_tensor t = th_new(&h, GT_F32, TH_SHAPE(8)), short_t = th_new(&h, GT_F32, TH_SHAPE(7));
        gt_tensor ints = th_new(&h, GT_I32, TH_SHAPE(8)), bytes = th_new(&h, GT_U8, TH_SHAPE(16));
        gt_tensor f16 = th_new(&h, GT_F16, TH_SHAPE(8)), g = th_new(&h, GT_F32, TH_SHAPE(8));
        gt_adamw_params p = GT_ADAMW_PARAMS_INIT;
        TH_FAILS(gt_adamw(h.ctx, NULL, &t, &t, &t, NULL, &p, NULL), GT_ERR_ARGUMENT, "grad");
        TH_FAILS(gt_adamw(h.ctx, NULL, &t, &t, &t, &ints, &p, NULL), GT_ERR_DTYPE, "grad is i32");
        TH_FAILS(gt_adamw(h.ctx, NULL, &short_t, &t, &t, &g, &p, NULL), GT_ERR_SHAPE,
                 "master has 7");
        TH_FAILS(gt_adamw(h.ctx, NULL, &t, &short_t, &t, &g, &p, NULL), GT_ERR_SHAPE, "m has 7");
        TH_FAILS(gt_adamw(h.ctx, NULL, &t, &t, &f16, &g, &p, NULL), GT_ERR_DTYPE, "v is f16");
        TH_FAILS(gt_adamw(h.ctx, &short_t, &t, &t, &t, &g, &p, NULL), GT_ERR_SHAPE, "param has 7");
        TH_FAILS(gt_adamw(h.ctx, &t, &bytes, &t, &t, &g, &p, NULL), GT_ERR_DTYPE, "param is f32");
        TH_FAILS(gt_adamw(h.ctx, NULL, &bytes, &t, &t, &g, &p, NULL), GT_ERR_ARGUMENT, "param");
        p.step = 0;
        TH_FAILS(gt_adamw(h.ctx, NULL, &t, &t, &t, &g, &p, NULL), GT_ERR_ARGUMENT, "step is 0");
        p.step = 1;
        p.lr = NAN;
        TH_FAILS(gt_adamw(h.ctx, NULL, &t, &t, &t, &g, &p, NULL), GT_ERR_ARGUMENT, "lr is nan");
        p.lr = 1;
        p.eps = -1e-8f;
        TH_FAILS(gt_adamw(h.ctx, NULL, &t, &t, &t, &g, &p, NULL), GT_ERR_ARGUMENT, "eps is -1e-08");
        p.eps = 0.0f;
        p.beta2 = 1.0f;
        TH_FAILS(gt_adamw(h.ctx, NULL, &t, &t, &t, &g, &p, NULL), GT_ERR_ARGUMENT, "beta2 is 1");
        p.struct_size = 0;
        TH_FAILS(gt_adamw(h.ctx, NULL, &t, &t, &t, &g, &p, NULL), GT_ERR_ARGUMENT, "struct_size");
        gt_sgd_params s = GT_SGD_PARAMS_INIT;
        s.momentum = 0.9f;
        TH_FAILS(gt_sgd(h.ctx, NULL, &t, NULL, &g, &s, NULL), GT_ERR_ARGUMENT, "velocity");
        TH_FAILS(gt_lion(h.ctx, NULL, &t, &ints, &g, NULL, NULL), GT_ERR_DTYPE, "m is i32");
        TH_FAILS(gt_lamb_apply(h.ctx, NULL, &short_t, &t, 1, 1, NULL), GT_ERR_SHAPE,
                 "master has 7");
        TH_FAILS(gt_lamb_update(h.ctx, &t, &t, &t, &t, &t, &g, NULL, NULL), GT_ERR_DTYPE, "norms");
    }
}

static void params_init_sets_defaults(void **state)
{
    gt_adamw_params a;
    gt_adamw_params_init(&a, sizeof(a));
    TH_TRUE(a.struct_size == sizeof(a) && a.beta1 == 0.9f && a.step == 1 && a.grad_scale == 1.0f);
    gt_sgd_params s;
    gt_sgd_params_init(&s, sizeof(s));
    TH_TRUE(s.grad_scale == 1.0f && s.step == 1 && s.momentum == 0.0f);
    gt_lion_params l;
    gt_lion_params_init(&l, sizeof(l));
    TH_TRUE(l.beta2 == 0.99f && l.grad_scale == 1.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_matches_oracle),
        cmocka_unit_test(adamw_counts_steps_once),
        cmocka_unit_test(adamw_unscales_and_clips),
        cmocka_unit_test(adamw_lets_nonfinite_through),
        cmocka_unit_test(adamw_bf16_moments_round_without_bias),
        cmocka_unit_test(adamw_bf16_second_moment_does_not_stall),
        cmocka_unit_test(adamw_bf16_moments_are_shard_free),
        cmocka_unit_test(master_split_is_exact),
        cmocka_unit_test(adamw_remainder_equals_master),
        cmocka_unit_test(sgd_matches_oracle),
        cmocka_unit_test(lion_matches_oracle),
        cmocka_unit_test(lamb_matches_oracle),
        cmocka_unit_test(lamb_trust_is_bounded),
        cmocka_unit_test(elements_without_gradient_stay_without_eps),
        cmocka_unit_test(optimizers_refuse_bad_arguments),
        cmocka_unit_test(params_init_sets_defaults),
    };
    return OPS_RUN(tests);
}
