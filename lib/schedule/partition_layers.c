/* SPDX-License-Identifier: Apache-2.0
 * Which layers go to which stage. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <geektrain/mesh.h>

#include "core/fail.h"
#include "schedule/schedule.h"

static void uniform(int *first, int layers, int stages)
{
    for (int s = 0; s <= stages; s++) {
        first[s] = s == stages ? layers : (int)gt_split_first(layers, stages, s);
    }
}

/* "6,6,5,7" */
static gt_status listed(int *first, const char *how, int layers, int stages, int *numbers)
{
    const char *at = how;
    int n = 0, sum = 0;
    while (*at) {
        char *end = NULL;
        errno = 0;
        long value = strtol(at, &end, 10);
        if (end == at || errno || (*end && *end != ',')) {
            return GT_FAIL(
                GT_ERR_CONFIG,
                "partition \"%s\"; want \"uniform\", \"cost\" or numbers of layers as in "
                "\"6,6,5,7\"",
                how);
        }
        if (value < 1 || value > layers) {
            return GT_FAIL(GT_ERR_CONFIG, "partition \"%s\": stage %d of %d layers out of %d", how,
                           n, (int)value, layers);
        }
        if (n < stages) {
            numbers[n] = (int)value;
        }
        n++;
        sum += (int)value;
        at = *end ? end + 1 : end;
    }
    if (n != stages || sum != layers) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "partition \"%s\" has %d stages and %d layers; want %d stages and %d layers",
                       how, n, sum, stages, layers);
    }
    first[0] = 0;
    for (int s = 0; s < stages; s++) {
        first[s + 1] = first[s] + numbers[s];
    }
    return GT_OK;
}

/* ---- by cost ------------------------------------------------------------------------------------
 * best[s][i]: the first i layers on the first s stages. Two passes of the same recursion: the
 * smallest possible maximum M, then the smallest sum of squares among cuts whose maximum is M. */
typedef struct balance {
    int layers, stages;
    const double *sum; /* [layers+1] prefix sums of the costs */
    double before, after;
    double *best; /* [stages+1][layers+1] */
    int *cut;     /* [stages+1][layers+1] where the last stage begins */
} balance;

static double stage_cost(const balance *b, int stage, int from, int to)
{
    return b->sum[to] - b->sum[from] + (stage == 0 ? b->before : 0) +
           (stage == b->stages - 1 ? b->after : 0);
}

/* The first `to` layers on s stages. */
static void solve_cell(const balance *b, double most, int s, int to)
{
    const double *before = b->best + (size_t)(s - 1) * ((size_t)b->layers + 1);
    size_t cell = (size_t)s * ((size_t)b->layers + 1) + (size_t)to;
    for (int from = s == 1 ? 0 : to - 1; from >= s - 1; from--) {
        double cost = stage_cost(b, s - 1, from, to);
        double least = most < 0 ? cost : cost <= most ? cost * cost : INFINITY;
        if (least >= b->best[cell]) {
            break; /* as from falls the cost only rises */
        }
        double value = most < 0 ? fmax(before[from], cost) : before[from] + least;
        /* from falls: of equal cuts the one with fuller early stages stays. */
        if (value < b->best[cell] * (1 - 1e-12) || (value < INFINITY && isinf(b->best[cell]))) {
            b->best[cell] = value;
            b->cut[cell] = from;
        }
    }
}

/* most < 0: minimise the maximum; else the sum of squares under that maximum. */
static void solve(const balance *b, double most)
{
    size_t cells = ((size_t)b->stages + 1) * ((size_t)b->layers + 1);
    for (size_t i = 0; i < cells; i++) {
        b->best[i] = INFINITY;
        b->cut[i] = 0;
    }
    b->best[0] = 0;
    for (int s = 1; s <= b->stages; s++) {
        int first = s == b->stages ? b->layers : s; /* the last stage ends with the last layer */
        for (int to = first; to <= b->layers - (b->stages - s); to++) {
            solve_cell(b, most, s, to);
        }
    }
}

static gt_status check_cost(const double *cost, int layers, double before, double after)
{
    if (!cost) {
        return GT_FAIL(GT_ERR_ARGUMENT, "partition by cost needs the cost of each layer");
    }
    for (int i = -2; i < layers; i++) {
        double c = i == -2 ? before : i == -1 ? after : cost[i];
        if (!isfinite(c) || c < 0) {
            return GT_FAIL(GT_ERR_ARGUMENT, "cost %g of %s %d; want a finite one >= 0", c,
                           i < 0 ? "the ends, index" : "layer", i < 0 ? i + 2 : i);
        }
    }
    return GT_OK;
}

static gt_status by_cost(int *first, int layers, int stages, const double *cost, double before,
                         double after)
{
    GT_TRY(check_cost(cost, layers, before, after));
    size_t cells = (size_t)(stages + 1) * (size_t)(layers + 1);
    double *sum = gti_schedule_calloc((size_t)layers + 1, sizeof(double), "a partition");
    double *best = gti_schedule_calloc(cells, sizeof(double), "a partition");
    int *cut = gti_schedule_calloc(cells, sizeof(int), "a partition");
    if (!sum || !best || !cut) {
        free(sum);
        free(best);
        free(cut);
        return GT_ERR_MEMORY;
    }
    for (int i = 0; i < layers; i++) {
        sum[i + 1] = sum[i] + cost[i];
    }
    balance b = {layers, stages, sum, before, after, best, cut};
    solve(&b, -1);
    solve(&b, best[cells - 1] * (1 + 1e-9));
    for (int s = stages, at = layers; s > 0; s--) {
        first[s] = at;
        at = cut[(size_t)s * ((size_t)layers + 1) + (size_t)at];
    }
    first[0] = 0;
    free(sum);
    free(best);
    free(cut);
    return GT_OK;
}

gt_status gt_partition_layers(int *first, const char *how, int layers, int stages,
                              const double *cost, double before, double after)
{
    if (!first || stages < 1 || layers < 0) {
        return GT_FAIL(GT_ERR_ARGUMENT,
                       "gt_partition_layers: first is NULL, or %d layers on %d stages", layers,
                       stages);
    }
    if (layers < stages) {
        return GT_FAIL(GT_ERR_CONFIG, "%d layers on %d pipeline stages leave %d stages empty",
                       layers, stages, stages - layers);
    }
    if (!how || !strcmp(how, "uniform")) {
        uniform(first, layers, stages);
        return GT_OK;
    }
    if (!strcmp(how, "cost")) {
        return by_cost(first, layers, stages, cost, before, after);
    }
    int *numbers = gti_schedule_calloc((size_t)stages, sizeof(int), "a partition");
    gt_status st = numbers ? listed(first, how, layers, stages, numbers) : GT_ERR_MEMORY;
    free(numbers);
    return st;
}
