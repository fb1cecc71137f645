/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention, forward: out = softmax(scale q k^T) v and the log of the softmax's denominator, one
 * pass over blocks of keys with running maximum and sum (Milakov & Gimelshein 2018; Dao et al.
 * 2022). A job is a block of GTI_QB queries of one head; jobs share nothing, so results do not
 * depend on the number of threads. FLOP: 4 D per pair that sees each other.
 */
#include "backend/cpu/kernels/attention.h"
#include "backend/cpu/kernels/kernel.h"
#include "backend/cpu/scratch.h"

#define KEYS 84 /* keys per block: a whole number of tiles in every instruction set */

/* One thread's panels. */
typedef struct work {
    float *q, *o; /* [D][QB]: queries, unnormalised results, transposed */
    float *k, *v; /* [KEYS][D]                                          */
    float *s;     /* [KEYS][QB] scores, then probabilities              */
    float *rows;  /* [QB][D] results                                    */
    float max[GTI_QB], sum[GTI_QB], shrink[GTI_QB];
    int64_t index[KEYS], pos[KEYS];
    gti_query_block at;
} work;

static bool get_work(work *w, int64_t d)
{
    const int64_t panel = gti_round_floats(d * GTI_QB), block = gti_round_floats(d * KEYS);
    const int64_t total = 3 * panel + 2 * block + KEYS * GTI_QB;
    float *p = gti_cpu_scratch(GTI_SCRATCH_OWN, (size_t)total * sizeof(float));
    w->q = p;
    w->o = p + panel;
    w->rows = p + 2 * panel;
    w->k = p + 3 * panel;
    w->v = w->k + block;
    w->s = w->v + block;
    return p != NULL;
}

/* New maxima, probabilities in place, sums; shrink[q] is what earlier results are multiplied by. */
static void softmax_block(work *w, int64_t keys)
{
    for (int j = 0; j < GTI_QB; j += GTI_LANES) {
        float *s = w->s + j;
        const gti_vec before = gti_load(w->max + j);
        gti_vec m0 = before, m1 = before;
        int64_t k = 0;
        for (; k + 2 <= keys; k += 2) {
            m0 = gti_vmax(gti_load(s + k * GTI_QB), m0);
            m1 = gti_vmax(gti_load(s + (k + 1) * GTI_QB), m1);
        }
        if (k < keys) {
            m0 = gti_vmax(gti_load(s + k * GTI_QB), m0);
        }
        m0 = gti_vmax(m0, m1);
        /* A column that has seen no key: any finite number will do. */
        const gti_vec m = gti_select(m0 == gti_splat(-INFINITY), gti_splat(0.0f), m0);
        gti_vec sum = gti_splat(0.0f);
        for (k = 0; k < keys; k++) {
            const gti_vec p = gti_vexp2(gti_load(s + k * GTI_QB) - m);
            gti_store(s + k * GTI_QB, p);
            sum += p;
        }
        const gti_vec shrink = gti_vexp2(before - m);
        gti_store(w->max + j, m0);
        gti_store(w->sum + j, gti_load(w->sum + j) * shrink + sum);
        gti_store(w->shrink + j, shrink);
    }
}

static void shrink_results(work *w, int64_t d)
{
    for (int j = 0; j < GTI_QB; j += GTI_LANES) {
        const gti_vec f = gti_load(w->shrink + j);
        for (int64_t c = 0; c < d; c++) {
            gti_store(w->o + c * GTI_QB + j, gti_load(w->o + c * GTI_QB + j) * f);
        }
    }
}

typedef struct head {
    gti_head q, k, v;
    gti_visibility see;
    int64_t b, h;
} head;

static void add_keys(const struct gti_attention_fwd_args *a, const head *x, work *w, int64_t k0)
{
    const int64_t n = a->tk - k0 < KEYS ? a->tk - k0 : KEYS;
    const int64_t keys = gti_visible_keys(w->index, w->pos, &x->see, k0, n, w->at.max);
    if (keys == 0) {
        return;
    }
    for (int64_t i = 0; i < keys; i++) {
        const int64_t t = w->index[i];
        gti_load_f32(w->k + i * a->d, x->k.data, x->k.dtype, (size_t)(x->k.first + t * x->k.ld),
                     (size_t)a->d);
        gti_load_f32(w->v + i * a->d, x->v.data, x->v.dtype, (size_t)(x->v.first + t * x->v.ld),
                     (size_t)a->d);
    }
    gti_product_rows(
        (gti_tile_args){
            .a = w->k, .row = a->d, .b = w->q, .ldb = GTI_QB, .k = a->d, .c = w->s, .ldc = GTI_QB},
        keys, GTI_QB);
    if (a->causal) {
        gti_mask_scores(w->s, w->pos, keys, &w->at);
    }
    softmax_block(w, keys);
    shrink_results(w, a->d);
    gti_product_columns_add(
        (gti_tile_args){
            .a = w->v, .step = a->d, .b = w->s, .ldb = GTI_QB, .k = keys, .c = w->o, .ldc = GTI_QB},
        a->d, GTI_QB);
}

static void write_results(const struct gti_attention_fwd_args *a, const head *x, work *w,
                          int64_t t0, int64_t n)
{
    float factor[GTI_QB];
    for (int64_t i = 0; i < GTI_QB; i++) {
        factor[i] = w->sum[i] == 0.0f ? 0.0f : 1.0f / w->sum[i];
    }
    for (int64_t c = 0; c < a->d; c++) {
#pragma omp simd
        for (int64_t i = 0; i < GTI_QB; i++) {
            w->o[c * GTI_QB + i] *= factor[i];
        }
    }
    gti_pack_transposed(w->rows, a->d, w->o, GT_F32, 0, a->d, GTI_QB, 0, GTI_QB);
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = (x->b * a->tq + t0 + i) * a->ldo + x->h * a->d;
        gti_store_f32(a->out.data, w->rows + i * a->d, a->out.dtype, (size_t)at, (size_t)a->d);
        if (a->lse.data != NULL) {
            const float sum = w->sum[i];
            float *lse = (float *)a->lse.data + (x->b * a->h + x->h) * a->tq + t0 + i;
            *lse = sum == 0.0f ? -INFINITY : w->max[i] * GTI_LN2 + logf(sum);
        }
    }
}

static void run_job(const struct gti_attention_fwd_args *a, work *w, int64_t b, int64_t h,
                    int64_t t0)
{
    const int64_t n = a->tq - t0 < GTI_QB ? a->tq - t0 : GTI_QB;
    const int64_t kv = h / (a->h / a->hkv);
    const head x = {
        .q = gti_head_of(&a->q, b, a->tq, a->ldq, h, a->d),
        .k = gti_head_of(&a->k, b, a->tk, a->ldk, kv, a->d),
        .v = gti_head_of(&a->v, b, a->tk, a->ldv, kv, a->d),
        .see = {a->qpos.data, a->kpos.data,
                a->key_mask.data != NULL ? (const uint8_t *)a->key_mask.data + b * a->tk : NULL,
                a->causal},
        .b = b,
        .h = h,
    };
    gti_load_queries(w->q, &x.q, t0, n, a->d, a->scale * GTI_LOG2E);
    gti_query_positions(&w->at, &x.see, t0, n);
    memset(w->o, 0, (size_t)(a->d * GTI_QB) * sizeof(float));
    for (int i = 0; i < GTI_QB; i++) {
        w->max[i] = -INFINITY;
        w->sum[i] = 0.0f;
    }
    /* Without positions of their own, keys beyond the last query are not even looked at. */
    const bool plain = a->causal && a->kpos.data == NULL;
    const int64_t end = plain && w->at.max + 1 < a->tk ? w->at.max + 1 : a->tk;
    for (int64_t k0 = 0; k0 < end; k0 += KEYS) {
        add_keys(a, &x, w, k0);
    }
    write_results(a, &x, w, t0, n);
}

gt_status GTI_KERNEL(attention_fwd)
{
    const struct gti_attention_fwd_args *a = raw;
    const int64_t blocks = (a->tq + GTI_QB - 1) / GTI_QB, jobs = a->b * a->h * blocks;
    const double pairs = (double)a->b * (double)a->h * (double)a->tq * (double)a->tk;
    const int threads = pairs * (double)a->d < 1 << 17 ? 1 : gti_cpu_threads(device);
    int failed = 0;
#pragma omp parallel num_threads(threads)
    {
        work w;
        const bool ready = get_work(&w, a->d);
        if (!ready) {
#pragma omp atomic write
            failed = 1;
        }
        /* The longest causal rows come first, so that threads end together. */
#pragma omp for schedule(dynamic)
        for (int64_t job = 0; job < jobs; job++) {
            const int64_t block = blocks - 1 - job / (a->b * a->h), bh = job % (a->b * a->h);
            if (ready) {
                run_job(a, &w, bh / a->h, bh % a->h, block * GTI_QB);
            }
        }
    }
    return failed ? GT_FAIL(GT_ERR_MEMORY, "out of memory for attention's blocks") : GT_OK;
}
