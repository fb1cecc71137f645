/* SPDX-License-Identifier: Apache-2.0
 * Oracles of attention and rotary embedding, plain loops in double, for tests. */
#ifndef GTI_CPU_REF_ATTENTION_H
#define GTI_CPU_REF_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

/* Dense [B,T,H,D] and [B,T,Hkv,D]; lse [B,H,Tq]; qpos, kpos, starts, key_mask as doubles, may be
 * NULL. */
struct gti_ref_attention {
    int64_t b, tq, tk, h, hkv, d;
    double scale;
    bool causal;
    const double *qpos, *kpos, *starts, *key_mask;
};
void gti_ref_attention_fwd(double *out, double *lse, const double *q, const double *k,
                           const double *v, const struct gti_ref_attention *p);
/* Adds to dq, dk, dv. */
void gti_ref_attention_bwd(double *dq, double *dk, double *dv, const double *dout, const double *q,
                           const double *k, const double *v, const struct gti_ref_attention *p);

/* x [n, ld] in place. */
void gti_ref_rope(double *x, const double *rows, const double *freq, int64_t n, int64_t ld,
                  int64_t heads, int64_t head_size, int64_t seq, double scale, bool inverse);

#endif
