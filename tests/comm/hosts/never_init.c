/* SPDX-License-Identifier: Apache-2.0
 * The host knows nothing of MPI: we initialise it at the level we need, and finalise it at exit. */
#include "host.h"

static int check_finalised_later(void)
{
    int initialised = 0, finalised = 0, level = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    CHECK(initialised && !finalised);
    MPI_Query_thread(&level);
    CHECK(level == MPI_THREAD_MULTIPLE);
    return 0;
}

int main(void)
{
    gt_context *ctx = NULL;
    gt_comm *comm = NULL;
    gt_comm_params p = GT_COMM_PARAMS_INIT; /* transport auto: mpirun started us */
    CHECK(gt_context_create(&ctx, NULL) == GT_OK);
    CHECK(gt_comm_create(&comm, ctx, &p) == GT_OK);
    CHECK(strcmp(gt_comm_transport(comm), "mpi") == 0);
    CHECK(exchange(comm) == 0);
    gt_comm_destroy(&comm);
    gt_context_destroy(&ctx);
    return check_finalised_later(); /* mpirun complains if nobody finalises */
}
