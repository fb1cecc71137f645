/* SPDX-License-Identifier: Apache-2.0
 * Attention against the double oracle, which is itself held against finite differences: odd lengths
 * and head sizes, causal, grouped heads, packed views, positions, key masks, packed documents, rows
 * that see nothing.
 */
#include "ops_test.h"

#include <math.h>

#include <geektrain/ops.h>

#include "backend/cpu/reference/ref_attention.h"

enum {
    CAUSAL = 1,
    MASK = 2,
    POSITIONS = 4,
    PACKED = 8,
    ACCUMULATE = 16,
    F32_GRADS = 32,
    DOCUMENTS = 64
};

typedef struct layout {
    int64_t b, tq, tk, h, hkv, d;
    int with;
} layout;

/* Everything of one case: device tensors, the oracle's arrays. */
typedef struct fixture {
    th *h;
    layout s;
    gt_tensor q, k, v, out, lse, dout, dq, dk, dv, qpos, kpos, starts, mask, packed, dpacked;
    gt_attention_params p;
    struct gti_ref_attention r;
    const double *hq, *hk, *hv, *hdout;
} fixture;

static uint32_t next_random(uint32_t *x)
{
    *x = *x * 1664525u + 1013904223u;
    return *x >> 8;
}

/* Documents with borders of their own in each sample; the last query of the last sample sees
 * nothing. */
static void make_documents(fixture *f, const double *qpos)
{
    const layout *s = &f->s;
    const int64_t positions = s->tq + s->tk + 6;
    uint32_t seed = (uint32_t)(s->tq * 131 + s->tk);
    double *starts = th_host(f->h, s->b * s->tq), *start_of = th_host(f->h, positions);
    for (int64_t b = 0; b < s->b; b++) {
        for (int64_t i = 1; i < positions; i++) {
            start_of[i] = next_random(&seed) % 23 == 0 ? (double)i : start_of[i - 1];
        }
        for (int64_t i = 0; i < s->tq; i++) {
            const int64_t at = s->with & POSITIONS ? (int64_t)qpos[i] : i;
            starts[b * s->tq + i] = at < 0 ? 0.0 : start_of[at];
        }
    }
    if (s->b > 1 && s->tq > 0) {
        starts[s->b * s->tq - 1] = 1e15;
    }
    f->starts = th_new(f->h, GT_I64, TH_SHAPE(s->b, s->tq));
    th_set(f->h, &f->starts, starts);
    f->p.starts = &f->starts;
    f->r.starts = starts;
}

/* Positions out of order and with gaps; every third sample's keys partly masked; the first sample's
 * mask lets nothing through when B > 1. */
static void make_visibility(fixture *f)
{
    const layout *s = &f->s;
    double *x = th_host(f->h, s->tq + s->tk + s->b * s->tk);
    f->qpos = th_new(f->h, GT_I64, TH_SHAPE(s->tq));
    f->kpos = th_new(f->h, GT_I64, TH_SHAPE(s->tk));
    f->mask = th_new(f->h, GT_U8, TH_SHAPE(s->b, s->tk));
    double *kpos = x + s->tq, *mask = kpos + s->tk;
    for (int64_t i = 0; i < s->tq; i++) {
        x[i] = (double)((i * 7 + 3) % (s->tq + 5) - 1);
    }
    for (int64_t i = 0; i < s->tk; i++) {
        kpos[i] = (double)((i * 5 + 1) % (s->tk + 3));
    }
    for (int64_t i = 0; i < s->b * s->tk; i++) {
        mask[i] = s->b > 1 && i < s->tk ? 0.0 : (double)(i % 3 != 1);
    }
    th_set(f->h, &f->qpos, x);
    th_set(f->h, &f->kpos, kpos);
    th_set(f->h, &f->mask, mask);
    if (s->with & POSITIONS) {
        f->p.qpos = &f->qpos, f->p.kpos = &f->kpos;
        f->r.qpos = x, f->r.kpos = kpos;
    }
    if (s->with & MASK) {
        f->p.key_mask = &f->mask;
        f->r.key_mask = mask;
    }
    if (s->with & DOCUMENTS) {
        make_documents(f, x);
    }
}

static gt_tensor view(const gt_tensor *t, int64_t first)
{
    gt_tensor x;
    TH_OK(gt_tensor_slice(&x, t, first, gt_tensor_numel(t) - first));
    return x;
}

/* q, k, v as thirds of [B,T,(H+2Hkv)D]; and their gradients likewise. */
static void make_packed(fixture *f, gt_dtype dtype, gt_dtype grad)
{
    const layout *s = &f->s;
    const int64_t wide = (s->h + 2 * s->hkv) * s->d;
    f->packed = th_new(f->h, dtype, TH_SHAPE(s->b, s->tq, wide));
    f->dpacked = th_new(f->h, grad, TH_SHAPE(s->b, s->tq, wide));
    th_random(f->h, &f->packed, 1, 1.0);
    const double *all = th_get(f->h, &f->packed);
    double *parts[3];
    const int64_t first[3] = {0, s->h * s->d, (s->h + s->hkv) * s->d};
    const int64_t part[3] = {s->h * s->d, s->hkv * s->d, s->hkv * s->d};
    for (int i = 0; i < 3; i++) {
        parts[i] = th_host(f->h, s->b * s->tq * part[i]);
        for (int64_t row = 0; row < s->b * s->tq; row++) {
            memcpy(parts[i] + row * part[i], all + row * wide + first[i],
                   sizeof(double) * (size_t)part[i]);
        }
    }
    f->hq = parts[0], f->hk = parts[1], f->hv = parts[2];
    f->q = f->packed, f->k = view(&f->packed, first[1]), f->v = view(&f->packed, first[2]);
    f->dq = f->dpacked, f->dk = view(&f->dpacked, first[1]), f->dv = view(&f->dpacked, first[2]);
    f->p.ldq = f->p.ldk = f->p.ldv = f->p.lddq = f->p.lddk = f->p.lddv = wide;
}

static void make_dense(fixture *f, gt_dtype dtype, gt_dtype grad)
{
    const layout *s = &f->s;
    f->q = th_new(f->h, dtype, TH_SHAPE(s->b, s->tq, s->h, s->d));
    f->k = th_new(f->h, dtype, TH_SHAPE(s->b, s->tk, s->hkv, s->d));
    f->v = th_new(f->h, dtype, TH_SHAPE(s->b, s->tk, s->hkv, s->d));
    f->dq = th_new(f->h, grad, TH_SHAPE(s->b, s->tq, s->h, s->d));
    f->dk = th_new(f->h, grad, TH_SHAPE(s->b, s->tk, s->hkv, s->d));
    f->dv = th_new(f->h, grad, TH_SHAPE(s->b, s->tk, s->hkv, s->d));
    th_random(f->h, &f->q, 1, 1.0);
    th_random(f->h, &f->k, 2, 1.0);
    th_random(f->h, &f->v, 3, 1.0);
    f->hq = th_get(f->h, &f->q), f->hk = th_get(f->h, &f->k), f->hv = th_get(f->h, &f->v);
}

/* Fills *f, which keeps pointers into itself. */
static void make(fixture *f, th *h, const layout *s, gt_dtype dtype)
{
    *f = (fixture){.h = h, .s = *s, .p = GT_ATTENTION_PARAMS_INIT};
    const gt_dtype grad = s->with & F32_GRADS ? GT_F32 : dtype;
    f->p.b = s->b, f->p.tq = s->tq, f->p.tk = s->tk, f->p.heads = s->h, f->p.kv_heads = s->hkv;
    f->p.head_size = s->d, f->p.causal = (s->with & CAUSAL) != 0;
    f->p.accumulate = (s->with & ACCUMULATE) != 0;
    f->r = (struct gti_ref_attention){.b = s->b,
                                      .tq = s->tq,
                                      .tk = s->tk,
                                      .h = s->h,
                                      .hkv = s->hkv,
                                      .d = s->d,
                                      .scale = 1.0 / sqrt((double)s->d),
                                      .causal = f->p.causal};
    make_visibility(f);
    if (s->with & PACKED) {
        make_packed(f, dtype, grad);
    } else {
        make_dense(f, dtype, grad);
    }
    f->out = th_new(h, dtype, TH_SHAPE(s->b, s->tq, s->h, s->d));
    f->dout = th_new(h, dtype, TH_SHAPE(s->b, s->tq, s->h, s->d));
    f->lse = th_new(h, GT_F32, TH_SHAPE(s->b, s->h, s->tq));
    th_random(h, &f->dout, 4, 1.0);
    f->hdout = th_get(h, &f->dout);
}

static void check_forward(fixture *f)
{
    const layout *s = &f->s;
    double *out = th_host(f->h, s->b * s->tq * s->h * s->d),
           *lse = th_host(f->h, s->b * s->h * s->tq);
    gti_ref_attention_fwd(out, lse, f->hq, f->hk, f->hv, &f->r);
    TH_OK(gt_attention_forward(f->h->ctx, &f->out, &f->lse, &f->q, &f->k, &f->v, &f->p, NULL));
    th_compare(f->h, "out", &f->out, out, 1.0);
    th_compare(f->h, "lse", &f->lse, lse, 1.0);
}

/* A gradient, dense or a third of the packed tensor, as a dense array. */
static const double *dense_grad(fixture *f, const gt_tensor *t, int64_t rows, int64_t width,
                                int64_t first)
{
    if (!(f->s.with & PACKED)) {
        return th_get(f->h, t);
    }
    const double *all = th_get(f->h, &f->dpacked);
    double *x = th_host(f->h, rows * width);
    for (int64_t i = 0; i < rows; i++) {
        memcpy(x + i * width, all + i * f->p.lddq + first, sizeof(double) * (size_t)width);
    }
    return x;
}

static void check_backward(fixture *f)
{
    const layout *s = &f->s;
    const int64_t nq = s->b * s->tq, nk = s->b * s->tk, wq = s->h * s->d, wk = s->hkv * s->d;
    double *dq = th_host(f->h, nq * wq), *dk = th_host(f->h, nk * wk), *dv = th_host(f->h, nk * wk);
    if (s->with & ACCUMULATE) {
        gt_tensor *all[] = {&f->dq, &f->dk, &f->dv};
        for (int i = 0; i < 3; i++) {
            th_fill(f->h, all[i], 0.25);
        }
        for (int64_t i = 0; i < nq * wq; i++) {
            dq[i] = 0.25;
        }
        for (int64_t i = 0; i < nk * wk; i++) {
            dk[i] = dv[i] = 0.25;
        }
    }
    gti_ref_attention_bwd(dq, dk, dv, f->hdout, f->hq, f->hk, f->hv, &f->r);
    TH_OK(gt_attention_backward(f->h->ctx, &f->dq, &f->dk, &f->dv, &f->dout, &f->out, &f->lse,
                                &f->q, &f->k, &f->v, &f->p, NULL));
    th_tolerance t = th_tolerance_of(f->q.dtype);
    t.absolute *= 4.0, t.relative *= 4.0; /* sums over the whole sequence; out came rounded */
    th_compare_values("dq", dense_grad(f, &f->dq, nq, wq, 0), dq, nq * wq, t);
    th_compare_values("dk", dense_grad(f, &f->dk, nk, wk, wq), dk, nk * wk, t);
    th_compare_values("dv", dense_grad(f, &f->dv, nk, wk, wq + wk), dv, nk * wk, t);
}

static void run(const layout *s, gt_dtype dtype)
{
    TH_ON_DEVICES(h)
    {
        h.shift = (size_t)(s->tq % 3);
        fixture f;
        make(&f, &h, s, dtype);
        check_forward(&f);
        check_backward(&f);
    }
}

/* The lengths and head sizes of reports from the field. */
static void attention_any_length(void **state)
{
    static const int64_t lengths[] = {1, 2, 15, 17, 63, 65, 127, 129, 192};
    static const int64_t sizes[] = {1, 7, 40, 63, 64, 80, 96, 128, 160, 256};
    for (size_t i = 0; i < 9; i++) {
        for (size_t d = 0; d < 10; d++) {
            const int with = (i + d) % 2 ? CAUSAL : 0;
            run(&(layout){1, lengths[i], lengths[i], 1, 1, sizes[d], with}, GT_F32);
        }
    }
}

static void attention_1025(void **state)
{
    run(&(layout){1, 1025, 1025, 1, 1, 40, CAUSAL}, GT_F32);
}

static void attention_16_bit(void **state)
{
    static const int64_t lengths[] = {1, 17, 65, 129};
    static const int64_t sizes[] = {7, 64, 80};
    for (size_t i = 0; i < 4; i++) {
        for (size_t d = 0; d < 3; d++) {
            const layout s = {
                1, lengths[i], lengths[i], 2, 1, sizes[d], i % 2 ? CAUSAL : F32_GRADS};
            run(&s, GT_BF16);
            run(&s, GT_F16);
        }
    }
}

static void attention_variants(void **state)
{
    static const layout layouts[] = {
        {2, 33, 33, 4, 4, 16, PACKED | CAUSAL},
        {2, 33, 33, 4, 2, 9, PACKED | CAUSAL | ACCUMULATE},
        {2, 70, 70, 6, 2, 8, CAUSAL | MASK},
        {3, 20, 150, 2, 1, 12, MASK},
        {2, 90, 90, 3, 3, 5, CAUSAL | POSITIONS},
        {2, 100, 45, 4, 1, 24, CAUSAL | POSITIONS | MASK | ACCUMULATE},
        {1, 5, 200, 1, 1, 32, CAUSAL},
        {1, 200, 5, 1, 1, 32, CAUSAL},
        {2, 150, 150, 4, 2, 16, CAUSAL | DOCUMENTS},
        {2, 193, 193, 2, 1, 7, PACKED | CAUSAL | DOCUMENTS | ACCUMULATE},
        {3, 131, 170, 2, 2, 12, CAUSAL | DOCUMENTS | POSITIONS | MASK},
        {2, 90, 260, 1, 1, 8, DOCUMENTS},
        {1, 4, 0, 1, 1, 8, DOCUMENTS},
        {1, 0, 4, 1, 1, 8, DOCUMENTS},
        {0, 4, 4, 1, 1, 8, 0},
    };
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        run(&layouts[i], GT_F32);
        run(&layouts[i], i % 2 ? GT_BF16 : GT_F16);
    }
}

/* Row 0 sees nothing, row 1 one key and the mask the rest: never the mean of all values. */
static void attention_row_without_keys(void **state)
{
    TH_ON_DEVICES(h)
    {
        gt_tensor q = th_new(&h, GT_F32, TH_SHAPE(2)), k = th_new(&h, GT_F32, TH_SHAPE(3));
        gt_tensor v = th_new(&h, GT_F32, TH_SHAPE(3)), out = th_new(&h, GT_F32, TH_SHAPE(2));
        gt_tensor lse = th_new(&h, GT_F32, TH_SHAPE(2)), dout = th_new(&h, GT_F32, TH_SHAPE(2));
        gt_tensor dq = th_new(&h, GT_F32, TH_SHAPE(2)), dk = th_new(&h, GT_F32, TH_SHAPE(3));
        gt_tensor dv = th_new(&h, GT_F32, TH_SHAPE(3)), qpos = th_new(&h, GT_I64, TH_SHAPE(2));
        th_fill(&h, &q, 1.0);
        th_fill(&h, &dout, 1.0);
        th_set(&h, &k, (const double[]){0.0, 0.0, 0.0});
        th_set(&h, &v, (const double[]){1.0, 2.0, 3.0});
        th_set(&h, &qpos, (const double[]){-1.0, 1.0});
        gt_attention_params p = GT_ATTENTION_PARAMS_INIT;
        p.b = 1, p.tq = 2, p.tk = 3, p.heads = p.kv_heads = p.head_size = 1;
        p.causal = true;
        p.qpos = &qpos;
        TH_OK(gt_attention_forward(h.ctx, &out, &lse, &q, &k, &v, &p, NULL));
        th_compare(&h, "out", &out, (const double[]){0.0, 1.5}, 1.0);
        th_compare(&h, "lse", &lse, (const double[]){-INFINITY, log(2.0)}, 1.0);
        TH_OK(gt_attention_backward(h.ctx, &dq, &dk, &dv, &dout, &out, &lse, &q, &k, &v, &p, NULL));
        th_compare(&h, "dq", &dq, (const double[]){0.0, 0.0}, 1.0);
        th_compare(&h, "dk", &dk, (const double[]){-0.25, 0.25, 0.0}, 1.0);
        th_compare(&h, "dv", &dv, (const double[]){0.5, 0.5, 0.0}, 1.0);
    }
}

/* Scores of +-1e4 overflow a softmax without its maximum taken off; a NaN does not hide. */
static void attention_extreme_scores(void **state)
{
    th h = {0};
    th_open(&h, "cpu");
    gt_tensor q = th_new(&h, GT_F32, TH_SHAPE(2)), k = th_new(&h, GT_F32, TH_SHAPE(2));
    gt_tensor v = th_new(&h, GT_F32, TH_SHAPE(2)), out = th_new(&h, GT_F32, TH_SHAPE(2));
    gt_attention_params p = GT_ATTENTION_PARAMS_INIT;
    p.b = 1, p.tq = p.tk = 2, p.heads = p.kv_heads = p.head_size = 1;
    th_set(&h, &q, (const double[]){1e4, -1e4});
    th_set(&h, &k, (const double[]){1.0, -1.0});
    th_set(&h, &v, (const double[]){5.0, 7.0});
    TH_OK(gt_attention_forward(h.ctx, &out, NULL, &q, &k, &v, &p, NULL));
    th_compare(&h, "out", &out, (const double[]){5.0, 7.0}, 0.0);
    th_set(&h, &k, (const double[]){NAN, 1.0});
    TH_OK(gt_attention_forward(h.ctx, &out, NULL, &q, &k, &v, &p, NULL));
    th_compare(&h, "out", &out, (const double[]){NAN, NAN}, 0.0);
    th_close(&h);
}

/* Two halves of the keys, merged, are attention over all; gradients of the halves add up. */
static void attention_merge_of_halves(void **state)
{
    TH_ON_DEVICES(h)
    {
        const layout s = {2, 40, 50, 2, 1, 16, 0};
        fixture f;
        make(&f, &h, &s, GT_F32);
        check_forward(&f);
        const int64_t cut = 23;
        gt_tensor out = th_new(&h, GT_F32, TH_SHAPE(2, 40, 2, 16)),
                  lse = th_new(&h, GT_F32, TH_SHAPE(2, 2, 40));
        gt_tensor part = th_new(&h, GT_F32, TH_SHAPE(2, 40, 2, 16)),
                  part_lse = th_new(&h, GT_F32, TH_SHAPE(2, 2, 40));
        gt_tensor mask[2];
        for (int i = 0; i < 2; i++) {
            double *x = th_host(&h, 100);
            for (int64_t e = 0; e < 100; e++) {
                x[e] = (double)((e % 50 < cut) == (i == 0));
            }
            mask[i] = th_new(&h, GT_U8, TH_SHAPE(2, 50));
            th_set(&h, &mask[i], x);
        }
        f.p.key_mask = &mask[0];
        TH_OK(gt_attention_forward(h.ctx, &out, &lse, &f.q, &f.k, &f.v, &f.p, NULL));
        f.p.key_mask = &mask[1];
        TH_OK(gt_attention_forward(h.ctx, &part, &part_lse, &f.q, &f.k, &f.v, &f.p, NULL));
        TH_OK(gt_attention_merge(h.ctx, &out, &lse, &part, &part_lse, 2, 40, 2, 16, NULL));
        th_compare(&h, "out", &out, th_get(&h, &f.out), 1.0);
        th_compare(&h, "lse", &lse, th_get(&h, &f.lse), 1.0);
        gt_tensor *grads[] = {&f.dq, &f.dk, &f.dv};
        for (int i = 0; i < 3; i++) {
            th_fill(&h, grads[i], 0.0);
        }
        f.p.accumulate = true;
        for (int i = 0; i < 2; i++) {
            f.p.key_mask = &mask[i];
            TH_OK(gt_attention_backward(h.ctx, &f.dq, &f.dk, &f.dv, &f.dout, &out, &lse, &f.q, &f.k,
                                        &f.v, &f.p, NULL));
        }
        double *dq = th_host(&h, 2 * 40 * 2 * 16), *dk = th_host(&h, 2 * 50 * 16),
               *dv = th_host(&h, 2 * 50 * 16);
        gti_ref_attention_bwd(dq, dk, dv, f.hdout, f.hq, f.hk, f.hv, &f.r);
        th_compare(&h, "dq", &f.dq, dq, 4.0);
        th_compare(&h, "dk", &f.dk, dk, 4.0);
        th_compare(&h, "dv", &f.dv, dv, 4.0);
        /* An empty part changes nothing. */
        th_fill(&h, &part_lse, -INFINITY);
        TH_OK(gt_attention_merge(h.ctx, &out, &lse, &part, &part_lse, 2, 40, 2, 16, NULL));
        th_compare(&h, "lse", &lse, th_get(&h, &f.lse), 1.0);
    }
}

/* One document of a packed sample, as views: rows [first, first + n). */
typedef struct document {
    int64_t first, n;
} document;

static gt_tensor rows_of(const gt_tensor *t, int64_t first, int64_t row)
{
    return view(t, first * row);
}

/* Computes document x alone from the packed sample's own inputs and compares with what the packed
 * call left in its rows. */
static void check_alone(const fixture *f, document x)
{
    th *h = f->h;
    const layout *s = &f->s;
    const int64_t wq = s->h * s->d, wk = s->hkv * s->d;
    gt_tensor out = th_new(h, f->q.dtype, TH_SHAPE(x.n, wq)),
              lse = th_new(h, GT_F32, TH_SHAPE(s->h, x.n)),
              dq = th_new(h, GT_F32, TH_SHAPE(x.n, wq)), dk = th_new(h, GT_F32, TH_SHAPE(x.n, wk)),
              dv = th_new(h, GT_F32, TH_SHAPE(x.n, wk));
    gt_tensor q = rows_of(&f->q, x.first, wq), k = rows_of(&f->k, x.first, wk),
              v = rows_of(&f->v, x.first, wk), dout = rows_of(&f->dout, x.first, wq);
    gt_attention_params p = f->p;
    p.tq = p.tk = x.n;
    p.starts = NULL;
    TH_OK(gt_attention_forward(h->ctx, &out, &lse, &q, &k, &v, &p, NULL));
    TH_OK(gt_attention_backward(h->ctx, &dq, &dk, &dv, &dout, &out, &lse, &q, &k, &v, &p, NULL));
    const th_tolerance t = th_tolerance_of(f->q.dtype); /* out came rounded to it */
    const double *packed[] = {th_get(h, &f->out) + x.first * wq, th_get(h, &f->dq) + x.first * wq,
                              th_get(h, &f->dk) + x.first * wk, th_get(h, &f->dv) + x.first * wk};
    th_compare_values("out", th_get(h, &out), packed[0], x.n * wq, t);
    th_compare_values("dq", th_get(h, &dq), packed[1], x.n * wq, t);
    th_compare_values("dk", th_get(h, &dk), packed[2], x.n * wk, t);
    th_compare_values("dv", th_get(h, &dv), packed[3], x.n * wk, t);
    const double *packed_lse = th_get(h, &f->lse);
    double *want = th_host(h, s->h * x.n);
    for (int64_t i = 0; i < s->h * x.n; i++) {
        want[i] = packed_lse[i / x.n * s->tq + x.first + i % x.n];
    }
    th_compare(h, "lse", &lse, want, 1.0);
}

static void packed_documents_are_each_document_alone(void **state)
{
    static const document documents[] = {{0, 1}, {1, 63}, {64, 85}, {149, 2}, {151, 149}, {300, 1}};
    static const gt_dtype dtypes[] = {GT_F32, GT_BF16, GT_F16};
    for (int i = 0; i < 3; i++) {
        TH_ON_DEVICES(h)
        {
            const layout s = {1, 301, 301, 4, 2, 10, CAUSAL | DOCUMENTS | F32_GRADS};
            fixture f;
            make(&f, &h, &s, dtypes[i]);
            double *starts = th_host(&h, s.tq);
            for (size_t x = 0; x < sizeof documents / sizeof documents[0]; x++) {
                for (int64_t t = 0; t < documents[x].n; t++) {
                    starts[documents[x].first + t] = (double)documents[x].first;
                }
            }
            th_set(&h, &f.starts, starts);
            f.r.starts = starts;
            check_forward(&f);
            check_backward(&f);
            for (size_t x = 0; x < sizeof documents / sizeof documents[0]; x++) {
                check_alone(&f, documents[x]);
            }
        }
    }
}

/* A document that begins where a block of queries begins: what lies before it, even NaN, is not
 * looked at. */
static void keys_before_a_document_are_skipped(void **state)
{
    TH_ON_DEVICES(h)
    {
        const layout s = {1, 256, 256, 1, 1, 8, CAUSAL | DOCUMENTS};
        const int64_t border = 128;
        fixture f;
        make(&f, &h, &s, GT_F32);
        double *starts = th_host(&h, s.tq), *wrong = th_host(&h, s.tk * s.d);
        memcpy(wrong, f.hk, sizeof(double) * (size_t)(s.tk * s.d));
        for (int64_t t = 0; t < s.tq; t++) {
            starts[t] = t < border ? 0.0 : (double)border;
        }
        for (int64_t i = 0; i < border * s.d; i++) {
            wrong[i] = NAN;
        }
        th_set(&h, &f.starts, starts);
        f.r.starts = starts;
        check_forward(&f);
        check_backward(&f);
        const gt_tensor *results[] = {&f.out, &f.dq, &f.dk, &f.dv};
        const double *want[4];
        for (int i = 0; i < 4; i++) {
            want[i] = th_get(&h, results[i]);
        }
        memcpy(wrong + border * s.d, f.hv + border * s.d,
               sizeof(double) * (size_t)((s.tk - border) * s.d));
        th_set(&h, &f.v, wrong);
        memcpy(wrong + border * s.d, f.hk + border * s.d,
               sizeof(double) * (size_t)((s.tk - border) * s.d));
        th_set(&h, &f.k, wrong);
        TH_OK(gt_attention_forward(h.ctx, &f.out, &f.lse, &f.q, &f.k, &f.v, &f.p, NULL));
        TH_OK(gt_attention_backward(h.ctx, &f.dq, &f.dk, &f.dv, &f.dout, &f.out, &f.lse, &f.q, &f.k,
                                    &f.v, &f.p, NULL));
        for (int i = 0; i < 4; i++) {
            const double *got = th_get(&h, results[i]);
            assert_true(isnan(got[0]));
            th_compare_values("after the border", got + border * s.d, want[i] + border * s.d,
                              (s.tq - border) * s.d, (th_tolerance){0.0, 0.0});
        }
    }
}

/* One key/value head and 4 threads takes the path of ranges, 1 thread that of whole heads. */
static void attention_same_bits_for_any_threads(void **state)
{
    enum { SIZE = 150 * 2 * 24, KV = 150 * 24 };
    double *first = calloc(2 * SIZE + 2 * KV, sizeof(double));
    assert_non_null(first);
    for (int threads = 1; threads <= 4; threads++) {
        th h = {0};
        th_open(&h, "cpu");
        gt_context_params params = GT_CONTEXT_PARAMS_INIT;
        params.threads = threads;
        gt_context *ctx = NULL;
        TH_OK(gt_context_create(&ctx, &params));
        const layout s = {1, 150, 150, 2, 1, 24, CAUSAL};
        fixture f;
        make(&f, &h, &s, GT_F32);
        TH_OK(gt_attention_forward(ctx, &f.out, &f.lse, &f.q, &f.k, &f.v, &f.p, NULL));
        TH_OK(gt_attention_backward(ctx, &f.dq, &f.dk, &f.dv, &f.dout, &f.out, &f.lse, &f.q, &f.k,
                                    &f.v, &f.p, NULL));
        double got[2 * SIZE + 2 * KV];
        memcpy(got, th_get(&h, &f.out), sizeof(double) * SIZE);
        memcpy(got + SIZE, th_get(&h, &f.dq), sizeof(double) * SIZE);
        memcpy(got + 2 * SIZE, th_get(&h, &f.dk), sizeof(double) * KV);
        memcpy(got + 2 * SIZE + KV, th_get(&h, &f.dv), sizeof(double) * KV);
        if (threads == 1) {
            memcpy(first, got, sizeof got);
        }
        assert_memory_equal(first, got, sizeof got);
        gt_context_destroy(&ctx);
        th_close(&h);
    }
    free(first);
}

/* The oracle's gradient is that of the oracle's value. */
static void oracle_gradient_is_a_derivative(void **state)
{
    th h = {0};
    th_open(&h, "cpu");
    const layout s = {2, 6, 7, 2, 1, 3, CAUSAL | MASK | POSITIONS | DOCUMENTS};
    fixture f;
    make(&f, &h, &s, GT_F32);
    const int64_t nq = 2 * 6 * 2 * 3, nk = 2 * 7 * 3;
    double *grad[3] = {th_host(&h, nq), th_host(&h, nk), th_host(&h, nk)};
    double *out = th_host(&h, nq), *lse = th_host(&h, 24), *x[3];
    const double *in[3] = {f.hq, f.hk, f.hv};
    const int64_t n[3] = {nq, nk, nk};
    gti_ref_attention_bwd(grad[0], grad[1], grad[2], f.hdout, in[0], in[1], in[2], &f.r);
    for (int i = 0; i < 3; i++) {
        x[i] = th_host(&h, n[i]);
        memcpy(x[i], in[i], sizeof(double) * (size_t)n[i]);
    }
    for (int i = 0; i < 3; i++) {
        double *difference = th_host(&h, n[i]);
        for (int64_t e = 0; e < n[i]; e++) {
            for (int sign = -1; sign <= 1; sign += 2) {
                x[i][e] = in[i][e] + sign * 1e-5;
                gti_ref_attention_fwd(out, lse, x[0], x[1], x[2], &f.r);
                for (int64_t o = 0; o < nq; o++) {
                    difference[e] += sign * out[o] * f.hdout[o] / 2e-5;
                }
            }
            x[i][e] = in[i][e];
        }
        th_compare_values("gradient", grad[i], difference, n[i], (th_tolerance){1e-8, 1e-7});
    }
    th_close(&h);
}

static void attention_refuses_bad_arguments(void **state)
{
    th h = {0};
    th_open(&h, "cpu");
    gt_tensor q = th_new(&h, GT_F32, TH_SHAPE(1, 4, 2, 8)),
              k = th_new(&h, GT_F32, TH_SHAPE(1, 4, 2, 8));
    gt_tensor out = th_new(&h, GT_F32, TH_SHAPE(1, 4, 2, 8)), i64 = th_new(&h, GT_I64, TH_SHAPE(3));
    gt_attention_params p = GT_ATTENTION_PARAMS_INIT;
    p.b = 1, p.tq = p.tk = 4, p.heads = 3, p.kv_heads = 2, p.head_size = 8;
    TH_FAILS(gt_attention_forward(h.ctx, &out, NULL, &q, &k, &k, &p, NULL), GT_ERR_SHAPE,
             "heads=3 is not a multiple of kv_heads=2");
    p.heads = 4;
    TH_FAILS(gt_attention_forward(h.ctx, &out, NULL, &q, &k, &k, &p, NULL), GT_ERR_SHAPE,
             "q has 64 elements, wanted 128 or more");
    p.heads = 2, p.ldk = 15;
    TH_FAILS(gt_attention_forward(h.ctx, &out, NULL, &q, &k, &k, &p, NULL), GT_ERR_SHAPE,
             "ld of k is 15, wanted 16 or more");
    p.ldk = 0, p.head_size = 0;
    TH_FAILS(gt_attention_forward(h.ctx, &out, NULL, &q, &k, &k, &p, NULL), GT_ERR_SHAPE,
             "head_size=0");
    p.head_size = 8, p.qpos = &i64;
    TH_FAILS(gt_attention_forward(h.ctx, &out, NULL, &q, &k, &k, &p, NULL), GT_ERR_SHAPE,
             "qpos has 3 elements, wanted Tq=4");
    p.qpos = NULL, p.starts = &i64;
    TH_FAILS(gt_attention_forward(h.ctx, &out, NULL, &q, &k, &k, &p, NULL), GT_ERR_SHAPE,
             "starts has 3 elements, wanted B*Tq=4");
    p.starts = &out;
    TH_FAILS(gt_attention_forward(h.ctx, &out, NULL, &q, &k, &k, &p, NULL), GT_ERR_DTYPE,
             "starts is f32, wanted i64");
    TH_FAILS(gt_attention_forward(h.ctx, &out, NULL, &q, &k, &k, NULL, NULL), GT_ERR_ARGUMENT,
             "NULL");
    th_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_gradient_is_a_derivative),
        cmocka_unit_test(attention_any_length),
        cmocka_unit_test(attention_1025),
        cmocka_unit_test(attention_16_bit),
        cmocka_unit_test(attention_variants),
        cmocka_unit_test(attention_row_without_keys),
        cmocka_unit_test(attention_extreme_scores),
        cmocka_unit_test(attention_merge_of_halves),
        cmocka_unit_test(packed_documents_are_each_document_alone),
        cmocka_unit_test(keys_before_a_document_are_skipped),
        cmocka_unit_test(attention_same_bits_for_any_threads),
        cmocka_unit_test(attention_refuses_bad_arguments),
    };
    return OPS_RUN(tests);
}
