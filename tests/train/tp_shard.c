/* SPDX-License-Identifier: Apache-2.0 */
#include "tp_shard.h"

#include <time.h>

void let_others_return(void)
{
    struct timespec t = {.tv_nsec = 200000000};
    nanosleep(&t, NULL);
}

double *whole(th *h, gt_dtype dtype, int64_t n, uint64_t seed)
{
    gt_tensor t = th_new(h, dtype, TH_SHAPE(n));
    th_random(h, &t, seed, 0.7);
    return th_get(h, &t);
}

gt_tensor upload(th *h, gt_dtype dtype, int64_t rows, int64_t columns, const double *values)
{
    gt_tensor t = th_new(h, dtype, TH_SHAPE(rows, columns));
    if (rows * columns > 0) {
        th_set(h, &t, values);
    }
    return t;
}

double *columns_of(th *h, const double *x, int64_t rows, int64_t columns, int64_t first,
                   int64_t count)
{
    double *y = th_host(h, rows * count + 1);
    for (int64_t i = 0; i < rows * count; i++) {
        y[i] = x[i / count * columns + first + i % count];
    }
    return y;
}

shard shard_of(gt_comm *world, gt_context *ctx, const tp_case *c)
{
    shard s = {
        .h = gti_rank_harness(), .c = c, .size = gt_comm_size(world), .rank = gt_comm_rank(world)};
    bool cut = c->sequence_parallel;
    s.f = gt_split_count(c->ffn, s.size, s.rank);
    s.f_first = gt_split_first(c->ffn, s.size, s.rank);
    s.n = cut ? N / s.size : N;
    s.n_first = cut ? s.n * s.rank : 0;
    s.tp = (gt_tp)GT_TP_INIT;
    s.tp.ctx = ctx;
    s.tp.comm = world;
    s.tp.sequence_parallel = cut;
    s.tp.no_overlap = c->no_overlap;
    s.tp.chunks = c->chunks;
    int64_t bytes = (int64_t)gt_tp_scratch_bytes(&s.tp, c->dtype, N, I > O ? I : O);
    s.tp.scratch = th_new(s.h, GT_U8, TH_SHAPE(bytes));
    return s;
}
