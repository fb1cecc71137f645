/* SPDX-License-Identifier: Apache-2.0
 *
 * A block that fails in the middle of a schedule on one rank of pp x dp: every rank returns an
 * error with the block's sentence, within the time limit, whatever it was waiting for, and the
 * trainer says so afterwards.
 */
#include <stdatomic.h>

#include "train/layout_run.h"
#include "train/probe_blocks.h"

struct row {
    const char *schedule;
    int chunks, zero, block;
    bool backward;
};

/* Blocks 0..3, or 0..5 of two chunks; rank 0 of the pipeline has the first. */
static const struct row rows[] = {
    {"1f1b", 1, 0, 0, false}, {"1f1b", 1, 2, 1, true},        {"1f1b", 1, 3, 3, false},
    {"gpipe", 1, 1, 2, true}, {"interleaved", 2, 0, 2, true}, {"interleaved", 2, 3, 4, false},
    {"zb-h1", 1, 0, 2, true}, {"zb-h1", 1, 2, 0, true},
};
struct run {
    const struct row *row;
    atomic_int guilty; /* ranks that returned the block's own code */
};

enum { PP = 2, DP = 2, GUILTY_DP = 1 };

static void one_rank(gt_comm *world, gt_context *ctx, void *user)
{
    struct run *run = user;
    const struct row *r = run->row;
    const layout l = {
        .pp = PP, .dp = DP, .zero = r->zero, .schedule = r->schedule, .chunks = r->chunks};
    int32_t tokens[LAYOUT_BATCH * PROBE_ROWS], targets[LAYOUT_BATCH * PROBE_ROWS];
    probe_fault fault = {.block = -1, .microbatch = 2, .backward = r->backward};
    gt_config config;
    gt_batch batch;
    gt_model *model = NULL;
    gt_trainer *trainer = NULL;
    layout_config(&config, &l);
    TH_OK(gt_model_create(&model));
    TH_OK(probe_add(model, PP * r->chunks + 2, &fault));
    TH_OK(gt_trainer_create(&trainer, ctx, world, model, &config));
    int dp = gt_mesh_index(gt_trainer_mesh(trainer), GT_AXIS_DP);
    layout_batch(&batch, tokens, targets, &config, 0, dp, DP);
    TH_OK(gt_trainer_step(trainer, &batch, NULL));
    fault.block = dp == GUILTY_DP ? r->block : -1;
    gt_status st = gt_trainer_step(trainer, &batch, NULL);
    if ((st != GT_ERR_DEVICE && st != GT_ERR_PEER) || !strstr(gt_last_error(), "microbatch 2") ||
        !strstr(gt_last_error(), "fails")) {
        th_fail(__FILE__, __LINE__, "%s, block %d: rank %d got %s: %s", r->schedule, r->block,
                gt_comm_rank(world), gt_status_name(st), gt_last_error());
    }
    TH_TRUE(st == GT_ERR_PEER || dp == GUILTY_DP);
    run->guilty += st == GT_ERR_DEVICE;
    TH_FAILS(gt_trainer_step(trainer, &batch, NULL), GT_ERR_STATE, "failed before");
    gt_trainer_destroy(&trainer);
    gt_model_destroy(&model);
}

static void run(void **state)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct run job = {.row = &rows[i]};
        gti_run_ranks(PP * DP, one_rank, "cpu", &job);
        assert_int_equal(job.guilty, 1);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(run)};
    return cmocka_run_group_tests_name("pipeline failure", tests, NULL, NULL);
}
