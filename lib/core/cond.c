/* SPDX-License-Identifier: Apache-2.0 */
#include "core/cond.h"

#include <time.h>

void gti_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

void gti_cond_wait_for(pthread_cond_t *cond, pthread_mutex_t *lock, double seconds)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    long nanoseconds = t.tv_nsec + (long)(seconds * 1e9);
    t.tv_sec += nanoseconds / 1000000000L;
    t.tv_nsec = nanoseconds % 1000000000L;
    pthread_cond_timedwait(cond, lock, &t);
}

void gti_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock)
{
    gti_cond_wait_for(cond, lock, GTI_COND_SECONDS);
}
