/* SPDX-License-Identifier: Apache-2.0
 * Operations bound by memory, over the triad. Counted: every tensor that must be read or written,
 * once; sizes lie beyond the last-level cache. */
#include "ops.h"

#define ROWS 98304
#define WIDE 768 /* 288 MiB per [ROWS, WIDE] f32 tensor */

typedef struct stream_case {
    const char *name;
    double passes; /* how often [ROWS, WIDE] is read or written */
    void (*run)(void *user);
} stream_case;

/* The cases take turns, so they share their large tensors. */
static struct {
    gt_context *ctx;
    gt_tensor *x, *y, *z, *w;                 /* [ROWS, WIDE]  */
    gt_tensor *gamma, *beta, *dgamma, *dbeta; /* [WIDE]        */
    gt_tensor *mean, *rstd;                   /* [ROWS]        */
    gt_tensor *targets, *stats, *logits;
    gt_tensor *param, *grad; /* [ROWS, WIDE] bf16 */
    gt_tensor *norm2;        /* f64 [1] */
} s;

static void layernorm_forward(void *user)
{
    BENCH_OK(gt_layernorm_forward(s.ctx, s.y, NULL, s.mean, s.rstd, s.x, NULL, s.gamma, s.beta,
                                  1e-5f, NULL));
}

static void layernorm_backward(void *user)
{
    BENCH_OK(gt_layernorm_backward(s.ctx, s.y, s.dgamma, s.dbeta, s.z, NULL, s.x, s.gamma, s.mean,
                                   s.rstd, NULL));
}

static void gelu_forward(void *user)
{
    BENCH_OK(gt_gelu_forward(s.ctx, s.y, s.x, NULL));
}

static void gelu_backward(void *user)
{
    BENCH_OK(gt_gelu_backward(s.ctx, s.y, s.z, s.x, NULL));
}

/* master, m, v read and written, the gradient read; no separate parameter. */
static void adamw(void *user)
{
    gt_adamw_params p = GT_ADAMW_PARAMS_INIT;
    p.weight_decay = 0.1f;
    BENCH_OK(gt_adamw(s.ctx, NULL, s.z, s.y, s.w, s.x, &p, NULL));
}

/* Mixed precision: unscale, clip, update and cast in the same pass. The bf16 gradient is read,
 * master and moments read and written in f32, the bf16 parameter written. */
static void adamw_fused(void *user)
{
    gt_adamw_params p = GT_ADAMW_PARAMS_INIT;
    p.weight_decay = 0.1f;
    p.grad_scale = 1.0f / 1024.0f;
    BENCH_OK(gt_adamw(s.ctx, s.param, s.z, s.y, s.w, s.grad, &p, NULL));
}

static void sum_sq(void *user)
{
    BENCH_OK(gt_sum_sq(s.ctx, s.norm2, s.x, 1.0, NULL));
}

/* The logits become their gradient: read and written. They are rewritten every time, which the
 * operation does not mind. */
static void cross_entropy(void *user)
{
    gt_cross_entropy_params p = GT_CROSS_ENTROPY_PARAMS_INIT;
    BENCH_OK(gt_cross_entropy(s.ctx, s.logits, NULL, s.stats, s.targets, &p, NULL));
}

static const stream_case cases[] = {
    {"layernorm_forward", 2, layernorm_forward},
    {"layernorm_backward", 3, layernorm_backward},
    {"gelu_forward", 2, gelu_forward},
    {"gelu_backward", 3, gelu_backward},
    {"cross_entropy", 2, cross_entropy},
    {"adamw", 7, adamw},
    {"adamw_fused", 7, adamw_fused},
    {"sum_sq", 1, sum_sq},
};

static void make_tensors(ops_bench *o)
{
    const int64_t vocabulary = 49152, rows = (int64_t)ROWS * WIDE / vocabulary;
    s.ctx = o->ctx;
    gt_tensor **large[] = {&s.x, &s.y, &s.z, &s.w};
    for (int i = 0; i < 4; i++) {
        *large[i] = ops_tensor(o, GT_F32, ROWS, WIDE, 1.0f);
    }
    BENCH_OK(gt_fill(o->ctx, s.w, 1.0, NULL)); /* a second moment is not negative */
    gt_tensor **vectors[] = {&s.gamma, &s.beta, &s.dgamma, &s.dbeta};
    for (int i = 0; i < 4; i++) {
        *vectors[i] = ops_tensor(o, GT_F32, 1, WIDE, 1.0f);
    }
    s.mean = ops_tensor(o, GT_F32, 1, ROWS, 1.0f);
    s.rstd = ops_tensor(o, GT_F32, 1, ROWS, 1.0f);
    s.logits = ops_tensor(o, GT_F32, rows, vocabulary, 1.0f);
    s.targets = ops_tensor(o, GT_F32, 1, rows, 1.0f);
    s.targets->dtype = GT_I32;
    s.stats = ops_tensor(o, GT_F32, 1, 4, 1.0f);
    s.stats->dtype = GT_F64;
    s.stats->shape[1] = 2;
    s.param = ops_tensor(o, GT_BF16, ROWS, WIDE, 1.0f);
    s.grad = ops_tensor(o, GT_BF16, ROWS, WIDE, 1.0f);
    s.norm2 = ops_tensor(o, GT_F32, 1, 2, 1.0f);
    s.norm2->dtype = GT_F64;
    s.norm2->shape[1] = 1;
    BENCH_OK(gt_fill(o->ctx, s.norm2, 0.0, NULL));
    BENCH_OK(gt_fill(o->ctx, s.targets, 7.0, NULL));
    BENCH_OK(gt_fill(o->ctx, s.stats, 0.0, NULL));
}

void ops_add_stream(ops_bench *o)
{
    const double bytes = (double)ROWS * WIDE * sizeof(float);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (!bench_wants(o->b, cases[i].name)) {
            continue;
        }
        if (s.ctx == NULL) {
            make_tensors(o);
        }
        bench_add(o->b, &(bench_case){cases[i].name, "GB/s", cases[i].passes * bytes / 1e9,
                                      o->triad, cases[i].run, NULL});
    }
}
