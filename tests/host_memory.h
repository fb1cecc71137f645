/* SPDX-License-Identifier: Apache-2.0
 *
 * Host memory that runs out, on one thread and at one allocation. Programs that use it are linked
 * with host_memory_dep, which puts these functions in the place of malloc, calloc and realloc.
 */
#ifndef TESTS_HOST_MEMORY_H
#define TESTS_HOST_MEMORY_H

#include <stdbool.h>

/* The nth allocation of the calling thread from now on fails (1 = the next one); 0 = off. */
void th_host_fail_at(long nth);
/* Off; whether one has failed since th_host_fail_at(). */
bool th_host_failed(void);

#endif
