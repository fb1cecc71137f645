/* SPDX-License-Identifier: Apache-2.0
 *
 * Several ranks in one test: as threads over the local transport, or, when the program was started
 * by mpirun, as its processes.
 */
#ifndef TESTS_RANKS_H
#define TESTS_RANKS_H

#include <geektrain/comm.h>

#include "harness.h"

typedef void (*gti_rank_fn)(gt_comm *world, gt_context *ctx, void *user);

/* Runs fn on n ranks, each with its own context on `device` (NULL: cpu) and a world of n; checks
 * fences and leaks at the end. Under mpirun: runs fn in this process when n is the number of
 * processes, else does nothing. Checking is on, the time limit is 20 s. */
void gti_run_ranks(int n, gti_rank_fn fn, const char *device, void *user);
/* The same with these communicator params (transport, world and rank are filled in). */
void gti_run_ranks_with(int n, gti_rank_fn fn, const char *device, const gt_comm_params *params,
                        void *user);
/* The harness of the calling rank, for th_new() and the like. */
th *gti_rank_harness(void);
/* The number of processes that mpirun started, 0 without it. */
int gti_mpirun_size(void);

#endif
