/* SPDX-License-Identifier: Apache-2.0
 *
 * Condition variables that are looked at again after a while, told or not: the C library of the
 * systems we run on (glibc 2.27 to 2.40, its bug 25847) can lose a wake-up, and a training run of
 * weeks must not hang for it. Waiting means what it means for pthread_cond_wait: in a loop over the
 * condition, which may return for nothing.
 */
#ifndef GTI_CORE_COND_H
#define GTI_CORE_COND_H

#include <pthread.h>

#define GTI_COND_SECONDS 0.1 /* longest sleep */

void gti_cond_init(pthread_cond_t *cond);
void gti_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);
/* Of a condition from gti_cond_init. */
void gti_cond_wait_for(pthread_cond_t *cond, pthread_mutex_t *lock, double seconds);

#endif
