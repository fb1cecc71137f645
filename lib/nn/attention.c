/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/attention.h"

#include "core/fail.h"

gt_tensor gti_from(const gt_tensor *t, int64_t first)
{
    gt_tensor v = gt_tensor_1d(t->data, t->dtype, gt_tensor_numel(t) - first);
    v.device = t->device;
    v.data = (char *)v.data + (size_t)first * gt_dtype_size(t->dtype);
    return v;
}

gt_status gti_attention_plan(gt_plan *plan, const gti_heads *h)
{
    int64_t n = h->cp > 1 ? h->b * h->t : 0, kv[2] = {n, 2 * h->kv_heads * h->d};
    int64_t part[2] = {n, h->heads * h->d}, lse[3] = {h->cp > 1 ? h->b : 0, h->heads, h->t};
    int64_t positions = h->cp > 1 ? h->cp * h->t : 0;
    GT_TRY(gt_plan_workspace(plan, h->dtype, 2, kv));
    GT_TRY(gt_plan_workspace(plan, h->dtype, 2, kv));
    GT_TRY(gt_plan_workspace(plan, h->dtype, 2, part));
    GT_TRY(gt_plan_workspace(plan, GT_F32, 3, lse));
    GT_TRY(gt_plan_workspace(plan, GT_I64, 1, &positions));
    GT_TRY(gt_plan_workspace(plan, h->dtype, 2, kv));
    GT_TRY(gt_plan_workspace(plan, h->dtype, 2, kv));
    return gt_plan_workspace(plan, h->dtype, 2, kv);
}

static gt_attention_params params_of(const gti_heads *h)
{
    gt_attention_params p = GT_ATTENTION_PARAMS_INIT;
    p.b = h->b;
    p.tq = p.tk = h->t;
    p.heads = h->heads;
    p.kv_heads = h->kv_heads;
    p.head_size = h->d;
    p.causal = true;
    p.starts = h->starts;
    p.ldq = p.ldk = p.ldv = p.lddq = p.lddk = p.lddv = gti_heads_row(h);
    return p;
}

gt_status gti_attention_forward(const gt_step *step, const gti_heads *h, gt_tensor *out,
                                gt_tensor *lse, const gt_tensor *qkv, gt_tensor *ring)
{
    if (h->cp > 1) {
        return gti_ring_forward(step, h, out, lse, qkv, ring);
    }
    gt_attention_params p = params_of(h);
    gt_tensor k = gti_from(qkv, h->heads * h->d);
    gt_tensor v = gti_from(qkv, (h->heads + h->kv_heads) * h->d);
    return gt_attention_forward(step->ctx, out, lse, qkv, &k, &v, &p, step->stream);
}

gt_status gti_attention_backward(const gt_step *step, const gti_heads *h, gt_tensor *dqkv,
                                 const gt_tensor *dout, const gt_tensor *out, const gt_tensor *lse,
                                 const gt_tensor *qkv, gt_tensor *ring)
{
    if (h->cp > 1) {
        return gti_ring_backward(step, h, dqkv, dout, out, lse, qkv, ring);
    }
    gt_attention_params p = params_of(h);
    int64_t at_k = h->heads * h->d, at_v = (h->heads + h->kv_heads) * h->d;
    gt_tensor k = gti_from(qkv, at_k), v = gti_from(qkv, at_v);
    gt_tensor dk = gti_from(dqkv, at_k), dv = gti_from(dqkv, at_v);
    return gt_attention_backward(step->ctx, dqkv, &dk, &dv, dout, out, lse, qkv, &k, &v, &p,
                                 step->stream);
}
