/* SPDX-License-Identifier: Apache-2.0
 * The table of one instruction set: one line per operation. */
#include "backend/cpu/kernels/kernel.h"
#include "backend/cpu/cpu.h"

#define ROW(name) [GTI_OP_##name] = GTI_KERNEL_NAME(name)

const gti_op_fn GTI_JOIN(gti_cpu_table, GTI_ISA)[GTI_OP_COUNT] = {
    ROW(adamw),        ROW(attention_bwd), ROW(attention_fwd),  ROW(attention_merge),
    ROW(axpby),        ROW(cast),          ROW(copy),           ROW(copy_columns),
    ROW(gemm),         ROW(fill),          ROW(find_nonfinite), ROW(init),
    ROW(lamb_apply),   ROW(lamb_update),   ROW(lion),           ROW(master_join),
    ROW(master_split), ROW(reduce),        ROW(rope),           ROW(sgd),
    ROW(sum_sq),       ROW(bias_grad),     ROW(layernorm_fwd),  ROW(layernorm_bwd),
    ROW(rmsnorm_fwd),  ROW(rmsnorm_bwd),   ROW(gelu_fwd),       ROW(gelu_bwd),
    ROW(swiglu_fwd),   ROW(swiglu_bwd),    ROW(embedding_fwd),  ROW(embedding_bwd),
    ROW(xent),         ROW(xent_max),      ROW(xent_sums),      ROW(xent_grad),
    ROW(dropout),
};
