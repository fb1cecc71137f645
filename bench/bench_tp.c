/* SPDX-License-Identifier: Apache-2.0
 * What does cutting every layer over two ranks cost, and how much of its communication is hidden?
 *
 * GPT-2 124M, B = 4, T = 256, f32; two ranks with half of the threads each, against one with all.
 *   tp2_vs_tp1, tp2_sp_vs_tp1     step tokens/s at tp 2, without and with sequence parallelism
 *   ... exposed                   share of a step in which the rank that waits least waited for
 *                                 communication (the other waits for this one too), over the same
 *                                 without overlap
 *   ... exposed: step             tokens/s of the steps that this comes from, over those without
 *   activation memory             bytes per layer and rank in bf16, over Korthikanti et al. 2022:
 *                                 s b h (34 + 5 a s / h) / t, and over the same without the
 *                                 attention matrix (5 a s / h), which fused attention does not keep
 * The rows named exposed are of a sixth of the model, 2 layers and 8376 tokens, so that the head
 * keeps its share; steps with and without overlap alternate, the figures are medians of 15.
 */
#include <math.h>
#include <stdlib.h>

#include "bench.h"
#include "team.h"

enum { RANKS = 2, ROUNDS = 15, TOKENS = 4 * 256 };

static void layout(gt_config *c, int tp, bool sequence_parallel, bool no_overlap)
{
    team_gpt2(c);
    c->mesh.tp = tp;
    c->mesh.sequence_parallel = sequence_parallel;
    c->mesh.no_overlap = no_overlap;
}

/* ---- exposed communication --------------------------------------------------------------------*/

/* A step with and without overlap, of one kind of layout: teams that take turns. */
typedef struct pair {
    const char *on, *off, *step;
    bool sequence_parallel;
    team *teams[2];          /* overlap, none                     */
    double share[2][ROUNDS]; /* % of a step                       */
    double rate[2][ROUNDS];  /* tokens/s                          */
} pair;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double values[ROUNDS])
{
    qsort(values, ROUNDS, sizeof(double), by_value);
    return values[ROUNDS / 2];
}

static void open_pair(pair *p, int threads)
{
    for (int off = 0; off < 2; off++) {
        gt_config c;
        layout(&c, RANKS, p->sequence_parallel, off);
        c.model.layers /= 6;
        c.model.vocab /= 6;
        p->teams[off] = team_create(RANKS, threads, &c);
        team_step(p->teams[off]);
    }
}

static void measure_pair(pair *p, int round)
{
    for (int i = 0; i < 2; i++) {
        int off = (round + i) % 2;
        team_step(p->teams[off]);
        double share = 100.0, seconds = 0;
        for (int rank = 0; rank < RANKS; rank++) {
            const gt_step_result *r = team_result(p->teams[off], rank);
            share = fmin(share, 100.0 * r->exposed_comm_s / r->seconds);
            seconds += r->seconds / RANKS;
        }
        p->share[off][round] = share;
        p->rate[off][round] = TOKENS / seconds;
    }
}

static void report_pair(bench *b, pair *p)
{
    double on = median(p->share[0]), off = median(p->share[1]);
    bench_value(b, p->on, on, "% of step", off);
    bench_value(b, p->off, off, "% of step", 0);
    bench_value(b, p->step, median(p->rate[0]), "tokens/s", median(p->rate[1]));
}

static void report_exposed(bench *b, int threads)
{
    static pair pairs[] = {
        {.on = "tp2 exposed", .off = "tp2 exposed, no overlap", .step = "tp2 exposed: step"},
        {.on = "tp2_sp exposed",
         .off = "tp2_sp exposed, no overlap",
         .step = "tp2_sp exposed: step",
         .sequence_parallel = true}};
    enum { PAIRS = sizeof(pairs) / sizeof(pairs[0]) };
    bool wanted[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        const pair *p = &pairs[i];
        wanted[i] = bench_wants(b, p->on) || bench_wants(b, p->off) || bench_wants(b, p->step);
        if (wanted[i]) {
            open_pair(&pairs[i], threads);
        }
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < PAIRS; i++) {
            if (wanted[i]) {
                measure_pair(&pairs[i], round);
            }
        }
    }
    for (int i = 0; i < PAIRS; i++) {
        if (wanted[i]) {
            report_pair(b, &pairs[i]);
            team_destroy(pairs[i].teams[0]);
            team_destroy(pairs[i].teams[1]);
        }
    }
}

/* ---- memory -----------------------------------------------------------------------------------*/

/* Peak of the activations' tag on rank 0 with so many layers. */
static double activation_bytes(int layers, int tp, bool sequence_parallel)
{
    gt_config c;
    gt_memory_stats m;
    layout(&c, tp, sequence_parallel, false);
    c.model.layers = layers;
    c.model.vocab = 512;
    c.dtype = c.communication_dtype = GT_BF16;
    team *t = team_create(tp, 1, &c);
    team_step(t);
    team_memory(t, 0, &m);
    team_destroy(t);
    return (double)m.peak[GT_MEM_ACTIVATIONS];
}

static void report_memory(bench *b)
{
    static const struct {
        const char *name, *without;
        int tp;
        bool sequence_parallel;
    } rows[] = {
        {"activation memory tp1", "activation memory tp1, no matrix", 1, false},
        {"activation memory tp2", "activation memory tp2, no matrix", 2, false},
        {"activation memory tp2_sp", "activation memory tp2_sp, no matrix", 2, true},
    };
    double s = 256, batch = 4, h = 768, a = 12;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (!bench_wants(b, rows[i].name)) {
            continue;
        }
        int tp = rows[i].tp;
        double few = activation_bytes(2, tp, rows[i].sequence_parallel);
        double per_layer = (activation_bytes(4, tp, rows[i].sequence_parallel) - few) / 2;
        double cut = rows[i].sequence_parallel ? 34.0 / tp : 10.0 + 24.0 / tp;
        double sbh = s * batch * h, mib = 1048576.0;
        bench_value(b, rows[i].name, per_layer / mib, "MiB",
                    sbh * (cut + 5 * a * s / h / tp) / mib);
        bench_value(b, rows[i].without, per_layer / mib, "MiB", sbh * cut / mib);
    }
}

int main(int argc, char **argv)
{
    bench *b = bench_open("bench_tp", argc, argv);
    int threads = bench_threads(b) ? bench_threads(b) : 2, half = (threads + 1) / 2;
    gt_config one, plain, cut;
    layout(&one, 1, false, false);
    layout(&plain, 2, false, false);
    layout(&cut, 2, true, false);
    report_memory(b);
    report_exposed(b, half);
    bool wants_plain = bench_wants(b, "tp2_vs_tp1"), wants_cut = bench_wants(b, "tp2_sp_vs_tp1");
    team *teams[3] = {0};
    teams[0] = wants_plain || wants_cut ? team_create(1, threads, &one) : NULL;
    teams[1] = wants_plain ? team_create(2, half, &plain) : NULL;
    teams[2] = wants_cut ? team_create(2, half, &cut) : NULL;
    int tp1 = bench_add_ceiling(
        b, &(bench_case){"tp1", "tokens/s", TOKENS, BENCH_NO_CEILING, team_step, teams[0]});
    bench_add(b, &(bench_case){"tp2_vs_tp1", "tokens/s", TOKENS, tp1, team_step, teams[1]});
    bench_add(b, &(bench_case){"tp2_sp_vs_tp1", "tokens/s", TOKENS, tp1, team_step, teams[2]});
    int status = bench_close(b);
    for (int i = 0; i < 3; i++) {
        team_destroy(teams[i]);
    }
    return status;
}
