/* SPDX-License-Identifier: Apache-2.0
 * The step engine's schedule and cut of the model: made for what the blocks cost, alike on all
 * ranks. */
#include <math.h>
#include <stdio.h>

#include <geektrain/schedule.h>

#include "train/layout_run.h"
#include "train/probe_blocks.h"
#include "trainer/engine.h"

/* Eight probes of one FLOP over four stages, 1,3,1,1 and one more at either end; the last of them,
 * the loss, does its backward pass in its forward call. */
static const gt_stage_cost probe_cost[] = {
    {2, 2, 2, 0, 0}, {3, 3, 3, 0, 0}, {1, 1, 1, 0, 0}, {4, 1, 1, 0, 0}};

static double makespan(const gt_schedule *s)
{
    gt_schedule_report report;
    TH_OK(gt_schedule_simulate(&report, NULL, s, probe_cost, 4));
    return report.makespan;
}

static void zero_bubble_costs(gt_comm *world, gt_context *ctx, void *user)
{
    const layout l = {.pp = 2, .schedule = "zb-v", .chunks = 2};
    gt_config config;
    gt_model *model = NULL;
    gt_trainer *trainer = NULL;
    gt_schedule *plain = NULL;
    layout_config(&config, &l);
    snprintf(config.mesh.partition, sizeof(config.mesh.partition), "1,3,1,1");
    TH_OK(gt_model_create(&model));
    TH_OK(probe_add(model, 8, NULL));
    TH_OK(gt_trainer_create(&trainer, ctx, world, model, &config));
    TH_OK(gt_schedule_create(&plain, "zb-v", 2, LAYOUT_BATCH, 2));
    double got = makespan(trainer->schedule), without = makespan(plain);
    if (!(got < without)) {
        th_fail(__FILE__, __LINE__, "makespan %g; %g without costs", got, without);
    }
    gt_schedule_destroy(&plain);
    gt_trainer_destroy(&trainer);
    gt_model_destroy(&model);
    (void)user;
}

/* 61 tokens over two ranks: their shares of the head differ by one, their costs must not. */
static void uneven_shares(gt_comm *world, gt_context *ctx, void *user)
{
    const layout l = {.tp = 2, .pp = 2, .schedule = "zb-h1"};
    gt_config config;
    gt_model *model = NULL;
    gt_trainer *trainer = NULL;
    double flops[8];
    layout_config(&config, &l);
    TH_OK(gt_model_create(&model));
    TH_OK(gt_model_add_gpt(model, &config.model));
    TH_OK(gt_trainer_create(&trainer, ctx, world, model, &config));
    int n = trainer->block_count;
    const struct engine_block *head = &trainer->blocks[n - 1];
    TH_TRUE(n <= 8);
    for (int i = 0; i < n; i++) {
        flops[i] = trainer->blocks[i].flops;
    }
    TH_TRUE((head->plan[LAYOUT_TRAIN].forward_flops < head->flops) ==
            (gt_mesh_index(trainer->mesh, GT_AXIS_TP) == 1));
    TH_OK(gt_comm_check_equal(world, "the blocks' costs", flops, (size_t)n * sizeof(double)));
    gt_trainer_destroy(&trainer);
    gt_model_destroy(&model);
    (void)user;
}

/* What the calls of a step took, per stage: all of it, and what a schedule can be made for. */
static void measured_costs(gt_comm *world, gt_context *ctx, void *user)
{
    const layout l = {.pp = 2, .schedule = "zb-h1"};
    int32_t tokens[LAYOUT_BATCH * 8], targets[LAYOUT_BATCH * 8];
    gt_config config;
    gt_batch batch;
    gt_model *model = NULL;
    gt_trainer *trainer = NULL;
    gt_stage_cost cost;
    gt_pipeline_stats stats;
    layout_config(&config, &l);
    layout_batch(&batch, tokens, targets, &config, 0, 0, 1);
    TH_OK(gt_model_create(&model));
    TH_OK(gt_model_add_gpt(model, &config.model));
    TH_OK(gt_trainer_create(&trainer, ctx, world, model, &config));
    for (int step = 0; step < 2; step++) {
        TH_OK(gt_trainer_step(trainer, &batch, NULL));
        gt_pipeline_get_costs(gt_trainer_pipeline(trainer), &cost);
        gt_pipeline_get_stats(gt_trainer_pipeline(trainer), &stats);
        double sum = cost.forward + cost.backward_input + cost.backward_weight;
        TH_TRUE(cost.forward > 0 && cost.backward_input > 0 && cost.backward_weight > 0);
        TH_TRUE(fabs(sum * LAYOUT_BATCH - stats.compute_s) < 1e-9);
    }
    gt_trainer_destroy(&trainer);
    gt_model_destroy(&model);
    (void)user;
}

static void test_measured_costs(void **state)
{
    gti_run_ranks(2, measured_costs, "cpu", NULL);
    (void)state;
}

static void test_zero_bubble_costs(void **state)
{
    gti_run_ranks(2, zero_bubble_costs, "cpu", NULL);
    (void)state;
}

static void test_uneven_shares(void **state)
{
    gti_run_ranks(4, uneven_shares, "cpu", NULL);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_zero_bubble_costs),
                                       cmocka_unit_test(test_uneven_shares),
                                       cmocka_unit_test(test_measured_costs)};
    return cmocka_run_group_tests_name("placement", tests, NULL, NULL);
}
