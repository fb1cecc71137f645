/* SPDX-License-Identifier: Apache-2.0
 * Two threads of the host, each with its own context and world, call at the same time; the ranks
 * come to the two worlds in opposite orders, so neither may keep the other waiting. */
#include <pthread.h>
#include <time.h>

#include "host.h"

typedef struct caller {
    MPI_Comm comm;
    int late; /* comes a little after the other */
    int failed;
} caller;

static int work(caller *c)
{
    gt_context *ctx = NULL;
    gt_comm *comm = NULL;
    struct timespec pause = {.tv_nsec = c->late ? 100000000 : 0};
    nanosleep(&pause, NULL);
    CHECK(open_world(&ctx, &comm, &c->comm) == 0);
    for (int i = 0; i < 10; i++) {
        CHECK(exchange(comm) == 0);
    }
    gt_comm_destroy(&comm);
    gt_context_destroy(&ctx);
    return 0;
}

static void *run(void *user)
{
    caller *c = user;
    c->failed = work(c);
    return NULL;
}

int main(int argc, char **argv)
{
    int level = 0, failed = 0, rank = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    caller callers[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &callers[i].comm);
    }
    for (int i = 0; i < 2; i++) {
        callers[i].late = (rank + i) % 2;
        CHECK(pthread_create(&threads[i], NULL, run, &callers[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        failed |= callers[i].failed;
        MPI_Comm_free(&callers[i].comm);
    }
    MPI_Finalize();
    return failed;
}
