/* SPDX-License-Identifier: Apache-2.0
 * The host has called plain MPI_Init, so no thread of ours may call MPI. Its own messages, on every
 * tag we might use, are under way meanwhile. The host finalises. */
#include "host.h"

int main(int argc, char **argv)
{
    int rank = 0, size = 0, got = -1, finalised = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Request request;
    MPI_Irecv(&got, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &request);

    gt_context *ctx = NULL;
    gt_comm *comm = NULL;
    CHECK(open_world(&ctx, &comm, NULL) == 0);
    CHECK(exchange(comm) == 0);
    CHECK(got == -1); /* our messages are not its */
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Send(&rank, 1, MPI_INT, (rank + 1) % size, 0, MPI_COMM_WORLD);
    CHECK(exchange(comm) == 0);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(got == (rank + size - 1) % size);
    gt_comm_destroy(&comm);
    gt_context_destroy(&ctx);

    MPI_Finalized(&finalised);
    CHECK(!finalised);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
