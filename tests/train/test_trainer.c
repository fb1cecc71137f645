/* SPDX-License-Identifier: Apache-2.0
 * The step engine away from the sunny path: bad input, failing ranks, failing allocations, skipped
 * steps, short and empty batches. */
#include <math.h>
#include <stdio.h>

#include "train/layout_run.h"

struct bench {
    gt_config config;
    gt_model *model;
    gt_trainer *trainer;
    int32_t tokens[LAYOUT_BATCH * 8], targets[LAYOUT_BATCH * 8];
    gt_batch batch;
    int rank, size;
};

static gt_status open_bench(struct bench *b, gt_comm *world, gt_context *ctx, const layout *l)
{
    memset(b, 0, sizeof(*b));
    layout_config(&b->config, l);
    TH_OK(gt_model_create(&b->model));
    TH_OK(gt_model_add_gpt(b->model, &b->config.model));
    gt_status st = gt_trainer_create(&b->trainer, ctx, world, b->model, &b->config);
    if (st == GT_OK) {
        b->rank = gt_mesh_index(gt_trainer_mesh(b->trainer), GT_AXIS_DP);
        b->size = gt_mesh_size(gt_trainer_mesh(b->trainer), GT_AXIS_DP);
    }
    return st;
}

static void close_bench(struct bench *b)
{
    gt_trainer_destroy(&b->trainer);
    gt_model_destroy(&b->model);
}

static void load_batch(struct bench *b, int step)
{
    layout_batch(&b->batch, b->tokens, b->targets, &b->config, step, b->rank, b->size);
}

/* A rank may have run ahead into its failure while this one is still being told that the last
 * collective of its set-up is complete. */
static bool peer_failed_already(gt_status st, const char *sentence)
{
    if (st == GT_OK) {
        return false;
    }
    TH_EQUAL(st, GT_ERR_PEER);
    TH_TRUE(strstr(gt_last_error(), sentence) != NULL);
    return true;
}

/* ---- data -------------------------------------------------------------------------------------
 */

/* A target outside the vocabulary on one rank: all ranks return within the time limit, the guilty
 * one with the sentence that names the row, the others with that rank's. */
static void bad_target(gt_comm *world, gt_context *ctx, void *user)
{
    struct bench b;
    const layout l = {.dp = gt_comm_size(world), .micro = 1};
    if (peer_failed_already(open_bench(&b, world, ctx, &l), "61")) {
        close_bench(&b);
        return;
    }
    load_batch(&b, 0);
    if (gt_comm_rank(world) == gt_comm_size(world) - 1) {
        b.targets[3] = (int32_t)b.config.model.vocab;
        TH_FAILS(gt_trainer_step(b.trainer, &b.batch, NULL), GT_ERR_ARGUMENT, "61");
    } else {
        TH_FAILS(gt_trainer_step(b.trainer, &b.batch, NULL), GT_ERR_PEER, "61");
    }
    TH_FAILS(gt_trainer_step(b.trainer, &b.batch, NULL), GT_ERR_STATE, "failed before");
    close_bench(&b);
    (void)user;
}

static void bad_batch(gt_comm *world, gt_context *ctx, void *user)
{
    struct bench b;
    const layout l = {.micro = 3};
    TH_OK(open_bench(&b, world, ctx, &l));
    load_batch(&b, 0);
    b.batch.seq = 7;
    TH_FAILS(gt_trainer_step(b.trainer, &b.batch, NULL), GT_ERR_SHAPE, "samples of 7 tokens");
    close_bench(&b);
    (void)user;
}

static void bad_sample_number(gt_comm *world, gt_context *ctx, void *user)
{
    struct bench b;
    const layout l = {.micro = 3};
    TH_OK(open_bench(&b, world, ctx, &l));
    load_batch(&b, 0);
    b.batch.first_sample = -1;
    TH_FAILS(gt_trainer_step(b.trainer, &b.batch, NULL), GT_ERR_ARGUMENT, "is number -1");
    close_bench(&b);
    (void)user;
}

/* All targets ignored: loss 0, no step, nothing NaN; the next real batch trains as if it were the
 * first. */
static void no_tokens(gt_comm *world, gt_context *ctx, void *user)
{
    struct bench b;
    const layout l = {.dp = gt_comm_size(world), .micro = 1, .no_dropout = true};
    gt_step_result first = GT_STEP_RESULT_INIT, r = GT_STEP_RESULT_INIT;
    TH_OK(open_bench(&b, world, ctx, &l));
    load_batch(&b, 0);
    for (int i = 0; i < LAYOUT_BATCH * 8; i++) {
        b.targets[i] = -100;
    }
    TH_OK(gt_trainer_step(b.trainer, &b.batch, &first));
    TH_EQUAL(first.outcome, GT_STEP_SKIPPED_NO_TOKENS);
    TH_TRUE(first.loss == 0.0 && first.tokens == 0 && first.gradient_norm == 0.0);
    load_batch(&b, 0);
    TH_OK(gt_trainer_step(b.trainer, &b.batch, &r));
    TH_EQUAL(r.outcome, GT_STEP_APPLIED);
    TH_EQUAL(r.applied, 1);
    TH_EQUAL(r.skipped, 1);
    TH_TRUE(isfinite(r.loss) && r.loss > 3.0);
    close_bench(&b);
    (void)user;
}

/* Initial values follow the configuration's seed, whatever the context's. */
static void seeds(gt_comm *world, gt_context *ctx, void *user)
{
    double loss[3];
    const uint64_t seed[3] = {7, 8, 7};
    for (int i = 0; i < 3; i++) {
        struct bench b;
        gt_step_result r = GT_STEP_RESULT_INIT;
        const layout l = {.dp = gt_comm_size(world), .micro = 1, .no_dropout = true};
        memset(&b, 0, sizeof(b));
        layout_config(&b.config, &l);
        b.config.seed = seed[i];
        b.rank = gt_comm_rank(world);
        b.size = gt_comm_size(world);
        TH_OK(gt_model_create(&b.model));
        TH_OK(gt_model_add_gpt(b.model, &b.config.model));
        TH_OK(gt_trainer_create(&b.trainer, ctx, world, b.model, &b.config));
        load_batch(&b, 0);
        TH_OK(gt_trainer_step(b.trainer, &b.batch, &r));
        loss[i] = r.loss;
        close_bench(&b);
    }
    TH_TRUE(loss[0] != loss[1] && loss[0] == loss[2]);
    (void)user;
}

/* A last batch that is short on some ranks and empty on others is the mean over what is there. */
static void short_batch(gt_comm *world, gt_context *ctx, void *user)
{
    double *want = user;
    struct bench b;
    int size = gt_comm_size(world);
    const layout l = {.dp = size, .micro = 2, .no_dropout = true};
    gt_step_result r = GT_STEP_RESULT_INIT;
    TH_OK(open_bench(&b, world, ctx, &l));
    load_batch(&b, 0);
    int64_t each = LAYOUT_BATCH / size, first = each * gt_comm_rank(world);
    int64_t here = 5 - first; /* the global batch has 5 samples */
    b.batch.samples = here < 0 ? 0 : here < each ? here : each;
    TH_OK(gt_trainer_step(b.trainer, &b.batch, &r));
    if (size == 1) {
        want[0] = r.loss;
        want[1] = r.gradient_norm;
    }
    TH_TRUE(fabs(r.loss - want[0]) < 1e-6 * want[0]);
    TH_TRUE(fabs(r.gradient_norm - want[1]) < 1e-5 * want[1]);
    close_bench(&b);
}

/* ---- optimizers -------------------------------------------------------------------------------
 */
/* Losses of three steps; with eps 0 most rows of the embedding have had no gradient. */
static void optimizer_losses(gt_comm *world, gt_context *ctx, const gt_optimizer_config *optimizer,
                             double loss[3])
{
    struct bench b;
    const layout l = {.dp = gt_comm_size(world), .micro = 1, .zero = 2, .no_dropout = true};
    memset(&b, 0, sizeof(b));
    layout_config(&b.config, &l);
    b.config.optimizer = *optimizer;
    TH_OK(gt_model_create(&b.model));
    TH_OK(gt_model_add_gpt(b.model, &b.config.model));
    TH_OK(gt_trainer_create(&b.trainer, ctx, world, b.model, &b.config));
    b.rank = gt_comm_rank(world);
    b.size = gt_comm_size(world);
    for (int step = 0; step < 3; step++) {
        gt_step_result r = GT_STEP_RESULT_INIT;
        load_batch(&b, step);
        TH_OK(gt_trainer_step(b.trainer, &b.batch, &r));
        TH_EQUAL(r.outcome, GT_STEP_APPLIED);
        TH_TRUE(isfinite(r.loss));
        loss[step] = r.loss;
    }
    close_bench(&b);
}

/* LAMB whose trust ratio is held to 1 is AdamW; each bound counts. */
static void bounded_trust(gt_comm *world, gt_context *ctx, void *user)
{
    gt_config config;
    const layout l = {.micro = 1};
    double adamw[3], bound[4][3];
    const double bounds[4][2] = {{1.0, 1.0}, {0.0, 1e30}, {0.5, 1e30}, {0.0, 0.5}};
    layout_config(&config, &l);
    gt_optimizer_config o = config.optimizer;
    optimizer_losses(world, ctx, &o, adamw);
    o.type = GT_LAMB;
    for (int i = 0; i < 4; i++) {
        o.min_coeff = bounds[i][0];
        o.max_coeff = bounds[i][1];
        optimizer_losses(world, ctx, &o, bound[i]);
        for (int k = 0; k < i; k++) {
            TH_TRUE(fabs(bound[i][2] - bound[k][2]) > 5e-6 * adamw[2]);
        }
    }
    TH_TRUE(fabs(bound[0][2] - adamw[2]) < 1e-6 * adamw[2]);
    (void)user;
}

static void no_epsilon(gt_comm *world, gt_context *ctx, void *user)
{
    static const gt_optimizer_type types[] = {GT_ADAMW, GT_ADAM, GT_LAMB};
    static const double eps[] = {0.0, 1e-46};
    for (int i = 0; i < 6; i++) {
        gt_config config;
        const layout l = {.micro = 1};
        double losses[3];
        layout_config(&config, &l);
        config.optimizer.type = types[i / 2];
        config.optimizer.eps = eps[i % 2];
        optimizer_losses(world, ctx, &config.optimizer, losses);
    }
    (void)user;
}

/* ---- skipped steps ----------------------------------------------------------------------------
 */

/* A loss scale far too high overflows: every rank skips, the reason and a parameter are named,
 * neither learning rate nor optimizer advance, and the scale comes down until steps apply. */
static void overflow(gt_comm *world, gt_context *ctx, void *user)
{
    struct bench b;
    const layout l = {.dp = gt_comm_size(world), .micro = 1, .dtype = GT_F16, .zero = 2};
    layout_config(&b.config, &l);
    TH_OK(gt_model_create(&b.model));
    TH_OK(gt_model_add_gpt(b.model, &b.config.model));
    b.config.scaler.initial_power = 32;
    b.config.scaler.hysteresis = 1;
    b.config.scheduler =
        (gt_scheduler_config){.type = GT_LR_WARMUP, .max_lr = 1e-2, .warmup_steps = 100};
    TH_OK(gt_trainer_create(&b.trainer, ctx, world, b.model, &b.config));
    b.rank = gt_comm_rank(world);
    b.size = gt_comm_size(world);
    gt_step_result r = GT_STEP_RESULT_INIT;
    int skipped = 0;
    double scale = 4294967296.0;
    for (int step = 0; step < 40; step++) {
        load_batch(&b, step);
        TH_OK(gt_trainer_step(b.trainer, &b.batch, &r));
        TH_TRUE(r.loss_scale == scale && isfinite(r.loss));
        if (r.outcome == GT_STEP_APPLIED) {
            break;
        }
        skipped++;
        scale /= 2;
        TH_EQUAL(r.outcome, GT_STEP_SKIPPED_OVERFLOW);
        TH_EQUAL(r.scaler_event, GT_SCALER_SHRANK);
        TH_EQUAL(r.applied, 0);
        TH_EQUAL(r.skipped, skipped);
        TH_TRUE(r.offender[0] != '\0' && r.offender_rank >= 0);
        TH_TRUE(r.learning_rate == 0.0);
    }
    TH_TRUE(skipped > 0);
    TH_EQUAL(r.outcome, GT_STEP_APPLIED);
    TH_EQUAL(r.applied, 1);
    close_bench(&b);
    (void)user;
}

/* One rank alone has a NaN (in a parameter it loads): every rank skips the same step. */
static void one_rank_nan(gt_comm *world, gt_context *ctx, void *user)
{
    struct bench b;
    const layout l = {.dp = gt_comm_size(world), .micro = 1};
    TH_OK(open_bench(&b, world, ctx, &l));
    float bias[32] = {0};
    if (gt_comm_rank(world) == gt_comm_size(world) - 1) {
        bias[5] = NAN;
    }
    TH_OK(gt_trainer_load_param(b.trainer, "head.norm.bias", bias, 32));
    gt_step_result r = GT_STEP_RESULT_INIT;
    load_batch(&b, 0);
    TH_OK(gt_trainer_step(b.trainer, &b.batch, &r));
    TH_EQUAL(r.outcome, GT_STEP_SKIPPED_NONFINITE);
    TH_TRUE(!isfinite(r.gradient_norm));
    TH_TRUE(r.offender[0] != '\0');
    TH_EQUAL(r.applied, 0);
    close_bench(&b);
    (void)user;
}

/* ---- set-up -----------------------------------------------------------------------------------
 */

static void different_configs(gt_comm *world, gt_context *ctx, void *user)
{
    struct bench b;
    layout l = {.dp = gt_comm_size(world), .micro = 1};
    layout_config(&b.config, &l);
    b.model = NULL;
    b.trainer = NULL;
    TH_OK(gt_model_create(&b.model));
    TH_OK(gt_model_add_gpt(b.model, &b.config.model));
    b.config.optimizer.lr = gt_comm_rank(world) == 1 ? 2e-3 : 1e-3;
    TH_FAILS(gt_trainer_create(&b.trainer, ctx, world, b.model, &b.config), GT_ERR_MISMATCH,
             "the configuration");
    close_bench(&b);
    (void)user;
}

static void bad_configs(gt_comm *world, gt_context *ctx, void *user)
{
    struct bench b;
    layout l = {.dp = gt_comm_size(world), .micro = 1};
    gt_trainer *t = NULL;
    layout_config(&b.config, &l);
    TH_OK(gt_model_create(&b.model));
    TH_OK(gt_model_add_gpt(b.model, &b.config.model));
    gt_config c = b.config;
    c.train_batch = 13;
    TH_FAILS(gt_trainer_create(&t, ctx, world, b.model, &c), GT_ERR_CONFIG, "13");
    c = b.config;
    c.mesh.tp = 5;
    TH_FAILS(gt_trainer_create(&t, ctx, world, b.model, &c), GT_ERR_CONFIG, "5");
    c = b.config;
    c.optimizer.lr = NAN;
    TH_FAILS(gt_trainer_create(&t, ctx, world, b.model, &c), GT_ERR_CONFIG, "nan");
    c = b.config;
    c.micro_batch = 0;
    TH_FAILS(gt_trainer_create(&t, ctx, world, b.model, &c), GT_ERR_CONFIG, "gt_config_resolve");
    TH_TRUE(t == NULL);
    gt_model_destroy(&b.model);
    (void)user;
}

/* Allocation number n fails on the last rank: creation returns GT_ERR_MEMORY there and GT_ERR_PEER
 * elsewhere, nothing leaks (the harness looks), and it works when nothing fails. */
struct failing {
    uint64_t n;
    bool worked;
};

static void failing_allocation(gt_comm *world, gt_context *ctx, void *user)
{
    struct failing *f = user;
    struct bench b;
    const layout l = {.dp = gt_comm_size(world), .micro = 3, .zero = 2, .recompute = true};
    bool guilty = gt_comm_rank(world) == gt_comm_size(world) - 1;
    gt_memory_fail_at(ctx, guilty ? f->n : 0);
    gt_status st = open_bench(&b, world, ctx, &l);
    gt_memory_fail_at(ctx, 0);
    close_bench(&b);
    if (guilty) {
        f->worked = st == GT_OK;
    }
    if (st != GT_OK && st != (guilty ? GT_ERR_MEMORY : GT_ERR_PEER)) {
        th_fail(__FILE__, __LINE__, "allocation %d, rank %d: %s: %s", (int)f->n,
                gt_comm_rank(world), gt_status_name(st), gt_last_error());
    }
}

static void failing_allocations(void **state)
{
    struct failing f = {0, false};
    while (!f.worked) {
        f.n++;
        gti_run_ranks(2, failing_allocation, "cpu", &f);
    }
    assert_true(f.n > 20);
    (void)state;
}

/* The first step makes the rotating buffers; whichever of them cannot be had, every rank gets an
 * error. */
static void failing_step(gt_comm *world, gt_context *ctx, void *user)
{
    struct failing *f = user;
    struct bench b;
    const layout l = {.dp = gt_comm_size(world), .micro = 2, .zero = 3};
    bool guilty = gt_comm_rank(world) == gt_comm_size(world) - 1;
    if (peer_failed_already(open_bench(&b, world, ctx, &l), "")) {
        close_bench(&b);
        return;
    }
    load_batch(&b, 0);
    gt_memory_fail_at(ctx, guilty ? f->n : 0);
    gt_status st = gt_trainer_step(b.trainer, &b.batch, NULL);
    gt_memory_fail_at(ctx, 0);
    if (guilty) {
        f->worked = st == GT_OK;
    }
    if (st != GT_OK) {
        TH_EQUAL(st, guilty ? GT_ERR_MEMORY : GT_ERR_PEER);
        TH_FAILS(gt_trainer_step(b.trainer, &b.batch, NULL), GT_ERR_STATE, "failed before");
    }
    close_bench(&b);
}

static void failing_allocations_in_a_step(void **state)
{
    for (int ranks = 2; ranks <= 3; ranks++) {
        struct failing f = {0, false};
        while (!f.worked) {
            f.n++;
            gti_run_ranks(ranks, failing_step, "cpu", &f);
        }
        assert_true(f.n > 3);
    }
    (void)state;
}

/* A model whose states do not fit one rank's memory trains on four at stage 3. */
static void memory_limit(gt_comm *world, gt_context *ctx, void *user)
{
    size_t *limit = user;
    struct bench b;
    const layout l = {.dp = gt_comm_size(world), .micro = 1, .zero = 3};
    layout_config(&b.config, &l);
    b.config.model.layers = 96;
    b.trainer = NULL;
    b.rank = gt_comm_rank(world);
    b.size = gt_comm_size(world);
    TH_OK(gt_model_create(&b.model));
    TH_OK(gt_model_add_gpt(b.model, &b.config.model));
    gt_memory_set_limit(ctx, *limit);
    gt_status st = gt_trainer_create(&b.trainer, ctx, world, b.model, &b.config);
    if (gt_comm_size(world) == 1 && *limit == 0) { /* how much it takes without a limit */
        gt_memory_stats m;
        gt_memory_get_stats(ctx, &m);
        *limit = m.live_total / 2;
    } else if (gt_comm_size(world) == 1) {
        TH_EQUAL(st, GT_ERR_MEMORY);
        TH_TRUE(strstr(gt_last_error(), "limit") != NULL);
    } else {
        gt_step_result r = GT_STEP_RESULT_INIT;
        TH_EQUAL(st, GT_OK);
        load_batch(&b, 0);
        TH_OK(gt_trainer_step(b.trainer, &b.batch, &r));
        TH_EQUAL(r.outcome, GT_STEP_APPLIED);
    }
    close_bench(&b);
}

static void memory_limits(void **state)
{
    size_t limit = 0;
    gti_run_ranks(1, memory_limit, "cpu", &limit);
    gti_run_ranks(1, memory_limit, "cpu", &limit);
    gti_run_ranks(4, memory_limit, "cpu", &limit);
    (void)state;
}

/* ---- table ------------------------------------------------------------------------------------
 */

struct row {
    const char *name;
    gti_rank_fn fn;
    int least, most;
};

static const struct row rows[] = {
    {"a target outside the vocabulary", bad_target, 2, 3},
    {"a batch of another length", bad_batch, 1, 1},
    {"a batch before the first", bad_sample_number, 1, 1},
    {"all targets ignored", no_tokens, 1, 3},
    {"a short last batch", short_batch, 1, 3},
    {"the seed of the configuration", seeds, 1, 2},
    {"LAMB's trust ratio within bounds", bounded_trust, 1, 2},
    {"Adam and LAMB without epsilon", no_epsilon, 1, 2},
    {"overflow of the loss scale", overflow, 1, 2},
    {"NaN on one rank", one_rank_nan, 2, 3},
    {"different configurations", different_configs, 2, 3},
    {"bad configurations", bad_configs, 1, 2},
};

static void run(void **state)
{
    const struct row *r = *state;
    double shared[2] = {0};
    for (int ranks = r->least; ranks <= r->most; ranks++) {
        gti_run_ranks(ranks, r->fn, "cpu", shared);
    }
}

int main(void)
{
    enum { ROWS = sizeof(rows) / sizeof(rows[0]) };
    struct CMUnitTest tests[ROWS + 3] = {
        [ROWS] = cmocka_unit_test(failing_allocations),
        [ROWS + 1] = cmocka_unit_test(failing_allocations_in_a_step),
        [ROWS + 2] = cmocka_unit_test(memory_limits),
    };
    for (int i = 0; i < ROWS; i++) {
        tests[i] = (struct CMUnitTest){rows[i].name, run, NULL, NULL, (void *)&rows[i]};
    }
    return cmocka_run_group_tests_name("trainer", tests, NULL, NULL);
}
