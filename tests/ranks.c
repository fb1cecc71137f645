/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks.h"

#include <pthread.h>
#ifdef TH_MPI
#include <mpi.h>
#endif

typedef struct job {
    gti_rank_fn fn;
    const char *device;
    gt_comm_params params;
    gt_local_world *world;
    pthread_barrier_t created; /* of threads */
    void *user;
} job;

static _Thread_local th *current;

th *gti_rank_harness(void)
{
    return current;
}

int gti_mpirun_size(void)
{
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");
    return size != NULL ? atoi(size) : 0;
}

/* Creation ends on one rank before it does on another: what a test breaks at once would meet others
 * still in there. */
static void await_others(job *j)
{
    if (j->world != NULL) {
        pthread_barrier_wait(&j->created);
        return;
    }
#ifdef TH_MPI
    TH_TRUE(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS);
#endif
}

static void run_rank(int rank, int size, void *user)
{
    (void)size;
    job *j = user;
    th h = {0};
    th_open(&h, j->device);
    current = &h;
    gt_comm_params params = j->params;
    params.transport = j->world != NULL ? "local" : "mpi";
    params.local_world = j->world;
    params.local_rank = rank;
    gt_comm *comm = NULL;
    TH_OK(gt_comm_create(&comm, h.ctx, &params));
    await_others(j);
    j->fn(comm, h.ctx, j->user);
    gt_comm_destroy(&comm);
    current = NULL;
    th_close(&h);
}

void gti_run_ranks_with(int n, gti_rank_fn fn, const char *device, const gt_comm_params *params,
                        void *user)
{
    job j = {.fn = fn, .device = device ? device : "cpu", .params = *params, .user = user};
    if (gti_mpirun_size() > 0) {
        if (gti_mpirun_size() == n) {
            run_rank(0, n, &j);
        }
        return;
    }
    TH_OK(gt_local_world_create(&j.world, n));
    pthread_barrier_init(&j.created, NULL, (unsigned)n);
    th_threads(n, run_rank, &j);
    pthread_barrier_destroy(&j.created);
    gt_local_world_destroy(&j.world);
}

void gti_run_ranks(int n, gti_rank_fn fn, const char *device, void *user)
{
    gt_comm_params params = GT_COMM_PARAMS_INIT;
    params.check = 1;
    params.timeout_s = 20;
    gti_run_ranks_with(n, fn, device, &params, user);
}
