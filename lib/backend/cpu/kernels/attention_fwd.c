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

#define KEYS 84     /* keys per block: a whole number of tiles in every instruction set */
#define GROUP_MAX 8 /* blocks of queries per job                                        */

/* The state of one block of queries. */
typedef struct queries {
    float *q, *o; /* [D][QB]: queries, unnormalised results, transposed */
    float max[GTI_QB], sum[GTI_QB], shrink[GTI_QB];
    gti_query_block at;
    int64_t t0, n;
} queries;

/* One thread's panels. */
typedef struct work {
    queries group[GROUP_MAX];
    float *k, *v; /* [KEYS][D]                         */
    float *s;     /* [KEYS][QB] scores, then probabilities */
    float *rows;  /* [QB][D] results                   */
    gti_keys keys;
    int64_t index[KEYS], pos[KEYS];
} work;

static bool get_work(work *w, int64_t d)
{
    const int64_t panel = gti_round_floats(d * GTI_QB), block = gti_round_floats(d * KEYS);
    const int64_t total = (2 * GROUP_MAX + 1) * panel + 2 * block + KEYS * GTI_QB;
    float *p = gti_cpu_scratch(GTI_SCRATCH_OWN, (size_t)total * sizeof(float));
    for (int i = 0; i < GROUP_MAX; i++) {
        w->group[i].q = p + 2 * i * panel;
        w->group[i].o = p + (2 * i + 1) * panel;
    }
    w->rows = p + 2 * GROUP_MAX * panel;
    w->k = w->rows + panel;
    w->v = w->k + block;
    w->s = w->v + block;
    w->keys = (gti_keys){.index = w->index, .pos = w->pos};
    return p != NULL;
}

/* New maxima, probabilities in place, sums; shrink[q] is what earlier results are multiplied by.
 * Returns whether any of it is not 1. */
static bool softmax_block(queries *x, float *scores, int64_t keys)
{
    bool changed = false;
    for (int j = 0; j < GTI_QB; j += GTI_LANES) {
        float *s = scores + j;
        const gti_vec before = gti_load(x->max + j);
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
        gti_vec sum0 = gti_splat(0.0f), sum1 = sum0;
        for (k = 0; k + 2 <= keys; k += 2) {
            const gti_vec p0 = gti_vexp2(gti_load(s + k * GTI_QB) - m);
            const gti_vec p1 = gti_vexp2(gti_load(s + (k + 1) * GTI_QB) - m);
            gti_store(s + k * GTI_QB, p0);
            gti_store(s + (k + 1) * GTI_QB, p1);
            sum0 += p0;
            sum1 += p1;
        }
        if (k < keys) {
            const gti_vec p0 = gti_vexp2(gti_load(s + k * GTI_QB) - m);
            gti_store(s + k * GTI_QB, p0);
            sum0 += p0;
        }
        const gti_vec shrink = gti_vexp2(before - m);
        gti_store(x->max + j, m0);
        gti_store(x->sum + j, gti_load(x->sum + j) * shrink + (sum0 + sum1));
        gti_store(x->shrink + j, shrink);
        for (int i = 0; i < GTI_LANES; i++) {
            changed |= x->shrink[j + i] != 1.0f;
        }
    }
    return changed;
}

static void shrink_results(queries *x, int64_t d)
{
    for (int j = 0; j < GTI_QB; j += GTI_LANES) {
        const gti_vec f = gti_load(x->shrink + j);
        for (int64_t c = 0; c < d; c++) {
            gti_store(x->o + c * GTI_QB + j, gti_load(x->o + c * GTI_QB + j) * f);
        }
    }
}

typedef struct head {
    gti_head q, k, v;
    gti_visibility see;
    int64_t b, h;
} head;

/* The block's keys widened to f32. */
static void load_keys(const struct gti_attention_fwd_args *a, const head *x, work *w)
{
    for (int64_t i = 0; i < w->keys.count; i++) {
        const int64_t t = w->index[i];
        gti_load_f32(w->k + i * a->d, x->k.data, x->k.dtype, (size_t)(x->k.first + t * x->k.ld),
                     (size_t)a->d);
        gti_load_f32(w->v + i * a->d, x->v.data, x->v.dtype, (size_t)(x->v.first + t * x->v.ld),
                     (size_t)a->d);
    }
}

static void add_keys(const struct gti_attention_fwd_args *a, work *w, queries *x)
{
    int64_t from, end;
    gti_trim_keys(&x->at, &w->keys, &from, &end);
    const int64_t keys = end - from;
    if (keys == 0) {
        return;
    }
    gti_product_rows((gti_tile_args){.a = w->k + from * a->d,
                                     .row = a->d,
                                     .b = x->q,
                                     .ldb = GTI_QB,
                                     .k = a->d,
                                     .c = w->s,
                                     .ldc = GTI_QB},
                     keys, GTI_QB);
    if (w->keys.max > x->at.last_min || w->keys.min < x->at.first_max) {
        gti_mask_scores(w->s, w->pos + from, keys, &x->at);
    }
    if (softmax_block(x, w->s, keys)) {
        shrink_results(x, a->d);
    }
    gti_product_columns_add((gti_tile_args){.a = w->v + from * a->d,
                                            .step = a->d,
                                            .b = w->s,
                                            .ldb = GTI_QB,
                                            .k = keys,
                                            .c = x->o,
                                            .ldc = GTI_QB},
                            a->d, GTI_QB);
}

static void write_results(const struct gti_attention_fwd_args *a, const head *x, work *w,
                          queries *g)
{
    float factor[GTI_QB];
    for (int64_t i = 0; i < GTI_QB; i++) {
        factor[i] = g->sum[i] == 0.0f ? 0.0f : 1.0f / g->sum[i];
    }
    for (int64_t c = 0; c < a->d; c++) {
#pragma omp simd
        for (int64_t i = 0; i < GTI_QB; i++) {
            g->o[c * GTI_QB + i] *= factor[i];
        }
    }
    gti_pack_transposed(w->rows, a->d, g->o, GT_F32, 0, a->d, GTI_QB, 0, GTI_QB);
    for (int64_t i = 0; i < g->n; i++) {
        const int64_t at = (x->b * a->tq + g->t0 + i) * a->ldo + x->h * a->d;
        gti_store_f32(a->out.data, w->rows + i * a->d, a->out.dtype, (size_t)at, (size_t)a->d);
    }
    if (a->lse.data == NULL) {
        return;
    }
    float *lse = (float *)a->lse.data + (x->b * a->h + x->h) * a->tq + g->t0;
    for (int64_t i = 0; i < g->n; i++) {
        lse[i] = g->sum[i] == 0.0f ? -INFINITY : g->max[i] * GTI_LN2 + logf(g->sum[i]);
    }
}

static void begin_queries(const struct gti_attention_fwd_args *a, const head *x, queries *g,
                          int64_t t0)
{
    g->t0 = t0;
    g->n = a->tq - t0 < GTI_QB ? a->tq - t0 : GTI_QB;
    gti_load_queries(g->q, &x->q, t0, g->n, a->d, a->scale * GTI_LOG2E);
    gti_query_positions(&g->at, &x->see, t0, g->n);
    memset(g->o, 0, (size_t)(a->d * GTI_QB) * sizeof(float));
    for (int i = 0; i < GTI_QB; i++) {
        g->max[i] = -INFINITY;
        g->sum[i] = 0.0f;
    }
}

static head head_of(const struct gti_attention_fwd_args *a, int64_t b, int64_t h)
{
    const int64_t kv = h / (a->h / a->hkv);
    const int64_t *starts = a->starts.data;
    const uint8_t *mask = a->key_mask.data;
    return (head){
        .q = gti_head_of(&a->q, b, a->tq, a->ldq, h, a->d),
        .k = gti_head_of(&a->k, b, a->tk, a->ldk, kv, a->d),
        .v = gti_head_of(&a->v, b, a->tk, a->ldv, kv, a->d),
        .see = {a->qpos.data, a->kpos.data, starts != NULL ? starts + b * a->tq : NULL,
                mask != NULL ? mask + b * a->tk : NULL, a->causal},
        .b = b,
        .h = h,
    };
}

/* Query blocks [first, end) of a head. */
static void run_job(const struct gti_attention_fwd_args *a, work *w, const head *x, int64_t first,
                    int64_t end)
{
    int64_t last = INT64_MIN;
    for (int64_t i = first; i < end; i++) {
        queries *g = &w->group[i - first];
        begin_queries(a, x, g, i * GTI_QB);
        last = g->at.last_max > last ? g->at.last_max : last;
    }
    for (int64_t k0 = 0; k0 < a->tk; k0 += KEYS) {
        if (a->kpos.data == NULL && k0 > last) {
            break; /* without positions of their own, later keys are not even looked at */
        }
        bool loaded = false;
        gti_visible_keys(&w->keys, &x->see, k0, a->tk - k0 < KEYS ? a->tk - k0 : KEYS);
        for (int64_t i = first; i < end; i++) {
            queries *g = &w->group[i - first];
            if (!gti_sees(&g->at, &w->keys)) {
                continue;
            }
            if (!loaded) {
                load_keys(a, x, w);
                loaded = true;
            }
            add_keys(a, w, g);
        }
    }
    for (int64_t i = first; i < end; i++) {
        write_results(a, x, w, &w->group[i - first]);
    }
}

/* Blocks per job: as many as leave each thread four jobs. */
static int64_t group_size(const struct gti_attention_fwd_args *a, int64_t blocks, int threads)
{
    const int64_t size = threads == 1 ? GROUP_MAX : blocks * a->b * a->h / (4 * threads);
    return size < 1 ? 1 : (size > GROUP_MAX ? GROUP_MAX : size);
}

gt_status GTI_KERNEL(attention_fwd)
{
    const struct gti_attention_fwd_args *a = raw;
    const double pairs = (double)a->b * (double)a->h * (double)a->tq * (double)a->tk;
    const int threads = pairs * (double)a->d < 1 << 17 ? 1 : gti_cpu_threads(device);
    const int64_t blocks = (a->tq + GTI_QB - 1) / GTI_QB, heads = a->b * a->h;
    const int64_t size = group_size(a, blocks, threads), groups = (blocks + size - 1) / size;
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
        for (int64_t job = 0; job < groups * heads; job++) {
            const int64_t group = groups - 1 - job / heads, bh = job % heads;
            const head x = head_of(a, bh / a->h, bh % a->h);
            const int64_t end = (group + 1) * size < blocks ? (group + 1) * size : blocks;
            if (ready) {
                run_job(a, &w, &x, group * size, end);
            }
        }
    }
    return failed ? GT_FAIL(GT_ERR_MEMORY, "out of memory for attention's blocks") : GT_OK;
}
