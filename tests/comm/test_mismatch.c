/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that call different things: every one gets GT_ERR_MISMATCH with both calls named, within
 * the time limit, and the world is broken for all.
 */
#include <time.h>

#include "ranks.h"

typedef struct situation {
    const char *part; /* of every rank's sentence */
    gt_status (*call)(gt_comm *c, int rank);
} situation;

static float data[200000]; /* per process; ranks that are threads never get to write it */

static gt_tensor floats(int64_t n)
{
    return gt_tensor_1d(data, GT_F32, n);
}

static gt_status counts(gt_comm *c, int rank)
{
    gt_tensor t = floats(rank == 0 ? 8 : 4);
    return gt_all_reduce(c, &t, GT_SUM, NULL, NULL);
}

static gt_status large_counts(gt_comm *c, int rank)
{
    gt_tensor t = floats(rank == 0 ? 100000 : 50000);
    return gt_all_reduce(c, &t, GT_SUM, NULL, NULL);
}

static gt_status small_against_large(gt_comm *c, int rank)
{
    gt_tensor t = floats(rank == 0 ? 8 : 100000);
    return gt_all_reduce(c, &t, GT_SUM, NULL, NULL);
}

static gt_status dtypes(gt_comm *c, int rank)
{
    gt_tensor t = floats(8);
    t.dtype = rank == 0 ? GT_F32 : GT_F16;
    return gt_all_reduce(c, &t, GT_SUM, NULL, NULL);
}

static gt_status operations(gt_comm *c, int rank)
{
    gt_tensor t = floats(100000);
    return rank == 0 ? gt_all_reduce(c, &t, GT_SUM, NULL, NULL)
                     : gt_broadcast(c, &t, 0, NULL, NULL);
}

static gt_status reductions(gt_comm *c, int rank)
{
    gt_tensor t = floats(8);
    return gt_all_reduce(c, &t, rank == 0 ? GT_SUM : GT_MAX, NULL, NULL);
}

static gt_status roots(gt_comm *c, int rank)
{
    gt_tensor t = floats(8);
    return gt_broadcast(c, &t, rank == 0 ? 0 : 1, NULL, NULL);
}

/* The third call of rank 0 meets the third of the others: the order is what counts. */
static gt_status order(gt_comm *c, int rank)
{
    gt_work *work[2] = {NULL, NULL};
    gt_tensor a = floats(10), b = floats(20);
    gt_status first = gt_all_reduce(c, rank == 0 ? &a : &b, GT_SUM, NULL, &work[0]);
    gt_status second = gt_all_reduce(c, rank == 0 ? &b : &a, GT_SUM, NULL, &work[1]);
    gt_status done = gt_work_wait(&work[0], NULL), late = gt_work_wait(&work[1], NULL);
    TH_EQUAL(first, GT_OK);
    TH_TRUE(second == GT_OK || second == GT_ERR_MISMATCH);
    TH_EQUAL(late, second == GT_OK ? GT_ERR_MISMATCH : GT_OK);
    return done;
}

static gt_status transfer_counts(gt_comm *c, int rank)
{
    gt_tensor t = floats(rank == 0 ? 100000 : 50000);
    if (rank > 1) {
        return gt_barrier(c);
    }
    gt_status st = rank == 0 ? gt_send(c, &t, 1, 3, NULL, NULL) : gt_recv(c, &t, 0, 3, NULL, NULL);
    return st == GT_OK ? gt_barrier(c) : st; /* a sender may be through before the receiver looks */
}

static gt_status transfer_dtypes(gt_comm *c, int rank)
{
    gt_tensor t = floats(16);
    t.dtype = rank == 0 ? GT_I32 : GT_F32;
    if (rank > 1) {
        return gt_barrier(c);
    }
    gt_status st = rank == 0 ? gt_send(c, &t, 1, 3, NULL, NULL) : gt_recv(c, &t, 0, 3, NULL, NULL);
    return st == GT_OK ? gt_barrier(c) : st;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void disagree(gt_comm *c, gt_context *ctx, void *user)
{
    (void)ctx;
    const situation *s = user;
    TH_OK(gt_barrier(c));
    nanosleep(&(struct timespec){0, 20000000}, NULL); /* everybody has left the barrier */
    double begin = now();
    TH_FAILS(s->call(c, gt_comm_rank(c)), GT_ERR_MISMATCH, s->part);
    TH_TRUE(now() - begin < 10);
    TH_FAILS(gt_barrier(c), GT_ERR_MISMATCH, s->part); /* and so does every later call */
}

static void ranks_disagree(void **state)
{
    (void)state;
    static const situation situations[] = {
        {"rank 0 calls all_reduce sum f32[8] (#2), rank 1 calls all_reduce sum f32[4] (#2)",
         counts},
        {"f32[100000] (#2), rank 1 calls all_reduce sum f32[50000]", large_counts},
        {"f32[8] (#2), rank 1 calls all_reduce sum f32[100000]", small_against_large},
        {"f32[8] (#2), rank 1 calls all_reduce sum f16[8]", dtypes},
        {"rank 1 calls broadcast f32[100000] from 0 (#2)", operations},
        {"all_reduce sum f32[8] (#2), rank 1 calls all_reduce max f32[8]", reductions},
        {"from 0 (#2), rank 1 calls broadcast f32[8] from 1", roots},
        {"f32[10] (#2), rank 1 calls all_reduce sum f32[20]", order},
        {"rank 0 calls send f32[100000] tag 3 (#0), rank 1 calls recv f32[50000] tag 3 (#0)",
         transfer_counts},
        {"rank 0 calls send i32[16] tag 3 (#0), rank 1 calls recv f32[16]", transfer_dtypes},
    };
    for (size_t i = 0; i < sizeof situations / sizeof *situations; i++) {
        gti_run_ranks(2, disagree, "cpu", (void *)&situations[i]);
        gti_run_ranks(3, disagree, "cpu", (void *)&situations[i]);
    }
}

/* One rank calls one time more; the others have left the world, or do something else in it. */
static void one_more(gt_comm *c, gt_context *ctx, void *user)
{
    (void)ctx;
    (void)user;
    gt_tensor t = floats(8);
    TH_OK(gt_broadcast(c, &t, 0, NULL, NULL));
    if (gt_comm_rank(c) == 0) {
        double begin = now();
        TH_FAILS(gt_broadcast(c, &t, 0, NULL, NULL), GT_ERR_MISMATCH, "has left the world");
        TH_TRUE(now() - begin < 10);
    }
}

static void one_rank_calls_once_more(void **state)
{
    (void)state;
    gti_run_ranks(2, one_more, "cpu", NULL);
    gti_run_ranks(3, one_more, "cpu", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_disagree),
        cmocka_unit_test(one_rank_calls_once_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
