/* SPDX-License-Identifier: Apache-2.0
 * The table of one instruction set: one line per operation. */
#include "backend/cpu/kernels/kernel.h"
#include "backend/cpu/cpu.h"

#define ROW(name) [GTI_OP_##name] = GTI_KERNEL_NAME(name)

const gti_op_fn GTI_JOIN(gti_cpu_table, GTI_ISA)[GTI_OP_COUNT] = {
    ROW(copy_columns),
    ROW(gemm),
};
