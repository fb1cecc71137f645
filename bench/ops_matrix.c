/* SPDX-License-Identifier: Apache-2.0
 * Matrix products of the shapes of a GPT-2 124M step, over sgemm at 2048^3. */
#include "ops.h"

typedef struct product {
    const char *name;
    gt_dtype dtype;
    int64_t m, n, k;
    bool trans_a, trans_b, bias_gelu;
    gt_context *ctx;
    gt_tensor *a, *b, *c, *bias, *aux;
} product;

static product products[] = {
    {.name = "gemm_2048", .m = 2048, .n = 2048, .k = 2048},
    {.name = "gemm_qkv_forward", .m = 1024, .n = 2304, .k = 768, .trans_b = true},
    {.name = "gemm_ff_forward_gelu",
     .m = 1024,
     .n = 3072,
     .k = 768,
     .trans_b = true,
     .bias_gelu = true},
    {.name = "gemm_ff_backward_input", .m = 1024, .n = 768, .k = 3072},
    {.name = "gemm_ff_backward_weight", .m = 3072, .n = 768, .k = 1024, .trans_a = true},
    {.name = "gemm_square_768", .m = 1024, .n = 768, .k = 768, .trans_b = true},
    {.name = "gemm_bf16_2048", .dtype = GT_BF16, .m = 2048, .n = 2048, .k = 2048},
    {.name = "gemm_bf16_ff_forward",
     .dtype = GT_BF16,
     .m = 1024,
     .n = 3072,
     .k = 768,
     .trans_b = true},
    {.name = "gemm_f16_2048", .dtype = GT_F16, .m = 2048, .n = 2048, .k = 2048},
};

static void run(void *user)
{
    product *p = user;
    gt_gemm_params params = GT_GEMM_PARAMS_INIT;
    params.trans_a = p->trans_a;
    params.trans_b = p->trans_b;
    params.bias = p->bias;
    params.gelu = p->bias_gelu;
    params.pre_gelu = p->aux;
    BENCH_OK(gt_gemm(p->ctx, p->c, p->a, p->b, &params, NULL));
}

void ops_add_matrix(ops_bench *o)
{
    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++) {
        product *p = &products[i];
        if (!bench_wants(o->b, p->name)) {
            continue;
        }
        p->ctx = o->ctx;
        p->a = ops_tensor(o, p->dtype, p->trans_a ? p->k : p->m, p->trans_a ? p->m : p->k, 1.0f);
        p->b = ops_tensor(o, p->dtype, p->trans_b ? p->n : p->k, p->trans_b ? p->k : p->n, 1.0f);
        p->c = ops_tensor(o, p->dtype, p->m, p->n, 1.0f);
        if (p->bias_gelu) {
            p->bias = ops_tensor(o, p->dtype, 1, p->n, 1.0f);
            p->aux = ops_tensor(o, p->dtype, p->m, p->n, 1.0f);
        }
        const double flop = 2.0 * (double)p->m * (double)p->n * (double)p->k;
        bench_add(o->b, &(bench_case){p->name, "GFLOP/s", flop / 1e9, o->sgemm, run, p});
    }
}
