/* SPDX-License-Identifier: Apache-2.0
 * What the small host programs share: a training step's communication, and a check that prints. */
#ifndef TESTS_COMM_HOST_H
#define TESTS_COMM_HOST_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <geektrain/comm.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s is false: %s\n", __FILE__, __LINE__, #condition,            \
                    gt_last_error());                                                              \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* Asynchronous and waiting calls whose results are checked. */
static inline int exchange(gt_comm *c)
{
    enum { N = 100000 };
    int size = gt_comm_size(c), rank = gt_comm_rank(c);
    float *x = malloc(N * sizeof *x), y = (float)rank, z = -1;
    CHECK(x != NULL);
    for (int i = 0; i < N; i++) {
        x[i] = (float)(rank + i % 3);
    }
    gt_tensor t = gt_tensor_1d(x, GT_F32, N), one = gt_tensor_1d(&y, GT_F32, 1);
    gt_tensor other = gt_tensor_1d(&z, GT_F32, 1);
    gt_work *reduce = NULL, *send = NULL;
    CHECK(gt_all_reduce(c, &t, GT_SUM, NULL, &reduce) == GT_OK);
    CHECK(gt_send(c, &one, (rank + 1) % size, 4, NULL, &send) == GT_OK);
    CHECK(gt_recv(c, &other, (rank + size - 1) % size, 4, NULL, NULL) == GT_OK);
    CHECK(gt_work_wait(&send, NULL) == GT_OK && gt_work_wait(&reduce, NULL) == GT_OK);
    CHECK(z == (float)((rank + size - 1) % size));
    for (int i = 0; i < N; i++) {
        CHECK(x[i] == (float)(size * (size - 1) / 2 + size * (i % 3)));
    }
    free(x);
    return 0;
}

static inline int open_world(gt_context **ctx, gt_comm **comm, void *mpi_comm)
{
    gt_comm_params p = GT_COMM_PARAMS_INIT;
    p.transport = "mpi";
    p.mpi_comm = mpi_comm;
    p.timeout_s = 20;
    p.check = 1;
    CHECK(gt_context_create(ctx, NULL) == GT_OK);
    CHECK(gt_comm_create(comm, *ctx, &p) == GT_OK);
    return 0;
}

#endif
