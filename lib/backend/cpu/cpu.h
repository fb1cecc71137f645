/* SPDX-License-Identifier: Apache-2.0
 * The CPU backend's tables, one per instruction set; the best that the machine has is chosen when a
 * device is created. */
#ifndef GTI_BACKEND_CPU_H
#define GTI_BACKEND_CPU_H

#include "backend/backend.h"

extern const gti_op_fn gti_cpu_table_base[GTI_OP_COUNT];
#if defined(__x86_64__)
extern const gti_op_fn gti_cpu_table_avx2[GTI_OP_COUNT];
extern const gti_op_fn gti_cpu_table_avx512[GTI_OP_COUNT];
#endif

#endif
