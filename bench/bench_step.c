/* SPDX-License-Identifier: Apache-2.0
 * How fast is a whole training step, against the machine's matrix product, and in other layouts?
 *
 * GPT-2 124M, B = 4, T = 256: forward, backward, clipping and AdamW.
 *   step_vs_sgemm      1 rank x all threads, f32: model FLOP/s over sgemm
 *   dp2_vs_dp1         2 ranks x half the threads at the same global batch, over the row above
 *   zero3_vs_zero0     2 ranks, stage 3 over stage 0
 *   bf16_step_vs_gemm  1 rank, bf16 with f32 masters, over the faster of sgemm and bf16 gemm
 */
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "team.h"

struct gemm {
    gt_context *ctx;
    gt_tensor a, b, c;
};

static void run_gemm(void *user)
{
    struct gemm *g = user;
    BENCH_OK(gt_gemm(g->ctx, &g->c, &g->a, &g->b, NULL, NULL));
    BENCH_OK(gt_context_synchronize(g->ctx));
}

enum { SIDE = 2048 };

static void open_gemm(struct gemm *g, int threads)
{
    gt_context_params p = GT_CONTEXT_PARAMS_INIT;
    p.threads = threads;
    BENCH_OK(gt_context_create(&g->ctx, &p));
    gt_tensor *t[] = {&g->a, &g->b, &g->c};
    const int64_t shape[] = {SIDE, SIDE};
    for (int i = 0; i < 3; i++) {
        BENCH_OK(gt_tensor_alloc(g->ctx, t[i], GT_MEM_OTHER, GT_BF16, 2, shape));
        BENCH_OK(gt_fill(g->ctx, t[i], 0.5, NULL));
    }
}

static void close_gemm(struct gemm *g)
{
    gt_tensor_free(g->ctx, &g->a);
    gt_tensor_free(g->ctx, &g->b);
    gt_tensor_free(g->ctx, &g->c);
    gt_context_destroy(&g->ctx);
}

/* Share of a step in which communication was not hidden, and the peaks per tag of rank 0. */
static void report(bench *b, const char *name, const team *t)
{
    static char names[64][96];
    static int used;
    const gt_step_result *r = team_result(t, 0);
    if (r->seconds == 0) {
        return;
    }
    snprintf(names[used], sizeof(names[0]), "%s exposed communication", name);
    bench_value(b, names[used++], 100 * r->exposed_comm_s / r->seconds, "% of step", 0);
    gt_memory_stats m;
    team_memory(t, 0, &m);
    for (int tag = 0; tag < GT_MEM_TAG_COUNT; tag++) {
        snprintf(names[used], sizeof(names[0]), "%s peak %s", name, gt_memory_tag_name(tag));
        bench_value(b, names[used++], (double)m.peak[tag] / 1048576.0, "MiB", 0);
    }
}

static team *wanted(bench *b, const char *name, int ranks, int threads, const gt_config *config)
{
    return bench_wants(b, name) ? team_create(ranks, threads, config) : NULL;
}

static int add(bench *b, const char *name, team *t, int ceiling)
{
    return bench_add(
        b, &(bench_case){name, "GFLOP/s", t ? team_flops(t) / 1e9 : 1, ceiling, team_step, t});
}

int main(int argc, char **argv)
{
    bench *b = bench_open("bench_step", argc, argv);
    int threads = bench_threads(b) ? bench_threads(b) : 2;
    gt_config f32, zero3, bf16;
    team_gpt2(&f32);
    zero3 = f32;
    zero3.zero.stage = 3;
    bf16 = f32;
    bf16.dtype = bf16.communication_dtype = GT_BF16;
    bool need_dp1 = bench_wants(b, "step_vs_sgemm") || bench_wants(b, "dp2_vs_dp1");
    bool need_dp2 = bench_wants(b, "dp2_vs_dp1") || bench_wants(b, "zero3_vs_zero0");
    team *dp1 = need_dp1 ? team_create(1, threads, &f32) : NULL;
    team *dp2 = need_dp2 ? team_create(2, (threads + 1) / 2, &f32) : NULL;
    team *dp2_zero3 = wanted(b, "zero3_vs_zero0", 2, (threads + 1) / 2, &zero3);
    team *half = wanted(b, "bf16_step_vs_gemm", 1, threads, &bf16);
    struct gemm gemm;
    open_gemm(&gemm, threads);

    int sgemm = bench_add_sgemm(b);
    int step = add(b, "step_vs_sgemm", dp1, sgemm);
    int pair = add(b, "dp2_vs_dp1", dp2, step);
    add(b, "zero3_vs_zero0", dp2_zero3, pair);
    int bf16_gemm =
        bench_add_ceiling(b, &(bench_case){"bf16 gemm 2048^3", "GFLOP/s", 2e-9 * SIDE * SIDE * SIDE,
                                           BENCH_NO_CEILING, run_gemm, &gemm});
    add(b, "bf16_step_vs_gemm", half, bf16_gemm);
    team *teams[] = {dp1, dp2, dp2_zero3, half};
    const char *names[] = {"step", "dp2", "zero3", "bf16"};
    for (int i = 0; i < 4; i++) { /* one step each, so that buffers exist and peaks are known */
        if (teams[i] != NULL) {
            team_step(teams[i]);
            report(b, names[i], teams[i]);
        }
    }
    int status = bench_close(b);
    close_gemm(&gemm);
    for (int i = 0; i < 4; i++) {
        team_destroy(teams[i]);
    }
    return status;
}
