/* SPDX-License-Identifier: Apache-2.0
 *
 * Scratch memory of the calling thread: panels that GEMM packs, blocks that attention works on.
 * It grows to what was ever asked for and is freed when the thread ends, so that a steady state
 * allocates nothing. */
#ifndef GTI_CPU_SCRATCH_H
#define GTI_CPU_SCRATCH_H

#include <stddef.h>

typedef enum gti_scratch_slot {
    GTI_SCRATCH_SHARED = 0, /* for the thread that leads an operation: what its team shares */
    GTI_SCRATCH_OWN,        /* for each member of the team                                  */
    GTI_SCRATCH_SUMS,       /* for the leader: partial sums, sorted rows                    */
    GTI_SCRATCH_SLOTS
} gti_scratch_slot;

/* At least `bytes` of 64-byte aligned memory with undefined contents; valid until the thread asks
 * for the same slot again. NULL when memory is out. */
void *gti_cpu_scratch(gti_scratch_slot slot, size_t bytes);

#endif
