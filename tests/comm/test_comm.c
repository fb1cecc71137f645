/* SPDX-License-Identifier: Apache-2.0
 *
 * Every collective on every dtype, count and number of ranks, against values computed in place.
 * As threads; under mpirun the same cases for that number of processes.
 */
#include "ranks.h"

#include <math.h>
#include <stdio.h>

/* Multiples of a quarter whose sums over the ranks every dtype holds exactly. */
static double value(gt_dtype dtype, int rank, int64_t i)
{
    int64_t k = (i * 7 + rank * 13 + i / 97) % 17;
    if (dtype == GT_U8) {
        return (double)k;
    }
    bool integer = dtype == GT_I32 || dtype == GT_I64;
    return (double)(k - 8) * (integer ? 1.0 : 0.25);
}

static double reduced(gt_dtype dtype, int ranks, int64_t i, gt_reduce_op op)
{
    double r = value(dtype, 0, i);
    for (int p = 1; p < ranks; p++) {
        double v = value(dtype, p, i);
        r = op == GT_SUM ? r + v : op == GT_MAX ? fmax(r, v) : fmin(r, v);
    }
    return r;
}

static gt_tensor input(gt_dtype dtype, int rank, int64_t n)
{
    th *h = gti_rank_harness();
    gt_tensor t = th_new(h, dtype, TH_SHAPE(n));
    double *v = th_host(h, n);
    for (int64_t i = 0; i < n; i++) {
        v[i] = value(dtype, rank, i);
    }
    th_set(h, &t, v);
    return t;
}

static void wait_or_now(gt_work **work)
{
    TH_OK(gt_work_wait(work, NULL));
    TH_TRUE(*work == NULL);
}

static void all_reduce_case(gt_comm *c, gt_dtype dtype, int64_t n, gt_reduce_op op, bool async)
{
    th *h = gti_rank_harness();
    gt_tensor t = input(dtype, gt_comm_rank(c), n);
    gt_work *work = NULL;
    TH_OK(gt_all_reduce(c, &t, op, NULL, async ? &work : NULL));
    wait_or_now(&work);
    double *want = th_host(h, n);
    for (int64_t i = 0; i < n; i++) {
        want[i] = reduced(dtype, gt_comm_size(c), i, op);
    }
    th_compare(h, "all_reduce", &t, want, 0);
}

static void reduce_scatter_case(gt_comm *c, gt_dtype dtype, int64_t n, bool in_place, bool async)
{
    th *h = gti_rank_harness();
    int size = gt_comm_size(c), rank = gt_comm_rank(c);
    gt_tensor in = input(dtype, rank, n * size), out = th_new(h, dtype, TH_SHAPE(n));
    if (in_place) {
        TH_OK(gt_tensor_slice(&out, &in, n * rank, n));
    }
    gt_work *work = NULL;
    TH_OK(gt_reduce_scatter(c, &out, &in, GT_SUM, NULL, async ? &work : NULL));
    wait_or_now(&work);
    double *want = th_host(h, n);
    for (int64_t i = 0; i < n; i++) {
        want[i] = reduced(dtype, size, rank * n + i, GT_SUM);
    }
    th_compare(h, "reduce_scatter", &out, want, 0);
}

static void reduce_scatter_add_case(gt_comm *c, gt_dtype dtype, int64_t n)
{
    th *h = gti_rank_harness();
    int size = gt_comm_size(c), rank = gt_comm_rank(c);
    gt_tensor in = input(dtype, rank, n * size), out = th_new(h, GT_F32, TH_SHAPE(n));
    th_iota(h, &out);
    TH_OK(gt_reduce_scatter_add(c, &out, &in, NULL, NULL));
    TH_OK(gt_reduce_scatter_add(c, &out, &in, NULL, NULL));
    double *want = th_host(h, n);
    for (int64_t i = 0; i < n; i++) {
        want[i] = (double)i + 2 * reduced(dtype, size, rank * n + i, GT_SUM);
    }
    th_compare(h, "reduce_scatter_add", &out, want, 0);
}

static void all_gather_case(gt_comm *c, gt_dtype dtype, int64_t n, bool in_place, bool async)
{
    th *h = gti_rank_harness();
    int size = gt_comm_size(c), rank = gt_comm_rank(c);
    gt_tensor out = th_new(h, dtype, TH_SHAPE(n * size)), in = input(dtype, rank, n);
    if (in_place) {
        gt_tensor slice;
        TH_OK(gt_tensor_slice(&slice, &out, n * rank, n));
        th_set(h, &slice, th_get(h, &in));
        in = slice;
    }
    gt_work *work = NULL;
    TH_OK(gt_all_gather(c, &out, &in, NULL, async ? &work : NULL));
    wait_or_now(&work);
    double *want = th_host(h, n * size);
    for (int64_t i = 0; i < n * size; i++) {
        want[i] = value(dtype, (int)(i / n), i % n);
    }
    th_compare(h, "all_gather", &out, want, 0);
}

static void broadcast_case(gt_comm *c, gt_dtype dtype, int64_t n)
{
    th *h = gti_rank_harness();
    int root = gt_comm_size(c) - 1;
    gt_tensor t = input(dtype, gt_comm_rank(c), n);
    TH_OK(gt_broadcast(c, &t, root, NULL, NULL));
    double *want = th_host(h, n);
    for (int64_t i = 0; i < n; i++) {
        want[i] = value(dtype, root, i);
    }
    th_compare(h, "broadcast", &t, want, 0);
}

static void all_to_all_case(gt_comm *c, gt_dtype dtype, int64_t n)
{
    th *h = gti_rank_harness();
    int size = gt_comm_size(c), rank = gt_comm_rank(c);
    gt_tensor in = input(dtype, rank, n * size), out = th_new(h, dtype, TH_SHAPE(n * size));
    TH_OK(gt_all_to_all(c, &out, &in, NULL, NULL));
    double *want = th_host(h, n * size);
    for (int64_t i = 0; i < n * size; i++) {
        want[i] = value(dtype, (int)(i / n), rank * n + i % n);
    }
    th_compare(h, "all_to_all", &out, want, 0);
}

/* Everybody to everybody, two messages of one tag in flight, posted before a collective. */
static void transfers_case(gt_comm *c, gt_dtype dtype, int64_t n)
{
    enum { MAX = 8 };
    th *h = gti_rank_harness();
    int size = gt_comm_size(c), rank = gt_comm_rank(c);
    gt_tensor out[2], in[MAX][2];
    gt_work *sends[MAX][2], *recvs[MAX][2];
    for (int k = 0; k < 2; k++) {
        out[k] = input(dtype, rank + 3 * k, n);
    }
    for (int p = 0; p < size; p++) {
        for (int k = 0; k < 2; k++) {
            in[p][k] = th_new(h, dtype, TH_SHAPE(n));
            TH_OK(gt_recv(c, &in[p][k], p, 7, NULL, &recvs[p][k]));
        }
    }
    for (int p = 0; p < size; p++) {
        for (int k = 0; k < 2; k++) {
            TH_OK(gt_send(c, &out[k], p, 7, NULL, &sends[p][k]));
        }
    }
    TH_OK(gt_barrier(c));
    for (int p = 0; p < size; p++) {
        for (int k = 0; k < 2; k++) {
            TH_OK(gt_work_wait(&recvs[p][k], NULL));
            TH_OK(gt_work_wait(&sends[p][k], NULL));
            double *want = th_host(h, n);
            for (int64_t i = 0; i < n; i++) {
                want[i] = value(dtype, p + 3 * k, i);
            }
            th_compare(h, "recv", &in[p][k], want, 0);
        }
    }
}

typedef struct plan {
    gt_dtype dtype;
    int64_t count;
} plan;

static void all_operations(gt_comm *c, gt_context *ctx, void *user)
{
    (void)ctx;
    const plan *p = user;
    bool sums = p->dtype != GT_U8;
    all_reduce_case(c, p->dtype, p->count, GT_MAX, false);
    all_reduce_case(c, p->dtype, p->count, GT_MIN, true);
    if (sums) {
        all_reduce_case(c, p->dtype, p->count, GT_SUM, false);
        all_reduce_case(c, p->dtype, p->count, GT_SUM, true);
        reduce_scatter_case(c, p->dtype, p->count, false, false);
        reduce_scatter_case(c, p->dtype, p->count, true, true);
    }
    if (p->dtype == GT_F32 || p->dtype == GT_F16 || p->dtype == GT_BF16) {
        reduce_scatter_add_case(c, p->dtype, p->count);
    }
    all_gather_case(c, p->dtype, p->count, false, false);
    all_gather_case(c, p->dtype, p->count, true, true);
    broadcast_case(c, p->dtype, p->count);
    all_to_all_case(c, p->dtype, p->count);
    transfers_case(c, p->dtype, p->count);
}

static const int rank_counts[] = {1, 2, 3, 5};

static void on_all_ranks(gti_rank_fn fn, const char *device, void *user)
{
    for (size_t i = 0; i < sizeof rank_counts / sizeof *rank_counts; i++) {
        gti_run_ranks(rank_counts[i], fn, device, user);
    }
}

/* Once per world, so that communicators are reused over the counts. */
static void small_counts(gt_comm *c, gt_context *ctx, void *user)
{
    static const int64_t counts[] = {0, 1, 2, 7, 31, 97, 1009};
    plan p = *(const plan *)user;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        p.count = counts[i];
        all_operations(c, ctx, &p);
    }
}

static void collectives_small_counts(void **state)
{
    (void)state;
    for (int d = 0; d < GT_DTYPE_COUNT; d++) {
        plan p = {.dtype = (gt_dtype)d};
        on_all_ranks(small_counts, "cpu", &p);
    }
}

static void collectives_small_counts_guarded(void **state)
{
    (void)state;
    plan p = {.dtype = GT_BF16};
    on_all_ranks(small_counts, "guarded", &p);
}

/* Around the border of inline messages (16 KiB) and of chunks (256 KiB), and a few MB. */
static void collectives_chunk_borders(void **state)
{
    (void)state;
    static const struct {
        plan plan;
        int ranks;
    } cases[] = {{{GT_F32, 4096}, 2},  {{GT_F32, 4097}, 3},   {{GT_BF16, 8193}, 5},
                 {{GT_F32, 65535}, 1}, {{GT_F32, 65535}, 2},  {{GT_F32, 65536}, 2},
                 {{GT_I64, 65537}, 3}, {{GT_F16, 131071}, 2}, {{GT_F64, 32769}, 3},
                 {{GT_F32, 49999}, 5}, {{GT_BF16, 600011}, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gti_run_ranks(cases[i].ranks, all_operations, "cpu", (void *)&cases[i].plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_small_counts),
        cmocka_unit_test(collectives_small_counts_guarded),
        cmocka_unit_test(collectives_chunk_borders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
