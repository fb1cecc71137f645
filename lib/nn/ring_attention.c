/* SPDX-License-Identifier: Apache-2.0
 * Keys and values, and in the backward pass their gradients, pass from rank r to rank r+1. Whose
 * tokens come with which positions is data (step->positions): the engine deals them so that every
 * pair of ranks has the same work. */
#include <stdio.h>

#include "core/fail.h"
#include "nn/attention.h"

enum { TAG_KV = 1, TAG_DKV = 2 };

typedef struct ring_state {
    const gt_step *step;
    const gti_heads *h;
    int me, size, next, previous;
    gt_tensor kv[2]; /* at work, arriving */
    gt_tensor qpos, kpos;
    gt_attention_params params;
    gt_work *send, *recv, *send_grad[2], *recv_grad;
} ring_state;

/* On failure the world is broken first, so that no wait is forever. */
static gt_status finish(ring_state *r, gt_status status)
{
    gt_work **works[] = {&r->send, &r->recv, &r->send_grad[0], &r->send_grad[1], &r->recv_grad};
    gt_stream *stream = r->step->stream;
    if (status != GT_OK) {
        (void)gt_comm_fail(r->step->cp, status);
    }
    for (size_t i = 0; i < sizeof(works) / sizeof(works[0]); i++) {
        if (status == GT_OK) {
            status = gt_work_wait(works[i], stream);
        } else if (*works[i] != NULL) {
            char text[GTI_ERROR_MAX];
            snprintf(text, sizeof(text), "%s", gt_last_error());
            (void)gt_work_wait(works[i], stream);
            gti_fail_text(status, text);
        }
    }
    return status;
}

static gt_status start(ring_state *r, const gt_step *step, const gti_heads *h, const gt_tensor *qkv,
                       gt_tensor *ring)
{
    int size = gt_comm_size(step->cp), me = gt_comm_rank(step->cp);
    *r = (ring_state){.step = step,
                      .h = h,
                      .me = me,
                      .size = size,
                      .next = (me + 1) % size,
                      .previous = (me + size - 1) % size,
                      .kv = {ring[GTI_RING_KV0], ring[GTI_RING_KV1]},
                      .params = GT_ATTENTION_PARAMS_INIT};
    gt_attention_params *p = &r->params;
    p->b = h->b;
    p->tq = p->tk = h->t;
    p->heads = h->heads;
    p->kv_heads = h->kv_heads;
    p->head_size = h->d;
    p->causal = true;
    p->starts = h->starts;
    p->ldq = p->lddq = gti_heads_row(h);
    p->ldk = p->ldv = p->lddk = p->lddv = 2 * h->kv_heads * h->d;
    r->qpos = *step->positions;
    GT_TRY(gt_all_gather(step->cp, &ring[GTI_RING_POSITIONS], &r->qpos, step->stream, NULL));
    return gt_copy_columns(step->ctx, &r->kv[0], 0, qkv, h->heads * h->d, 2 * h->kv_heads * h->d,
                           step->stream);
}

/* Whose keys are at work in round i; their positions go into the parameters. */
static void choose(ring_state *r, int i, gt_tensor *ring)
{
    int owner = (r->me + r->size - i) % r->size;
    gt_tensor all = gti_from(&ring[GTI_RING_POSITIONS], owner * r->h->t);
    all.shape[0] = r->h->t;
    r->kpos = all;
    r->params.qpos = &r->qpos;
    r->params.kpos = &r->kpos;
}

static gt_status pass_on(ring_state *r)
{
    GT_TRY(gt_recv(r->step->cp, &r->kv[1], r->previous, TAG_KV, r->step->stream, &r->recv));
    return gt_send(r->step->cp, &r->kv[0], r->next, TAG_KV, r->step->stream, &r->send);
}

static gt_status arrive(ring_state *r)
{
    GT_TRY(gt_work_wait(&r->send, r->step->stream));
    GT_TRY(gt_work_wait(&r->recv, r->step->stream));
    gt_tensor swap = r->kv[0];
    r->kv[0] = r->kv[1];
    r->kv[1] = swap;
    return GT_OK;
}

static gt_status forward_rounds(ring_state *r, gt_tensor *out, gt_tensor *lse, const gt_tensor *qkv,
                                gt_tensor *ring)
{
    const gt_step *step = r->step;
    const gti_heads *h = r->h;
    for (int i = 0; i < r->size; i++) {
        bool last = i == r->size - 1;
        gt_tensor *o = i == 0 ? out : &ring[GTI_RING_PART];
        gt_tensor *l = i == 0 ? lse : &ring[GTI_RING_PART_LSE];
        gt_tensor v = gti_from(&r->kv[0], h->kv_heads * h->d);
        if (!last) {
            GT_TRY(pass_on(r));
        }
        choose(r, i, ring);
        GT_TRY(gt_attention_forward(step->ctx, o, l, qkv, &r->kv[0], &v, &r->params, step->stream));
        if (i > 0) {
            GT_TRY(gt_attention_merge(step->ctx, out, lse, o, l, h->b, h->t, h->heads, h->d,
                                      step->stream));
        }
        if (!last) {
            GT_TRY(arrive(r));
        }
    }
    return GT_OK;
}

gt_status gti_ring_forward(const gt_step *step, const gti_heads *h, gt_tensor *out, gt_tensor *lse,
                           const gt_tensor *qkv, gt_tensor *ring)
{
    ring_state r;
    gt_status st = start(&r, step, h, qkv, ring);
    if (st == GT_OK) {
        st = forward_rounds(&r, out, lse, qkv, ring);
    }
    return finish(&r, st);
}

/* The gradients of the keys at work: ours of this round, plus what came with them. They leave for
 * the next rank, where those keys go, too; after the last round that is their owner. */
static gt_status add_and_send(ring_state *r, int i, gt_tensor *dkv, gt_tensor *incoming)
{
    const gt_step *step = r->step;
    if (i > 0) {
        GT_TRY(gt_work_wait(&r->recv_grad, step->stream));
        GT_TRY(gt_axpby(step->ctx, dkv, incoming, 1.0f, 1.0f, step->stream));
    }
    GT_TRY(gt_recv(step->cp, incoming, r->previous, TAG_DKV, step->stream, &r->recv_grad));
    return gt_send(step->cp, dkv, r->next, TAG_DKV, step->stream, &r->send_grad[i % 2]);
}

static gt_status backward_rounds(ring_state *r, gt_tensor *dqkv, const gt_tensor *dout,
                                 const gt_tensor *out, const gt_tensor *lse, const gt_tensor *qkv,
                                 gt_tensor *ring)
{
    const gt_step *step = r->step;
    int64_t kv_row = r->h->kv_heads * r->h->d;
    for (int i = 0; i < r->size; i++) {
        bool last = i == r->size - 1;
        gt_tensor *dkv = &ring[i % 2 == 0 ? GTI_RING_DKV0 : GTI_RING_DKV1];
        gt_tensor v = gti_from(&r->kv[0], kv_row), dv = gti_from(dkv, kv_row);
        if (!last) {
            GT_TRY(pass_on(r));
        }
        choose(r, i, ring);
        GT_TRY(gt_work_wait(&r->send_grad[i % 2], step->stream)); /* dkv is free again */
        r->params.accumulate = i > 0;                             /* dq adds up over the rounds */
        if (i > 0) {
            GT_TRY(gt_fill(step->ctx, dkv, 0.0, step->stream));
        }
        GT_TRY(gt_attention_backward(step->ctx, dqkv, dkv, &dv, dout, out, lse, qkv, &r->kv[0], &v,
                                     &r->params, step->stream));
        GT_TRY(add_and_send(r, i, dkv, &ring[GTI_RING_DKV_IN]));
        if (!last) {
            GT_TRY(arrive(r));
        }
    }
    return gt_work_wait(&r->recv_grad, step->stream);
}

gt_status gti_ring_backward(const gt_step *step, const gti_heads *h, gt_tensor *dqkv,
                            const gt_tensor *dout, const gt_tensor *out, const gt_tensor *lse,
                            const gt_tensor *qkv, gt_tensor *ring)
{
    ring_state r;
    gt_status st = start(&r, step, h, qkv, ring);
    if (st == GT_OK) {
        st = backward_rounds(&r, dqkv, dout, out, lse, qkv, ring);
    }
    GT_TRY(finish(&r, st));
    return gt_copy_columns(step->ctx, dqkv, h->heads * h->d, &ring[GTI_RING_DKV_IN], 0,
                           2 * h->kv_heads * h->d, step->stream);
}
