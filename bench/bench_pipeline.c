/* SPDX-License-Identifier: Apache-2.0
 *
 * How close does the pipeline executor come to its simulator, and what do the schedules bring?
 *
 * Stages sleep instead of computing, so that 8 ranks need no 8 cores: 24 microbatches with the
 * times of the 1.5B row of "Zero Bubble Pipeline Parallelism" (Qi et al. 2023), in milliseconds.
 * Per schedule:
 *
 *     NAME measured_vs_simulated  one step that starts at a barrier, over the simulated makespan
 *     NAME_vs_1f1b                1F1B's time per step over this one's, steps one after another
 *                                 without a barrier, as the paper measures
 *     NAME peak_live              activations held at once: measured, its ceiling the simulator's
 *
 * executor_overhead is what an action costs on one rank with empty stages, and pipeline_compute.c
 * brings stages that compute.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include <geektrain/pipeline.h>

#include "bench.h"
#include "pipeline_compute.h"

#define RANKS 8
#define MICROBATCHES 24
#define STEPS 4 /* without a barrier between */
#define REPEATS 3
#define MS 1e-3

/* forward, input part, weight part, transfer; a weight part's share of the activations: 32 of
 * 34 + 5 a s / h with a = 24, s = 1024, h = 2304. */
static const gt_stage_cost paper = {18.522, 18.086, 9.337, 0.601, 0.366};

enum { ROW_COUNT = 6 };
static const struct row {
    const char *schedule, *as;
    int chunks, limit;
} rows[ROW_COUNT] = {{"1f1b", "1f1b", 1, 0},
                     {"gpipe", "gpipe", 1, 0},
                     {"interleaved", "interleaved", 3, 0},
                     {"zb-h1", "zbh1", 1, RANKS},
                     {"zb-h2", "zbh2", 1, 2 * RANKS},
                     {"zb-v", "zbv", 2, 0}};

typedef struct world {
    const gt_schedule *schedule;
    gt_stage_cost cost; /* of one stage, ms */
    gt_local_world *local;
    double barrier_step[REPEATS][RANKS]; /* seconds */
    double free_step[RANKS];
    int peak_live[RANKS];
    double slept[RANKS][4]; /* ms, by parts: forward, input, weight, both */
    int naps[RANKS][4];
} world;

typedef struct rank {
    world *w;
    int number, live, peak;
} rank;

static void nap(rank *r, unsigned parts)
{
    const gt_stage_cost *c = &r->w->cost;
    double ms = parts ? 0 : c->forward;
    ms += parts & GT_BACKWARD_INPUT ? c->backward_input : 0;
    ms += parts & GT_BACKWARD_WEIGHT ? c->backward_weight : 0;
    double start = bench_now(), seconds = ms * MS;
    struct timespec t = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
    r->w->slept[r->number][parts] += (bench_now() - start) / MS;
    r->w->naps[r->number][parts]++;
}

static gt_status forward(void *user, int m, int chunk, const gt_tensor *in, gt_tensor *out)
{
    (void)m, (void)chunk, (void)in, (void)out;
    rank *r = user;
    if (++r->live > r->peak) {
        r->peak = r->live;
    }
    nap(r, 0);
    return GT_OK;
}

static gt_status backward(void *user, int m, int chunk, const gt_tensor *in, const gt_tensor *dout,
                          gt_tensor *din, unsigned parts)
{
    (void)m, (void)chunk, (void)in, (void)dout, (void)din;
    rank *r = user;
    nap(r, parts);
    r->live -= (parts & GT_BACKWARD_WEIGHT) != 0;
    return GT_OK;
}

static gt_pipeline *open_pipeline(rank *r, gt_context *ctx, gt_comm *comm)
{
    const gt_schedule *s = r->w->schedule;
    const gt_bundle none = {0}, some = {.ports = 1, .shape = {{GT_F32, 1, {256}}}};
    gt_bundle in[8], out[8];
    for (int c = 0; c < gt_schedule_chunks(s); c++) {
        int stage = gt_schedule_stage(s, r->number, c);
        in[c] = stage == 0 ? none : some;
        out[c] = gt_schedule_next(s, stage) < 0 ? none : some;
    }
    gt_pipeline_params p = GT_PIPELINE_PARAMS_INIT;
    p.user = r;
    p.forward = forward;
    p.backward = backward;
    p.inputs = in;
    p.outputs = out;
    gt_pipeline *pl = NULL;
    BENCH_OK(gt_pipeline_create(&pl, ctx, comm, s, &p));
    return pl;
}

static void *run_rank(void *user)
{
    rank *r = user;
    world *w = r->w;
    gt_context_params context = GT_CONTEXT_PARAMS_INIT;
    gt_comm_params params = GT_COMM_PARAMS_INIT;
    gt_context *ctx = NULL;
    gt_comm *comm = NULL;
    context.threads = 1;
    params.transport = "local";
    params.local_world = w->local;
    params.local_rank = r->number;
    params.check = -1;
    prctl(PR_SET_TIMERSLACK, 1UL);
    BENCH_OK(gt_context_create(&ctx, &context));
    BENCH_OK(gt_comm_create(&comm, ctx, &params));
    gt_pipeline *pl = open_pipeline(r, ctx, comm);
    for (int i = 0; i < REPEATS; i++) {
        BENCH_OK(gt_barrier(comm));
        double start = bench_now();
        BENCH_OK(gt_pipeline_run(pl, NULL));
        w->barrier_step[i][r->number] = bench_now() - start;
    }
    BENCH_OK(gt_barrier(comm));
    BENCH_OK(gt_pipeline_run(pl, NULL)); /* fills the pipeline */
    double start = bench_now();
    for (int i = 0; i < STEPS; i++) {
        BENCH_OK(gt_pipeline_run(pl, NULL));
    }
    w->free_step[r->number] = (bench_now() - start) / STEPS;
    w->peak_live[r->number] = r->peak;
    gt_pipeline_destroy(&pl);
    gt_comm_destroy(&comm);
    gt_context_destroy(&ctx);
    return NULL;
}

static void run_world(world *w)
{
    pthread_t threads[RANKS];
    rank ranks[RANKS];
    BENCH_OK(gt_local_world_create(&w->local, RANKS));
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = (rank){.w = w, .number = r};
        if (pthread_create(&threads[r], NULL, run_rank, &ranks[r])) {
            perror("pthread_create");
            exit(1);
        }
    }
    for (int r = 0; r < RANKS; r++) {
        pthread_join(threads[r], NULL);
    }
    gt_local_world_destroy(&w->local);
}

static double most(const double *values)
{
    double best = values[0];
    for (int i = 1; i < RANKS; i++) {
        best = values[i] > best ? values[i] : best;
    }
    return best;
}

/* The stage's times as slept, mean over all ranks. */
static gt_stage_cost slept(const world *w)
{
    double mean[4] = {0};
    for (int k = 0; k < 4; k++) {
        int naps = 0;
        for (int r = 0; r < RANKS; r++) {
            mean[k] += w->slept[r][k];
            naps += w->naps[r][k];
        }
        mean[k] /= naps ? naps : 1;
    }
    double input = mean[GT_BACKWARD_BOTH] > 0 ? mean[GT_BACKWARD_BOTH] : mean[GT_BACKWARD_INPUT];
    return (gt_stage_cost){mean[0], input, mean[GT_BACKWARD_WEIGHT], 0, w->cost.weight_held};
}

/* Names in the report live to its end. */
static const char *name(const char *first, const char *second)
{
    char text[96];
    snprintf(text, sizeof(text), "%s%s", first, second);
    char *copy = strdup(text);
    if (!copy) {
        exit(1);
    }
    return copy;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static gt_schedule *make(const char *schedule, const char *as, int chunks, int limit)
{
    gt_stage_cost costs[RANKS * 4];
    gt_schedule_params p = GT_SCHEDULE_PARAMS_INIT;
    for (int i = 0; i < RANKS * chunks; i++) {
        costs[i] =
            (gt_stage_cost){paper.forward / chunks, paper.backward_input / chunks,
                            paper.backward_weight / chunks, paper.transfer, paper.weight_held};
    }
    gt_schedule *s = NULL;
    p.name = schedule;
    p.ranks = RANKS;
    p.microbatches = MICROBATCHES;
    p.chunks = chunks;
    p.max_live = limit;
    p.cost = strncmp(as, "zb", 2) == 0 ? costs : NULL;
    BENCH_OK(gt_schedule_create_params(&s, &p));
    return s;
}

/* Whether the filter lets any figure of this schedule in. */
static bool wanted(const bench *b, const char *as)
{
    static const char *const figures[] = {" step",
                                          " measured_vs_simulated",
                                          " with_measured_stages",
                                          " step_without_barrier",
                                          "_vs_1f1b",
                                          " peak_live"};
    char text[96];
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++) {
        snprintf(text, sizeof(text), "%s%s", as, figures[i]);
        if (bench_wants(b, text)) {
            return true;
        }
    }
    return false;
}

/* *base: seconds per step of 1F1B, which comes first. */
static void bench_schedule(bench *b, const struct row *row, double *base)
{
    const char *as = row->as;
    int chunks = row->chunks;
    if (!wanted(b, as) && strcmp(as, "1f1b") != 0) {
        return;
    }
    gt_schedule *s = make(row->schedule, as, chunks, row->limit);
    world w = {.schedule = s, .cost = paper};
    w.cost.forward /= chunks;
    w.cost.backward_input /= chunks;
    w.cost.backward_weight /= chunks;
    w.cost.transfer = 0; /* threads hand over a kilobyte */
    gt_schedule_report report;
    gt_rank_report ranks[RANKS];
    BENCH_OK(gt_schedule_simulate(&report, ranks, s, &w.cost, 1));
    run_world(&w);
    double step[REPEATS], free_step = most(w.free_step);
    int live = 0;
    for (int i = 0; i < REPEATS; i++) {
        step[i] = most(w.barrier_step[i]);
    }
    for (int r = 0; r < RANKS; r++) {
        live = w.peak_live[r] > live ? w.peak_live[r] : live;
        if (w.peak_live[r] != ranks[r].peak_live) {
            fprintf(stderr, "%s: rank %d held %d activations, simulated %d\n", as, r,
                    w.peak_live[r], ranks[r].peak_live);
            exit(1);
        }
    }
    qsort(step, REPEATS, sizeof(step[0]), compare);
    *base = *base > 0 ? *base : free_step;
    gt_stage_cost real = slept(&w);
    gt_schedule_report again;
    BENCH_OK(gt_schedule_simulate(&again, NULL, s, &real, 1));
    bench_value(b, name(as, " step"), step[REPEATS / 2] / MS, "ms", report.makespan);
    bench_value(b, name(as, " measured_vs_simulated"), step[REPEATS / 2] / (report.makespan * MS),
                "x", 1);
    bench_value(b, name(as, " with_measured_stages"), step[REPEATS / 2] / (again.makespan * MS),
                "x", 1);
    bench_value(b, name(as, " step_without_barrier"), free_step / MS, "ms", report.period);
    bench_value(b, name(as, "_vs_1f1b"), *base / free_step, "x", 0);
    bench_value(b, name(as, " peak_live"), live, "activations", report.peak_live);
    gt_schedule_destroy(&s);
}

/* ---- one rank, empty stages: what the executor itself costs -----------------------------------*/
static gt_status no_forward(void *user, int m, int chunk, const gt_tensor *in, gt_tensor *out)
{
    (void)user, (void)m, (void)chunk, (void)in, (void)out;
    return GT_OK;
}

static gt_status no_backward(void *user, int m, int chunk, const gt_tensor *in,
                             const gt_tensor *dout, gt_tensor *din, unsigned parts)
{
    (void)user, (void)m, (void)chunk, (void)in, (void)dout, (void)din, (void)parts;
    return GT_OK;
}

static void bench_overhead(bench *b)
{
    gt_context *ctx = NULL;
    gt_schedule *s = NULL;
    gt_pipeline *pl = NULL;
    gt_pipeline_params p = GT_PIPELINE_PARAMS_INIT;
    p.forward = no_forward;
    p.backward = no_backward;
    BENCH_OK(gt_context_create(&ctx, NULL));
    BENCH_OK(gt_schedule_create(&s, "1f1b", 1, 1000, 1));
    BENCH_OK(gt_pipeline_create(&pl, ctx, NULL, s, &p));
    double best = 1e9;
    for (int i = 0; i < 20; i++) {
        double start = bench_now();
        BENCH_OK(gt_pipeline_run(pl, NULL));
        double seconds = bench_now() - start;
        best = seconds < best ? seconds : best;
    }
    bench_value(b, "executor_overhead", 1e9 * best / 2000, "ns/action", 0);
    gt_pipeline_destroy(&pl);
    gt_schedule_destroy(&s);
    gt_context_destroy(&ctx);
}

/* Sleeps end on time only with real-time priority. */
static void bench_sleeping(bench *b)
{
    const struct sched_param priority = {.sched_priority = 5}, usual = {0};
    double base = 0;
    bool any = false;
    for (int i = 0; i < ROW_COUNT; i++) {
        any |= wanted(b, rows[i].as);
    }
    if (!any) {
        return;
    }
    if (sched_setscheduler(0, SCHED_FIFO, &priority)) {
        fprintf(stderr,
                "bench_pipeline: no right to real-time priority; run it on an idle machine\n");
    }
    for (int i = 0; i < ROW_COUNT; i++) {
        bench_schedule(b, &rows[i], &base);
    }
    sched_setscheduler(0, SCHED_OTHER, &usual);
}

int main(int argc, char **argv)
{
    bench *b = bench_open("bench_pipeline", argc, argv);
    bench_sleeping(b);
    bench_overhead(b);
    bench_pipeline_compute(b);
    return bench_close(b);
}
