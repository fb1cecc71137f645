/* SPDX-License-Identifier: Apache-2.0
 *
 * Softmax cross entropy, the parts that the whole-vocabulary and the sharded kernels share.
 *
 * With M the row's maximum, S = sum exp(z - M), L = M + log S:
 *     loss = (1-eps)(log S - (z_t - M)) + eps (log S - sum(z - M)/V) + zeta L^2
 *     d loss / d z_j = (1 + 2 zeta L) exp(z_j - M)/S - (1-eps)[j = t] - eps/V
 * The maximum and S are found in one sweep, chunk by chunk: when a chunk raises the maximum, what
 * was summed so far is rescaled. The second sweep writes the gradient over the logits. (xent.c has
 * a shorter way for f32.) Sums over a chunk are f32, over chunks f64.
 */
#ifndef GTI_CPU_XENT_H
#define GTI_CPU_XENT_H

#include <math.h>

#include "backend/cpu/kernels/bounded_exp.h"
#include "backend/cpu/kernels/chunk.h"

/* Loops stay functions of their own: merged with what surrounds them gcc 12 finds control flow in
 * them and gives up on vectors. */
#define XENT_LOOP static __attribute__((noinline, unused))

struct xent_row {
    float max;
    double sum;     /* sum exp(z - max) */
    double shifted; /* sum (z - max)    */
};

struct xent_loss {
    float grad_scale, label_smoothing, z_loss;
    int64_t vocab;
};

/* e^x for x <= 0 (or NaN); 0 where it would be below 1e-37. */
static inline float xent_exp(float x)
{
    float e = gti_exp_bounded(x);
    return x < GTI_EXP_LEAST ? 0.0f : e;
}

/* The processor's maximum gives its second operand when one is NaN. Compilers do not use it for a
 * reduction without -ffast-math. */
#if defined(__AVX512F__)
typedef __m512 xent_vec;
#define XENT_VEC(op) _mm512_##op
#elif defined(__AVX__)
typedef __m256 xent_vec;
#define XENT_VEC(op) _mm256_##op
#elif defined(__SSE__)
typedef __m128 xent_vec;
#define XENT_VEC(op) _mm_##op
#endif

/* NaN does not become the maximum; it reaches the sum instead. Four chains hide the latency. */
static inline float xent_max_chunk(const float *z, int64_t n, float max)
{
    int64_t i = 0;
#if defined(XENT_VEC)
    enum { LANES = sizeof(xent_vec) / sizeof(float), CHAINS = 4 };
    xent_vec top[CHAINS];
    float lane[LANES * CHAINS];
    for (int k = 0; k < CHAINS; k++) {
        top[k] = XENT_VEC(set1_ps)(max);
    }
    for (; i + LANES * CHAINS <= n; i += LANES * CHAINS) {
        for (int k = 0; k < CHAINS; k++) {
            top[k] = XENT_VEC(max_ps)(XENT_VEC(loadu_ps)(z + i + k * LANES), top[k]);
        }
    }
    for (int k = 0; k < CHAINS; k++) {
        XENT_VEC(storeu_ps)(lane + k * LANES, top[k]);
    }
    for (int j = 0; j < LANES * CHAINS; j++) {
        max = lane[j] > max ? lane[j] : max;
    }
#endif
    for (; i < n; i++) {
        max = z[i] > max ? z[i] : max;
    }
    return max;
}

/* Where every logit is -inf the shift is 0: each exp is then 0, and a NaN still shows. */
static inline float xent_shift(float max)
{
    return max == -INFINITY ? 0.0f : max;
}

XENT_LOOP double xent_sum_exp(const float *z, int64_t n, float max)
{
    float shift = xent_shift(max), a = 0, b = 0;
    int64_t half = n / 2;
#pragma omp simd reduction(+ : a, b)
    for (int64_t i = 0; i < half; i++) {
        a += xent_exp(z[i] - shift);
        b += xent_exp(z[half + i] - shift);
    }
    if (n % 2 != 0) {
        a += xent_exp(z[n - 1] - shift);
    }
    return (double)a + (double)b;
}

/* The same, leaving the exponentials in place of z. */
XENT_LOOP double xent_replace_exp(float *z, int64_t n, float max)
{
    float shift = xent_shift(max), sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        float e = xent_exp(z[i] - shift);
        z[i] = e;
        sum += e;
    }
    return (double)sum;
}

XENT_LOOP double xent_sum_shifted(const float *z, int64_t n, float max)
{
    float shift = xent_shift(max), sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        sum += z[i] - shift;
    }
    return (double)sum;
}

/* The maximum becomes `max`, `count` logits having been summed. */
static inline void xent_raise(struct xent_row *r, float max, int64_t count)
{
    if (max > r->max) {
        double step = (double)xent_shift(r->max) - (double)max;
        r->sum *= exp((double)r->max - (double)max);
        r->shifted += count > 0 ? (double)count * step : 0.0;
        r->max = max;
    }
}

/* The first sweep over logits [at, at + columns). `shifted` is only summed when asked for. */
static inline struct xent_row xent_scan(const gt_tensor *logits, int64_t at, int64_t columns,
                                        bool with_shifted)
{
    float buf[GTI_CHUNK];
    struct xent_row r = {-INFINITY, 0, 0};
    for (int64_t c = 0; c < columns; c += GTI_CHUNK) {
        int64_t m = gti_min(GTI_CHUNK, columns - c);
        const float *z = gti_chunk_in(buf, logits, at + c, m);
        xent_raise(&r, xent_max_chunk(z, m, r.max), c);
        r.sum += xent_sum_exp(z, m, r.max);
        if (with_shifted) {
            r.shifted += xent_sum_shifted(z, m, r.max);
        }
    }
    return r;
}

static inline double xent_row_loss(const struct xent_loss *k, struct xent_row r,
                                   double target_shifted)
{
    double log_sum = log(r.sum), eps = (double)k->label_smoothing;
    double loss = log_sum - target_shifted;
    if (eps != 0) {
        loss = (1 - eps) * loss + eps * (log_sum - r.shifted / (double)k->vocab);
    }
    if (k->z_loss != 0) {
        double lse = (double)r.max + log_sum;
        loss += (double)k->z_loss * lse * lse;
    }
    return loss;
}

/* gradient = exp(z - max) * inv - all, less `hit` at the target */
struct xent_slope {
    float inv, all, hit;
};

static inline struct xent_slope xent_slope_of(const struct xent_loss *k, struct xent_row r)
{
    double scale = (double)k->grad_scale, eps = (double)k->label_smoothing;
    double lse = (double)r.max + log(r.sum);
    double weight = k->z_loss != 0 ? 1 + 2 * (double)k->z_loss * lse : 1;
    return (struct xent_slope){(float)(scale * weight / r.sum),
                               (float)(scale * eps / (double)k->vocab), (float)(scale * (1 - eps))};
}

/* The second sweep. target: index within this row, or -1 when it lies in another shard. */
static inline void xent_row_grad(const struct xent_loss *k, const gt_tensor *logits, int64_t at,
                                 int64_t columns, struct xent_row r, int64_t target)
{
    float inbuf[GTI_CHUNK], outbuf[GTI_CHUNK], shift = xent_shift(r.max);
    struct xent_slope slope = xent_slope_of(k, r);
    for (int64_t c = 0; c < columns; c += GTI_CHUNK) {
        int64_t m = gti_min(GTI_CHUNK, columns - c);
        const float *z = gti_chunk_in(inbuf, logits, at + c, m);
        float *g = gti_chunk_out(outbuf, logits, at + c, false);
#pragma omp simd
        for (int64_t i = 0; i < m; i++) {
            g[i] = xent_exp(z[i] - shift) * slope.inv - slope.all;
        }
        if (target >= c && target < c + m) {
            g[target - c] -= slope.hit;
        }
        gti_chunk_done(logits, at + c, m, g, false);
    }
}

static inline void xent_zero_row(const gt_tensor *logits, int64_t at, int64_t columns)
{
    size_t size = logits->dtype == GT_F32 ? sizeof(float) : sizeof(uint16_t);
    if (columns > 0) {
        memset((char *)logits->data + (size_t)at * size, 0, (size_t)columns * size);
    }
}

static inline gt_status xent_check_targets(const gt_tensor *targets, int64_t rows, int64_t vocab,
                                           int32_t ignore_index)
{
    const int32_t *t = targets->data;
    for (int64_t n = 0; n < rows; n++) {
        if (t[n] != ignore_index && (t[n] < 0 || t[n] >= vocab)) {
            return GT_FAIL(GT_ERR_ARGUMENT,
                           "targets[%lld] is %d, wanted a token in [0, %lld) or the ignored %d",
                           (long long)n, t[n], (long long)vocab, ignore_index);
        }
    }
    return GT_OK;
}

/* Losses are summed per block of rows, blocks in order: independent of the number of threads. */
#define XENT_BLOCKS 64
struct xent_stats {
    double loss[XENT_BLOCKS], valid[XENT_BLOCKS];
};

static inline void xent_add_stats(const gt_tensor *stats, const struct xent_stats *s)
{
    double loss = 0, valid = 0;
    for (int b = 0; b < XENT_BLOCKS; b++) {
        loss += s->loss[b];
        valid += s->valid[b];
    }
    double *out = stats->data;
    out[0] += loss;
    out[1] += valid;
}

#endif
