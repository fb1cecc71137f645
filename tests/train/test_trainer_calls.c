/* SPDX-License-Identifier: Apache-2.0
 * Calls of the step engine on which ranks disagree, or that make no sense on one rank alone: every
 * rank gets a sentence, and where nothing has begun the trainer stays usable. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>

#include "train/layout_run.h"

static const layout two_by_two = {.dp = 2, .tp = 2, .micro = 2, .zero = 3, .no_dropout = true};

static void open_trainer(gt_trainer **t, gt_model **model, gt_comm *world, gt_context *ctx,
                         const layout *l)
{
    gt_config c;
    layout_config(&c, l);
    TH_OK(gt_model_create(model));
    TH_OK(gt_model_add_gpt(*model, &c.model));
    TH_OK(gt_trainer_create(t, ctx, world, *model, &c));
}

static void close_trainer(gt_trainer **t, gt_model **model)
{
    gt_trainer_destroy(t);
    gt_model_destroy(model);
}

static double one_step(gt_trainer *t, const layout *l, int step)
{
    int32_t tokens[LAYOUT_BATCH * 8], targets[LAYOUT_BATCH * 8];
    gt_config c;
    gt_batch batch;
    gt_step_result r = GT_STEP_RESULT_INIT;
    layout_config(&c, l);
    layout_batch(&batch, tokens, targets, &c, step, gt_mesh_index(gt_trainer_mesh(t), GT_AXIS_DP),
                 c.mesh.dp);
    TH_OK(gt_trainer_step(t, &batch, &r));
    TH_TRUE(isfinite(r.loss) && r.loss > 0);
    return r.loss;
}

/* ---- generation -------------------------------------------------------------------------------
 */
static void generation(gt_comm *world, gt_context *ctx, void *user)
{
    gt_trainer *t;
    gt_model *model;
    int32_t out[9], prompt[3] = {1, 2, 3}, strange[3] = {1, 61, 3};
    bool guilty = gt_comm_rank(world) == 2;
    open_trainer(&t, &model, world, ctx, &two_by_two);
    TH_FAILS(gt_trainer_generate(t, prompt, 3, guilty ? 9 : 4, 0.0f, 1, out), GT_ERR_MISMATCH,
             "what is to be generated");
    TH_FAILS(gt_trainer_generate(t, prompt, guilty ? 2 : 3, 4, 0.0f, 1, out), GT_ERR_MISMATCH,
             "the prompt");
    TH_FAILS(gt_trainer_generate(t, guilty ? NULL : prompt, 3, 4, 0.0f, 1, out),
             guilty ? GT_ERR_ARGUMENT : GT_ERR_PEER, "a prompt of at least one token");
    TH_FAILS(gt_trainer_generate(t, guilty ? strange : prompt, 3, 4, 0.0f, 1, out),
             guilty ? GT_ERR_ARGUMENT : GT_ERR_PEER, "prompt token 1 is 61");
    TH_FAILS(gt_trainer_generate(t, prompt, 3, -1, 0.0f, 1, out), GT_ERR_ARGUMENT,
             "generation of -1 tokens");
    TH_FAILS(gt_trainer_generate(t, prompt, 3, 4, 0.0f, 1, guilty ? NULL : out),
             guilty ? GT_ERR_ARGUMENT : GT_ERR_PEER, "no room (NULL)");
    TH_OK(gt_trainer_generate(t, prompt, 3, 0, 0.0f, 1, out));
    TH_OK(gt_trainer_generate(t, prompt, 3, 9, 0.0f, 1, out)); /* longer than seq 8 */
    close_trainer(&t, &model);
    TH_FAILS(gt_trainer_generate(NULL, prompt, 3, 4, 0.0f, 1, out), GT_ERR_ARGUMENT, "NULL");
    (void)user;
}

/* ---- parameters -------------------------------------------------------------------------------
 */
static void parameters(gt_comm *world, gt_context *ctx, void *user)
{
    enum { N = 32 };
    gt_trainer *t;
    gt_model *model;
    float values[N], back[N];
    bool guilty = gt_comm_rank(world) == 1;
    gt_status other = guilty ? GT_ERR_ARGUMENT : GT_ERR_PEER;
    for (int i = 0; i < N; i++) {
        values[i] = 0.25f * (float)i;
    }
    open_trainer(&t, &model, world, ctx, &two_by_two);
    const char *name = "blocks.1.norm2.weight";
    TH_FAILS(gt_trainer_read_param(t, guilty ? "norm3" : name, back, N), other, "named norm3");
    TH_FAILS(gt_trainer_load_param(t, guilty ? NULL : name, values, N), other, "named (null)");
    TH_FAILS(gt_trainer_read_param(t, name, guilty ? NULL : back, N), other, "NULL");
    TH_FAILS(gt_trainer_load_param(t, name, guilty ? NULL : values, N), other, "NULL");
    TH_FAILS(gt_trainer_read_param(t, name, back, guilty ? N - 1 : N),
             guilty ? GT_ERR_SHAPE : GT_ERR_PEER, "has 32 elements, the buffer 31");
    for (int again = 0; again < 3; again++) { /* loading over a publication that is under way */
        values[0] = (float)again;
        TH_OK(gt_trainer_load_param(t, name, values, N));
        TH_OK(gt_trainer_load_param(t, "blocks.1.norm1.weight", values, N));
    }
    TH_OK(gt_trainer_read_param(t, name, back, N));
    TH_TRUE(memcmp(values, back, sizeof(values)) == 0);
    (void)one_step(t, &two_by_two, 0);
    close_trainer(&t, &model);
    (void)user;
}

/* ---- creation ---------------------------------------------------------------------------------
 */
static void no_model_on_one_rank(gt_comm *world, gt_context *ctx, void *user)
{
    gt_config c;
    gt_model *model = NULL;
    gt_trainer *t = NULL;
    bool guilty = gt_comm_rank(world) == 3;
    layout_config(&c, &two_by_two);
    TH_OK(gt_model_create(&model));
    TH_OK(gt_model_add_gpt(model, &c.model));
    TH_FAILS(gt_trainer_create(&t, ctx, world, guilty ? NULL : model, &c),
             guilty ? GT_ERR_ARGUMENT : GT_ERR_PEER, "got model NULL");
    TH_OK(gt_trainer_create(&t, ctx, world, model, &c));
    close_trainer(&t, &model);
    (void)user;
}

/* The configuration is the same, the blocks are not. */
static void another_model_on_one_rank(gt_comm *world, gt_context *ctx, void *user)
{
    gt_config c;
    gt_model *model = NULL;
    gt_trainer *t = NULL;
    layout_config(&c, user);
    gt_model_config mine = c.model;
    mine.layers += gt_comm_rank(world) == 1;
    TH_OK(gt_model_create(&model));
    TH_OK(gt_model_add_gpt(model, &mine));
    gt_status st = gt_trainer_create(&t, ctx, world, model, &c);
    TH_EQUAL(st, GT_ERR_MISMATCH);
    TH_TRUE(strstr(gt_last_error(), "the model (its blocks") != NULL && t == NULL);
    close_trainer(&t, &model);
}

/* Beside each other in one world, and one after the other: nothing is left behind. */
static void several_trainers(gt_comm *world, gt_context *ctx, void *user)
{
    gt_trainer *a, *b;
    gt_model *model_a, *model_b;
    const layout pipeline = {.pp = 2, .dp = 2, .micro = 2, .no_dropout = true};
    open_trainer(&a, &model_a, world, ctx, &two_by_two);
    open_trainer(&b, &model_b, world, ctx, &pipeline);
    for (int step = 0; step < 2; step++) {
        double one = one_step(a, &two_by_two, step), other = one_step(b, &pipeline, step);
        TH_TRUE(fabs(one - other) < 1e-5 * one);
    }
    close_trainer(&a, &model_a);
    (void)one_step(b, &pipeline, 2);
    close_trainer(&b, &model_b);
    gt_memory_stats before, after;
    gt_memory_get_stats(ctx, &before);
    for (int i = 0; i < 20; i++) { /* more than a world has room for at a time */
        open_trainer(&a, &model_a, world, ctx, i % 2 ? &two_by_two : &pipeline);
        close_trainer(&a, &model_a);
    }
    gt_memory_get_stats(ctx, &after);
    TH_EQUAL(after.live_total, before.live_total);
    (void)user;
}

static int open_files(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d != NULL && readdir(d) != NULL) {
        n++;
    }
    if (d != NULL) {
        closedir(d);
    }
    return n;
}

static void run(gti_rank_fn fn, void *user)
{
    int before = open_files();
    gti_run_ranks(4, fn, "cpu", user);
    assert_int_equal(open_files(), before);
}

static void generation_is_agreed_upon(void **state)
{
    run(generation, NULL);
    (void)state;
}

static void parameters_are_checked_together(void **state)
{
    run(parameters, NULL);
    (void)state;
}

static void creation_fails_together(void **state)
{
    static const layout worlds[] = {{.dp = 4},
                                    {.tp = 4},
                                    {.pp = 2, .dp = 2},
                                    {.pp = 4, .micro = 2},
                                    {.dp = 4, .zero = 3, .hpz = 2}};
    run(no_model_on_one_rank, NULL);
    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        run(another_model_on_one_rank, (void *)&worlds[i]);
    }
    (void)state;
}

static void trainers_come_and_go(void **state)
{
    run(several_trainers, NULL);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generation_is_agreed_upon),
        cmocka_unit_test(parameters_are_checked_together),
        cmocka_unit_test(creation_fails_together),
        cmocka_unit_test(trainers_come_and_go),
    };
    return cmocka_run_group_tests_name("trainer calls", tests, NULL, NULL);
}
