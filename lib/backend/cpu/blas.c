/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenBLAS picks its kernels by a list of known processors when it is loaded; on one that is newer
 * than the list it falls to SSE, at a seventh of the speed. Then we have it look again, told by
 * OPENBLAS_CORETYPE which family this processor belongs to (unless the user set that variable). The
 * two functions for it are OpenBLAS' own start-up, exported by its run-time dispatching builds; in
 * a build without them nothing is changed. Done once, before our first product.
 */
#include "backend/cpu/blas.h"

#include <cblas.h>
#include <dlfcn.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <strings.h>

#include "core/env.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool usable;

/* What OpenBLAS calls the newest family whose instructions this processor has; NULL: nothing newer
 * than what it falls to. */
static const char *family(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        return "SkylakeX";
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return "Haswell";
    }
#endif
    return NULL;
}

static bool fell_back(void)
{
    static const char *const old[] = {"Prescott",    "Core2",   "Penryn",  "Dunnington", "Nehalem",
                                      "Sandybridge", "Generic", "Opteron", "Barcelona"};
    const char *core = openblas_get_corename();
    for (size_t i = 0; i < sizeof(old) / sizeof(old[0]); i++) {
        if (strcasecmp(core, old[i]) == 0) {
            return family() != NULL;
        }
    }
    return false;
}

static void choose_kernels(void)
{
    typedef void (*plain_fn)(void);
    void *quit = dlsym(RTLD_DEFAULT, "gotoblas_dynamic_quit");
    void *init = dlsym(RTLD_DEFAULT, "gotoblas_dynamic_init");
    if (fell_back() && quit != NULL && init != NULL && gti_env(GTI_ENV_OPENBLAS_CORETYPE) == NULL) {
        setenv("OPENBLAS_CORETYPE", family(), 1);
        ((plain_fn)(uintptr_t)quit)();
        ((plain_fn)(uintptr_t)init)();
        unsetenv("OPENBLAS_CORETYPE");
    }
    usable = !fell_back();
}

bool gti_blas_usable(void)
{
    pthread_once(&once, choose_kernels);
    return usable;
}

void gti_blas_sgemm(const struct gti_gemm_args *g, int threads)
{
    const int usual = omp_get_max_threads(); /* of the calling thread: OpenBLAS goes by it */
    omp_set_num_threads(threads);
    cblas_sgemm(CblasRowMajor, g->trans_a ? CblasTrans : CblasNoTrans,
                g->trans_b ? CblasTrans : CblasNoTrans, (blasint)g->m, (blasint)g->n, (blasint)g->k,
                1.0f, g->a.data, (blasint)g->lda, g->b.data, (blasint)g->ldb, g->beta, g->c.data,
                (blasint)g->ldc);
    omp_set_num_threads(usual);
}
