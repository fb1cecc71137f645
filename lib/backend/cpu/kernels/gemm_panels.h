/* SPDX-License-Identifier: Apache-2.0
 * What GEMM's panels hold where no instruction multiplies 16-bit numbers: f32, one step of k per
 * row of a panel. gemm_pairs.h is its twin. */
#ifndef GTI_CPU_GEMM_PANELS_H
#define GTI_CPU_GEMM_PANELS_H

#include "backend/cpu/kernels/pack.h"

/* Rows of a panel for kc elements of k. */
GTI_ALWAYS_INLINE int64_t gti_panel_steps(int64_t kc)
{
    return kc;
}

#define GTI_PANEL_TILE gti_tile
#define gti_panel_transposed gti_pack_transposed
#define gti_panel_rows gti_pack_rows

#endif
