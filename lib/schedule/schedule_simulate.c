/* SPDX-License-Identifier: Apache-2.0
 * Times, bubble, memory of a schedule for given costs. */
#include <math.h>

#include "core/fail.h"
#include "schedule/schedule.h"

gt_status gti_schedule_check_costs(const gt_schedule *s, const gt_stage_cost *cost, int costs)
{
    if (!s || !cost || (costs != 1 && costs != s->stages)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "schedule or costs missing, or %d costs: want 1 or %d",
                       costs, s ? s->stages : 0);
    }
    for (int i = 0; i < costs; i++) {
        const gt_stage_cost *c = &cost[i];
        double sum = c->forward + c->backward_input + c->backward_weight + c->transfer;
        if (!isfinite(sum) || c->forward < 0 || c->backward_input < 0 || c->backward_weight < 0 ||
            c->transfer < 0 || !(c->weight_held >= 0 && c->weight_held <= 1)) {
            return GT_FAIL(GT_ERR_ARGUMENT,
                           "cost of stage %d: %g, %g, %g, %g, held %g; want times >= 0, held 0..1",
                           i, c->forward, c->backward_input, c->backward_weight, c->transfer,
                           c->weight_held);
        }
    }
    return GT_OK;
}

/* Activations held, whole ones and by weight, at most. */
static void count_live(const gt_schedule *s, int rank, const gt_stage_cost *cost, int costs,
                       gt_rank_report *out)
{
    int live = 0;
    double memory = 0;
    for (int i = 0; i < s->lists[rank].count; i++) {
        gt_action a = s->lists[rank].items[i];
        const gt_stage_cost *c = &cost[costs == 1 ? 0 : gti_schedule_stage_of(s, rank, a)];
        double share = c->weight_held > 0 ? c->weight_held : 1;
        switch (a.kind) {
        case GT_ACTION_FORWARD:
            live++;
            memory += 1;
            break;
        case GT_ACTION_BACKWARD:
            live--;
            memory -= 1;
            break;
        case GT_ACTION_BACKWARD_INPUT:
            memory -= 1 - share;
            break;
        case GT_ACTION_BACKWARD_WEIGHT:
            live--;
            memory -= share;
            break;
        default:
            break;
        }
        out->peak_live = live > out->peak_live ? live : out->peak_live;
        out->peak_memory = memory > out->peak_memory ? memory : out->peak_memory;
    }
}

static int buffers(const gt_schedule *s, int rank, gti_pool pool)
{
    int n = 0;
    for (int c = 0; c < s->chunks; c++) {
        n += s->slots[rank].count[pool][c];
    }
    return n;
}

static gt_rank_report report_rank(const gti_play *p, int rank)
{
    const gt_schedule *s = p->s;
    gt_rank_report out = {.start = -1};
    for (int i = 0; i < s->lists[rank].count; i++) {
        if (!gti_action_is_compute(s->lists[rank].items[i].kind)) {
            continue;
        }
        if (out.start < 0) {
            out.start = p->start[rank][i];
        }
        out.end = p->end[rank][i];
        out.busy += p->end[rank][i] - p->start[rank][i];
    }
    count_live(s, rank, p->cost, p->costs, &out);
    out.input_buffers = buffers(s, rank, GTI_POOL_INPUT);
    out.output_buffers = buffers(s, rank, GTI_POOL_OUTPUT);
    out.gradient_buffers = buffers(s, rank, GTI_POOL_GRAD);
    out.input_gradient_buffers = buffers(s, rank, GTI_POOL_INPUT_GRAD);
    return out;
}

gt_status gti_play_finished(gti_play *play, const gt_schedule *s, const gt_stage_cost *cost,
                            int costs)
{
    bool stuck = false;
    GT_TRY(gti_schedule_check_costs(s, cost, costs));
    gt_status st = gti_play_run(play, s, cost, costs, false, &stuck);
    if (st == GT_OK && stuck) {
        st = gti_play_explain(play);
    }
    if (st != GT_OK) {
        gti_play_clear(play);
    }
    return st;
}

gt_status gt_schedule_simulate(gt_schedule_report *report, gt_rank_report *ranks,
                               const gt_schedule *s, const gt_stage_cost *cost, int costs)
{
    if (!report) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_schedule_simulate: report is NULL");
    }
    gti_play play;
    GT_TRY(gti_play_finished(&play, s, cost, costs));
    gt_schedule_report all = {0};
    for (int r = 0; r < s->ranks; r++) {
        gt_rank_report one = report_rank(&play, r);
        all.makespan = fmax(all.makespan, one.end);
        all.period = fmax(all.period, one.end - one.start);
        all.compute = fmax(all.compute, one.busy);
        all.peak_live = one.peak_live > all.peak_live ? one.peak_live : all.peak_live;
        all.peak_memory = fmax(all.peak_memory, one.peak_memory);
        if (ranks) {
            ranks[r] = one;
        }
    }
    all.bubble = all.makespan - all.compute;
    all.bubble_share = all.makespan > 0 ? all.bubble / all.makespan : 0;
    *report = all;
    gti_play_clear(&play);
    return GT_OK;
}
