/* SPDX-License-Identifier: Apache-2.0
 * Layers over pipeline stages: none lost, none twice, whatever the numbers. */
#include "harness.h"

#include <geektrain/schedule.h>

static void check_cut(const int *first, int layers, int stages)
{
    TH_EQUAL(first[0], 0);
    TH_EQUAL(first[stages], layers);
    for (int s = 0; s < stages; s++) {
        TH_TRUE(first[s + 1] > first[s]);
    }
}

static double largest(const int *first, int stages, const double *cost, double before, double after)
{
    double most = 0;
    for (int s = 0; s < stages; s++) {
        double sum = (s == 0 ? before : 0) + (s == stages - 1 ? after : 0);
        for (int i = first[s]; i < first[s + 1]; i++) {
            sum += cost[i];
        }
        most = sum > most ? sum : most;
    }
    return most;
}

/* The smallest maximum by trying every cut. */
static double try_all(int *first, int stage, int layers, int stages, const double *cost,
                      double before, double after)
{
    if (stage == stages) {
        first[stages] = layers;
        return largest(first, stages, cost, before, after);
    }
    double best = 1e300;
    for (int at = first[stage - 1] + 1; at <= layers - (stages - stage); at++) {
        first[stage] = at;
        double value = try_all(first, stage + 1, layers, stages, cost, before, after);
        best = value < best ? value : best;
    }
    return best;
}

static void uniform_keeps_every_layer(void **state)
{
    (void)state;
    int first[17];
    double ones[64];
    for (int i = 0; i < 64; i++) {
        ones[i] = 1;
    }
    for (int layers = 1; layers <= 64; layers++) {
        for (int stages = 1; stages <= 16; stages++) {
            if (layers < stages) {
                TH_FAILS(gt_partition_layers(first, "uniform", layers, stages, NULL, 0, 0),
                         GT_ERR_CONFIG, "stages empty");
                TH_FAILS(gt_partition_layers(first, "cost", layers, stages, ones, 0, 0),
                         GT_ERR_CONFIG, "stages empty");
                continue;
            }
            int by_cost[17];
            TH_OK(gt_partition_layers(first, NULL, layers, stages, NULL, 0, 0));
            check_cut(first, layers, stages);
            for (int s = 0; s < stages; s++) {
                TH_EQUAL(first[s + 1] - first[s], layers / stages + (s < layers % stages));
            }
            TH_OK(gt_partition_layers(by_cost, "cost", layers, stages, ones, 0, 0));
            check_cut(by_cost, layers, stages);
            TH_TRUE(!memcmp(first, by_cost, (size_t)(stages + 1) * sizeof(int)));
        }
    }
}

static void uniform_field_case(void **state)
{
    (void)state;
    int first[5];
    TH_OK(gt_partition_layers(first, "uniform", 30, 4, NULL, 0, 0));
    TH_TRUE(first[1] == 8 && first[2] == 16 && first[3] == 23 && first[4] == 30);
    TH_OK(gt_partition_layers(first, "uniform", 10, 3, NULL, 0, 0));
    TH_TRUE(first[1] == 4 && first[2] == 7);
    TH_OK(gt_partition_layers(first, "uniform", 7, 2, NULL, 0, 0));
    TH_TRUE(first[1] == 4);
    first[0] = -7;
    TH_FAILS(gt_partition_layers(first, "uniform", 3, 4, NULL, 0, 0), GT_ERR_CONFIG,
             "3 layers on 4 pipeline stages leave 1");
    TH_EQUAL(first[0], -7);
}

static void cost_is_least(void **state)
{
    (void)state;
    uint32_t seed = 1;
    for (int trial = 0; trial < 300; trial++) {
        double cost[12];
        int first[6], other[6] = {0};
        seed = seed * 1664525u + 1013904223u;
        int layers = 5 + (int)(seed >> 16) % 8, stages = 1 + (int)(seed >> 24) % 5;
        double before = (seed >> 8) % 7, after = (seed >> 12) % 9;
        for (int i = 0; i < layers; i++) {
            seed = seed * 1664525u + 1013904223u;
            cost[i] = (seed >> 16) % 10;
        }
        TH_OK(gt_partition_layers(first, "cost", layers, stages, cost, before, after));
        check_cut(first, layers, stages);
        double got = largest(first, stages, cost, before, after);
        double want = try_all(other, 1, layers, stages, cost, before, after);
        if (got > want * (1 + 1e-9)) {
            th_fail(__FILE__, __LINE__, "trial %d: maximum %g, possible is %g", trial, got, want);
        }
    }
}

/* A heavy head takes layers away from its stage. */
static void cost_counts_the_ends(void **state)
{
    (void)state;
    double cost[12];
    int first[5];
    for (int i = 0; i < 12; i++) {
        cost[i] = 1;
    }
    TH_OK(gt_partition_layers(first, "cost", 12, 4, cost, 0.5, 2.5));
    TH_TRUE(first[4] - first[3] == 1);
    check_cut(first, 12, 4);
}

static void list_is_checked(void **state)
{
    (void)state;
    int first[5];
    TH_OK(gt_partition_layers(first, "6,6,5,7", 24, 4, NULL, 0, 0));
    TH_TRUE(first[1] == 6 && first[2] == 12 && first[3] == 17 && first[4] == 24);
    TH_FAILS(gt_partition_layers(first, "6,6,5,6", 24, 4, NULL, 0, 0), GT_ERR_CONFIG,
             "4 stages and 23 layers; want 4 stages and 24");
    TH_FAILS(gt_partition_layers(first, "12,12", 24, 4, NULL, 0, 0), GT_ERR_CONFIG, "2 stages");
    TH_FAILS(gt_partition_layers(first, "5,5,5,5,4", 24, 4, NULL, 0, 0), GT_ERR_CONFIG, "5 stages");
    TH_FAILS(gt_partition_layers(first, "8,0,8,8", 24, 4, NULL, 0, 0), GT_ERR_CONFIG, "stage 1");
    TH_FAILS(gt_partition_layers(first, "6;6", 12, 2, NULL, 0, 0), GT_ERR_CONFIG, "uniform");
    TH_FAILS(gt_partition_layers(first, "even", 12, 2, NULL, 0, 0), GT_ERR_CONFIG, "even");
    TH_FAILS(gt_partition_layers(first, "cost", 12, 2, NULL, 0, 0), GT_ERR_ARGUMENT, "cost");
    double bad[2] = {1, -1};
    TH_FAILS(gt_partition_layers(first, "cost", 2, 2, bad, 0, 0), GT_ERR_ARGUMENT, "layer 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uniform_keeps_every_layer),
        cmocka_unit_test(uniform_field_case),
        cmocka_unit_test(cost_is_least),
        cmocka_unit_test(cost_counts_the_ends),
        cmocka_unit_test(list_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
