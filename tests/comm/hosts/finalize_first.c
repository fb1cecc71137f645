/* SPDX-License-Identifier: Apache-2.0
 * The host finalises MPI with our communicator still there: calls fail with a sentence, and its
 * destruction is harmless. */
#include "host.h"

int main(int argc, char **argv)
{
    int level = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    gt_context *ctx = NULL;
    gt_comm *comm = NULL, *again = NULL;
    CHECK(open_world(&ctx, &comm, NULL) == 0);
    CHECK(exchange(comm) == 0);
    MPI_Finalize();
    CHECK(gt_barrier(comm) == GT_ERR_STATE);
    CHECK(strstr(gt_last_error(), "finalised") != NULL);
    gt_comm_destroy(&comm);
    gt_comm_params p = GT_COMM_PARAMS_INIT;
    p.transport = "mpi";
    CHECK(gt_comm_create(&again, ctx, &p) == GT_ERR_STATE && again == NULL);
    gt_context_destroy(&ctx);
    return 0;
}
