/* SPDX-License-Identifier: Apache-2.0
 *
 * What every bench shares: cases, ceilings measured in the same run, and the report.
 *
 *     bench *b = bench_open("bench_ops", argc, argv);
 *     int sgemm = bench_add_sgemm(b);
 *     bench_add(b, &(bench_case){"attention_forward", "GFLOP/s", flop / 1e9, sgemm, run,
 * &fixture}); return bench_close(b);            // runs all, prints, frees
 *
 * Each case is called once to warm up; then rounds, in each of which every case and every ceiling
 * takes its turn, so that whatever else the machine does meets all alike: 20 rounds and a second,
 * or 5 seconds. A figure is amount / median seconds; `best` is amount / minimum; the ratio is the
 * figure over its ceiling's.
 *
 * Options: --json, --filter TEXT (cases whose name holds it), --threads N, --seconds S, --cpu-time
 * (processor instead of wall time, for a machine busy with other work; with --threads 1).
 */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <stdbool.h>

typedef struct bench bench;
typedef void (*bench_fn)(void *user);

#define BENCH_NO_CEILING (-1)

typedef struct bench_case {
    const char *name; /* kept as a pointer                                        */
    const char *unit; /* of amount per second: "GFLOP/s", "GB/s", "tokens/s"      */
    double amount;    /* per call                                                 */
    int ceiling;      /* what bench_add* returned, or BENCH_NO_CEILING            */
    bench_fn run;
    void *user;
} bench_case;

/* Reads the options; on a bad one or --help prints the usage and ends the program. Where OpenBLAS
 * does not know the processor and would take its slowest kernels, starts the program again with
 * OPENBLAS_CORETYPE set, so that the ceiling is one. */
bench *bench_open(const char *name, int argc, char **argv);
int bench_threads(const bench *b); /* for the context; 0 unless --threads was given */
/* Whether the filter lets a case of this name in: saves making its data. */
bool bench_wants(const bench *b, const char *name);
/* Returns the case's index. A case that the filter leaves out is not run. */
int bench_add(bench *b, const bench_case *c);

/* Ceilings; each may be added once and runs only if a case refers to it. */
int bench_add_sgemm(bench *b); /* OpenBLAS, 2048^3                                          */
int bench_add_triad(bench *b); /* a = b + s c over three arrays of 256 MiB; 24 bytes counted */
/* Any other ceiling: run, but reported only as a ceiling. */
int bench_add_ceiling(bench *b, const bench_case *c);

/* A figure that needs no timing here. ceiling 0: none. */
void bench_value(bench *b, const char *name, double value, const char *unit, double ceiling);

/* Runs, prints, frees; returns the exit status of the program. */
int bench_close(bench *b);

double bench_now(void); /* seconds, monotonic */

/* An unexpected failure ends the program with its sentence. */
#define BENCH_OK(call) bench_expect((call), #call)
void bench_expect(int status, const char *call);

#endif
