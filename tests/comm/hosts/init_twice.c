/* SPDX-License-Identifier: Apache-2.0
 * Worlds one after the other, and two at once, of the host's communicator in its own order. */
#include "host.h"

int main(void)
{
    gt_context *ctx = NULL, *other = NULL;
    gt_comm *comm = NULL, *second = NULL;
    for (int i = 0; i < 20; i++) {
        CHECK(open_world(&ctx, &comm, NULL) == 0);
        CHECK(exchange(comm) == 0);
        gt_comm_destroy(&comm);
        gt_context_destroy(&ctx);
    }
    int rank = 0, size = 0;
    MPI_Comm reversed;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
    CHECK(open_world(&ctx, &comm, NULL) == 0);
    CHECK(open_world(&other, &second, &reversed) == 0);
    MPI_Comm_free(&reversed); /* ours is a duplicate */
    CHECK(gt_comm_rank(second) == size - 1 - rank);
    CHECK(exchange(second) == 0);
    CHECK(exchange(comm) == 0);
    gt_comm_destroy(&comm);
    CHECK(exchange(second) == 0);
    gt_comm_destroy(&second);
    gt_context_destroy(&other);
    gt_context_destroy(&ctx);
    return 0;
}
