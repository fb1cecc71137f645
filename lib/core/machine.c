/* SPDX-License-Identifier: Apache-2.0 */
#include "core/machine.h"

#include <stdio.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

#include "core/file.h"

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Inside a container this is its own limit; "max" is no number. */
static size_t group_limit(void)
{
    size_t limit = (size_t)-1;
    FILE *file = gti_fopen("/sys/fs/cgroup/memory.max", "r");
    if (file != NULL) {
        if (fscanf(file, "%zu", &limit) != 1) {
            limit = (size_t)-1;
        }
        fclose(file);
    }
    return limit;
}

size_t gti_machine_memory(void)
{
    size_t bytes = group_limit();
    struct sysinfo info;
    struct rlimit space;
    if (sysinfo(&info) == 0) {
        bytes = smaller(bytes, ((size_t)info.totalram + info.totalswap) * info.mem_unit);
    }
    if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
        bytes = smaller(bytes, space.rlim_cur);
    }
    return bytes;
}
