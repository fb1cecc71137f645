/* SPDX-License-Identifier: Apache-2.0 */
#include "host_memory.h"

#include <stddef.h>

static _Thread_local long countdown;
static _Thread_local bool failed;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);

void th_host_fail_at(long nth)
{
    countdown = nth;
    failed = false;
}

bool th_host_failed(void)
{
    countdown = 0;
    return failed;
}

static bool refused(void)
{
    if (countdown == 0 || --countdown > 0) {
        return false;
    }
    failed = true;
    return true;
}

void *__wrap_malloc(size_t size)
{
    return refused() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return refused() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size)
{
    return refused() ? NULL : __real_realloc(memory, size);
}
