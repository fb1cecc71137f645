/* SPDX-License-Identifier: Apache-2.0 */
#include "gpt_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct model {
    const gt_model_config *c;
    const double *next; /* parameter to come */
    bool llama;
    int64_t n, t, width, d, heads, kv, ffn, vocab;
} model;

static const double *take(model *m, int64_t n)
{
    const double *p = m->next;
    m->next += n;
    return p;
}

static double *zeros(int64_t n)
{
    return calloc((size_t)n + 1, sizeof(double));
}

/* y[n,o] = x w^T + b */
static double *linear(const double *x, int64_t n, int64_t in, int64_t out, const double *w,
                      const double *b)
{
    double *y = zeros(n * out);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t o = 0; o < out; o++) {
            double sum = b != NULL ? b[o] : 0.0;
            for (int64_t k = 0; k < in; k++) {
                sum += x[i * in + k] * w[o * in + k];
            }
            y[i * out + o] = sum;
        }
    }
    return y;
}

static double *norm(model *m, const double *x)
{
    const double *gamma = take(m, m->width), *beta = m->llama ? NULL : take(m, m->width);
    double *y = zeros(m->n * m->width), eps = m->c->norm_eps > 0 ? (double)m->c->norm_eps : 1e-5;
    for (int64_t i = 0; i < m->n; i++) {
        const double *row = x + i * m->width;
        double mean = 0.0, square = 0.0;
        for (int64_t c = 0; c < m->width && !m->llama; c++) {
            mean += row[c] / (double)m->width;
        }
        for (int64_t c = 0; c < m->width; c++) {
            square += (row[c] - mean) * (row[c] - mean) / (double)m->width;
        }
        for (int64_t c = 0; c < m->width; c++) {
            double v = (row[c] - mean) / sqrt(square + eps) * gamma[c];
            y[i * m->width + c] = beta != NULL ? v + beta[c] : v;
        }
    }
    return y;
}

static void rotate(const model *m, double *x, int64_t position)
{
    int64_t half = m->d / 2;
    for (int64_t i = 0; i < half; i++) {
        double base = m->c->rope_base > 0 ? (double)m->c->rope_base : 10000.0;
        double angle = (double)position * pow(base, -2.0 * (double)i / (double)m->d);
        double a = x[i], b = x[i + half];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + half] = a * sin(angle) + b * cos(angle);
    }
}

static void attend(const model *m, const double *q, const double *k, const double *v, int64_t row,
                   int64_t keys, double *out)
{
    double p[512], max = -INFINITY, sum = 0.0;
    for (int64_t u = 0; u < keys; u++) {
        p[u] = 0.0;
        for (int64_t e = 0; e < m->d; e++) {
            p[u] += q[e] * k[u * row + e] / sqrt((double)m->d);
        }
        max = fmax(max, p[u]);
    }
    for (int64_t u = 0; u < keys; u++) {
        p[u] = exp(p[u] - max);
        sum += p[u];
    }
    for (int64_t e = 0; e < m->d; e++) {
        for (int64_t u = 0; u < keys; u++) {
            out[e] += p[u] / sum * v[u * row + e];
        }
    }
}

static double *attention(model *m, double *qkv)
{
    int64_t row = (m->heads + 2 * m->kv) * m->d, group = m->heads / m->kv;
    double *out = zeros(m->n * m->width);
    for (int64_t i = 0; i < m->n && m->llama; i++) {
        for (int64_t h = 0; h < m->heads + m->kv; h++) {
            rotate(m, qkv + i * row + h * m->d, i % m->t);
        }
    }
    for (int64_t i = 0; i < m->n; i++) {
        const double *sample = qkv + i / m->t * m->t * row;
        for (int64_t h = 0; h < m->heads; h++) {
            const double *k = sample + (m->heads + h / group) * m->d;
            attend(m, qkv + i * row + h * m->d, k, k + m->kv * m->d, row, i % m->t + 1,
                   out + i * m->width + h * m->d);
        }
    }
    return out;
}

static double *activate(const model *m, const double *pre)
{
    double *y = zeros(m->n * m->ffn);
    for (int64_t i = 0; i < m->n * m->ffn; i++) {
        if (m->llama) {
            const double *row = pre + i / m->ffn * 2 * m->ffn;
            double gate = row[i % m->ffn];
            y[i] = gate / (1.0 + exp(-gate)) * row[m->ffn + i % m->ffn];
        } else {
            double x = pre[i];
            y[i] = 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
        }
    }
    return y;
}

static double *weights(model *m, const double *x, int64_t in, int64_t out)
{
    const double *w = take(m, in * out), *b = m->llama ? NULL : take(m, out);
    return linear(x, m->n, in, out, w, b);
}

static void add_and_free(double *x, double *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] += y[i];
    }
    free(y);
}

static void layer(model *m, double *x)
{
    double *normed = norm(m, x);
    double *qkv = weights(m, normed, m->width, (m->heads + 2 * m->kv) * m->d);
    double *attended = attention(m, qkv);
    add_and_free(x, weights(m, attended, m->width, m->width), m->n * m->width);
    free(normed);
    normed = norm(m, x);
    double *pre = weights(m, normed, m->width, m->llama ? 2 * m->ffn : m->ffn);
    double *act = activate(m, pre);
    add_and_free(x, weights(m, act, m->ffn, m->width), m->n * m->width);
    free(normed);
    free(qkv);
    free(attended);
    free(pre);
    free(act);
}

static double row_loss(const model *m, const double *z, int32_t target)
{
    double eps = (double)m->c->label_smoothing, max = -INFINITY, sum = 0.0, mean = 0.0;
    for (int64_t v = 0; v < m->vocab; v++) {
        max = fmax(max, z[v]);
    }
    for (int64_t v = 0; v < m->vocab; v++) {
        sum += exp(z[v] - max);
    }
    double lse = max + log(sum);
    for (int64_t v = 0; v < m->vocab; v++) {
        mean += (lse - z[v]) / (double)m->vocab;
    }
    return (1.0 - eps) * (lse - z[target]) + eps * mean + (double)m->c->z_loss * lse * lse;
}

double gpt_reference_loss(const gt_model_config *config, const double *params, int64_t batch,
                          int64_t seq, const int32_t *tokens, const int32_t *targets,
                          int32_t ignore_index, double *logits)
{
    model m = {.c = config,
               .next = params,
               .llama = strcmp(config->type, "llama") == 0,
               .n = batch * seq,
               .t = seq,
               .width = config->width,
               .d = config->width / config->heads,
               .heads = config->heads,
               .kv = config->kv_heads > 0 ? config->kv_heads : config->heads,
               .ffn = config->ffn,
               .vocab = config->vocab};
    const double *table = take(&m, m.vocab * m.width);
    const double *positions = m.llama ? NULL : take(&m, config->seq * m.width);
    double *x = zeros(m.n * m.width), loss = 0.0;
    for (int64_t i = 0; i < m.n * m.width; i++) {
        int64_t row = i / m.width, c = i % m.width;
        x[i] = table[tokens[row] * m.width + c];
        x[i] += positions != NULL ? positions[row % seq * m.width + c] : 0.0;
    }
    for (int64_t l = 0; l < config->layers; l++) {
        layer(&m, x);
    }
    double *normed = norm(&m, x);
    const double *head = config->untied ? take(&m, m.vocab * m.width) : table;
    double *z = linear(normed, m.n, m.width, m.vocab, head, NULL);
    for (int64_t i = 0; i < m.n; i++) {
        loss += targets[i] == ignore_index ? 0.0 : row_loss(&m, z + i * m.vocab, targets[i]);
    }
    if (logits != NULL) {
        memcpy(logits, z, (size_t)(m.n * m.vocab) * sizeof(double));
    }
    free(x);
    free(normed);
    free(z);
    return loss;
}
