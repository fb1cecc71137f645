/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal attention of one rank's heads over the whole sequence, on packed rows
 * (q heads, k heads, v heads). With context parallelism the sequence is spread over step->cp and
 * keys and values travel around the ring (Liu et al. 2023): while a rank works on one rank's keys,
 * the next ones arrive. Exact; memory per rank falls as 1/cp.
 */
#ifndef GTI_NN_ATTENTION_H
#define GTI_NN_ATTENTION_H

#include <geektrain/block.h>

typedef struct gti_heads {
    int64_t b, t, heads, kv_heads, d; /* of this rank */
    gt_dtype dtype;
    int cp;
    const gt_tensor *starts; /* i64 [b,t]: where each token's document begins; NULL: at 0 */
} gti_heads;

static inline int64_t gti_heads_row(const gti_heads *h)
{
    return (h->heads + 2 * h->kv_heads) * h->d;
}

/* Workspace tensors it plans, in this order from the block's `first` on; empty when cp is 1. */
enum {
    GTI_RING_KV0, /* keys and values: at work, arriving    */
    GTI_RING_KV1,
    GTI_RING_PART, /* output over one rank's keys           */
    GTI_RING_PART_LSE,
    GTI_RING_POSITIONS, /* of all ranks' tokens                  */
    GTI_RING_DKV0,      /* gradients: being computed, being sent */
    GTI_RING_DKV1,
    GTI_RING_DKV_IN, /* arriving                              */
    GTI_RING_COUNT
};
gt_status gti_attention_plan(gt_plan *plan, const gti_heads *h);

/* out[b*t, heads*d], lse[b,heads,t] from qkv[b*t, row]. ring: the workspace planned above. */
gt_status gti_attention_forward(const gt_step *step, const gti_heads *h, gt_tensor *out,
                                gt_tensor *lse, const gt_tensor *qkv, gt_tensor *ring);
/* dqkv is overwritten. */
gt_status gti_attention_backward(const gt_step *step, const gti_heads *h, gt_tensor *dqkv,
                                 const gt_tensor *dout, const gt_tensor *out, const gt_tensor *lse,
                                 const gt_tensor *qkv, gt_tensor *ring);

/* The ring itself (ring_attention.c). */
gt_status gti_ring_forward(const gt_step *step, const gti_heads *h, gt_tensor *out, gt_tensor *lse,
                           const gt_tensor *qkv, gt_tensor *ring);
gt_status gti_ring_backward(const gt_step *step, const gti_heads *h, gt_tensor *dqkv,
                            const gt_tensor *dout, const gt_tensor *out, const gt_tensor *lse,
                            const gt_tensor *qkv, gt_tensor *ring);

/* Elements `first`.. of t, flat: q, k or v in a packed row. */
gt_tensor gti_from(const gt_tensor *t, int64_t first);

#endif
