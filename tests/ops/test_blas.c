/* SPDX-License-Identifier: Apache-2.0
 * OpenBLAS is the host's as much as ours: whatever it was loaded with, products leave it alone.
 * Started with OPENBLAS_CORETYPE=Prescott, which is where it falls on processors it does not know.
 */
#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <geektrain/ops.h>

#include "backend/cpu/blas.h"
#include "harness.h"

extern char **environ;

/* All variables in one string. */
static char *environment(void)
{
    size_t bytes = 1;
    for (char **e = environ; *e != NULL; e++) {
        bytes += strlen(*e) + 1;
    }
    char *text = calloc(1, bytes), *to = text;
    assert_non_null(text);
    for (char **e = environ; *e != NULL; e++) {
        to += sprintf(to, "%s\n", *e);
    }
    return text;
}

static void a_product_leaves_openblas_alone(void **state)
{
    const int64_t n = 160;
    unsetenv("OPENBLAS_CORETYPE"); /* was read when the library was loaded */
    char *before = environment();
    char core[64];
    snprintf(core, sizeof core, "%s", openblas_get_corename());
    const int threads = openblas_get_num_threads();
    th h = {0};
    th_open(&h, "cpu");
    gt_tensor a = th_new(&h, GT_F32, TH_SHAPE(n, n)), b = th_new(&h, GT_F32, TH_SHAPE(n, n));
    gt_tensor c = th_new(&h, GT_F32, TH_SHAPE(n, n));
    th_random(&h, &a, 1, 1.0);
    th_random(&h, &b, 2, 1.0);
    TH_OK(gt_gemm(h.ctx, &c, &a, &b, NULL, NULL));
    const double *x = th_get(&h, &a), *y = th_get(&h, &b);
    double *want = th_host(&h, n * n);
    for (int64_t i = 0; i < n * n; i++) {
        for (int64_t k = 0; k < n; k++) {
            want[i] += x[i / n * n + k] * y[k * n + i % n];
        }
    }
    th_compare(&h, "c", &c, want, sqrt((double)n));
    assert_string_equal(openblas_get_corename(), core);
    assert_int_equal(openblas_get_num_threads(), threads);
    char *after = environment();
    assert_string_equal(after, before);
    free(before);
    free(after);
    th_close(&h);
}

static void old_kernels_are_not_used(void **state)
{
    if (!__builtin_cpu_supports("avx2") || strcmp(openblas_get_corename(), "Prescott") != 0) {
        skip();
    }
    assert_false(gti_blas_usable());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_leaves_openblas_alone),
        cmocka_unit_test(old_kernels_are_not_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
