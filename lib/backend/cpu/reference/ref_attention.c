/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cpu/reference/ref_attention.h"

#include <math.h>
#include <stdlib.h>

/* One query of one head. */
typedef struct query {
    int64_t b, h, t;
} query;

static bool sees(const struct gti_ref_attention *p, query x, int64_t k)
{
    const double at = p->qpos != NULL ? p->qpos[x.t] : (double)x.t;
    const double key_at = p->kpos != NULL ? p->kpos[k] : (double)k;
    const bool allowed = p->key_mask == NULL || p->key_mask[x.b * p->tk + k] != 0.0;
    const bool inside = p->starts == NULL || key_at >= p->starts[x.b * p->tq + x.t];
    return allowed && inside && (!p->causal || key_at <= at);
}

static int64_t q_at(const struct gti_ref_attention *p, query x)
{
    return ((x.b * p->tq + x.t) * p->h + x.h) * p->d;
}

static int64_t k_at(const struct gti_ref_attention *p, query x, int64_t k)
{
    return ((x.b * p->tk + k) * p->hkv + x.h / (p->h / p->hkv)) * p->d;
}

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += x[i] * y[i];
    }
    return sum;
}

/* probability[k] of every key; returns lse, -inf when the query sees nothing. */
static double probabilities(double *probability, const double *q, const double *k, query x,
                            const struct gti_ref_attention *p)
{
    double max = -INFINITY, sum = 0.0;
    for (int64_t i = 0; i < p->tk; i++) {
        probability[i] = -INFINITY;
        if (sees(p, x, i)) {
            probability[i] = p->scale * dot(q + q_at(p, x), k + k_at(p, x, i), p->d);
            max = fmax(max, probability[i]);
        }
    }
    for (int64_t i = 0; i < p->tk; i++) {
        sum += max == -INFINITY ? 0.0 : exp(probability[i] - max);
    }
    const double lse = sum == 0.0 ? -INFINITY : max + log(sum);
    for (int64_t i = 0; i < p->tk; i++) {
        probability[i] = sum == 0.0 ? 0.0 : exp(probability[i] - lse);
    }
    return lse;
}

void gti_ref_attention_fwd(double *out, double *lse, const double *q, const double *k,
                           const double *v, const struct gti_ref_attention *p)
{
    double *probability = calloc((size_t)p->tk + 1, sizeof(double));
    for (int64_t i = 0; i < p->b * p->h * p->tq && probability != NULL; i++) {
        const query x = {i / (p->h * p->tq), i / p->tq % p->h, i % p->tq};
        lse[i] = probabilities(probability, q, k, x, p);
        for (int64_t c = 0; c < p->d; c++) {
            double sum = 0.0;
            for (int64_t j = 0; j < p->tk; j++) {
                sum += probability[j] == 0.0 ? 0.0 : probability[j] * v[k_at(p, x, j) + c];
            }
            out[q_at(p, x) + c] = sum;
        }
    }
    free(probability);
}

/* The gradient through softmax written out over all pairs: dS_j = P_j (dP_j - sum_i P_i dP_i). */
void gti_ref_attention_bwd(double *dq, double *dk, double *dv, const double *dout, const double *q,
                           const double *k, const double *v, const struct gti_ref_attention *p)
{
    double *probability = calloc((size_t)p->tk + 1, sizeof(double));
    for (int64_t i = 0; i < p->b * p->h * p->tq && probability != NULL; i++) {
        const query x = {i / (p->h * p->tq), i / p->tq % p->h, i % p->tq};
        const double *dy = dout + q_at(p, x);
        probabilities(probability, q, k, x, p);
        double mean = 0.0;
        for (int64_t j = 0; j < p->tk; j++) {
            mean += probability[j] * dot(dy, v + k_at(p, x, j), p->d);
        }
        for (int64_t j = 0; j < p->tk; j++) {
            const int64_t at = k_at(p, x, j);
            const double ds = probability[j] * (dot(dy, v + at, p->d) - mean) * p->scale;
            for (int64_t c = 0; c < p->d; c++) {
                dv[at + c] += probability[j] * dy[c];
                dk[at + c] += ds * q[q_at(p, x) + c];
                dq[q_at(p, x) + c] += ds * k[at + c];
            }
        }
    }
    free(probability);
}

void gti_ref_rope(double *x, const double *rows, const double *freq, int64_t n, int64_t ld,
                  int64_t heads, int64_t head_size, int64_t seq, double scale, bool inverse)
{
    const int64_t half = head_size / 2;
    for (int64_t i = 0; i < n * heads * half; i++) {
        const int64_t row = i / (heads * half), h = i / half % heads, c = i % half;
        const double angle = fmod(rows[row], (double)seq) * freq[c] * (inverse ? -1.0 : 1.0);
        double *lo = x + row * ld + h * head_size + c, *hi = lo + half;
        const double a = *lo, b = *hi;
        *lo = scale * (a * cos(angle) - b * sin(angle));
        *hi = scale * (a * sin(angle) + b * cos(angle));
    }
}
