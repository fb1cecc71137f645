/* SPDX-License-Identifier: Apache-2.0
 * What a bench says about where it ran, and the start-up of the BLAS library it measures against.
 */
#ifndef BENCH_MACHINE_H
#define BENCH_MACHINE_H

#include <stddef.h>

/* "Intel(R) Xeon(R) Processor, 2 threads, sgemm SkylakeX"; returns text. */
const char *bench_machine(char *text, size_t size);
const char *bench_commit(void);
const char *bench_flags(void);

/* Starts the program again with OPENBLAS_CORETYPE set where OpenBLAS fell back to kernels far below
 * what the processor has; returns otherwise. */
void bench_choose_blas_kernels(char **argv);
void bench_free_ceilings(void);

#endif
