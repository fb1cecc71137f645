/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GTI_CORE_MACHINE_H
#define GTI_CORE_MACHINE_H

#include <stddef.h>

/* Bytes of host memory that this process can have at most: the machine's with its swap space, or
 * the limit of its control group or its address space. What is free does not matter: it changes. */
size_t gti_machine_memory(void);

#endif
