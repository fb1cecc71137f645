/* SPDX-License-Identifier: Apache-2.0
 * A whole GPT-2 and a whole Llama against PyTorch: logits, loss, every gradient, 20 AdamW steps. */
#include <math.h>
#include <stdio.h>

#include <geektrain/geektrain.h>

#include "golden.h"
#include "ranks.h"

enum { STEPS = 20, SAMPLES = 3, SEQ = 16, VOCAB = 61 };

struct run {
    const char *file;
    bool llama;
    int tp, zero, dp;
};

static void configure(gt_config *c, const golden *g, const struct run *r)
{
    const golden_tensor *adamw = golden_get(g, "adamw");
    gt_config_init(c);
    c->train_batch = SAMPLES;
    c->micro_batch = SAMPLES / r->dp;
    c->grad_accum = 1;
    c->gradient_clipping = 0;
    c->mesh.tp = r->tp;
    c->mesh.dp = r->dp;
    c->zero.stage = r->zero;
    c->optimizer.lr = adamw->f64[0];
    c->optimizer.beta1 = adamw->f64[1];
    c->optimizer.beta2 = adamw->f64[2];
    c->optimizer.eps = adamw->f64[3];
    c->optimizer.weight_decay = adamw->f64[4];
    snprintf(c->model.type, sizeof(c->model.type), "%s", r->llama ? "llama" : "gpt2");
    c->model.layers = 2;
    c->model.width = 32;
    c->model.heads = 4;
    c->model.kv_heads = r->llama ? 2 : 4;
    c->model.ffn = r->llama ? 56 : 128;
    c->model.vocab = VOCAB;
    c->model.seq = SEQ;
    c->model.dropout = 0;
    c->model.untied = r->llama;
}

static void load_initial(gt_trainer *t, const golden *g)
{
    const gt_params *table = gt_trainer_params(t);
    for (int i = 0; i < gt_params_count(table); i++) {
        char key[256];
        gt_param_info info = GT_PARAM_INFO_INIT;
        TH_OK(gt_params_get(table, i, &info));
        snprintf(key, sizeof(key), "initial/%s", info.name);
        const golden_tensor *p = golden_get(g, key);
        TH_EQUAL(p->ndim, info.ndim);
        TH_OK(gt_trainer_load_param(t, info.name, p->f32, p->numel));
    }
}

static gt_batch batch_of(const golden *g, int step, int rank, int size)
{
    int64_t each = SAMPLES / size, at = ((int64_t)step * SAMPLES + rank * each) * SEQ;
    return (gt_batch){.samples = each,
                      .seq = SEQ,
                      .tokens = golden_get(g, "tokens")->i32 + at,
                      .targets = golden_get(g, "targets")->i32 + at,
                      .first_sample = (int64_t)step * SAMPLES + rank * each};
}

static void close_to(const char *what, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) {
        th_fail(__FILE__, __LINE__, "%s is %.9g, PyTorch has %.9g (allowed %g)", what, got, want,
                tolerance);
    }
}

/* Every value of `prefix`NAME within tolerance of the trainer's parameter times `factor` plus the
 * initial value times `initial`. */
static void compare_params(gt_trainer *t, const golden *g, const char *prefix, double initial,
                           double factor, double tolerance)
{
    const gt_params *table = gt_trainer_params(t);
    for (int i = 0; i < gt_params_count(table); i++) {
        char key[256], first[256];
        gt_param_info info = GT_PARAM_INFO_INIT;
        TH_OK(gt_params_get(table, i, &info));
        const char *name = info.name;
        snprintf(key, sizeof(key), "%s/%s", prefix, name);
        snprintf(first, sizeof(first), "initial/%s", name);
        const golden_tensor *want = golden_get(g, key), *start = golden_get(g, first);
        float *host = malloc((size_t)want->numel * sizeof(float));
        TH_OK(gt_trainer_read_param(t, name, host, want->numel));
        for (int64_t k = 0; k < want->numel; k++) {
            close_to(key, initial * start->f64[k] + factor * (double)host[k], want->f64[k],
                     tolerance);
        }
        free(host);
    }
}

static gt_trainer *make(gt_comm *world, gt_context *ctx, gt_model *model, const gt_config *config,
                        const golden *g)
{
    gt_trainer *t = NULL;
    TH_OK(gt_model_add_gpt(model, &config->model));
    TH_OK(gt_trainer_create(&t, ctx, world, model, config));
    load_initial(t, g);
    return t;
}

static void train(gt_comm *world, gt_context *ctx, void *user)
{
    const struct run *r = user;
    golden *g = golden_open(r->file);
    gt_config config;
    configure(&config, g, r);
    gt_model *model = NULL;
    TH_OK(gt_model_create(&model));
    gt_trainer *t = make(world, ctx, model, &config, g);
    int rank = gt_mesh_index(gt_trainer_mesh(t), GT_AXIS_DP);
    for (int step = 0; step < STEPS; step++) {
        gt_step_result result = GT_STEP_RESULT_INIT;
        gt_batch batch = batch_of(g, step, rank, r->dp);
        TH_OK(gt_trainer_step(t, &batch, &result));
        double loss = golden_get(g, "losses")->f64[step], norm = golden_get(g, "norms")->f64[step];
        close_to("loss", result.loss, loss, 1e-5 * loss);
        close_to("gradient norm", result.gradient_norm, norm, 1e-4 * norm);
    }
    compare_params(t, g, "final", 0, 1, 2e-5);
    gt_trainer_destroy(&t);
    gt_model_destroy(&model);
    golden_close(g);
}

/* One step of plain gradient descent at rate 1 leaves initial - gradient. */
static void gradients(gt_comm *world, gt_context *ctx, void *user)
{
    const struct run *r = user;
    golden *g = golden_open(r->file);
    gt_config config;
    configure(&config, g, r);
    config.optimizer.type = GT_SGD;
    config.optimizer.lr = 1.0;
    config.optimizer.weight_decay = 0;
    config.optimizer.momentum = 0;
    gt_model *model = NULL;
    TH_OK(gt_model_create(&model));
    gt_trainer *t = make(world, ctx, model, &config, g);
    gt_batch batch = batch_of(g, 0, gt_mesh_index(gt_trainer_mesh(t), GT_AXIS_DP), r->dp);
    TH_OK(gt_trainer_step(t, &batch, NULL));
    compare_params(t, g, "grad", 1, -1, 3e-6);
    gt_trainer_destroy(&t);
    gt_model_destroy(&model);
    golden_close(g);
}

/* The most probable next tokens are PyTorch's. */
static void logits(gt_comm *world, gt_context *ctx, void *user)
{
    const struct run *r = user;
    golden *g = golden_open(r->file);
    gt_config config;
    configure(&config, g, r);
    gt_model *model = NULL;
    TH_OK(gt_model_create(&model));
    gt_trainer *t = make(world, ctx, model, &config, g);
    const golden_tensor *want = golden_get(g, "logits"), *tokens = golden_get(g, "tokens");
    for (int s = 0; s < SAMPLES; s++) {
        for (int length = 1; length <= SEQ; length++) {
            const double *row = want->f64 + ((int64_t)s * SEQ + length - 1) * VOCAB;
            int32_t got, best = 0;
            for (int v = 1; v < VOCAB; v++) {
                best = row[v] > row[best] ? v : best;
            }
            TH_OK(gt_trainer_generate(t, tokens->i32 + s * SEQ, length, 1, 0.0f, 1, &got));
            TH_EQUAL(got, best);
        }
    }
    gt_trainer_destroy(&t);
    gt_model_destroy(&model);
    golden_close(g);
}

static void over_layouts(gti_rank_fn fn)
{
    const struct run runs[] = {
        {TEST_GOLDEN_DIR "/gpt2.gold", false, 1, 0, 1},
        {TEST_GOLDEN_DIR "/gpt2.gold", false, 2, 0, 1},
        {TEST_GOLDEN_DIR "/gpt2.gold", false, 1, 3, 3},
        {TEST_GOLDEN_DIR "/llama.gold", true, 1, 0, 1},
        {TEST_GOLDEN_DIR "/llama.gold", true, 4, 0, 1},
        {TEST_GOLDEN_DIR "/llama.gold", true, 1, 2, 3},
    };
    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        gti_run_ranks(runs[i].tp * runs[i].dp, fn, "cpu", (void *)&runs[i]);
    }
}

static void golden_training(void **state)
{
    over_layouts(train);
    (void)state;
}

static void golden_gradients(void **state)
{
    over_layouts(gradients);
    (void)state;
}

static void golden_logits(void **state)
{
    over_layouts(logits);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_gradients),
        cmocka_unit_test(golden_training),
        cmocka_unit_test(golden_logits),
    };
    return cmocka_run_group_tests_name("golden model", tests, NULL, NULL);
}
