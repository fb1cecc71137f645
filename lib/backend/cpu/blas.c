/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenBLAS belongs to the whole process: the host program may use it too, and its settings are not
 * ours to change. So it is used only where it serves as it stands: when it was built on OpenMP,
 * since only then it goes by the calling thread's number of threads, and when it runs on kernels
 * made for processors like this one. It picks them from a list of known processors when it is
 * loaded; on one that is newer than the list it falls to SSE, and our own products are faster.
 */
#include "backend/cpu/blas.h"

#include <cblas.h>
#include <omp.h>
#include <strings.h>

static bool fell_back(void)
{
    static const char *const old[] = {"Prescott",    "Core2",   "Penryn",  "Dunnington", "Nehalem",
                                      "Sandybridge", "Generic", "Opteron", "Barcelona"};
    const char *core = openblas_get_corename();
    for (size_t i = 0; i < sizeof(old) / sizeof(old[0]); i++) {
        if (strcasecmp(core, old[i]) == 0) {
#if defined(__x86_64__)
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
            return false;
#endif
        }
    }
    return false;
}

bool gti_blas_usable(void)
{
    return openblas_get_parallel() == OPENBLAS_OPENMP && !fell_back();
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
