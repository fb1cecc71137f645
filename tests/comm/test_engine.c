/* SPDX-License-Identifier: Apache-2.0
 *
 * What the collectives promise beyond their values: order of summation, overlap, no allocation,
 * agreement, statistics, refused arguments.
 */
#include <math.h>
#include <stdio.h>

#include "core/fail.h"
#include "ranks.h"

/* ---- the order of summation --------------------------------------------------------------------
 */
static float wild(int rank, int64_t i)
{
    static const float values[] = {1e8f, 1.0f, -1e8f, 3e-3f, 7.5e7f, -0.1f};
    return values[(i + rank * 5) % 6] * (1 + (float)(i % 7) * 0.37f);
}

static void summation_order(gt_comm *c, gt_context *ctx, void *user)
{
    (void)ctx;
    th *h = gti_rank_harness();
    int size = gt_comm_size(c), rank = gt_comm_rank(c);
    int64_t n = *(const int64_t *)user, slice = n / size;
    gt_tensor t = th_new(h, GT_F32, TH_SHAPE(n)), in = th_new(h, GT_F32, TH_SHAPE(n));
    gt_tensor part = th_new(h, GT_F32, TH_SHAPE(slice)), all = th_new(h, GT_F32, TH_SHAPE(n));
    double *v = th_host(h, n), *want = th_host(h, n);
    for (int64_t i = 0; i < n; i++) {
        float sum = wild(0, i);
        for (int r = 1; r < size; r++) {
            sum += wild(r, i);
        }
        want[i] = sum;
        v[i] = wild(rank, i);
    }
    th_set(h, &t, v);
    th_set(h, &in, v);
    TH_OK(gt_all_reduce(c, &t, GT_SUM, NULL, NULL));
    th_compare(h, "all_reduce", &t, want, 0);
    TH_OK(gt_reduce_scatter(c, &part, &in, GT_SUM, NULL, NULL));
    TH_OK(gt_all_gather(c, &all, &part, NULL, NULL));
    th_compare(h, "reduce_scatter + all_gather", &all, want, 0);
}

static void sums_in_rank_order(void **state)
{
    (void)state;
    static const struct {
        int ranks;
        int64_t n;
    } cases[] = {{2, 1000}, {3, 999}, {5, 1000}, {2, 70000}, {3, 210000}, {4, 100000}, {5, 100000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gti_run_ranks(cases[i].ranks, summation_order, "cpu", (void *)&cases[i].n);
    }
}

/* Eight times 10000 is beyond f16; into an f32 it is exact, as is the smallest f16 number. */
static void sixteen_bits(gt_comm *c, gt_context *ctx, void *user)
{
    (void)ctx;
    (void)user;
    th *h = gti_rank_harness();
    int size = gt_comm_size(c);
    double big[8], tiny[8], sum = 10000.0 * size;
    for (int i = 0; i < size; i++) {
        big[i] = 10000;
        tiny[i] = 0x1p-24;
    }
    gt_tensor in = th_new(h, GT_F16, TH_SHAPE(size)), out = th_new(h, GT_F32, TH_SHAPE(1));
    gt_tensor one = th_new(h, GT_F16, TH_SHAPE(1));
    th_set(h, &in, big);
    th_fill(h, &out, 0);
    TH_OK(gt_reduce_scatter_add(c, &out, &in, NULL, NULL));
    th_compare(h, "8 x 10000 in f32", &out, &sum, 0);
    th_set(h, &in, tiny);
    th_fill(h, &out, 0);
    sum = size * 0x1p-24;
    TH_OK(gt_reduce_scatter_add(c, &out, &in, NULL, NULL));
    th_compare(h, "8 x 2^-24 in f32", &out, &sum, 0);
    TH_OK(gt_reduce_scatter(c, &one, &in, GT_SUM, NULL, NULL));
    th_compare(h, "8 x 2^-24 in f16", &one, &sum, 0);
    th_set(h, &in, big);
    sum = INFINITY;
    TH_OK(gt_reduce_scatter(c, &one, &in, GT_SUM, NULL, NULL));
    th_compare(h, "8 x 10000 in f16", &one, &sum, 0);
}

static void sixteen_bit_range(void **state)
{
    (void)state;
    gti_run_ranks(8, sixteen_bits, "cpu", NULL);
}

/* ---- overlap -----------------------------------------------------------------------------------
 */
enum { ROUNDS = 6, BIG = 50000 };

/* Collectives of two communicators and transfers under way at once, submitted in different orders
 * on different ranks, waited for backwards. */
static void all_at_once(gt_comm *c, gt_context *ctx, void *user)
{
    (void)user;
    th *h = gti_rank_harness();
    int size = gt_comm_size(c), rank = gt_comm_rank(c);
    gt_comm *half = NULL;
    TH_OK(gt_comm_split(&half, c, rank % 2, rank));
    gt_tensor a[ROUNDS], b[ROUNDS], s = th_new(h, GT_F32, TH_SHAPE(BIG)), r[ROUNDS];
    gt_work *wa[ROUNDS], *wb[ROUNDS], *ws[ROUNDS], *wr[ROUNDS];
    th_fill(h, &s, rank);
    for (int i = 0; i < ROUNDS; i++) {
        a[i] = th_new(h, GT_F32, TH_SHAPE(BIG + i));
        b[i] = th_new(h, GT_BF16, TH_SHAPE(7));
        r[i] = th_new(h, GT_F32, TH_SHAPE(BIG));
        th_fill(h, &a[i], rank + i);
        th_fill(h, &b[i], i);
    }
    gt_memory_stats before, after;
    gt_memory_get_stats(ctx, &before);
    for (int i = 0; i < ROUNDS; i++) {
        for (int k = 0; k < 4; k++) {
            switch ((k + rank) % 4) {
            case 0:
                TH_OK(gt_all_reduce(c, &a[i], GT_SUM, NULL, &wa[i]));
                break;
            case 1:
                TH_OK(gt_all_reduce(half, &b[i], GT_SUM, NULL, &wb[i]));
                break;
            case 2:
                TH_OK(gt_send(c, &s, (rank + 1) % size, i, NULL, &ws[i]));
                break;
            default:
                TH_OK(gt_recv(c, &r[i], (rank + size - 1) % size, i, NULL, &wr[i]));
            }
        }
    }
    for (int i = ROUNDS - 1; i >= 0; i--) {
        TH_OK(gt_work_wait(&wr[i], NULL));
        TH_OK(gt_work_wait(&wb[i], NULL));
        TH_OK(gt_work_wait(&ws[i], NULL));
        TH_OK(gt_work_wait(&wa[i], NULL));
        double sum = size * (size - 1) / 2.0 + size * i, from = (rank + size - 1) % size;
        double part = (double)gt_comm_size(half) * i;
        gt_tensor last;
        TH_OK(gt_tensor_slice(&last, &a[i], BIG + i - 1, 1));
        th_compare(h, "world", &last, &sum, 0);
        TH_OK(gt_tensor_slice(&last, &b[i], 6, 1));
        th_compare(h, "half", &last, &part, 0);
        TH_OK(gt_tensor_slice(&last, &r[i], BIG - 1, 1));
        th_compare(h, "recv", &last, &from, 0);
    }
    gt_memory_get_stats(ctx, &after);
    TH_TRUE(after.allocations - before.allocations <= 4); /* scratch of the two communicators */
    gt_tensor again = a[0];
    gt_memory_get_stats(ctx, &before);
    TH_OK(gt_all_reduce(c, &again, GT_SUM, NULL, NULL));
    gt_memory_get_stats(ctx, &after);
    TH_EQUAL(after.allocations, before.allocations);
    gt_comm_destroy(&half);
}

static void overlap(void **state)
{
    (void)state;
    gti_run_ranks(2, all_at_once, "cpu", NULL);
    gti_run_ranks(4, all_at_once, "guarded", NULL);
    gti_run_ranks(5, all_at_once, "cpu", NULL);
}

/* ---- agreement ---------------------------------------------------------------------------------
 */
static void agreement(gt_comm *c, gt_context *ctx, void *user)
{
    (void)ctx;
    (void)user;
    int rank = gt_comm_rank(c), size = gt_comm_size(c);
    gt_tensor none = {.dtype = GT_DTYPE_COUNT, .ndim = 1, .shape = {1}};
    TH_OK(gt_comm_agree(c, GT_OK));
    gt_status mine = rank == size - 1 ? gt_broadcast(c, &none, 0, NULL, NULL) : GT_OK;
    TH_FAILS(gt_comm_agree(c, mine), rank == size - 1 ? GT_ERR_DTYPE : GT_ERR_PEER,
             "no valid dtype");
    /* Both ends fail: each keeps its own sentence and is told of the other's. */
    bool low = rank == 0, high = rank == size - 1;
    mine = low    ? GT_FAIL(GT_ERR_IO, "no disk at the low end")
           : high ? GT_FAIL(GT_ERR_DTYPE, "no dtype at the high end")
                  : GT_OK;
    char too[32];
    snprintf(too, sizeof too, " (rank %d failed too)", high ? 0 : size - 1);
    gt_status st = gt_comm_agree(c, mine);
    TH_EQUAL(st, mine != GT_OK ? mine : GT_ERR_PEER);
    TH_FAILS(st, st, low ? "no disk" : high ? "no dtype" : "rank 0: no disk at the low end");
    TH_FAILS(st, st, too);
    /* The same sentence everywhere is one failure. */
    mine = GT_FAIL(GT_ERR_CONFIG, "nobody can do this");
    TH_FAILS(gt_comm_agree(c, mine), GT_ERR_CONFIG, "nobody can do this");
    TH_TRUE(strstr(gt_last_error(), "too") == NULL);
    /* Told by a smaller group: the rank that failed is named, not the one that passes it on. */
    mine = high ? GT_FAIL(GT_ERR_IO, "no disk") : GT_FAIL(GT_ERR_PEER, "rank 1: no disk");
    snprintf(too, sizeof too, "rank %d: no disk", size - 1);
    TH_FAILS(gt_comm_agree(c, mine), high ? GT_ERR_IO : GT_ERR_PEER, high ? "no disk" : too);
    TH_OK(gt_comm_agree(c, GT_OK)); /* the world is whole */
    char text[] = "the same";
    TH_OK(gt_comm_check_equal(c, "text", text, sizeof text));
    text[0] = rank == 1 ? 'T' : 't';
    TH_FAILS(gt_comm_check_equal(c, "config.json", text, sizeof text), GT_ERR_MISMATCH,
             "config.json differs between ranks: rank 0");
    TH_FAILS(gt_comm_check_equal(c, "list", text, rank == 0 ? 3 : 4), GT_ERR_MISMATCH,
             "rank 0 has 3 bytes");
    TH_OK(gt_barrier(c));
}

static void agree_and_check_equal(void **state)
{
    (void)state;
    gti_run_ranks(2, agreement, "cpu", NULL);
    gti_run_ranks(3, agreement, "guarded", NULL);
}

/* ---- statistics, ledger, arguments -------------------------------------------------------------
 */
static void accounts(gt_comm *c, gt_context *ctx, void *user)
{
    (void)ctx;
    (void)user;
    th *h = gti_rank_harness();
    gt_tensor t = th_new(h, GT_F32, TH_SHAPE(64000));
    gt_tensor half = th_new(h, GT_F32, TH_SHAPE(32000));
    th_fill(h, &t, 1);
    th_fill(h, &half, 1);
    gt_comm_stats stats;
    gt_comm_reset_stats(c);
    gt_work *work = NULL;
    TH_OK(gt_all_reduce(c, &t, GT_SUM, NULL, &work));
    bool done = false;
    while (!done) {
        TH_OK(gt_work_test(work, &done));
    }
    TH_OK(gt_work_wait(&work, NULL));
    TH_OK(gt_all_gather(c, &t, &half, NULL, NULL));
    gt_comm_get_stats(c, &stats);
    TH_EQUAL(stats.operations, 2);
    TH_EQUAL(stats.bytes_sent, 64000 * 4 + 32000 * 4); /* 2 (P-1)/P n and (P-1) n/P at P = 2 */
    TH_TRUE(stats.busy_s > 0 && stats.exposed_s >= 0 && stats.exposed_s <= stats.busy_s + 1);
    gt_ledger_entry entries[3];
    TH_EQUAL(gt_comm_ledger(c, entries, 3), 3); /* with the creation */
    TH_TRUE(strcmp(entries[0].operation, "all_gather") == 0 && entries[0].state == 2);
    TH_TRUE(strcmp(entries[1].operation, "all_reduce") == 0 && entries[1].count == 64000);
    TH_EQUAL(entries[0].sequence, entries[1].sequence + 1);
    TH_EQUAL(entries[0].bytes_sent, 32000 * 4);
}

static void arguments(gt_comm *c, gt_context *ctx, void *user)
{
    (void)ctx;
    (void)user;
    th *h = gti_rank_harness();
    gt_tensor f = th_new(h, GT_F32, TH_SHAPE(6)), u = th_new(h, GT_U8, TH_SHAPE(6));
    gt_tensor three = th_new(h, GT_F32, TH_SHAPE(3)), four = th_new(h, GT_F32, TH_SHAPE(4));
    gt_work *work = NULL;
    TH_FAILS(gt_all_reduce(NULL, &f, GT_SUM, NULL, NULL), GT_ERR_ARGUMENT, "NULL");
    TH_FAILS(gt_all_reduce(c, NULL, GT_SUM, NULL, NULL), GT_ERR_ARGUMENT, "inout is NULL");
    TH_FAILS(gt_all_reduce(c, &u, GT_SUM, NULL, &work), GT_ERR_DTYPE, "u8");
    TH_FAILS(gt_all_reduce(c, &f, (gt_reduce_op)9, NULL, NULL), GT_ERR_ARGUMENT, "9");
    TH_FAILS(gt_reduce_scatter(c, &four, &f, GT_SUM, NULL, NULL), GT_ERR_SHAPE,
             "in has 6 elements, wanted 2 times the 4 of out");
    TH_FAILS(gt_all_gather(c, &u, &three, NULL, NULL), GT_ERR_DTYPE, "out is u8, in is f32");
    TH_FAILS(gt_all_to_all(c, &f, &three, NULL, NULL), GT_ERR_SHAPE, "f32[6]");
    TH_FAILS(gt_broadcast(c, &f, 2, NULL, NULL), GT_ERR_ARGUMENT, "root is 2");
    TH_FAILS(gt_send(c, &f, -1, 0, NULL, NULL), GT_ERR_ARGUMENT, "peer is -1");
    TH_FAILS(gt_recv(c, &f, 0, -5, NULL, NULL), GT_ERR_ARGUMENT, "tag is -5");
    TH_TRUE(work == NULL);
    TH_OK(gt_work_wait(&work, NULL));
    TH_OK(gt_barrier(c)); /* none of these began anything */
}

static void stats_and_ledger(void **state)
{
    (void)state;
    gti_run_ranks(2, accounts, "cpu", NULL);
}

static void arguments_are_checked(void **state)
{
    (void)state;
    gti_run_ranks(2, arguments, "cpu", NULL);
}

static void creation_is_checked(void **state)
{
    (void)state;
    gt_context *ctx = NULL;
    gt_comm *c = NULL;
    gt_local_world *world = NULL;
    TH_OK(gt_context_create(&ctx, NULL));
    gt_comm_params p = GT_COMM_PARAMS_INIT;
    p.transport = "pigeon";
    TH_FAILS(gt_comm_create(&c, ctx, &p), GT_ERR_ARGUMENT, "pigeon");
    p.transport = "local";
    TH_FAILS(gt_comm_create(&c, ctx, &p), GT_ERR_ARGUMENT, "local_world");
    TH_FAILS(gt_local_world_create(&world, 0), GT_ERR_ARGUMENT, "0");
    TH_OK(gt_local_world_create(&world, 1));
    p.local_world = world;
    p.local_rank = 1;
    TH_FAILS(gt_comm_create(&c, ctx, &p), GT_ERR_ARGUMENT, "local_rank is 1");
    p.timeout_s = NAN;
    TH_FAILS(gt_comm_create(&c, ctx, &p), GT_ERR_ARGUMENT, "timeout_s");
    p.transport = "self";
    p.timeout_s = 0;
    TH_OK(gt_comm_create(&c, ctx, &p));
    assert_string_equal(gt_comm_transport(c), "self");
    /* A rank may send to itself. */
    float x = 3, y = 0;
    gt_tensor tx = gt_tensor_1d(&x, GT_F32, 1), ty = gt_tensor_1d(&y, GT_F32, 1);
    gt_work *work = NULL;
    TH_OK(gt_send(c, &tx, 0, 1, NULL, &work));
    TH_OK(gt_recv(c, &ty, 0, 1, NULL, NULL));
    TH_OK(gt_work_wait(&work, NULL));
    assert_true(y == 3);
    gt_comm_destroy(&c);
    gt_comm_destroy(&c);
    gt_local_world_destroy(&world);
    gt_context_destroy(&ctx);
}

/* A rank has no memory for a collective's scratch: all are told, nobody waits for it. */
static void scratch_fails(gt_comm *c, gt_context *ctx, void *user)
{
    (void)user;
    th *h = gti_rank_harness();
    gt_tensor t = th_new(h, GT_F32, TH_SHAPE(70000));
    th_fill(h, &t, 1);
    bool mine = gt_comm_rank(c) == 1;
    if (mine) {
        gt_memory_fail_at(ctx, 1);
    }
    TH_FAILS(gt_all_reduce(c, &t, GT_SUM, NULL, NULL), mine ? GT_ERR_MEMORY : GT_ERR_PEER,
             "failure injected");
    TH_FAILS(gt_barrier(c), mine ? GT_ERR_MEMORY : GT_ERR_PEER, "failure injected");
}

static void allocation_failure(void **state)
{
    (void)state;
    gti_run_ranks(2, scratch_fails, "cpu", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_in_rank_order),
        cmocka_unit_test(sixteen_bit_range),
        cmocka_unit_test(overlap),
        cmocka_unit_test(agree_and_check_equal),
        cmocka_unit_test(stats_and_ledger),
        cmocka_unit_test(arguments_are_checked),
        cmocka_unit_test(creation_is_checked),
        cmocka_unit_test(allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
