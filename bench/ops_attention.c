/* SPDX-License-Identifier: Apache-2.0
 * Causal attention over sgemm at 2048^3. Counted: 4 T^2 D / 2 per head forward (a causal mask
 * halves the pairs), 2.5 times that backward. */
#include "ops.h"

typedef struct attention {
    const char *forward, *backward;
    gt_dtype dtype;
    int64_t b, t, heads, d;
    gt_context *ctx;
    gt_attention_params p;
    gt_tensor *q, *k, *v, *out, *lse, *dout, *dq, *dk, *dv;
} attention;

static attention cases[] = {
    {.forward = "attention_forward",
     .backward = "attention_backward",
     .b = 1,
     .t = 1024,
     .heads = 12,
     .d = 64},
    {.forward = "attention_forward_256",
     .backward = "attention_backward_256",
     .b = 4,
     .t = 256,
     .heads = 12,
     .d = 64},
    {.forward = "attention_forward_d128",
     .backward = "attention_backward_d128",
     .b = 1,
     .t = 1024,
     .heads = 8,
     .d = 128},
    {.forward = "attention_forward_bf16",
     .backward = "attention_backward_bf16",
     .dtype = GT_BF16,
     .b = 1,
     .t = 1024,
     .heads = 12,
     .d = 64},
};

static void forward(void *user)
{
    attention *a = user;
    BENCH_OK(gt_attention_forward(a->ctx, a->out, a->lse, a->q, a->k, a->v, &a->p, NULL));
}

static void backward(void *user)
{
    attention *a = user;
    BENCH_OK(gt_attention_backward(a->ctx, a->dq, a->dk, a->dv, a->dout, a->out, a->lse, a->q, a->k,
                                   a->v, &a->p, NULL));
}

void ops_add_attention(ops_bench *o)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attention *a = &cases[i];
        if (!bench_wants(o->b, a->forward) && !bench_wants(o->b, a->backward)) {
            continue;
        }
        const int64_t rows = a->b * a->t, wide = a->heads * a->d;
        gt_tensor **all[] = {&a->q, &a->k, &a->v, &a->out, &a->dout, &a->dq, &a->dk, &a->dv};
        for (int t = 0; t < 8; t++) {
            *all[t] = ops_tensor(o, a->dtype, rows, wide, 1.0f);
        }
        a->ctx = o->ctx;
        a->lse = ops_tensor(o, GT_F32, a->b * a->heads, a->t, 1.0f);
        a->p = (gt_attention_params)GT_ATTENTION_PARAMS_INIT;
        a->p.b = a->b, a->p.tq = a->p.tk = a->t, a->p.heads = a->p.kv_heads = a->heads;
        a->p.head_size = a->d, a->p.causal = true;
        forward(a); /* out and lse that belong together */
        const double flop = 2.0 * (double)(a->b * a->heads) * (double)(a->t * a->t) * (double)a->d;
        bench_add(o->b, &(bench_case){a->forward, "GFLOP/s", flop / 1e9, o->sgemm, forward, a});
        bench_add(o->b,
                  &(bench_case){a->backward, "GFLOP/s", 2.5 * flop / 1e9, o->sgemm, backward, a});
    }
}
