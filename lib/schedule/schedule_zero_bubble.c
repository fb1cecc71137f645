/* SPDX-License-Identifier: Apache-2.0
 * Zero-bubble schedules: the weight part of the backward waits until nothing else can run.
 *
 * zb-h1, zb-h2: Qi, Wan, Huang, Lin, "Zero Bubble Pipeline Parallelism", 2023, by its rule: rank r
 * runs scale*(p-1-r) forwards ahead and lets weight parts lag scale*r behind. With costs or a
 * memory limit, and for zb-v, also a greedy list scheduler with a few settings; the best by
 * simulation is taken. */
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "schedule/schedule.h"

typedef enum part { PART_FORWARD = 0, PART_INPUT, PART_WEIGHT, PART_COUNT } part;

static const gt_action_kind part_kind[PART_COUNT] = {GT_ACTION_FORWARD, GT_ACTION_BACKWARD_INPUT,
                                                     GT_ACTION_BACKWARD_WEIGHT};

/* What a greedy run is asked to do. */
typedef struct settings {
    double limit; /* most activations held                                                    */
    double fill;  /* a gap of fill * (weight part) is enough to put one in                     */
    bool weight_first; /* held back by memory when its forward's turn has come: a weight part now */
    int warmup; /* forwards before the first backward: warmup*(p-1-r)+1; 0: as memory allows */
} settings;

typedef struct greedy {
    gt_schedule *s;
    const gt_stage_cost *cost; /* [stages] */
    settings set;
    int *next[PART_COUNT]; /* [ranks*chunks] microbatch to do next                              */
    double *end[2];        /* [stages*microbatches] forward, input part; negative: not done      */
    double *clock;         /* [ranks]                                                           */
    part *last;            /* [ranks] forward or input part: the last one done                  */
} greedy;

typedef struct choice {
    double start;
    part part;
    int chunk; /* -1: nothing to do */
} choice;

static gt_status greedy_prepare(greedy *g)
{
    size_t ranks = (size_t)g->s->ranks, chunks = (size_t)g->s->stages;
    size_t cells = chunks * (size_t)g->s->microbatches;
    g->clock = gti_schedule_calloc(ranks, sizeof(double), "a list");
    g->last = gti_schedule_calloc(ranks, sizeof(part), "a list");
    bool ok = g->clock && g->last;
    for (int k = 0; k < PART_COUNT; k++) {
        g->next[k] = gti_schedule_calloc(chunks, sizeof(int), "a list");
        ok = ok && g->next[k];
    }
    for (int k = 0; k < 2; k++) {
        g->end[k] = gti_schedule_calloc(cells, sizeof(double), "a list");
        ok = ok && g->end[k];
        for (size_t i = 0; ok && i < cells; i++) {
            g->end[k][i] = -1;
        }
    }
    for (size_t r = 0; ok && r < ranks; r++) {
        g->last[r] = PART_INPUT;
    }
    return ok ? GT_OK : GT_ERR_MEMORY;
}

static void greedy_clear(greedy *g)
{
    for (int k = 0; k < PART_COUNT; k++) {
        free(g->next[k]);
    }
    free(g->end[0]);
    free(g->end[1]);
    free(g->clock);
    free(g->last);
}

/* When what the next forward or input part of a chunk needs is there; negative: not known yet. */
static double arrival(const greedy *g, int rank, int chunk, part k)
{
    const gt_schedule *s = g->s;
    int at = rank * s->chunks + chunk, stage = s->stage[at], m = g->next[k][at];
    if (m >= s->microbatches) {
        return -1;
    }
    int from = k == PART_FORWARD ? stage - 1 : s->next[stage];
    if (from < 0) {
        return k == PART_FORWARD ? 0
                                 : g->end[0][(size_t)stage * (size_t)s->microbatches + (size_t)m];
    }
    double t = g->end[k][(size_t)from * (size_t)s->microbatches + (size_t)m];
    int edge = k == PART_FORWARD ? from : stage;
    return t < 0 || s->stage_rank[from] == rank ? t : t + g->cost[edge].transfer;
}

static double held(const greedy *g, int rank)
{
    double n = 0;
    for (int c = 0; c < g->s->chunks; c++) {
        int at = rank * g->s->chunks + c;
        double share = g->cost[g->s->stage[at]].weight_held;
        share = share > 0 ? share : 1;
        n += g->next[PART_FORWARD][at] - g->next[PART_INPUT][at] +
             share * (g->next[PART_INPUT][at] - g->next[PART_WEIGHT][at]);
    }
    return n;
}

/* A forward may run: enough memory is left, also for the later chunks, and the warm-up is not over.
 */
static bool forward_allowed(const greedy *g, int rank, int chunk)
{
    const gt_schedule *s = g->s;
    if (held(g, rank) + 1 > g->set.limit - (s->chunks - 1 - chunk) + 1e-9) {
        return false;
    }
    if (!g->set.warmup || chunk > 0 || g->next[PART_INPUT][rank * s->chunks + s->chunks - 1] > 0) {
        return true;
    }
    return g->next[PART_FORWARD][rank * s->chunks] < g->set.warmup * (s->ranks - 1 - rank) + 1;
}

/* The earliest forward or input part of a rank that may run. Later chunks first: they finish what
 * is held. *held_back: a forward whose input is there may not. */
static choice earliest(const greedy *g, int rank, part k, bool *held_back)
{
    const gt_schedule *s = g->s;
    choice best = {0, k, -1};
    for (int c = s->chunks - 1; c >= 0; c--) {
        double t = arrival(g, rank, c, k);
        if (t < 0) {
            continue;
        }
        t = t > g->clock[rank] ? t : g->clock[rank];
        if (k == PART_FORWARD && !forward_allowed(g, rank, c)) {
            *held_back |= t <= g->clock[rank] + 1e-9;
        } else if (best.chunk < 0 || t < best.start - 1e-12) {
            best.start = t;
            best.chunk = c;
        }
    }
    return best;
}

static choice pending_weight(const greedy *g, int rank)
{
    choice w = {g->clock[rank], PART_WEIGHT, -1};
    for (int c = g->s->chunks - 1; c >= 0; c--) {
        int at = rank * g->s->chunks + c;
        if (g->next[PART_WEIGHT][at] < g->next[PART_INPUT][at]) {
            w.chunk = c;
            return w;
        }
    }
    return w;
}

static choice choose(const greedy *g, int rank)
{
    double now = g->clock[rank] + 1e-9;
    bool held_back = false;
    choice f = earliest(g, rank, PART_FORWARD, &held_back);
    choice b = earliest(g, rank, PART_INPUT, &held_back);
    choice w = pending_weight(g, rank);
    bool f_now = f.chunk >= 0 && f.start <= now, b_now = b.chunk >= 0 && b.start <= now;
    if (f_now && b_now) {
        return g->last[rank] == PART_FORWARD ? b : f;
    }
    if (b_now && held_back && g->set.weight_first && w.chunk >= 0 &&
        g->last[rank] != PART_FORWARD) {
        return w;
    }
    if (f_now || b_now) {
        return f_now ? f : b;
    }
    if (w.chunk >= 0 && held_back) {
        return w;
    }
    choice soon = f.chunk >= 0 && (b.chunk < 0 || f.start < b.start) ? f : b;
    if (soon.chunk < 0) {
        return w;
    }
    double weight =
        g->cost[g->s->stage[rank * g->s->chunks + (w.chunk < 0 ? 0 : w.chunk)]].backward_weight;
    return w.chunk >= 0 && soon.start - g->clock[rank] >= g->set.fill * weight - 1e-9 ? w : soon;
}

static gt_status do_choice(greedy *g, int rank, choice c)
{
    gt_schedule *s = g->s;
    int at = rank * s->chunks + c.chunk, stage = s->stage[at], m = g->next[c.part][at]++;
    const gt_stage_cost *cost = &g->cost[stage];
    double length = c.part == PART_FORWARD ? cost->forward
                    : c.part == PART_INPUT ? cost->backward_input
                                           : cost->backward_weight;
    g->clock[rank] = c.start + length;
    if (c.part != PART_WEIGHT) {
        g->end[c.part][(size_t)stage * (size_t)s->microbatches + (size_t)m] = g->clock[rank];
        g->last[rank] = c.part;
    }
    return gti_schedule_add(s, rank, part_kind[c.part], m, c.chunk);
}

/* Fills s; *complete false when the settings lead nowhere. */
static gt_status greedy_run(gt_schedule *s, const gt_stage_cost *cost, settings set, bool *complete)
{
    greedy g = {.s = s, .cost = cost, .set = set};
    gt_status st = greedy_prepare(&g);
    int64_t left = 3LL * s->stages * s->microbatches;
    while (st == GT_OK && left > 0) {
        int rank = -1;
        choice best = {0, PART_WEIGHT, -1};
        for (int r = 0; r < s->ranks; r++) {
            choice c = choose(&g, r);
            if (c.chunk >= 0 && (rank < 0 || c.start < best.start)) {
                best = c;
                rank = r;
            }
        }
        if (rank < 0) {
            break;
        }
        st = do_choice(&g, rank, best);
        left--;
    }
    greedy_clear(&g);
    *complete = left == 0;
    return st;
}

/* The paper's rule. */
static gt_status by_rule(gt_schedule *s, int scale)
{
    for (int r = 0; r < s->ranks; r++) {
        int ahead = scale * (s->ranks - 1 - r), lag = scale * r, f = 0, b = 0, w = 0;
        while (f < ahead && f < s->microbatches) {
            GT_TRY(gti_schedule_add(s, r, GT_ACTION_FORWARD, f++, 0));
        }
        while (b < s->microbatches) {
            if (f < s->microbatches) {
                GT_TRY(gti_schedule_add(s, r, GT_ACTION_FORWARD, f++, 0));
            }
            GT_TRY(gti_schedule_add(s, r, GT_ACTION_BACKWARD_INPUT, b++, 0));
            if (b > lag) {
                GT_TRY(gti_schedule_add(s, r, GT_ACTION_BACKWARD_WEIGHT, w++, 0));
            }
        }
        while (w < s->microbatches) {
            GT_TRY(gti_schedule_add(s, r, GT_ACTION_BACKWARD_WEIGHT, w++, 0));
        }
    }
    return GT_OK;
}

/* ---- the best of several ------------------------------------------------------------------------
 */
typedef struct contest {
    gt_schedule *best;
    gt_schedule_report report;
    const gt_stage_cost *cost; /* [stages] */
    double limit;
    bool by_period; /* shortest period first, else shortest makespan first */
} contest;

static bool better(const contest *c, const gt_schedule_report *a)
{
    double first = c->by_period ? a->period - c->report.period : a->makespan - c->report.makespan;
    double second = c->by_period ? a->makespan - c->report.makespan : a->period - c->report.period;
    double tiny = 1e-9 * c->report.makespan;
    return first < -tiny || (first < tiny && second < -tiny);
}

/* Takes *s over: keeps it as the best or destroys it. */
static gt_status enter(contest *c, gt_schedule **s)
{
    gt_schedule_report report;
    gt_status st = gti_schedule_finish(*s);
    if (st == GT_OK) {
        st = gt_schedule_simulate(&report, NULL, *s, c->cost, (*s)->stages);
    }
    if (st == GT_OK && report.peak_memory <= c->limit + 1e-9 && (!c->best || better(c, &report))) {
        gt_schedule_destroy(&c->best);
        c->best = *s;
        c->report = report;
        *s = NULL;
    }
    gt_schedule_destroy(s);
    return st;
}

static gt_status enter_greedy(contest *c, const char *name, int ranks, int microbatches, int chunks,
                              const int *stages, settings set)
{
    gt_schedule *s = NULL;
    bool complete = false;
    GT_TRY(gti_schedule_new(&s, name, ranks, microbatches, chunks, stages, NULL));
    gt_status st = greedy_run(s, c->cost, set, &complete);
    if (st == GT_OK && complete) {
        return enter(c, &s);
    }
    gt_schedule_destroy(&s);
    return st;
}

static gt_status search(contest *c, const char *name, int ranks, int microbatches, int chunks,
                        const int *stages)
{
    static const double fills[] = {0, 0.2, 0.5, 0.8, 1};
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < 6; k++) {
            settings set = {c->limit, fills[i], k & 1, k / 2};
            GT_TRY(enter_greedy(c, name, ranks, microbatches, chunks, stages, set));
        }
    }
    return GT_OK;
}

/* One cost per stage: given ones or units. */
static gt_stage_cost *spread(const gt_stage_cost *cost, int stages)
{
    const gt_stage_cost unit = {.forward = 1, .backward_input = 1, .backward_weight = 1};
    gt_stage_cost *all = gti_schedule_calloc((size_t)stages, sizeof(*all), "costs");
    for (int i = 0; all && i < stages; i++) {
        all[i] = cost ? cost[i] : unit;
    }
    return all;
}

static gt_status win(contest *c, gt_status st, const char *name, gt_schedule **out)
{
    if (st == GT_OK && !c->best) {
        st = GT_FAIL(GT_ERR_CONFIG, "no %s schedule holds at most %g activations per rank", name,
                     c->limit);
    }
    if (st != GT_OK) {
        gt_schedule_destroy(&c->best);
        return st;
    }
    *out = c->best;
    return GT_OK;
}

gt_status gti_generate_zero_bubble(gt_schedule **out, int ranks, int microbatches, int scale,
                                   int limit, const gt_stage_cost *cost)
{
    const char *name = scale == 1 ? "zb-h1" : "zb-h2";
    int usual = scale * (ranks - 1) + 1;
    contest c = {.limit = limit ? limit : usual, .by_period = scale == 2};
    gt_schedule *s = NULL;
    GT_TRY(gti_schedule_new(&s, name, ranks, microbatches, 1, NULL, NULL));
    gt_stage_cost *all = spread(cost, s->stages);
    c.cost = all;
    gt_status st = all ? by_rule(s, scale) : GT_ERR_MEMORY;
    if (st == GT_OK) {
        st = enter(&c, &s);
    }
    gt_schedule_destroy(&s);
    if (st == GT_OK && (cost || limit)) {
        st = search(&c, name, ranks, microbatches, 1, NULL);
    }
    free(all);
    return win(&c, st, name, out);
}

gt_status gti_generate_zb_v(gt_schedule **out, int ranks, int microbatches,
                            const gt_stage_cost *cost)
{
    int stages = 2 * ranks;
    if (ranks < 1 || ranks > 4096) {
        return GT_FAIL(GT_ERR_ARGUMENT, "schedule zb-v for %d ranks; want 1..4096", ranks);
    }
    int *placement = gti_schedule_calloc((size_t)stages, sizeof(int), "a placement");
    gt_stage_cost *all = spread(cost, stages);
    contest c = {.limit = 2 * ranks, .by_period = true, .cost = all};
    gt_status st = placement && all ? GT_OK : GT_ERR_MEMORY;
    for (int r = 0; r < ranks && st == GT_OK; r++) {
        placement[2 * r] = r;
        placement[2 * r + 1] = stages - 1 - r;
    }
    if (st == GT_OK) {
        st = search(&c, "zb-v", ranks, microbatches, 2, placement);
    }
    free(placement);
    free(all);
    return win(&c, st, "zb-v", out);
}
