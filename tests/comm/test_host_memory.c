/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank runs out of host memory inside a collective: all ranks return an error at once,
 * whichever allocation it was. Nobody waits for the time limit, which would be a timeout's
 * sentence.
 */
#include <pthread.h>
#include <stdio.h>

#include <geektrain/mesh.h>

#include "core/fail.h"
#include "host_memory.h"
#include "ranks.h"

enum { RANKS_MAX = 5, BIG = 300000 };

typedef gt_status (*call_fn)(gt_comm *c, th *h);

typedef struct scene {
    call_fn call; /* NULL: creation itself */
    const char *device;
    int victim;
    long nth;
    gt_local_world *world;
    pthread_barrier_t created;
    gt_status status[RANKS_MAX];
    char sentence[RANKS_MAX][256];
    bool failed; /* an allocation did */
} scene;

/* ---- calls ------------------------------------------------------------------------------------*/
static gt_status split_all(gt_comm *c, th *h)
{
    gt_comm *group = NULL;
    (void)h;
    gt_status st = gt_comm_split(&group, c, 0, 0);
    gt_comm_destroy(&group);
    return st;
}

static gt_status split_apart(gt_comm *c, th *h)
{
    gt_comm *group = NULL;
    (void)h;
    gt_status st = gt_comm_split(&group, c, gt_comm_rank(c) - 1, 0); /* rank 0 joins none */
    gt_comm_destroy(&group);
    return st;
}

static gt_status make_mesh(gt_comm *c, th *h)
{
    gt_mesh *mesh = NULL;
    gt_mesh_params p = GT_MESH_PARAMS_INIT;
    (void)h;
    p.tp = gt_comm_size(c);
    gt_status st = gt_mesh_create(&mesh, c, &p);
    gt_mesh_destroy(&mesh);
    return st;
}

static gt_status agree(gt_comm *c, th *h)
{
    (void)h;
    return gt_comm_agree(c, GT_OK);
}

static gt_status check_equal(gt_comm *c, th *h)
{
    (void)h;
    return gt_comm_check_equal(c, "four bytes", "same", 4);
}

static gt_status barrier(gt_comm *c, th *h)
{
    (void)h;
    return gt_barrier(c);
}

static gt_status reduce_small(gt_comm *c, th *h)
{
    (void)h;
    float x = 1;
    gt_tensor t = gt_tensor_1d(&x, GT_F32, 1);
    return gt_all_reduce(c, &t, GT_SUM, NULL, NULL);
}

static float big[RANKS_MAX][BIG];

/* Two handles at once: with room for neither, one or both. */
static gt_status reduce_big(gt_comm *c, th *h)
{
    (void)h;
    gt_work *works[2] = {NULL, NULL};
    gt_tensor t = gt_tensor_1d(big[gt_comm_rank(c)], GT_F32, BIG);
    gt_tensor part = gt_tensor_1d(big[gt_comm_rank(c)], GT_F32, 7);
    gt_status st = gt_all_reduce(c, &t, GT_MAX, NULL, &works[0]);
    st = st == GT_OK ? gt_broadcast(c, &part, 0, NULL, &works[1]) : st;
    for (int i = 0; i < 2; i++) {
        gt_status waited = gt_work_wait(&works[i], NULL);
        st = st == GT_OK ? waited : st;
    }
    return st;
}

/* A ring: everybody waits for a neighbour. */
static gt_status send_around(gt_comm *c, th *h)
{
    int rank = gt_comm_rank(c), size = gt_comm_size(c);
    float x = (float)rank, y = -1;
    gt_tensor mine = gt_tensor_1d(&x, GT_F32, 1), theirs = gt_tensor_1d(&y, GT_F32, 1);
    gt_work *send = NULL, *receive = NULL;
    (void)h;
    gt_status st = gt_recv(c, &theirs, (rank + size - 1) % size, 3, NULL, &receive);
    st = st == GT_OK ? gt_send(c, &mine, (rank + 1) % size, 3, NULL, &send) : st;
    gt_status sent = gt_work_wait(&send, NULL), received = gt_work_wait(&receive, NULL);
    st = st == GT_OK ? sent : st;
    st = st == GT_OK ? received : st;
    return st == GT_OK ? gt_barrier(c) : st;
}

/* ---- one rank runs out ------------------------------------------------------------------------*/
static void rank_body(int rank, int size, void *user)
{
    scene *s = user;
    (void)size;
    th h = {0};
    th_open(&h, s->device);
    gt_comm_params p = GT_COMM_PARAMS_INIT;
    p.transport = "local";
    p.local_world = s->world;
    p.local_rank = rank;
    p.timeout_s = 100; /* a stopped machine is not a slow rank */
    p.check = 1;
    gt_comm *c = NULL;
    bool armed = rank == s->victim;
    if (s->call != NULL) {
        TH_OK(gt_comm_create(&c, h.ctx, &p));
        pthread_barrier_wait(&s->created); /* else the victim's failure meets others in there */
    }
    th_host_fail_at(armed ? s->nth : 0);
    gt_status st = s->call != NULL ? s->call(c, &h) : gt_comm_create(&c, h.ctx, &p);
    if (th_host_failed()) {
        s->failed = true;
    }
    s->status[rank] = st;
    snprintf(s->sentence[rank], sizeof s->sentence[rank], "%s", st != GT_OK ? gt_last_error() : "");
    gt_comm_destroy(&c);
    th_close(&h);
}

static void check_ranks(const scene *s, int size, const char *name)
{
    int failed = 0;
    for (int r = 0; r < size; r++) {
        failed += s->status[r] != GT_OK;
    }
    bool good = failed == (s->failed ? size : 0);
    for (int r = 0; r < size; r++) {
        bool own = r == s->victim;
        good = good &&
               (s->status[r] == GT_OK || (s->status[r] == (own ? GT_ERR_MEMORY : GT_ERR_PEER) &&
                                          strstr(s->sentence[r], "memory") != NULL));
    }
    for (int r = 0; !good && r < size; r++) {
        print_message("%s, allocation %ld of rank %d of %d on %s: rank %d returned %s: %s\n", name,
                      s->nth, s->victim, size, s->device, r, gt_status_name(s->status[r]),
                      s->sentence[r]);
    }
    TH_TRUE(good);
}

/* Every allocation of the call in turn, until the call makes fewer. */
static void sweep(int size, int victim, const char *device, const char *name, call_fn call)
{
    bool failed = true;
    for (long nth = 1; failed; nth++) {
        scene s = {.call = call, .device = device, .victim = victim, .nth = nth};
        TH_OK(gt_local_world_create(&s.world, size));
        pthread_barrier_init(&s.created, NULL, (unsigned)size);
        th_threads(size, rank_body, &s);
        pthread_barrier_destroy(&s.created);
        gt_local_world_destroy(&s.world);
        check_ranks(&s, size, name);
        failed = s.failed;
        TH_TRUE(nth < 1000);
    }
}

#define CALL(name)                                                                                 \
    {                                                                                              \
#name, name                                                                                \
    }
static const struct {
    const char *name;
    call_fn call;
} calls[] = {{"comm_create", NULL}, CALL(split_all),   CALL(split_apart), CALL(make_mesh),
             CALL(agree),           CALL(check_equal), CALL(barrier),     CALL(reduce_small),
             CALL(reduce_big),      CALL(send_around)};

static void every_allocation(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        for (int victim = 0; victim < 3; victim++) {
            sweep(3, victim, "cpu", calls[i].name, calls[i].call);
        }
        sweep(2, 1, "guarded", calls[i].name, calls[i].call);
        sweep(5, 2, "cpu", calls[i].name, calls[i].call);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
