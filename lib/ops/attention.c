/* SPDX-License-Identifier: Apache-2.0 */
#include <geektrain/ops.h>

#include <inttypes.h>
#include <math.h>

#include "backend/backend.h"
#include "ops/check.h"

void gt_attention_params_init(gt_attention_params *params, size_t size)
{
    const gt_attention_params defaults = GT_ATTENTION_PARAMS_INIT;
    gti_default_params(params, size, &defaults, sizeof defaults);
}

static int64_t or_dense(int64_t ld, int64_t dense)
{
    return ld != 0 ? ld : dense;
}

/* Takes the caller's params, fills in what 0 stands for, checks the scalars. */
static gt_status take(gt_attention_params *p, const gt_attention_params *params)
{
    if (params == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the attention's params are NULL");
    }
    GT_TRY(gti_take_params("gt_attention_params", p, sizeof *p, params));
    if (p->b < 0 || p->tq < 0 || p->tk < 0 || p->heads < 1 || p->kv_heads < 1 || p->head_size < 1) {
        return GT_FAIL(GT_ERR_SHAPE,
                       "attention over b=%" PRId64 ", tq=%" PRId64 ", tk=%" PRId64
                       ", heads=%" PRId64 ", kv_heads=%" PRId64 ", head_size=%" PRId64
                       ", wanted sizes of 0 or more and 1 head of 1 element at least",
                       p->b, p->tq, p->tk, p->heads, p->kv_heads, p->head_size);
    }
    if (p->heads % p->kv_heads != 0) {
        return GT_FAIL(GT_ERR_SHAPE, "heads=%" PRId64 " is not a multiple of kv_heads=%" PRId64,
                       p->heads, p->kv_heads);
    }
    const int64_t wide = p->heads * p->head_size, kv_wide = p->kv_heads * p->head_size;
    p->ldq = or_dense(p->ldq, wide);
    p->ldo = or_dense(p->ldo, wide);
    p->lddq = or_dense(p->lddq, wide);
    p->ldk = or_dense(p->ldk, kv_wide);
    p->ldv = or_dense(p->ldv, kv_wide);
    p->lddk = or_dense(p->lddk, kv_wide);
    p->lddv = or_dense(p->lddv, kv_wide);
    p->scale = p->scale != 0.0f ? p->scale : (float)(1.0 / sqrt((double)p->head_size));
    if (!isfinite(p->scale)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "scale is %g, wanted a finite number", (double)p->scale);
    }
    return GT_OK;
}

/* A [B,T,heads,D] view with rows ld apart must lie within the tensor. */
static gt_status check_view(gt_context *ctx, const char *name, const gt_tensor *t, unsigned dtypes,
                            const gt_attention_params *p, int64_t steps, int64_t heads, int64_t ld)
{
    GT_TRY(gti_check_tensor(ctx, name, t, dtypes));
    const int64_t wide = heads * p->head_size;
    if (ld < wide) {
        return GT_FAIL(GT_ERR_SHAPE, "ld of %s is %" PRId64 ", wanted %" PRId64 " or more", name,
                       ld, wide);
    }
    const int64_t rows = p->b * steps;
    const int64_t reach = rows > 0 ? (rows - 1) * ld + wide : 0;
    if (gt_tensor_numel(t) < reach) {
        return GT_FAIL(GT_ERR_SHAPE,
                       "%s has %" PRId64 " elements, wanted %" PRId64 " or more for B*T=%" PRId64
                       " rows of %" PRId64 " that are %" PRId64 " apart",
                       name, gt_tensor_numel(t), reach, rows, wide, ld);
    }
    return GT_OK;
}

static gt_status check_visibility(gt_context *ctx, const gt_attention_params *p)
{
    GT_TRY(gti_check_optional(ctx, "qpos", p->qpos, GTI_ONLY(GT_I64)));
    GT_TRY(gti_check_optional(ctx, "kpos", p->kpos, GTI_ONLY(GT_I64)));
    GT_TRY(gti_check_optional(ctx, "starts", p->starts, GTI_ONLY(GT_I64)));
    GT_TRY(gti_check_optional(ctx, "key_mask", p->key_mask, GTI_ONLY(GT_U8)));
    if (gti_present(p->qpos)) {
        GT_TRY(gti_check_numel("qpos", p->qpos, "Tq", p->tq));
    }
    if (gti_present(p->kpos)) {
        GT_TRY(gti_check_numel("kpos", p->kpos, "Tk", p->tk));
    }
    if (gti_present(p->starts)) {
        GT_TRY(gti_check_numel("starts", p->starts, "B*Tq", p->b * p->tq));
    }
    if (gti_present(p->key_mask)) {
        GT_TRY(gti_check_numel("key_mask", p->key_mask, "B*Tk", p->b * p->tk));
    }
    return GT_OK;
}

static gt_status check_inputs(gt_context *ctx, const gt_tensor *q, const gt_tensor *k,
                              const gt_tensor *v, const gt_attention_params *p)
{
    GT_TRY(check_view(ctx, "q", q, GTI_FLOATS, p, p->tq, p->heads, p->ldq));
    GT_TRY(check_view(ctx, "k", k, GTI_ONLY(q->dtype), p, p->tk, p->kv_heads, p->ldk));
    GT_TRY(check_view(ctx, "v", v, GTI_ONLY(q->dtype), p, p->tk, p->kv_heads, p->ldv));
    return check_visibility(ctx, p);
}

gt_status gt_attention_forward(gt_context *ctx, gt_tensor *out, gt_tensor *lse, const gt_tensor *q,
                               const gt_tensor *k, const gt_tensor *v,
                               const gt_attention_params *params, gt_stream *stream)
{
    gt_attention_params p = GT_ATTENTION_PARAMS_INIT;
    GT_TRY(take(&p, params));
    GT_TRY(check_inputs(ctx, q, k, v, &p));
    GT_TRY(check_view(ctx, "out", out, GTI_ONLY(q->dtype), &p, p.tq, p.heads, p.ldo));
    GT_TRY(gti_check_optional(ctx, "lse", lse, GTI_ONLY(GT_F32)));
    if (gti_present(lse)) {
        GT_TRY(gti_check_numel("lse", lse, "B*H*Tq", p.b * p.heads * p.tq));
    }
    if (p.b == 0 || p.tq == 0) {
        return GT_OK;
    }
    struct gti_attention_fwd_args args = {.out = *out,
                                          .lse = gti_optional(lse),
                                          .q = *q,
                                          .k = *k,
                                          .v = *v,
                                          .qpos = gti_optional(p.qpos),
                                          .kpos = gti_optional(p.kpos),
                                          .starts = gti_optional(p.starts),
                                          .key_mask = gti_optional(p.key_mask),
                                          .b = p.b,
                                          .tq = p.tq,
                                          .tk = p.tk,
                                          .h = p.heads,
                                          .hkv = p.kv_heads,
                                          .d = p.head_size,
                                          .ldq = p.ldq,
                                          .ldk = p.ldk,
                                          .ldv = p.ldv,
                                          .ldo = p.ldo,
                                          .scale = p.scale,
                                          .causal = p.causal};
    return GTI_RUN(ctx, stream, attention_fwd, &args);
}

gt_status gt_attention_backward(gt_context *ctx, gt_tensor *dq, gt_tensor *dk, gt_tensor *dv,
                                const gt_tensor *dout, const gt_tensor *out, const gt_tensor *lse,
                                const gt_tensor *q, const gt_tensor *k, const gt_tensor *v,
                                const gt_attention_params *params, gt_stream *stream)
{
    gt_attention_params p = GT_ATTENTION_PARAMS_INIT;
    GT_TRY(take(&p, params));
    GT_TRY(check_inputs(ctx, q, k, v, &p));
    const unsigned same = GTI_ONLY(q->dtype), grad = GTI_GRAD_OF(q->dtype);
    GT_TRY(check_view(ctx, "dout", dout, same, &p, p.tq, p.heads, p.ldo));
    GT_TRY(check_view(ctx, "out", out, same, &p, p.tq, p.heads, p.ldo));
    GT_TRY(gti_check_tensor(ctx, "lse", lse, GTI_ONLY(GT_F32)));
    GT_TRY(gti_check_numel("lse", lse, "B*H*Tq", p.b * p.heads * p.tq));
    GT_TRY(check_view(ctx, "dq", dq, grad, &p, p.tq, p.heads, p.lddq));
    GT_TRY(check_view(ctx, "dk", dk, grad, &p, p.tk, p.kv_heads, p.lddk));
    GT_TRY(check_view(ctx, "dv", dv, grad, &p, p.tk, p.kv_heads, p.lddv));
    if (p.b == 0 || (p.tq == 0 && p.tk == 0)) {
        return GT_OK;
    }
    struct gti_attention_bwd_args args = {.dq = *dq,
                                          .dk = *dk,
                                          .dv = *dv,
                                          .dout = *dout,
                                          .out = *out,
                                          .lse = *lse,
                                          .q = *q,
                                          .k = *k,
                                          .v = *v,
                                          .qpos = gti_optional(p.qpos),
                                          .kpos = gti_optional(p.kpos),
                                          .starts = gti_optional(p.starts),
                                          .key_mask = gti_optional(p.key_mask),
                                          .b = p.b,
                                          .tq = p.tq,
                                          .tk = p.tk,
                                          .h = p.heads,
                                          .hkv = p.kv_heads,
                                          .d = p.head_size,
                                          .ldq = p.ldq,
                                          .ldk = p.ldk,
                                          .ldv = p.ldv,
                                          .ldo = p.ldo,
                                          .lddq = p.lddq,
                                          .lddk = p.lddk,
                                          .lddv = p.lddv,
                                          .scale = p.scale,
                                          .causal = p.causal,
                                          .accumulate = p.accumulate};
    return GTI_RUN(ctx, stream, attention_bwd, &args);
}

gt_status gt_attention_merge(gt_context *ctx, gt_tensor *out, gt_tensor *lse, const gt_tensor *part,
                             const gt_tensor *part_lse, int64_t b, int64_t t, int64_t heads,
                             int64_t head_size, gt_stream *stream)
{
    if (b < 0 || t < 0 || heads < 0 || head_size < 0) {
        return GT_FAIL(GT_ERR_SHAPE,
                       "merge over b=%" PRId64 ", t=%" PRId64 ", heads=%" PRId64
                       ", head_size=%" PRId64 ", wanted 0 or more",
                       b, t, heads, head_size);
    }
    GT_TRY(gti_check_tensor(ctx, "out", out, GTI_FLOATS));
    GT_TRY(gti_check_tensor(ctx, "part", part, GTI_FLOATS));
    GT_TRY(gti_check_tensor(ctx, "lse", lse, GTI_ONLY(GT_F32)));
    GT_TRY(gti_check_tensor(ctx, "part_lse", part_lse, GTI_ONLY(GT_F32)));
    const int64_t rows = b * t * heads;
    GT_TRY(gti_check_numel("out", out, "B*T*H*D", rows * head_size));
    GT_TRY(gti_check_numel("part", part, "B*T*H*D", rows * head_size));
    GT_TRY(gti_check_numel("lse", lse, "B*H*T", rows));
    GT_TRY(gti_check_numel("part_lse", part_lse, "B*H*T", rows));
    if (rows == 0) {
        return GT_OK;
    }
    struct gti_attention_merge_args args = {.out = *out,
                                            .lse = *lse,
                                            .part = *part,
                                            .part_lse = *part_lse,
                                            .b = b,
                                            .t = t,
                                            .h = heads,
                                            .d = head_size};
    return GTI_RUN(ctx, stream, attention_merge, &args);
}
