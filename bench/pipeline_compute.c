/* SPDX-License-Identifier: Apache-2.0
 *
 * Does the simulator foretell a pipeline whose stages really compute? 2 ranks x 1 thread; each rank
 * holds LAYERS layers y = gelu(x w), cut into as many stages as the schedule gives it. Schedules
 * take turns, so that whatever else the machine does meets all alike. Stages are timed inside the
 * run, where both ranks are busy: alone on the machine one rank is faster.
 *
 *     compute NAME measured_vs_simulated  a step over its makespan, simulated from the medians of
 *                                         each stage's forwards, input and weight parts in that
 *                                         step and the time of a transfer; median over rounds
 *     compute NAME with_measured_stages   the same with means: what is left when a core's speed
 *                                         changes within the step is the executor's
 */
#include "pipeline_compute.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <geektrain/ops.h>
#include <geektrain/pipeline.h>

enum { RANKS = 2, LAYERS = 4, MICROBATCHES = 8, ROWS = 512, WIDTH = 768 };
enum { ROUNDS = 9, PINGS = LAYERS * MICROBATCHES, CHUNKS_MAX = 2, SCHEDULES = 6, NAME_MAX = 64 };
#define MS 1e-3

static const struct {
    const char *name, *as;
    int chunks;
} kinds[SCHEDULES] = {
    {"1f1b", "1f1b", 1},  {"gpipe", "gpipe", 1}, {"interleaved", "interleaved", 2},
    {"zb-h1", "zbh1", 1}, {"zb-h2", "zbh2", 1},  {"zb-v", "zbv", 2}};

/* One schedule in one round. Calls are kept by the parts of the backward they did, 0: forward.
 */
typedef struct turn {
    double step[RANKS]; /* seconds */
    struct {
        double call[4][MICROBATCHES];
        int calls[4];
        gt_stage_cost mean;
    } stage[RANKS * CHUNKS_MAX];
} turn;

typedef struct world {
    gt_local_world *local;
    gt_schedule *schedules[SCHEDULES];
    double ping[PINGS];                /* there and back, seconds */
    turn turns[SCHEDULES][ROUNDS + 1]; /* the first warms up */
} world;

typedef struct rank {
    world *w;
    int number, kind;
    turn *turn;
    gt_context *ctx;
    gt_comm *comm;
    gt_pipeline *pipelines[SCHEDULES];
    gt_tensor weight[LAYERS], dweight[LAYERS];
    gt_tensor pre[LAYERS][MICROBATCHES], y[LAYERS][MICROBATCHES], du[LAYERS][MICROBATCHES];
    gt_tensor data, scratch[2];
} rank;

/* ---- the stages -------------------------------------------------------------------------------*/
/* What layer l takes: the stage's input, the data, or the output of the layer before. */
static const gt_tensor *layer_input(const rank *r, int m, int l, int first, const gt_tensor *in)
{
    return l > first ? &r->y[l - 1][m] : in[0].data ? &in[0] : &r->data;
}

static gt_status stage_forward(rank *r, int m, int first, int end, const gt_tensor *in,
                               gt_tensor *out)
{
    for (int l = first; l < end; l++) {
        gt_gemm_params p = GT_GEMM_PARAMS_INIT;
        gt_tensor *y = l == end - 1 && out[0].data ? &out[0] : &r->y[l][m];
        p.gelu = true;
        p.pre_gelu = &r->pre[l][m];
        gt_status st = gt_gemm(r->ctx, y, layer_input(r, m, l, first, in), &r->weight[l], &p, NULL);
        if (st != GT_OK) {
            return st;
        }
    }
    return GT_OK;
}

static gt_status stage_input(rank *r, int m, int first, int end, const gt_tensor *dout,
                             gt_tensor *din)
{
    const gt_tensor *dy = dout[0].data ? &dout[0] : &r->data;
    gt_status st = GT_OK;
    for (int l = end - 1; l >= first && st == GT_OK; l--) {
        gt_gemm_params p = GT_GEMM_PARAMS_INIT;
        gt_tensor *dx = l == first && din[0].data ? &din[0] : &r->scratch[l % 2];
        p.trans_b = true;
        st = gt_gelu_backward(r->ctx, &r->du[l][m], dy, &r->pre[l][m], NULL);
        st = st == GT_OK ? gt_gemm(r->ctx, dx, &r->du[l][m], &r->weight[l], &p, NULL) : st;
        dy = dx;
    }
    return st;
}

static gt_status stage_weight(rank *r, int m, int first, int end, const gt_tensor *in)
{
    gt_status st = GT_OK;
    for (int l = first; l < end && st == GT_OK; l++) {
        gt_gemm_params p = GT_GEMM_PARAMS_INIT;
        p.trans_a = true;
        p.accumulate = true;
        st = gt_gemm(r->ctx, &r->dweight[l], layer_input(r, m, l, first, in), &r->du[l][m], &p,
                     NULL);
    }
    return st;
}

static void note(rank *r, int chunk, unsigned parts, double seconds)
{
    int stage = gt_schedule_stage(r->w->schedules[r->kind], r->number, chunk);
    int *calls = &r->turn->stage[stage].calls[parts];
    r->turn->stage[stage].call[parts][(*calls)++] = seconds;
}

static gt_status forward(void *user, int m, int chunk, const gt_tensor *in, gt_tensor *out)
{
    rank *r = user;
    int each = LAYERS / kinds[r->kind].chunks;
    double start = bench_now();
    gt_status st = stage_forward(r, m, chunk * each, (chunk + 1) * each, in, out);
    note(r, chunk, 0, bench_now() - start);
    return st;
}

static gt_status backward(void *user, int m, int chunk, const gt_tensor *in, const gt_tensor *dout,
                          gt_tensor *din, unsigned parts)
{
    rank *r = user;
    int each = LAYERS / kinds[r->kind].chunks, first = chunk * each;
    double start = bench_now();
    gt_status st = GT_OK;
    if (parts & GT_BACKWARD_INPUT) {
        st = stage_input(r, m, first, first + each, dout, din);
    }
    if (st == GT_OK && (parts & GT_BACKWARD_WEIGHT)) {
        st = stage_weight(r, m, first, first + each, in);
    }
    note(r, chunk, parts, bench_now() - start);
    return st;
}

/* ---- a rank -----------------------------------------------------------------------------------*/
static void make(rank *r, gt_tensor *t, int64_t rows, double value)
{
    const int64_t shape[2] = {rows, WIDTH};
    BENCH_OK(gt_tensor_alloc(r->ctx, t, GT_MEM_ACTIVATIONS, GT_F32, 2, shape));
    BENCH_OK(gt_fill(r->ctx, t, value, NULL));
}

static void make_tensors(rank *r)
{
    for (int l = 0; l < LAYERS; l++) {
        make(r, &r->weight[l], WIDTH, 1.5 / WIDTH);
        make(r, &r->dweight[l], WIDTH, 0);
        for (int m = 0; m < MICROBATCHES; m++) {
            make(r, &r->pre[l][m], ROWS, 0);
            make(r, &r->y[l][m], ROWS, 0);
            make(r, &r->du[l][m], ROWS, 0);
        }
    }
    make(r, &r->data, ROWS, 0.5);
    make(r, &r->scratch[0], ROWS, 0);
    make(r, &r->scratch[1], ROWS, 0);
}

static void free_tensors(rank *r)
{
    for (int l = 0; l < LAYERS; l++) {
        gt_tensor_free(r->ctx, &r->weight[l]);
        gt_tensor_free(r->ctx, &r->dweight[l]);
        for (int m = 0; m < MICROBATCHES; m++) {
            gt_tensor_free(r->ctx, &r->pre[l][m]);
            gt_tensor_free(r->ctx, &r->y[l][m]);
            gt_tensor_free(r->ctx, &r->du[l][m]);
        }
    }
    gt_tensor_free(r->ctx, &r->data);
    gt_tensor_free(r->ctx, &r->scratch[0]);
    gt_tensor_free(r->ctx, &r->scratch[1]);
}

static void open_pipeline(rank *r, int kind)
{
    const gt_schedule *s = r->w->schedules[kind];
    const gt_bundle none = {0}, some = {.ports = 1, .shape = {{GT_F32, 2, {ROWS, WIDTH}}}};
    gt_bundle in[CHUNKS_MAX], out[CHUNKS_MAX];
    gt_pipeline_params p = GT_PIPELINE_PARAMS_INIT;
    for (int c = 0; c < kinds[kind].chunks; c++) {
        int stage = gt_schedule_stage(s, r->number, c);
        in[c] = stage == 0 ? none : some;
        out[c] = gt_schedule_next(s, stage) < 0 ? none : some;
    }
    p.user = r;
    p.forward = forward;
    p.backward = backward;
    p.inputs = in;
    p.outputs = out;
    BENCH_OK(gt_pipeline_create(&r->pipelines[kind], r->ctx, r->comm, s, &p));
}

static void open_rank(rank *r)
{
    gt_context_params context = GT_CONTEXT_PARAMS_INIT;
    gt_comm_params params = GT_COMM_PARAMS_INIT;
    context.threads = 1;
    params.transport = "local";
    params.local_world = r->w->local;
    params.local_rank = r->number;
    params.check = -1;
    BENCH_OK(gt_context_create(&r->ctx, &context));
    BENCH_OK(gt_comm_create(&r->comm, r->ctx, &params));
    make_tensors(r);
    for (int k = 0; k < SCHEDULES; k++) {
        open_pipeline(r, k);
    }
}

static void close_rank(rank *r)
{
    for (int k = 0; k < SCHEDULES; k++) {
        gt_pipeline_destroy(&r->pipelines[k]);
    }
    free_tensors(r);
    gt_comm_destroy(&r->comm);
    gt_context_destroy(&r->ctx);
}

/* A layer's output goes to the other rank and comes back: each time another one, as in a run. */
static void ping(rank *r, int i)
{
    gt_tensor *t = &r->y[i / MICROBATCHES][i % MICROBATCHES];
    gt_work *work = NULL;
    double start = bench_now();
    for (int from = 0; from < RANKS; from++) {
        bool send = from == r->number;
        BENCH_OK(send ? gt_send(r->comm, t, 1 - r->number, 0, NULL, &work)
                      : gt_recv(r->comm, t, 1 - r->number, 0, NULL, &work));
        BENCH_OK(gt_work_wait(&work, NULL));
    }
    if (r->number == 0) {
        r->w->ping[i] = bench_now() - start;
    }
}

static void take_turn(rank *r, int kind, int round)
{
    gt_stage_cost mean[CHUNKS_MAX];
    const gt_schedule *s = r->w->schedules[kind];
    r->kind = kind;
    r->turn = &r->w->turns[kind][round];
    BENCH_OK(gt_barrier(r->comm));
    double start = bench_now();
    BENCH_OK(gt_pipeline_run(r->pipelines[kind], NULL));
    r->turn->step[r->number] = bench_now() - start;
    gt_pipeline_get_costs(r->pipelines[kind], mean);
    for (int c = 0; c < kinds[kind].chunks; c++) {
        r->turn->stage[gt_schedule_stage(s, r->number, c)].mean = mean[c];
    }
}

static void *live(void *user)
{
    rank *r = user;
    open_rank(r);
    for (int i = 0; i < PINGS; i++) {
        ping(r, i);
    }
    for (int round = 0; round <= ROUNDS; round++) {
        for (int k = 0; k < SCHEDULES; k++) {
            take_turn(r, k, round);
        }
    }
    close_rank(r);
    return NULL;
}

static void run_world(world *w)
{
    rank *ranks = calloc(RANKS, sizeof(*ranks));
    pthread_t threads[RANKS];
    BENCH_OK(gt_local_world_create(&w->local, RANKS));
    for (int i = 0; i < RANKS; i++) {
        ranks[i].w = w;
        ranks[i].number = i;
        if (pthread_create(&threads[i], NULL, live, &ranks[i])) {
            perror("pthread_create");
            exit(1);
        }
    }
    for (int i = 0; i < RANKS; i++) {
        pthread_join(threads[i], NULL);
    }
    gt_local_world_destroy(&w->local);
    free(ranks);
}

/* ---- the figures ------------------------------------------------------------------------------*/
static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n) /* sorts */
{
    qsort(values, (size_t)n, sizeof(*values), compare);
    return n == 0 ? 0 : 0.5 * (values[(n - 1) / 2] + values[n / 2]);
}

static gt_stage_cost median_cost(turn *t, int stage)
{
    double mid[4];
    for (int parts = 0; parts < 4; parts++) {
        mid[parts] = median(t->stage[stage].call[parts], t->stage[stage].calls[parts]);
    }
    double input = mid[GT_BACKWARD_BOTH] > 0 ? mid[GT_BACKWARD_BOTH] : mid[GT_BACKWARD_INPUT];
    return (gt_stage_cost){mid[0], input, mid[GT_BACKWARD_WEIGHT], 0, 0};
}

static double makespan(const gt_schedule *s, const gt_stage_cost *cost, int costs)
{
    gt_schedule_report report;
    BENCH_OK(gt_schedule_simulate(&report, NULL, s, cost, costs));
    return report.makespan;
}

static const char *const parts[] = {"forward", "input_part", "weight_part"};
static const char *const figures[] = {"step", "measured_vs_simulated", "with_measured_stages"};

/* Names in the report live to its end. */
static const char *name(const char *as, const char *what)
{
    char *text = malloc(NAME_MAX);
    if (text == NULL) {
        exit(1);
    }
    snprintf(text, NAME_MAX, "compute %s%s%s", as, as[0] ? " " : "", what);
    return text;
}

/* Whether the filter lets any row in. */
static bool wanted(const bench *b)
{
    bool any = bench_wants(b, "compute transfer");
    for (int i = 0; i < 3 * (SCHEDULES + 1); i++) {
        bool part = i >= 3 * SCHEDULES;
        const char *text = name(part ? "" : kinds[i / 3].as, part ? parts[i % 3] : figures[i % 3]);
        any |= bench_wants(b, text);
        free((void *)text);
    }
    return any;
}

typedef struct outcome {
    double step[ROUNDS], simulated[ROUNDS], ratio[ROUNDS], rest[ROUNDS], part[3][ROUNDS];
} outcome;

static void read_turn(outcome *o, int i, const gt_schedule *s, turn *t, double transfer)
{
    gt_stage_cost mid[RANKS * CHUNKS_MAX], mean[RANKS * CHUNKS_MAX];
    int stages = gt_schedule_stages(s);
    for (int stage = 0; stage < stages; stage++) {
        mid[stage] = median_cost(t, stage);
        mean[stage] = t->stage[stage].mean;
        mid[stage].transfer = mean[stage].transfer = transfer;
        o->part[0][i] += mid[stage].forward / stages;
        o->part[1][i] += mid[stage].backward_input / stages;
        o->part[2][i] += mid[stage].backward_weight / stages;
    }
    o->step[i] = t->step[0] > t->step[1] ? t->step[0] : t->step[1];
    o->simulated[i] = makespan(s, mid, stages);
    o->ratio[i] = o->step[i] / o->simulated[i];
    o->rest[i] = o->step[i] / makespan(s, mean, stages);
}

static void report_schedule(bench *b, world *w, int kind, double transfer)
{
    const char *as = kinds[kind].as;
    outcome o = {0};
    for (int i = 0; i < ROUNDS; i++) {
        read_turn(&o, i, w->schedules[kind], &w->turns[kind][i + 1], transfer);
    }
    for (int i = 0; i < 3 && strcmp(as, "zbh1") == 0; i++) {
        bench_value(b, name("", parts[i]), median(o.part[i], ROUNDS) / MS, "ms", 0);
    }
    bench_value(b, name(as, figures[0]), median(o.step, ROUNDS) / MS, "ms",
                median(o.simulated, ROUNDS) / MS);
    bench_value(b, name(as, figures[1]), median(o.ratio, ROUNDS), "x", 1);
    bench_value(b, name(as, figures[2]), median(o.rest, ROUNDS), "x", 1);
}

void bench_pipeline_compute(bench *b)
{
    if (!wanted(b)) {
        return;
    }
    world *w = calloc(1, sizeof(*w));
    if (w == NULL) {
        exit(1);
    }
    for (int k = 0; k < SCHEDULES; k++) {
        BENCH_OK(gt_schedule_create(&w->schedules[k], kinds[k].name, RANKS, MICROBATCHES,
                                    kinds[k].chunks));
    }
    run_world(w);
    double transfer = 0.5 * median(w->ping, PINGS);
    bench_value(b, "compute transfer", transfer / MS, "ms", 0);
    for (int k = 0; k < SCHEDULES; k++) {
        report_schedule(b, w, k, transfer);
        gt_schedule_destroy(&w->schedules[k]);
    }
    free(w);
}
