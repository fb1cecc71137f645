/* SPDX-License-Identifier: Apache-2.0
 * The account of a context's device memory: which pointers are live, and how much of which tag. */
#ifndef GTI_BACKEND_MEMORY_H
#define GTI_BACKEND_MEMORY_H

#include <pthread.h>

#include <geektrain/context.h>

typedef struct gti_memory {
    pthread_mutex_t lock; /* communication threads may ask for statistics */
    void *allocations;    /* tsearch(3) tree of what is live, by pointer  */
    gt_memory_stats stats;
    uint64_t fail_at; /* counts down; 0 = off   */
    size_t limit;     /* of live_total; 0 = none */
} gti_memory;

void gti_memory_init(gti_memory *memory);
/* Warns about every tag that still holds memory, frees it. */
void gti_memory_close(gt_context *ctx);

#endif
