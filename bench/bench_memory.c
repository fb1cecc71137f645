/* SPDX-License-Identifier: Apache-2.0
 * How much memory do model states take per rank, against the formula?
 *
 * Bytes live in the tags params, grads and optimizer of rank 0, counted by the allocator, over
 *     stage 0  p + g + o     1  p + g + o/P     2  p + (g + o)/P     3  (p + g + o)/P
 * bytes per parameter, p, g, o = 4, 4, 8 in f32 and 2, 4, 12 in bf16 (2, 2, 12 with bf16 gradient
 * shards). Stage 3's rotating gather buffers are shown apart. Model: GPT-2 124M.
 */
#include <stdio.h>

#include "bench.h"
#include "team.h"

struct row {
    int ranks, stage;
    gt_dtype dtype, accum;
};

static const struct row rows[] = {
    {2, 0, GT_F32, GT_F32},   {2, 1, GT_F32, GT_F32},  {2, 2, GT_F32, GT_F32},
    {2, 3, GT_F32, GT_F32},   {2, 0, GT_BF16, GT_F32}, {2, 1, GT_BF16, GT_F32},
    {2, 2, GT_BF16, GT_F32},  {2, 3, GT_BF16, GT_F32}, {2, 3, GT_BF16, GT_BF16},
    {4, 3, GT_BF16, GT_BF16},
};
enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

static double formula(const struct row *r, double parameters)
{
    double p = (double)gt_dtype_size(r->dtype), g = (double)gt_dtype_size(r->accum);
    double o = r->dtype == GT_F32 ? 8 : 12, n = r->ranks;
    double bytes =
        (r->stage >= 3 ? p / n : p) + (r->stage >= 2 ? g / n : g) + (r->stage >= 1 ? o / n : o);
    return bytes * parameters;
}

static void measure(bench *b, const struct row *r, char names[2][96])
{
    gt_config config;
    team_gpt2(&config);
    config.train_batch = 4;
    config.dtype = config.communication_dtype = r->dtype;
    config.accum_dtype = r->accum;
    config.zero.stage = r->stage;
    team *t = team_create(r->ranks, 1, &config);
    gt_memory_stats m;
    gt_zero_bytes bytes;
    double want = formula(r, (double)team_parameters(t)) / 1048576.0;
    if (r->stage == 3) {
        team_step(t); /* makes the gather buffers */
    }
    team_memory(t, 0, &m);
    team_state_bytes(t, 0, &bytes);
    double got = (double)(m.live[GT_MEM_PARAMS] + m.live[GT_MEM_GRADS] + m.live[GT_MEM_OPTIMIZER]) /
                 1048576.0;
    snprintf(names[0], 96, "state_bytes_vs_formula zero%d %s%s ranks %d", r->stage,
             gt_dtype_name(r->dtype), r->accum == GT_BF16 ? " (bf16 gradients)" : "", r->ranks);
    bench_value(b, names[0], got, "MiB", want);
    if (r->stage == 3) {
        snprintf(names[1], 96, "gather buffers %s ranks %d", gt_dtype_name(r->dtype), r->ranks);
        bench_value(b, names[1], (double)bytes.gather_buffers / 1048576.0, "MiB", 0);
    }
    team_destroy(t);
}

int main(int argc, char **argv)
{
    static char names[ROWS][2][96];
    bench *b = bench_open("bench_memory", argc, argv);
    for (int i = 0; i < ROWS; i++) {
        measure(b, &rows[i], names[i]);
    }
    return bench_close(b);
}
