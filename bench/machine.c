/* SPDX-License-Identifier: Apache-2.0 */
#include "machine.h"

#include <cblas.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_commit.h"

static void processor(char *text, size_t size)
{
    snprintf(text, size, "unknown processor");
    FILE *f = fopen("/proc/cpuinfo", "r");
    if (f == NULL) {
        return;
    }
    char line[256];
    while (fgets(line, sizeof line, f) != NULL) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && value != NULL) {
            snprintf(text, size, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
            break;
        }
    }
    fclose(f);
}

const char *bench_machine(char *text, size_t size)
{
    char name[160];
    processor(name, sizeof name);
    snprintf(text, size, "%s, %d threads, OpenBLAS kernels %s", name, omp_get_max_threads(),
             openblas_get_corename());
    return text;
}

const char *bench_commit(void)
{
    return BENCH_COMMIT;
}

const char *bench_flags(void)
{
    return BENCH_FLAGS;
}

/* The kernels OpenBLAS falls to on an x86 processor that is not in its list. */
static int fell_back(const char *core)
{
    static const char *const slow[] = {"Prescott", "Core2", "Nehalem", "Generic", "Sandybridge"};
    for (size_t i = 0; i < sizeof slow / sizeof slow[0]; i++) {
        if (strcasecmp(core, slow[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

void bench_choose_blas_kernels(char **argv)
{
#if defined(__x86_64__)
    const char *better = NULL;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
        better = "SKYLAKEX";
    } else if (__builtin_cpu_supports("avx2")) {
        better = "HASWELL";
    }
    if (better != NULL && getenv("OPENBLAS_CORETYPE") == NULL &&
        fell_back(openblas_get_corename()) && setenv("OPENBLAS_CORETYPE", better, 1) == 0) {
        execv("/proc/self/exe", argv); /* OpenBLAS chooses when it is loaded */
    }
#endif
}
