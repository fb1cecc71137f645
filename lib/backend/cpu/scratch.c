/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cpu/scratch.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

struct buffers {
    void *pointer[GTI_SCRATCH_SLOTS];
    size_t bytes[GTI_SCRATCH_SLOTS];
};

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int key_made;
static __thread struct buffers *mine;

static void release(void *raw)
{
    struct buffers *b = raw;
    for (int i = 0; i < GTI_SCRATCH_SLOTS; i++) {
        free(b->pointer[i]);
    }
    free(b);
}

static void make_key(void)
{
    key_made = pthread_key_create(&key, release) == 0;
}

static struct buffers *buffers(void)
{
    if (mine == NULL) {
        pthread_once(&once, make_key);
        struct buffers *b = key_made ? calloc(1, sizeof *b) : NULL;
        if (b != NULL && pthread_setspecific(key, b) != 0) {
            free(b);
            b = NULL;
        }
        mine = b;
    }
    return mine;
}

void *gti_cpu_scratch(gti_scratch_slot slot, size_t bytes)
{
    struct buffers *b = buffers();
    if (b == NULL) {
        return NULL;
    }
    if (b->bytes[slot] < bytes || b->pointer[slot] == NULL) {
        const size_t page = bytes >= HUGE_PAGE ? HUGE_PAGE : 4096;
        const size_t rounded = (bytes + page) / page * page;
        free(b->pointer[slot]);
        b->pointer[slot] = aligned_alloc(page, rounded);
        b->bytes[slot] = b->pointer[slot] != NULL ? rounded : 0;
        if (b->pointer[slot] != NULL && page == HUGE_PAGE) {
            madvise(b->pointer[slot], rounded, MADV_HUGEPAGE); /* advice: failing is fine */
        }
    }
    return b->pointer[slot];
}
