/* SPDX-License-Identifier: Apache-2.0
 * How the library opens files: closed in programs that the process becomes, and never as
 * descriptor 0, 1 or 2. A program may be started with one of these closed; what anybody prints
 * would then land in the file. */
#ifndef GTI_CORE_FILE_H
#define GTI_CORE_FILE_H

#include <stdio.h>
#include <sys/types.h>

/* As open(): -1 and errno on failure. */
int gti_open(const char *path, int flags, mode_t mode);
/* As fopen(), for the modes "r", "w" and "a". */
FILE *gti_fopen(const char *path, const char *mode);
/* For descriptors that come from elsewhere: moves one of 0 to 2 higher, passes others and -1 on. */
int gti_descriptor(int fd);

#endif
