/* SPDX-License-Identifier: Apache-2.0
 *
 * What attention's passes share: blocks of queries and keys as f32 panels, and the softmax in
 * registers.
 *
 * Scores are kept transposed, S^T[key][query]: queries lie in the vector's lanes. Then K and V are
 * used as they lie (the register tile broadcasts their elements), softmax runs down columns without
 * any horizontal step, and P^T is at once the operand of the next product. Nothing but Q is ever
 * transposed. Scores are in units of log2, so that exp is 2^x.
 */
#ifndef GTI_CPU_ATTENTION_H
#define GTI_CPU_ATTENTION_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "backend/cpu/kernels/pack.h"
#include "backend/cpu/kernels/tile.h"

#define GTI_QB 64 /* queries per block: a whole number of tiles in every instruction set */
#define GTI_LOG2E 1.44269504088896341f
#define GTI_LN2 0.69314718055994531f

typedef int32_t gti_ivec __attribute__((vector_size(4 * GTI_LANES)));

GTI_ALWAYS_INLINE gti_vec gti_select(gti_ivec mask, gti_vec yes, gti_vec no)
{
    return (gti_vec)((mask & (gti_ivec)yes) | (~mask & (gti_ivec)no));
}

/* The larger one; b where either is NaN. */
GTI_ALWAYS_INLINE gti_vec gti_vmax(gti_vec a, gti_vec b)
{
#if defined(__AVX512F__)
    return (gti_vec)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return gti_select(a > b, a, b);
#endif
}

/* 2^x for x <= 127 with Cephes' polynomial; 0 below -126, for -inf too; NaN stays NaN. */
GTI_ALWAYS_INLINE gti_vec gti_vexp2(gti_vec x)
{
#if defined(__AVX512F__)
    /* Lanes that would underflow are masked out: a subnormal result costs a hundred cycles. */
    const __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    const gti_vec n = (gti_vec)_mm512_roundscale_ps((__m512)x, 0x08);
#else
    const gti_ivec normal = ~(x < gti_splat(-126.0f));
    x = gti_vmax(gti_splat(-126.0f), x);
    const gti_vec shifted = x + gti_splat(12582912.0f);
    const gti_vec n = shifted - gti_splat(12582912.0f);
#endif
    const gti_vec f = x - n;
    gti_vec p = gti_splat(1.535336188319500e-4f);
    p = p * f + gti_splat(1.339887440266574e-3f);
    p = p * f + gti_splat(9.618437357674640e-3f);
    p = p * f + gti_splat(5.550332471162809e-2f);
    p = p * f + gti_splat(2.402264791363012e-1f);
    p = p * f + gti_splat(6.931472028550421e-1f);
    p = p * f + gti_splat(1.0f);
#if defined(__AVX512F__)
    return (gti_vec)_mm512_maskz_scalef_ps(normal, (__m512)p, (__m512)n);
#else
    const gti_ivec power = ((gti_ivec)shifted - 0x4B400000 + 127) << 23;
    return (gti_vec)(normal & (gti_ivec)(p * (gti_vec)power));
#endif
}

/* ---- views ------------------------------------------------------------------------------------*/
/* One head of one sample: element (t, c) at t * ld + c behind `first`. */
typedef struct gti_head {
    const void *data;
    gt_dtype dtype;
    int64_t first, ld;
} gti_head;

GTI_ALWAYS_INLINE gti_head gti_head_of(const gt_tensor *t, int64_t b, int64_t steps, int64_t ld,
                                       int64_t head, int64_t d)
{
    return (gti_head){t->data, t->dtype, b * steps * ld + head * d, ld};
}

/* panel[c][i] = x[t0 + i][c] * factor, c < d, i < GTI_QB; zero from i = n on. */
static inline void gti_load_queries(float *panel, const gti_head *x, int64_t t0, int64_t n,
                                    int64_t d, float factor)
{
    if (n < GTI_QB) {
        memset(panel, 0, (size_t)(d * GTI_QB) * sizeof(float));
    }
    for (int64_t c = 0; c < d; c += GTI_KC) {
        const int64_t kc = d - c < GTI_KC ? d - c : GTI_KC;
        gti_pack_transposed(panel + c * GTI_QB, GTI_QB, (const char *)x->data, x->dtype, 0, n,
                            x->ld, x->first + t0 * x->ld + c, kc);
    }
    if (factor != 1.0f) {
#pragma omp simd
        for (int64_t i = 0; i < d * GTI_QB; i++) {
            panel[i] *= factor;
        }
    }
}

/* rows[i][c] = x[t0 + i][c], c < d, rows `wide` apart, zero from d on; rows from n to `total` are
 * zero. */
static inline void gti_load_rows(float *rows, const gti_head *x, int64_t t0, int64_t n,
                                 int64_t total, int64_t d, int64_t wide)
{
    for (int64_t i = 0; i < n; i++) {
        gti_load_f32(rows + i * wide, x->data, x->dtype, (size_t)(x->first + (t0 + i) * x->ld),
                     (size_t)d);
        for (int64_t c = d; c < wide; c++) {
            rows[i * wide + c] = 0.0f;
        }
    }
    memset(rows + n * wide, 0, (size_t)((total - n) * wide) * sizeof(float));
}

/* ---- who sees whom ----------------------------------------------------------------------------*/
typedef struct gti_visibility {
    const int64_t *qpos, *kpos; /* NULL: the index           */
    const int64_t *starts;      /* of this sample, or NULL   */
    const uint8_t *key_mask;    /* of this sample, or NULL   */
    bool causal;
} gti_visibility;

/* A query sees the positions from its first to its last. */
typedef struct gti_query_block {
    int64_t first[GTI_QB], last[GTI_QB];
    int64_t first_min, first_max, last_min, last_max; /* of the real ones */
} gti_query_block;

static inline void gti_query_positions(gti_query_block *q, const gti_visibility *see, int64_t t0,
                                       int64_t n)
{
    q->first_min = q->last_min = INT64_MAX;
    q->first_max = q->last_max = INT64_MIN;
    for (int64_t i = 0; i < GTI_QB; i++) {
        q->first[i] = INT64_MIN;
        q->last[i] = INT64_MAX;
        if (i >= n) {
            continue;
        }
        if (see->starts != NULL) {
            q->first[i] = see->starts[t0 + i];
        }
        if (see->causal) {
            q->last[i] = see->qpos != NULL ? see->qpos[t0 + i] : t0 + i;
        }
        q->first_min = q->first[i] < q->first_min ? q->first[i] : q->first_min;
        q->first_max = q->first[i] > q->first_max ? q->first[i] : q->first_max;
        q->last_min = q->last[i] < q->last_min ? q->last[i] : q->last_min;
        q->last_max = q->last[i] > q->last_max ? q->last[i] : q->last_max;
    }
}

/* A block of keys: those that the mask lets through. */
typedef struct gti_keys {
    int64_t *index, *pos;
    int64_t count, min, max; /* of pos */
} gti_keys;

static inline void gti_visible_keys(gti_keys *x, const gti_visibility *see, int64_t k0, int64_t n)
{
    x->count = 0;
    x->min = INT64_MAX;
    x->max = INT64_MIN;
    for (int64_t k = k0; k < k0 + n; k++) {
        if (see->key_mask != NULL && see->key_mask[k] == 0) {
            continue;
        }
        const int64_t pos = see->kpos != NULL ? see->kpos[k] : k;
        x->index[x->count] = k;
        x->pos[x->count++] = pos;
        x->min = pos < x->min ? pos : x->min;
        x->max = pos > x->max ? pos : x->max;
    }
}

/* Whether any query of the block may see any of the keys. */
static inline bool gti_sees(const gti_query_block *q, const gti_keys *x)
{
    return x->count > 0 && x->min <= q->last_max && x->max >= q->first_min;
}

/* The keys [*from, *end) hold all that the block sees: what no query sees is cut off both ends. */
static inline void gti_trim_keys(const gti_query_block *q, const gti_keys *x, int64_t *from,
                                 int64_t *end)
{
    *from = 0;
    *end = x->count;
    while (*end > 0 && x->pos[*end - 1] > q->last_max) {
        (*end)--;
    }
    while (*from < *end && x->pos[*from] < q->first_min) {
        (*from)++;
    }
}

/* Scores of pairs that may not see each other become -inf. */
static inline void gti_mask_scores(float *s, const int64_t *kpos, int64_t keys,
                                   const gti_query_block *q)
{
    for (int64_t k = 0; k < keys; k++) {
        const int64_t at = kpos[k];
        if (at <= q->last_min && at >= q->first_max) {
            continue;
        }
#pragma omp simd
        for (int64_t i = 0; i < GTI_QB; i++) {
            const bool seen = (at <= q->last[i]) & (at >= q->first[i]);
            s[k * GTI_QB + i] = seen ? s[k * GTI_QB + i] : -INFINITY;
        }
    }
}

/* ---- products ---------------------------------------------------------------------------------*/
/* c[m][n] (+)= a b by tiles; n a multiple of GTI_NR. a(i, k) = a[i * row + k * step]. */
#define GTI_PRODUCT_ROWS(count)                                                                    \
    case count:                                                                                    \
        gti_tile(&t, count, row, step, add);                                                       \
        break;
#if GTI_MR > 6
#define GTI_PRODUCT_MORE_ROWS                                                                      \
    GTI_PRODUCT_ROWS(7)                                                                            \
    GTI_PRODUCT_ROWS(8)                                                                            \
    GTI_PRODUCT_ROWS(9)                                                                            \
    GTI_PRODUCT_ROWS(10)                                                                           \
    GTI_PRODUCT_ROWS(11) GTI_PRODUCT_ROWS(12) GTI_PRODUCT_ROWS(13) GTI_PRODUCT_ROWS(14)
#else
#define GTI_PRODUCT_MORE_ROWS
#endif

GTI_ALWAYS_INLINE void gti_product(gti_tile_args t, int64_t m, int64_t n, const ptrdiff_t row,
                                   const ptrdiff_t step, const int add)
{
    const float *a0 = t.a, *b0 = t.b;
    float *c0 = t.c;
    for (int64_t j = 0; j < n; j += GTI_NR) {
        t.b = b0 + j;
        for (int64_t i = 0, rows; i < m; i += rows) {
            rows = m - i < GTI_MR ? m - i : GTI_MR;
            t.a = a0 + i * row;
            t.c = c0 + i * t.ldc + j;
            switch (rows) {
                GTI_PRODUCT_ROWS(1)
                GTI_PRODUCT_ROWS(2)
                GTI_PRODUCT_ROWS(3)
                GTI_PRODUCT_ROWS(4)
                GTI_PRODUCT_ROWS(5)
                GTI_PRODUCT_ROWS(6)
                GTI_PRODUCT_MORE_ROWS
            default:
                break;
            }
        }
    }
}

/* c = a b, a by rows (elements of a row contiguous). */
static __attribute__((noinline, unused)) void gti_product_rows(gti_tile_args t, int64_t m,
                                                               int64_t n)
{
    gti_product(t, m, n, t.row, 1, 0);
}
static __attribute__((noinline, unused)) void gti_product_rows_add(gti_tile_args t, int64_t m,
                                                                   int64_t n)
{
    gti_product(t, m, n, t.row, 1, 1);
}
/* c += a^T b: the elements of a for one k are contiguous. */
static __attribute__((noinline, unused)) void gti_product_columns_add(gti_tile_args t, int64_t m,
                                                                      int64_t n)
{
    gti_product(t, m, n, 1, t.step, 1);
}

/* Room for an array of n floats, whole cache lines. */
static inline int64_t gti_round_floats(int64_t n)
{
    return (n + 15) / 16 * 16;
}

#endif
