/* SPDX-License-Identifier: Apache-2.0
 * bf16 matrix products by oneDNN. */
#ifndef GTI_CPU_ONEDNN_H
#define GTI_CPU_ONEDNN_H

#include "backend/backend.h"

/* Whether oneDNN is built in and its bf16 products are the fastest here: on processors whose bf16
 * instructions do more per cycle than f32 ones (AMD's AVX512_BF16, AMX). Intel's AVX512_BF16
 * without AMX does not: measured on such a one, a step took 1.5 times as long as with widened
 * operands. */
bool gti_onednn_preferred(void);
/* Whether it works here at all. */
bool gti_onednn_usable(void);
/* c = op(a) op(b) + beta c (+ bias); a, b bf16, c bf16 or f32; the epilogue is not looked at.
 * Primitives are made once per shape and kept. */
gt_status gti_onednn_gemm(const struct gti_gemm_args *g);

#endif
