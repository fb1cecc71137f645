/* SPDX-License-Identifier: Apache-2.0
 * Pipeline schedules: thousands of cases through the validator, bubbles against formulas, and what
 * the validator must refuse. */
#include "harness.h"

#include <geektrain/schedule.h>

static const gt_stage_cost unit = {1, 1, 1, 0, 0};

static gt_schedule *make(const char *name, int p, int m, int v)
{
    gt_schedule *s = NULL;
    TH_OK(gt_schedule_create(&s, name, p, m, v));
    return s;
}

static gt_schedule_report simulate(const gt_schedule *s, gt_stage_cost cost)
{
    gt_schedule_report report;
    TH_OK(gt_schedule_simulate(&report, NULL, s, &cost, 1));
    return report;
}

static void near(double got, double want)
{
    if (!(got >= want - 1e-9 * (1 + want) && got <= want + 1e-9 * (1 + want))) {
        th_fail(__FILE__, __LINE__, "got %.12g, want %.12g", got, want);
    }
}

static bool takes_chunks(const char *name, int v)
{
    if (!strcmp(name, "zb-v")) {
        return v == 2;
    }
    return v == 1 || !strcmp(name, "gpipe") || !strcmp(name, "interleaved");
}

static const char *const names[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"};
#define NAMES 6

/* Every action is there as often as it must be: counted here, apart from the validator. */
static void count_actions(const gt_schedule *s)
{
    int64_t n[GT_ACTION_KIND_COUNT] = {0};
    int p = gt_schedule_ranks(s), m = gt_schedule_microbatches(s), v = gt_schedule_chunks(s);
    for (int r = 0; r < p; r++) {
        const gt_action *a;
        int count = gt_schedule_actions(s, r, &a);
        for (int i = 0; i < count; i++) {
            n[a[i].kind]++;
        }
    }
    int edges = 0;
    for (int stage = 0; stage + 1 < p * v; stage++) {
        edges += gt_schedule_stage_rank(s, stage) != gt_schedule_stage_rank(s, stage + 1);
    }
    TH_EQUAL(n[GT_ACTION_FORWARD], (int64_t)p * m * v);
    TH_EQUAL(n[GT_ACTION_BACKWARD] + n[GT_ACTION_BACKWARD_INPUT], (int64_t)p * m * v);
    TH_EQUAL(n[GT_ACTION_BACKWARD_INPUT], n[GT_ACTION_BACKWARD_WEIGHT]);
    TH_EQUAL(n[GT_ACTION_REDUCE], (int64_t)p * v);
    for (int k = GT_ACTION_SEND_FORWARD; k <= GT_ACTION_RECV_BACKWARD; k++) {
        TH_EQUAL(n[k], (int64_t)edges * m);
    }
}

static void schedule_all_are_valid(void **state)
{
    (void)state;
    int cases = 0;
    for (int k = 0; k < NAMES; k++) {
        for (int p = 1; p <= 8; p++) {
            for (int m = 1; m <= 16; m++) {
                for (int v = 1; v <= 3; v++) {
                    if (!takes_chunks(names[k], v)) {
                        continue;
                    }
                    gt_schedule *s = make(names[k], p, m, v);
                    TH_OK(gt_schedule_validate(s));
                    count_actions(s);
                    gt_schedule_report report = simulate(s, unit);
                    TH_TRUE(report.makespan >= report.compute);
                    near(report.compute, 3.0 * m * v);
                    gt_schedule_destroy(&s);
                    cases++;
                }
            }
        }
    }
    TH_TRUE(cases > 1000);
}

/* (p-1)(F+B+W) for GPipe and 1F1B, whatever the times, from as many microbatches as ranks on. */
static void simulate_bubble_of_gpipe_and_1f1b(void **state)
{
    (void)state;
    const gt_stage_cost costs[] = {{1, 1, 1, 0, 0}, {1, 1.25, 0.75, 0, 0}, {2, 3, 1, 0, 0}};
    for (int k = 0; k < 3; k++) {
        gt_stage_cost c = costs[k];
        for (int p = 1; p <= 8; p++) {
            for (int m = 1; m <= 24; m += 1 + m / 3) {
                double bubble = (p - 1) * (c.forward + c.backward_input + c.backward_weight);
                gt_schedule *a = make("gpipe", p, m, 1), *b = make("1f1b", p, m, 1);
                near(simulate(a, c).bubble, bubble);
                near(simulate(b, c).bubble, bubble);
                near(simulate(b, c).bubble_share, (p - 1.0) / (m + p - 1.0));
                TH_EQUAL(simulate(a, c).peak_live, m);
                TH_EQUAL(simulate(b, c).peak_live, m < p ? m : p);
                gt_schedule_destroy(&a);
                gt_schedule_destroy(&b);
            }
        }
    }
}

/* 1/v of 1F1B's; peak 2(p-1) + (v-1)p + 1 chunks on rank 0 for whole groups. */
static void simulate_bubble_of_interleaved(void **state)
{
    (void)state;
    for (int p = 2; p <= 8; p++) {
        for (int v = 2; v <= 4; v++) {
            for (int m = p; m <= 4 * p + 3; m++) {
                gt_schedule *s = make("interleaved", p, m, v);
                near(simulate(s, unit).bubble, (p - 1) * 3);
                if (m % p == 0 && m > p) {
                    TH_EQUAL(simulate(s, unit).peak_live, 2 * (p - 1) + (v - 1) * p + 1);
                }
                gt_schedule_destroy(&s);
            }
        }
    }
}

/* zb-h1: (p-1)(F+B-W) for W <= min(F,B), peak p on every rank; zb-h2: no bubble between steps that
 * follow one another, peak 2p-1. */
static void simulate_bubble_of_zero_bubble(void **state)
{
    (void)state;
    const gt_stage_cost costs[] = {{1, 1, 1, 0, 0}, {1, 1, 0.5, 0, 0}, {2, 3, 1.5, 0, 0}};
    for (int p = 2; p <= 8; p++) {
        for (int k = 0; k < 3; k++) {
            gt_stage_cost c = costs[k];
            gt_schedule *s = make("zb-h1", p, 3 * p, 1);
            near(simulate(s, c).bubble,
                 (p - 1) * (c.forward + c.backward_input - c.backward_weight));
            gt_rank_report ranks[8];
            gt_schedule_report all;
            TH_OK(gt_schedule_simulate(&all, ranks, s, &c, 1));
            for (int r = 0; r < p; r++) {
                TH_EQUAL(ranks[r].peak_live, p);
            }
            gt_schedule_destroy(&s);
        }
        gt_schedule *s = make("zb-h2", p, 3 * p, 1);
        gt_schedule_report report = simulate(s, unit);
        near(report.period, report.compute);
        TH_EQUAL(report.peak_live, 2 * p - 1);
        gt_schedule_destroy(&s);
    }
    /* The formula is too optimistic for W > F, B. */
    gt_schedule *s = make("zb-h1", 8, 24, 1);
    gt_stage_cost heavy = {1, 1, 1.2, 0, 0};
    near(simulate(s, heavy).bubble, 7.0);
    gt_schedule_destroy(&s);
}

/* The 1.5B row of the zero-bubble paper: times in ms, bubble rates of its table. */
static void simulate_zero_bubble_paper(void **state)
{
    (void)state;
    gt_stage_cost c = {18.522, 18.086, 9.337, 0.601, 32.0 / (34 + 5 * 24 * 1024 / 2304.0)};
    gt_stage_cost all[8];
    for (int i = 0; i < 8; i++) {
        all[i] = c;
    }
    double ideal = 24 * (c.forward + c.backward_input + c.backward_weight);
    const struct {
        const char *name;
        bool costs;
        int limit;
        double rate, off;
    } rows[] = {{"1f1b", false, 0, 0.2431, 5e-5},
                {"zb-h1", false, 0, 0.1585, 5e-5},
                {"zb-h2", false, 0, 0.1083, 5e-5},
                {"zb-h1", true, 8, 0.1585, 5e-5},     /* ZB-1p */
                {"zb-h2", true, 16, 0.0433, 2.5e-3}}; /* ZB-2p */
    for (int i = 0; i < 5; i++) {
        gt_schedule_params p = GT_SCHEDULE_PARAMS_INIT;
        p.name = rows[i].name;
        p.ranks = 8;
        p.microbatches = 24;
        p.cost = rows[i].costs ? all : NULL;
        p.max_live = rows[i].limit;
        gt_schedule *s = NULL;
        TH_OK(gt_schedule_create_params(&s, &p));
        double rate = 1 - ideal / simulate(s, c).period;
        if (!(rate > rows[i].rate - rows[i].off && rate < rows[i].rate + rows[i].off)) {
            th_fail(__FILE__, __LINE__, "%s: bubble rate %.5f, published %.4f", rows[i].name, rate,
                    rows[i].rate);
        }
        gt_schedule_destroy(&s);
    }
}

static void zb_v_places_both_ends_on_rank_0(void **state)
{
    (void)state;
    for (int p = 1; p <= 8; p++) {
        gt_schedule *s = make("zb-v", p, 3 * p, 0);
        TH_EQUAL(gt_schedule_stage(s, 0, 0), 0);
        TH_EQUAL(gt_schedule_stage(s, 0, 1), 2 * p - 1);
        gt_schedule_report report = simulate(s, unit);
        TH_TRUE(report.peak_live <= 2 * p);
        gt_schedule *h = make("1f1b", p, 3 * p, 1);
        gt_stage_cost twice = {2, 2, 2, 0, 0};
        TH_TRUE(p == 1 || report.makespan < simulate(h, twice).makespan);
        gt_schedule_destroy(&h);
        gt_schedule_destroy(&s);
    }
}

static void create_refuses(void **state)
{
    (void)state;
    gt_schedule *s = NULL;
    TH_FAILS(gt_schedule_create(&s, "2f2b", 2, 2, 1), GT_ERR_ARGUMENT, "zb-h1");
    TH_FAILS(gt_schedule_create(&s, "1f1b", 2, 2, 3), GT_ERR_CONFIG, "interleaved");
    TH_FAILS(gt_schedule_create(&s, "zb-h1", 2, 2, 2), GT_ERR_CONFIG, "got 2");
    TH_FAILS(gt_schedule_create(&s, "zb-v", 2, 2, 3), GT_ERR_CONFIG, "2 chunks");
    TH_FAILS(gt_schedule_create(&s, "1f1b", -1, 2, 1), GT_ERR_ARGUMENT, "-1 ranks");
    TH_FAILS(gt_schedule_create(&s, "1f1b", 4096, 1000000, 1), GT_ERR_ARGUMENT, "product");
    TH_FAILS(gt_schedule_create(&s, "/nowhere/a.csv", 0, 0, 0), GT_ERR_IO, "/nowhere/a.csv");
    TH_TRUE(s == NULL);
}

/* ---- lists with one thing wrong
 * ------------------------------------------------------------------ */
#define F GT_ACTION_FORWARD
#define B GT_ACTION_BACKWARD
#define I GT_ACTION_BACKWARD_INPUT
#define W GT_ACTION_BACKWARD_WEIGHT
#define SF GT_ACTION_SEND_FORWARD
#define RF GT_ACTION_RECV_FORWARD
#define SB GT_ACTION_SEND_BACKWARD
#define RB GT_ACTION_RECV_BACKWARD
#define LIST(...) {__VA_ARGS__}, (int)(sizeof((gt_action[]){__VA_ARGS__}) / sizeof(gt_action))

typedef struct wrong {
    gt_action a[12];
    int a_count;
    gt_action b[12];
    int b_count;
    const char *says;
} wrong;

static void create_actions_refuses(void **state)
{
    (void)state;
    /* Two ranks, two microbatches. */
    const wrong cases[] = {
        {LIST({F, 0, 0}, {F, 1, 0}, {B, 0, 0}, {B, 1, 0}), LIST({F, 0, 0}, {B, 0, 0}, {F, 1, 0}),
         "rank 1 (stage 1) lacks backward of microbatch 1"},
        {LIST({F, 0, 0}, {F, 1, 0}, {B, 0, 0}, {B, 1, 0}),
         LIST({F, 0, 0}, {B, 0, 0}, {B, 1, 0}, {F, 1, 0}),
         "backward of microbatch 1, chunk 0 comes before its forward"},
        {LIST({F, 0, 0}, {F, 1, 0}, {F, 1, 0}, {B, 0, 0}, {B, 1, 0}),
         LIST({F, 0, 0}, {B, 0, 0}, {F, 1, 0}, {B, 1, 0}),
         "forward of microbatch 1, chunk 0 again"},
        {LIST({F, 0, 0}, {F, 1, 0}, {I, 0, 0}, {B, 1, 0}),
         LIST({F, 0, 0}, {B, 0, 0}, {F, 1, 0}, {B, 1, 0}), "lacks backward_weight of microbatch 0"},
        {LIST({F, 0, 0}, {F, 1, 0}, {B, 0, 0}, {W, 0, 0}, {B, 1, 0}),
         LIST({F, 0, 0}, {B, 0, 0}, {F, 1, 0}, {B, 1, 0}), "whole backward is in the list too"},
        {LIST({F, 0, 0}, {B, 0, 0}, {F, 1, 0}, {B, 1, 0}),
         LIST({F, 0, 0}, {F, 1, 0}, {B, 0, 0}, {B, 1, 0}), "deadlocks: rank 0, action"},
        {LIST({F, 0, 0}, {F, 2, 0}, {B, 0, 0}, {B, 1, 0}),
         LIST({F, 0, 0}, {B, 0, 0}, {F, 1, 0}, {B, 1, 0}), "forward of microbatch 2"},
        {LIST({F, 0, 0}, {F, 1, 0}, {B, 0, 0}, {B, 1, 0}),
         LIST({F, 0, 0}, {B, 0, 0}, {F, 1, 1}, {B, 1, 0}), "2 microbatches and 1 chunks"},
        {LIST({F, 0, 0}, {SF, 0, 0}, {F, 1, 0}, {SF, 1, 0}, {RB, 0, 0}, {RB, 1, 0}, {B, 0, 0},
              {B, 1, 0}),
         LIST({RF, 0, 0}, {F, 0, 0}, {F, 1, 0}, {B, 0, 0}, {SB, 0, 0}, {B, 1, 0}, {SB, 1, 0}),
         "rank 1 (stage 1) lacks recv_forward of microbatch 1"},
        {LIST({F, 0, 0}, {SF, 0, 0}, {F, 1, 0}, {RB, 0, 0}, {RB, 1, 0}, {B, 0, 0}, {B, 1, 0}),
         LIST({RF, 0, 0}, {F, 0, 0}, {RF, 1, 0}, {F, 1, 0}, {B, 0, 0}, {SB, 0, 0}, {B, 1, 0},
              {SB, 1, 0}),
         "rank 0 (stage 0) lacks send_forward of microbatch 1"},
        {LIST({F, 0, 0}, {SF, 0, 0}, {SB, 0, 0}, {F, 1, 0}, {SF, 1, 0}, {RB, 0, 0}, {RB, 1, 0},
              {B, 0, 0}, {B, 1, 0}),
         LIST({RF, 0, 0}, {F, 0, 0}, {RF, 1, 0}, {F, 1, 0}, {B, 0, 0}, {SB, 0, 0}, {B, 1, 0},
              {SB, 1, 0}),
         "send_backward of microbatch 0, chunk 0, but no stage"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const gt_action *lists[] = {cases[i].a, cases[i].b};
        const int counts[] = {cases[i].a_count, cases[i].b_count};
        gt_schedule *s = NULL;
        TH_FAILS(gt_schedule_create_actions(&s, 2, 2, 1, NULL, NULL, lists, counts), GT_ERR_FORMAT,
                 cases[i].says);
        TH_TRUE(s == NULL);
    }
}

/* Both ranks post their sends late: legal lists whose order never lets a transfer happen. */
static void create_actions_finds_circular_wait(void **state)
{
    (void)state;
    const gt_action a[] = {{F, 0, 0}, {RB, 0, 0}, {B, 0, 0}, {SF, 0, 0}};
    const gt_action b[] = {{RF, 0, 0}, {F, 0, 0}, {B, 0, 0}, {SB, 0, 0}};
    const gt_action *lists[] = {a, b};
    const int counts[] = {4, 4};
    gt_schedule *s = NULL;
    TH_FAILS(gt_schedule_create_actions(&s, 2, 1, 1, NULL, NULL, lists, counts), GT_ERR_FORMAT,
             "rank 1, action 1 (forward of microbatch 0, chunk 0) waits for the output of stage 0");
}

/* Two towers of one and two stages, joined by a head. */
static void graph_of_stages_runs_1f1b(void **state)
{
    (void)state;
    const int next[] = {2, 3, 3, -1}; /* 0 -> 2 -> 3, 1 -> 3 */
    for (int m = 1; m <= 9; m++) {
        for (int k = 0; k < 2; k++) {
            gt_schedule_params p = GT_SCHEDULE_PARAMS_INIT;
            p.name = names[k];
            p.ranks = 4;
            p.microbatches = m;
            p.next = next;
            gt_schedule *s = NULL;
            TH_OK(gt_schedule_create_params(&s, &p));
            int previous[GT_MAX_PORTS];
            TH_EQUAL(gt_schedule_previous(s, 3, previous), 2);
            TH_EQUAL(previous[0], 1);
            TH_EQUAL(previous[1], 2);
            near(simulate(s, unit).bubble, 2 * 3); /* the longer tower has 3 stages */
            gt_schedule_destroy(&s);
        }
    }
    const int bad[] = {2, 0, 3, -1};
    gt_schedule_params p = GT_SCHEDULE_PARAMS_INIT;
    p.ranks = 4;
    p.next = bad;
    gt_schedule *s = NULL;
    TH_FAILS(gt_schedule_create_params(&s, &p), GT_ERR_ARGUMENT, "next stage of stage 1 is 0");
    p.next = next;
    p.name = "zb-h1";
    TH_FAILS(gt_schedule_create_params(&s, &p), GT_ERR_CONFIG, "chain");
}

static void simulate_refuses(void **state)
{
    (void)state;
    gt_schedule *s = make("1f1b", 2, 2, 1);
    gt_schedule_report report;
    gt_stage_cost bad = {1, -1, 1, 0, 0};
    TH_FAILS(gt_schedule_simulate(&report, NULL, s, &bad, 1), GT_ERR_ARGUMENT, "stage 0");
    TH_FAILS(gt_schedule_simulate(&report, NULL, s, &unit, 3), GT_ERR_ARGUMENT, "want 1 or 2");
    gt_schedule_destroy(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedule_all_are_valid),
        cmocka_unit_test(simulate_bubble_of_gpipe_and_1f1b),
        cmocka_unit_test(simulate_bubble_of_interleaved),
        cmocka_unit_test(simulate_bubble_of_zero_bubble),
        cmocka_unit_test(simulate_zero_bubble_paper),
        cmocka_unit_test(zb_v_places_both_ends_on_rank_0),
        cmocka_unit_test(create_refuses),
        cmocka_unit_test(create_actions_refuses),
        cmocka_unit_test(create_actions_finds_circular_wait),
        cmocka_unit_test(graph_of_stages_runs_1f1b),
        cmocka_unit_test(simulate_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
