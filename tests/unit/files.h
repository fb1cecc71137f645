/* SPDX-License-Identifier: Apache-2.0
 * Temporary files for tests. */
#ifndef TESTS_FILES_H
#define TESTS_FILES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char files_directory[64];

static inline int files_open(void **state)
{
    strcpy(files_directory, "/tmp/geektrain-test-XXXXXX");
    return mkdtemp(files_directory) != NULL ? 0 : -1;
}

static inline int files_close(void **state)
{
    char command[100];
    snprintf(command, sizeof command, "rm -rf '%s'", files_directory);
    return system(command);
}

/* Valid until the 32nd call after it. */
static inline const char *files_path(const char *name)
{
    static char paths[32][160];
    static int next;
    char *path = paths[next++ % 32];
    snprintf(path, sizeof paths[0], "%s/%s", files_directory, name);
    return path;
}

static inline const char *files_write(const char *name, const void *bytes, size_t n)
{
    const char *path = files_path(name);
    FILE *f = fopen(path, "wb");
    if (f == NULL || (n > 0 && fwrite(bytes, 1, n, f) != n) || fclose(f) != 0) {
        abort();
    }
    return path;
}

#endif
