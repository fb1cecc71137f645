/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention, backward, recomputing probabilities from lse (Dao et al. 2022):
 *
 *     P = exp(scale q k^T - lse)    dv = P^T dout        dP = dout v^T
 *     dS = P (dP - rowsum(dout out))                     dq = scale dS k     dk = scale dS^T q
 *
 * A job is one key/value head with all its query heads; sums live in the job's own f32 panels.
 * Where there are too few heads for the threads, a job is a range of keys (dk, dv) or of queries
 * (dq), at seven products instead of five. Either way each element is summed over heads, then
 * blocks, in ascending order: the same bits for any number of threads.
 */
#include "backend/cpu/kernels/attention.h"
#include "backend/cpu/kernels/kernel.h"
#include "backend/cpu/scratch.h"

#define KEYS 42 /* keys per block: scores and their gradients stay in the first-level cache */

enum { WANT_DQ = 1, WANT_DKV = 2 };

/* What of the gradients one job makes: query blocks [q0, q1) meet key blocks [k0, k1). */
typedef struct job {
    int64_t b, kv, head0, head1;
    int64_t q0, q1, k0, k1;
    int want;
} job;

typedef struct work {
    const struct gti_attention_bwd_args *a;
    int64_t wide;          /* D up to whole tiles                                    */
    float *qt, *dot;       /* [blocks][D][QB]: queries, dout, transposed             */
    float *q, *dout;       /* [blocks * QB][wide]                                    */
    float *dqt;            /* [blocks][D][QB]                                        */
    float *lse, *delta;    /* [blocks * QB], lse in units of log2                    */
    float *dk, *dv;        /* [key blocks * KEYS][wide]                              */
    float *k, *v, *s, *ds; /* [KEYS][wide], [KEYS][QB]                               */
    float *rows;           /* [QB][wide]                                             */
    gti_query_block *at;   /* [blocks]                                               */
} work;

static int64_t query_blocks(const struct gti_attention_bwd_args *a)
{
    return (a->tq + GTI_QB - 1) / GTI_QB;
}
static int64_t key_blocks(const struct gti_attention_bwd_args *a)
{
    return (a->tk + KEYS - 1) / KEYS;
}

/* Hands out pieces of one allocation; with base NULL only counts. */
static float *piece(float *base, size_t *used, int64_t floats)
{
    float *p = base != NULL ? base + *used : NULL;
    *used += (size_t)gti_round_floats(floats);
    return p;
}

static size_t lay_out(work *w, float *base, int64_t nq, int64_t nk)
{
    const int64_t d = w->a->d;
    size_t used = 0;
    w->qt = piece(base, &used, nq * d * GTI_QB);
    w->dot = piece(base, &used, nq * d * GTI_QB);
    w->dqt = piece(base, &used, nq * d * GTI_QB);
    w->q = piece(base, &used, nq * GTI_QB * w->wide);
    w->dout = piece(base, &used, nq * GTI_QB * w->wide);
    w->lse = piece(base, &used, nq * GTI_QB);
    w->delta = piece(base, &used, nq * GTI_QB);
    w->dk = piece(base, &used, nk * KEYS * w->wide);
    w->dv = piece(base, &used, nk * KEYS * w->wide);
    w->k = piece(base, &used, KEYS * w->wide);
    w->v = piece(base, &used, KEYS * w->wide);
    w->s = piece(base, &used, KEYS * GTI_QB);
    w->ds = piece(base, &used, KEYS * GTI_QB);
    w->rows = piece(base, &used, GTI_QB * w->wide);
    w->at = (gti_query_block *)(void *)piece(
        base, &used, nq * (int64_t)(sizeof(gti_query_block) / sizeof(float)));
    return used;
}

static gti_visibility visibility(const struct gti_attention_bwd_args *a, int64_t b)
{
    const int64_t *starts = a->starts.data;
    const uint8_t *mask = a->key_mask.data;
    return (gti_visibility){a->qpos.data, a->kpos.data, starts != NULL ? starts + b * a->tq : NULL,
                            mask != NULL ? mask + b * a->tk : NULL, a->causal};
}

/* ---- a head's queries -------------------------------------------------------------------------*/
/* delta[i] = sum over c of dout * out, and lse in log2; a query that sees nothing gets lse +inf, so
 * that its probabilities are 0. */
static void load_statistics(work *w, int64_t b, int64_t h, int64_t slot, int64_t t0, int64_t n)
{
    const struct gti_attention_bwd_args *a = w->a;
    const gti_head out = gti_head_of(&a->out, b, a->tq, a->ldo, h, a->d);
    const float *lse = (const float *)a->lse.data + (b * a->h + h) * a->tq + t0;
    gti_load_rows(w->rows, &out, t0, n, GTI_QB, a->d, w->wide);
    for (int64_t i = 0; i < GTI_QB; i++) {
        const float *x = w->rows + i * w->wide, *y = w->dout + (slot * GTI_QB + i) * w->wide;
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < w->wide; c++) {
            sum += x[c] * y[c];
        }
        w->delta[slot * GTI_QB + i] = sum;
        const bool sees = i < n && lse[i] != -INFINITY;
        w->lse[slot * GTI_QB + i] = sees ? lse[i] * GTI_LOG2E : INFINITY;
    }
}

static void load_head(work *w, const job *j, int64_t h)
{
    const struct gti_attention_bwd_args *a = w->a;
    const gti_visibility see = visibility(a, j->b);
    const gti_head q = gti_head_of(&a->q, j->b, a->tq, a->ldq, h, a->d);
    const gti_head dout = gti_head_of(&a->dout, j->b, a->tq, a->ldo, h, a->d);
    for (int64_t block = j->q0; block < j->q1; block++) {
        const int64_t slot = block - j->q0, t0 = block * GTI_QB;
        const int64_t n = a->tq - t0 < GTI_QB ? a->tq - t0 : GTI_QB;
        const int64_t panel = slot * a->d * GTI_QB, row = slot * GTI_QB * w->wide;
        gti_load_queries(w->qt + panel, &q, t0, n, a->d, a->scale * GTI_LOG2E);
        gti_load_queries(w->dot + panel, &dout, t0, n, a->d, 1.0f);
        gti_load_rows(w->q + row, &q, t0, n, GTI_QB, a->d, w->wide);
        gti_load_rows(w->dout + row, &dout, t0, n, GTI_QB, a->d, w->wide);
        gti_query_positions(&w->at[slot], &see, t0, n);
        load_statistics(w, j->b, h, slot, t0, n);
    }
    if (j->want & WANT_DQ) {
        memset(w->dqt, 0, (size_t)((j->q1 - j->q0) * a->d * GTI_QB) * sizeof(float));
    }
}

/* ---- one block of keys against one of queries -------------------------------------------------*/
typedef struct keys {
    gti_keys seen;
    int64_t index[KEYS], pos[KEYS];
} keys;

/* s: scores -> P; ds: dP -> dS. */
static void softmax_gradient(work *w, int64_t count, int64_t slot)
{
    for (int j = 0; j < GTI_QB; j += GTI_LANES) {
        const gti_vec lse = gti_load(w->lse + slot * GTI_QB + j);
        const gti_vec delta = gti_load(w->delta + slot * GTI_QB + j);
        for (int64_t k = 0; k < count; k++) {
            float *s = w->s + k * GTI_QB + j, *ds = w->ds + k * GTI_QB + j;
            const gti_vec p = gti_vexp2(gti_load(s) - lse);
            gti_store(s, p);
            gti_store(ds, p * (gti_load(ds) - delta));
        }
    }
}

static void add_pair(work *w, const job *j, const gti_keys *x, int64_t block, int64_t slot)
{
    const struct gti_attention_bwd_args *a = w->a;
    const int64_t panel = slot * a->d * GTI_QB, row = slot * GTI_QB * w->wide;
    int64_t from, end;
    gti_trim_keys(&w->at[slot], x, &from, &end);
    const int64_t count = end - from;
    gti_tile_args t = {.row = w->wide, .ldb = GTI_QB, .k = a->d, .ldc = GTI_QB};
    t.a = w->k + from * w->wide, t.b = w->qt + panel, t.c = w->s;
    gti_product_rows(t, count, GTI_QB);
    t.a = w->v + from * w->wide, t.b = w->dot + panel, t.c = w->ds;
    gti_product_rows(t, count, GTI_QB);
    if (x->max > w->at[slot].last_min || x->min < w->at[slot].first_max) {
        gti_mask_scores(w->s, x->pos + from, count, &w->at[slot]);
    }
    softmax_gradient(w, count, slot);
    if (j->want & WANT_DKV) {
        const int64_t at = ((block - j->k0) * KEYS + from) * w->wide;
        t = (gti_tile_args){.row = GTI_QB, .ldb = w->wide, .k = GTI_QB, .ldc = w->wide};
        t.a = w->s, t.b = w->dout + row, t.c = w->dv + at;
        gti_product_rows_add(t, count, w->wide);
        t.a = w->ds, t.b = w->q + row, t.c = w->dk + at;
        gti_product_rows_add(t, count, w->wide);
    }
    if (j->want & WANT_DQ) {
        t = (gti_tile_args){.step = w->wide, .ldb = GTI_QB, .k = count, .ldc = GTI_QB};
        t.a = w->k + from * w->wide, t.b = w->ds, t.c = w->dqt + panel;
        gti_product_columns_add(t, a->d, GTI_QB);
    }
}

/* Every key of the block that the mask allows, whatever query: dk and dv need a fixed order. */
static void find_keys(keys *x, const struct gti_attention_bwd_args *a, int64_t b, int64_t block)
{
    const gti_visibility see = visibility(a, b);
    const int64_t t0 = block * KEYS, n = a->tk - t0 < KEYS ? a->tk - t0 : KEYS;
    x->seen = (gti_keys){.index = x->index, .pos = x->pos};
    gti_visible_keys(&x->seen, &see, t0, n);
}

static void load_keys(work *w, const job *j, const gti_keys *x)
{
    const struct gti_attention_bwd_args *a = w->a;
    const gti_head k = gti_head_of(&a->k, j->b, a->tk, a->ldk, j->kv, a->d);
    const gti_head v = gti_head_of(&a->v, j->b, a->tk, a->ldv, j->kv, a->d);
    for (int64_t i = 0; i < x->count; i++) {
        gti_load_rows(w->k + i * w->wide, &k, x->index[i], 1, 1, a->d, w->wide);
        gti_load_rows(w->v + i * w->wide, &v, x->index[i], 1, 1, a->d, w->wide);
    }
}

static void add_block(work *w, const job *j, int64_t block)
{
    bool loaded = false;
    keys x;
    find_keys(&x, w->a, j->b, block);
    for (int64_t q = j->q0; q < j->q1; q++) {
        if (!gti_sees(&w->at[q - j->q0], &x.seen)) {
            continue;
        }
        if (!loaded) {
            load_keys(w, j, &x.seen);
            loaded = true;
        }
        add_pair(w, j, &x.seen, block, q - j->q0);
    }
}

/* ---- results ----------------------------------------------------------------------------------*/
static void write_row(const gt_tensor *t, int64_t at, float *x, int64_t d, float factor, bool add,
                      float *old)
{
    if (add) {
        gti_load_f32(old, t->data, t->dtype, (size_t)at, (size_t)d);
    }
#pragma omp simd
    for (int64_t c = 0; c < d; c++) {
        x[c] = x[c] * factor + (add ? old[c] : 0.0f);
    }
    gti_store_f32(t->data, x, t->dtype, (size_t)at, (size_t)d);
}

static void write_dq(work *w, const job *j, int64_t h)
{
    const struct gti_attention_bwd_args *a = w->a;
    for (int64_t block = j->q0; block < j->q1; block++) {
        const int64_t t0 = block * GTI_QB;
        const int64_t n = a->tq - t0 < GTI_QB ? a->tq - t0 : GTI_QB;
        const float *panel = w->dqt + (block - j->q0) * a->d * GTI_QB;
        gti_pack_transposed(w->rows, w->wide, panel, GT_F32, 0, a->d, GTI_QB, 0, GTI_QB);
        for (int64_t i = 0; i < n; i++) {
            const int64_t at = (j->b * a->tq + t0 + i) * a->lddq + h * a->d;
            write_row(&a->dq, at, w->rows + i * w->wide, a->d, a->scale, a->accumulate, w->k);
        }
    }
}

static void write_dkv(work *w, const job *j)
{
    const struct gti_attention_bwd_args *a = w->a;
    for (int64_t block = j->k0; block < j->k1; block++) {
        keys x;
        find_keys(&x, a, j->b, block);
        const int64_t t0 = block * KEYS, n = a->tk - t0 < KEYS ? a->tk - t0 : KEYS;
        for (int64_t i = 0, next = 0; i < n; i++) {
            const bool used = next < x.seen.count && x.index[next] == t0 + i;
            const int64_t at = ((block - j->k0) * KEYS + (used ? next++ : 0)) * w->wide;
            if (!used && a->accumulate) {
                continue;
            }
            if (!used) {
                memset(w->rows, 0, (size_t)w->wide * sizeof(float));
            }
            float *dk = used ? w->dk + at : w->rows, *dv = used ? w->dv + at : w->rows;
            const int64_t row = j->b * a->tk + t0 + i, column = j->kv * a->d;
            write_row(&a->dk, row * a->lddk + column, dk, a->d, a->scale, a->accumulate, w->k);
            write_row(&a->dv, row * a->lddv + column, dv, a->d, 1.0f, a->accumulate, w->k);
        }
    }
}

static void run_job(work *w, const job *j)
{
    if (j->want & WANT_DKV) {
        const size_t floats = (size_t)((j->k1 - j->k0) * KEYS * w->wide);
        memset(w->dk, 0, floats * sizeof(float));
        memset(w->dv, 0, floats * sizeof(float));
    }
    for (int64_t h = j->head0; h < j->head1; h++) {
        load_head(w, j, h);
        for (int64_t block = j->k0; block < j->k1; block++) {
            add_block(w, j, block);
        }
        if (j->want & WANT_DQ) {
            write_dq(w, j, h);
        }
    }
    if (j->want & WANT_DKV) {
        write_dkv(w, j);
    }
}

/* ---- dealing out ------------------------------------------------------------------------------*/
/* Either whole heads (parts 1), or `parts` ranges of keys and as many of queries. */
typedef struct deal {
    int64_t heads, parts, jobs;
    int threads;
} deal;

static deal choose_deal(const struct gti_attention_bwd_args *a, int threads)
{
    deal d = {.heads = a->b * a->hkv, .parts = 1, .threads = threads};
    const double pairs = (double)(a->b * a->h) * (double)a->tq * (double)a->tk;
    if (pairs * (double)a->d < 1 << 16) {
        d.threads = 1;
    }
    const int64_t rounds = (d.heads + d.threads - 1) / d.threads;
    if (d.threads > 1 && 5 * rounds * d.threads > 7 * d.heads) {
        d.parts = (4 * d.threads + d.heads - 1) / d.heads;
    }
    d.jobs = d.parts == 1 ? d.heads : 2 * d.heads * d.parts;
    return d;
}

static job job_of(const struct gti_attention_bwd_args *a, const deal *d, int64_t number)
{
    const int64_t head = number % d->heads, part = number / d->heads, group = a->h / a->hkv;
    const int64_t nq = query_blocks(a), nk = key_blocks(a);
    job j = {.b = head / a->hkv, .kv = head % a->hkv, .q1 = nq, .k1 = nk};
    j.head0 = j.kv * group;
    j.head1 = j.head0 + group;
    j.want = WANT_DQ | WANT_DKV;
    if (d->parts > 1 && part < d->parts) {
        j.want = WANT_DKV;
        j.k0 = part * nk / d->parts;
        j.k1 = (part + 1) * nk / d->parts;
    } else if (d->parts > 1) {
        j.want = WANT_DQ;
        j.q0 = (part - d->parts) * nq / d->parts;
        j.q1 = (part - d->parts + 1) * nq / d->parts;
    }
    return j;
}

gt_status GTI_KERNEL(attention_bwd)
{
    const struct gti_attention_bwd_args *a = raw;
    const deal d = choose_deal(a, gti_cpu_threads(device));
    int failed = 0;
#pragma omp parallel num_threads(d.threads)
    {
        work w = {.a = a, .wide = (a->d + GTI_NR - 1) / GTI_NR * GTI_NR};
        const size_t floats = lay_out(&w, NULL, query_blocks(a), key_blocks(a));
        float *memory = gti_cpu_scratch(GTI_SCRATCH_OWN, floats * sizeof(float));
        if (memory == NULL) {
#pragma omp atomic write
            failed = 1;
        } else {
            lay_out(&w, memory, query_blocks(a), key_blocks(a));
        }
#pragma omp for schedule(dynamic)
        for (int64_t number = 0; number < d.jobs; number++) {
            if (memory != NULL) {
                const job j = job_of(a, &d, number);
                run_job(&w, &j);
            }
        }
    }
    return failed ? GT_FAIL(GT_ERR_MEMORY, "out of memory for attention's blocks") : GT_OK;
}
