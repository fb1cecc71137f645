/* SPDX-License-Identifier: Apache-2.0
 * The ceilings: what the machine can do, measured beside what the library does. */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "machine.h"

enum { SIDE = 2048, TRIAD = 1 << 26 /* floats: 256 MiB, beyond any last-level cache of today */ };

static float *matrices[3], *arrays[3];

static float *make(size_t n, float value)
{
    float *x = aligned_alloc(4096, n * sizeof(float));
    if (x == NULL) {
        fprintf(stderr, "no memory for %zu floats of a ceiling\n", n);
        exit(1);
    }
    /* In parallel, so that each thread's part lies near it. */
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) {
        x[i] = value;
    }
    return x;
}

static void make_all(float *all[3], size_t n)
{
    for (int i = 0; i < 3 && all[i] == NULL; i++) {
        all[i] = make(n, (float)i);
    }
}

static void sgemm(void *user)
{
    make_all(matrices, (size_t)SIDE * SIDE);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, SIDE, SIDE, SIDE, 1.0f, matrices[1],
                SIDE, matrices[2], SIDE, 0.0f, matrices[0], SIDE);
}

static void triad(void *user)
{
    make_all(arrays, TRIAD);
    float *restrict a = arrays[0];
    const float *restrict b = arrays[1], *restrict c = arrays[2];
#pragma omp parallel for simd schedule(static)
    for (long i = 0; i < TRIAD; i++) {
        a[i] = b[i] + 3.0f * c[i];
    }
}

int bench_add_sgemm(bench *b)
{
    const double flop = 2.0 * SIDE * SIDE * SIDE;
    return bench_add_ceiling(
        b,
        &(bench_case){.name = "sgemm_2048", .unit = "GFLOP/s", .amount = flop / 1e9, .run = sgemm});
}

int bench_add_triad(bench *b)
{
    const double bytes = 3.0 * sizeof(float) * TRIAD;
    return bench_add_ceiling(
        b, &(bench_case){.name = "triad", .unit = "GB/s", .amount = bytes / 1e9, .run = triad});
}

void bench_free_ceilings(void)
{
    for (int i = 0; i < 3; i++) {
        free(matrices[i]);
        free(arrays[i]);
        matrices[i] = arrays[i] = NULL;
    }
}
