/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank that fails or is late: nobody hangs, everybody is told who and why.
 */
#include <stdio.h>
#include <time.h>

#include "core/fail.h"
#include "ranks.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void doze(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

typedef gt_status (*waiting_fn)(gt_comm *c, gt_comm *sub, gt_tensor *t);

static gt_status in_barrier(gt_comm *c, gt_comm *sub, gt_tensor *t)
{
    (void)sub;
    (void)t;
    return gt_barrier(c);
}

static gt_status in_all_reduce(gt_comm *c, gt_comm *sub, gt_tensor *t)
{
    (void)sub;
    return gt_all_reduce(c, t, GT_SUM, NULL, NULL);
}

static gt_status in_sub_communicator(gt_comm *c, gt_comm *sub, gt_tensor *t)
{
    (void)c;
    return gt_all_reduce(sub, t, GT_SUM, NULL, NULL);
}

static gt_status in_receive(gt_comm *c, gt_comm *sub, gt_tensor *t)
{
    (void)sub;
    return gt_recv(c, t, 1, 0, NULL, NULL);
}

static gt_status in_send(gt_comm *c, gt_comm *sub, gt_tensor *t)
{
    (void)sub;
    gt_status st = gt_send(c, t, 1, 0, NULL, NULL);
    return st == GT_OK ? gt_barrier(c) : st;
}

static gt_status in_a_handle(gt_comm *c, gt_comm *sub, gt_tensor *t)
{
    gt_work *work = NULL;
    (void)sub;
    TH_OK(gt_all_reduce(c, t, GT_SUM, NULL, &work));
    return gt_work_wait(&work, NULL);
}

/* Rank 1 fails while the others wait for it. */
static void one_fails(gt_comm *c, gt_context *ctx, void *user)
{
    (void)ctx;
    waiting_fn wait = *(const waiting_fn *)user;
    th *h = gti_rank_harness();
    gt_comm *sub = NULL;
    TH_OK(gt_comm_split(&sub, c, 0, 0));
    gt_tensor t = th_new(h, GT_F32, TH_SHAPE(300000));
    TH_OK(gt_barrier(c));
    if (gt_comm_rank(c) == 1) {
        doze(0.05); /* everybody has left the barrier and waits */
        gt_status mine = GT_FAIL(GT_ERR_IO, "the disk of this rank is on fire");
        TH_EQUAL(gt_comm_fail(c, mine), GT_ERR_IO);
        TH_FAILS(gt_barrier(c), GT_ERR_IO, "on fire");
        TH_FAILS(gt_barrier(sub), GT_ERR_IO, "on fire");
    } else {
        double begin = now();
        TH_FAILS(wait(c, sub, &t), GT_ERR_PEER, "rank 1: the disk of this rank is on fire");
        TH_TRUE(now() - begin < 1.5);
        TH_FAILS(gt_barrier(c), GT_ERR_PEER, "rank 1: the disk");
        TH_FAILS(gt_barrier(sub), GT_ERR_PEER, "rank 1: the disk");
        TH_FAILS(gt_comm_agree(c, GT_OK), GT_ERR_PEER, "rank 1: the disk");
    }
    gt_comm_destroy(&sub);
}

static void a_rank_fails(void **state)
{
    (void)state;
    static waiting_fn waits[] = {in_barrier, in_all_reduce, in_sub_communicator,
                                 in_receive, in_send,       in_a_handle};
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        gti_run_ranks(2, one_fails, "cpu", &waits[i]);
        gti_run_ranks(3, one_fails, "guarded", &waits[i]);
    }
}

/* Without checks the others exchange their parts of a reduction, and hold each other's memory,
 * while rank 1 fails. */
static void without_checks(void **state)
{
    (void)state;
    gt_comm_params p = GT_COMM_PARAMS_INIT;
    static waiting_fn waits[] = {in_all_reduce, in_sub_communicator, in_a_handle};
    p.timeout_s = 20;
    p.check = -1;
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        gti_run_ranks_with(3, one_fails, "cpu", &p, &waits[i]);
        gti_run_ranks_with(5, one_fails, "guarded", &p, &waits[i]);
    }
}

/* Rank 1 fails with handles of its own and of others open, which nobody waits for. */
static void abandons(gt_comm *c, gt_context *ctx, void *user)
{
    (void)ctx;
    (void)user;
    th *h = gti_rank_harness();
    gt_tensor t = th_new(h, GT_F32, TH_SHAPE(300000)), in = th_new(h, GT_F32, TH_SHAPE(5));
    gt_work *a = NULL, *b = NULL;
    int rank = gt_comm_rank(c), next = (rank + 1) % gt_comm_size(c);
    gt_status st = gt_recv(c, &in, next, 0, NULL, &a); /* a slow rank may be told already */
    TH_TRUE(st == GT_OK || (rank != 1 && st == GT_ERR_PEER));
    if (rank == 1) {
        doze(0.02);
        gt_comm_fail(c, GT_FAIL(GT_ERR_DEVICE, "no more"));
    } else {
        gt_all_reduce(c, &t, GT_SUM, NULL, &b);
    }
}

static void handles_are_abandoned(void **state)
{
    (void)state;
    gti_run_ranks(2, abandons, "cpu", NULL);
    gti_run_ranks(3, abandons, "cpu", NULL);
}

/* Rank 0 does not come: the others name it when their time is up. */
static void one_is_late(gt_comm *c, gt_context *ctx, void *user)
{
    (void)ctx;
    (void)user;
    float x = 1;
    gt_tensor t = gt_tensor_1d(&x, GT_F32, 1);
    if (gt_comm_rank(c) == 0) {
        doze(1.2);
        TH_FAILS(gt_barrier(c), GT_ERR_PEER, "waited 0.5 s in all_reduce sum f32[1] (#1)");
    } else {
        double begin = now();
        gt_status st = gt_all_reduce(c, &t, GT_SUM, NULL, NULL);
        TH_TRUE(now() - begin < 1.2 && now() - begin > 0.3);
        TH_FAILS(st, st == GT_ERR_PEER ? GT_ERR_PEER : GT_ERR_TIMEOUT,
                 "waited 0.5 s in all_reduce sum f32[1] (#1) for rank 0");
    }
}

static void a_receive_is_late(gt_comm *c, gt_context *ctx, void *user)
{
    (void)ctx;
    (void)user;
    float x = 1;
    gt_tensor t = gt_tensor_1d(&x, GT_F32, 1);
    if (gt_comm_rank(c) == 0) {
        TH_FAILS(gt_recv(c, &t, 1, 9, NULL, NULL), GT_ERR_TIMEOUT,
                 "rank 0 waited 0.5 s in recv f32[1] tag 9 (#0) for rank 1");
    } else {
        doze(1.2);
    }
}

static void time_is_up(void **state)
{
    (void)state;
    gt_comm_params p = GT_COMM_PARAMS_INIT;
    p.timeout_s = 0.5;
    p.check = 1;
    gti_run_ranks_with(2, one_is_late, "cpu", &p, NULL);
    gti_run_ranks_with(3, one_is_late, "cpu", &p, NULL);
    gti_run_ranks_with(2, a_receive_is_late, "cpu", &p, NULL);
}

/* The last rank leaves as soon as it may: the others need not wait for the time limit. */
static void one_leaves(gt_comm *c, gt_context *ctx, void *user)
{
    (void)ctx;
    (void)user;
    if (gt_comm_rank(c) < gt_comm_size(c) - 1) {
        double begin = now();
        gt_status st = gt_barrier(c);
        TH_FAILS(st, st == GT_ERR_PEER ? GT_ERR_PEER : GT_ERR_MISMATCH, "has left the world");
        TH_TRUE(now() - begin < 10);
    }
}

static void a_rank_leaves_at_once(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        gti_run_ranks(2, one_leaves, "cpu", NULL);
        gti_run_ranks(3, one_leaves, "cpu", NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_fails),
        cmocka_unit_test(without_checks),
        cmocka_unit_test(handles_are_abandoned),
        cmocka_unit_test(a_rank_leaves_at_once),
        cmocka_unit_test(time_is_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
