/* SPDX-License-Identifier: Apache-2.0
 *
 * The activation memory of every rank of a pipeline is what its schedule's report says, to the
 * byte:
 *
 *     slots x bytes of a slot + boundary buffers + two gradients of one block's output (scratch)
 *
 * A slot is what a microbatch leaves behind in a chunk: what its blocks save, and the outputs
 * inside.
 */
#include <stdio.h>

#include <geektrain/pipeline.h>

#include "train/layout_run.h"
#include "train/probe_blocks.h"
#include "trainer/engine.h"

struct row {
    const char *schedule;
    int ranks, chunks, micro;
};

static const struct row rows[] = {
    {"1f1b", 2, 1, 1},        {"1f1b", 3, 1, 1},        {"1f1b", 4, 1, 1},
    {"1f1b", 4, 1, 6},        {"gpipe", 2, 1, 1},       {"gpipe", 3, 1, 2},
    {"gpipe", 4, 1, 1},       {"zb-h1", 2, 1, 1},       {"zb-h1", 3, 1, 1},
    {"zb-h1", 4, 1, 1},       {"zb-h1", 4, 1, 4},       {"interleaved", 2, 2, 1},
    {"interleaved", 3, 2, 1}, {"interleaved", 4, 2, 1}, {"interleaved", 2, 3, 1},
};

/* Blocks per stage: one, and one more at either end of the model. */
static int blocks_of(int stage, int stages)
{
    return 1 + (stage == 0) + (stage == stages - 1);
}

/* Most microbatches that the list holds at once in a chunk. */
static int peak_of_chunk(const gt_schedule *s, int rank, int chunk)
{
    const gt_action *a;
    int live = 0, peak = 0, n = gt_schedule_actions(s, rank, &a);
    gt_action_kind last =
        gt_schedule_splits_backward(s) ? GT_ACTION_BACKWARD_WEIGHT : GT_ACTION_BACKWARD;
    for (int i = 0; i < n; i++) {
        live += a[i].chunk == chunk && a[i].kind == GT_ACTION_FORWARD;
        live -= a[i].chunk == chunk && a[i].kind == last;
        peak = live > peak ? live : peak;
    }
    return peak;
}

/* Chunks have slots of their own, or share the report's number of them, large enough for each:
 * whichever is less. */
static size_t slots_bytes(const gt_schedule *s, int rank, const gt_rank_report *report,
                          size_t saved, size_t output)
{
    int stages = gt_schedule_stages(s);
    size_t apart = 0, largest = 0;
    for (int c = 0; c < gt_schedule_chunks(s); c++) {
        size_t blocks = (size_t)blocks_of(gt_schedule_stage(s, rank, c), stages);
        size_t bytes = blocks * saved + (blocks - 1) * output;
        apart += (size_t)peak_of_chunk(s, rank, c) * bytes;
        largest = bytes > largest ? bytes : largest;
    }
    size_t together = (size_t)report->peak_live * largest;
    TH_TRUE(gt_schedule_chunks(s) > 1 || together == apart);
    return together < apart ? together : apart;
}

static size_t expected(const struct row *r, int rank, const gt_schedule *s)
{
    size_t saved = PROBE_SAVED * (size_t)r->micro, output = PROBE_OUTPUT * (size_t)r->micro;
    const gt_stage_cost unit = {1, 1, 1, 0, 0};
    gt_schedule_report whole;
    gt_rank_report all[4];
    TH_OK(gt_schedule_simulate(&whole, all, s, &unit, 1));
    const gt_rank_report *mine = &all[rank];
    size_t buffers = (size_t)(mine->input_buffers + mine->output_buffers + mine->gradient_buffers +
                              mine->input_gradient_buffers);
    return slots_bytes(s, rank, mine, saved, output) + buffers * output + 2 * output;
}

static void one_rank(gt_comm *world, gt_context *ctx, void *user)
{
    const struct row *r = user;
    const layout l = {
        .pp = r->ranks, .micro = r->micro, .schedule = r->schedule, .chunks = r->chunks};
    int32_t tokens[LAYOUT_BATCH * PROBE_ROWS], targets[LAYOUT_BATCH * PROBE_ROWS];
    int rank = gt_comm_rank(world);
    gt_config config;
    gt_batch batch;
    gt_model *model = NULL;
    gt_trainer *trainer = NULL;
    gt_memory_stats stats;
    layout_config(&config, &l);
    layout_batch(&batch, tokens, targets, &config, 0, 0, 1);
    TH_OK(gt_model_create(&model));
    TH_OK(probe_add(model, r->ranks * r->chunks + 2, NULL));
    TH_OK(gt_trainer_create(&trainer, ctx, world, model, &config));
    for (int step = 0; step < 2; step++) {
        TH_OK(gt_trainer_step(trainer, &batch, NULL));
    }
    gt_memory_get_stats(ctx, &stats);
    size_t want = expected(r, rank, trainer->schedule);
    if (stats.peak[GT_MEM_ACTIVATIONS] != want) {
        th_fail(__FILE__, __LINE__,
                "%s of %d ranks, %d chunks: rank %d holds %zu bytes, wanted %zu", r->schedule,
                r->ranks, r->chunks, rank, stats.peak[GT_MEM_ACTIVATIONS], want);
    }
    gt_trainer_destroy(&trainer);
    gt_model_destroy(&model);
}

static void run(void **state)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct row r = rows[i];
        gti_run_ranks(r.ranks, one_rank, "cpu", &r);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(run)};
    return cmocka_run_group_tests_name("pipeline memory", tests, NULL, NULL);
}
