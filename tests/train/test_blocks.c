/* SPDX-License-Identifier: Apache-2.0
 * GPT-2 and Llama blocks on one rank: against plain loops in double, gradients by central
 * differences; and what must be refused. */
#include <math.h>
#include <stdio.h>

#include "block_runner.h"
#include "gpt_reference.h"
#include "nn/gpt.h"

enum { B = 2, T = 12, V = 37 };

static gt_model_config tiny(const char *type)
{
    gt_model_config c = {.layers = 2,
                         .width = 24,
                         .heads = 4,
                         .kv_heads = 4,
                         .ffn = 50,
                         .vocab = V,
                         .seq = T,
                         .rope_base = 100.0f,
                         .init_std = 0.3f};
    snprintf(c.type, sizeof(c.type), "%s", type);
    return c;
}

static br_batch some_batch(int32_t *tokens, int32_t *targets)
{
    for (int i = 0; i < B * T; i++) {
        tokens[i] = (i * 7 + i * i) % V;
        targets[i] = i % 5 == 3 ? -100 : (i * 11 + 2) % V;
    }
    return (br_batch){.batch = B,
                      .seq = T,
                      .tokens = tokens,
                      .targets = targets,
                      .grad_scale = 1.0f,
                      .ignore_index = -100};
}

static void check_gradients(th *h, br *r, const gt_model_config *c, const br_batch *b)
{
    int64_t total = br_total(r);
    double *params = th_host(h, total), *got = th_host(h, total);
    br_get_params(r, params);
    br_add_gradients(r, got);
    for (int i = 0; i < r->count; i++) {
        for (int j = 0; j < r->blocks[i].list.count; j++) {
            int64_t first = br_offset(r, i, j);
            int64_t n = gt_tensor_numel(&r->blocks[i].params[j]);
            for (int s = 0; first >= 0 && s < 5; s++) {
                int64_t at = first + (n * (2 * s + 1) / 10 + 3 * s) % n;
                double keep = params[at], step = 1e-4;
                params[at] = keep + step;
                double up = gpt_reference_loss(c, params, B, T, b->tokens, b->targets, -100, NULL);
                params[at] = keep - step;
                double down =
                    gpt_reference_loss(c, params, B, T, b->tokens, b->targets, -100, NULL);
                params[at] = keep;
                double want = (up - down) / (2 * step);
                char name[300];
                snprintf(name, sizeof(name), "gradient of %s.%s", r->blocks[i].block->name,
                         r->blocks[i].list.params[j].name);
                th_compare_values(name, &got[at], &want, 1,
                                  (th_tolerance){.absolute = 2e-4, .relative = 2e-4});
            }
        }
    }
}

static void check_model(const gt_model_config *c, bool split)
{
    TH_ON_DEVICES(h)
    {
        int32_t tokens[B * T], targets[B * T];
        br_batch b = some_batch(tokens, targets);
        br_options o = {.dtype = GT_F32, .seed = 7, .split_backward = split};
        gt_model *model;
        br r;
        TH_OK(gt_model_create(&model));
        TH_OK(gt_model_add_gpt(model, c));
        br_open(&r, &h, model, &b, &o);
        br_run(&r, &b);
        double stats[2], *params = th_host(&h, br_total(&r));
        br_get_params(&r, params);
        double want = gpt_reference_loss(c, params, B, T, tokens, targets, -100, NULL);
        br_stats(&r, stats);
        th_compare_values("loss", stats, &want, 1, (th_tolerance){.relative = 2e-6});
        TH_EQUAL(stats[1], 2 * T - 5);
        check_gradients(&h, &r, c, &b);
        br_close(&r);
        gt_model_destroy(&model);
    }
}

static void gpt2_matches_double(void **state)
{
    (void)state;
    gt_model_config c = tiny("gpt2");
    check_model(&c, false);
    c.untied = true;
    c.label_smoothing = 0.1f;
    c.z_loss = 0.01f;
    check_model(&c, true);
}

static void llama_matches_double(void **state)
{
    (void)state;
    gt_model_config c = tiny("llama");
    c.kv_heads = 2;
    c.untied = true;
    check_model(&c, false);
    c.kv_heads = 1;
    check_model(&c, true);
}

static void evaluation_computes_the_loss_only(void **state)
{
    (void)state;
    TH_ON_DEVICES(h)
    {
        int32_t tokens[B * T], targets[B * T];
        br_batch b = some_batch(tokens, targets);
        b.eval = true;
        br_options o = {.dtype = GT_F32, .seed = 7};
        gt_model_config c = tiny("gpt2");
        c.dropout = 0.5f; /* off in evaluation */
        gt_model *model;
        br r;
        TH_OK(gt_model_create(&model));
        TH_OK(gt_model_add_gpt(model, &c));
        br_open(&r, &h, model, &b, &o);
        br_run(&r, &b);
        double stats[2], *params = th_host(&h, br_total(&r)), *logits = th_host(&h, B * T * V);
        br_get_params(&r, params);
        double want = gpt_reference_loss(&c, params, B, T, tokens, targets, -100, logits);
        br_stats(&r, stats);
        th_compare_values("loss", stats, &want, 1, (th_tolerance){.relative = 2e-6});
        br_block *head = &r.blocks[r.count - 1];
        gt_step step = br_step(&r, r.count - 1, &b);
        gt_tensor row = th_new(&h, GT_F32, TH_SHAPE(V));
        TH_OK(head->block->ops->logits(head->block, &step, &head->in, 17, &row));
        th_compare(&h, "logits", &row, logits + 17 * V, 100.0);
        br_close(&r);
        gt_model_destroy(&model);
    }
}

/* The same seed gives the same masks in forward and backward, other samples other masks. */
static void dropout_is_repeatable(void **state)
{
    (void)state;
    th h = {0};
    th_open(&h, "cpu");
    int32_t tokens[B * T], targets[B * T];
    br_batch b = some_batch(tokens, targets);
    gt_model_config c = tiny("gpt2");
    c.dropout = 0.3f;
    double loss[4], norm[3] = {0};
    for (int i = 0; i < 3; i++) { /* once whole, once split, once another place in the data */
        br_options o = {.dtype = GT_F32, .seed = 7, .split_backward = i == 1};
        gt_model *model;
        br r;
        double stats[2];
        b.first_sample = i == 2 ? 5 : 0;
        TH_OK(gt_model_create(&model));
        TH_OK(gt_model_add_gpt(model, &c));
        br_open(&r, &h, model, &b, &o);
        br_run(&r, &b);
        br_stats(&r, stats);
        loss[i] = stats[0];
        double *grads = th_host(&h, br_total(&r));
        br_add_gradients(&r, grads);
        for (int64_t k = 0; k < br_total(&r); k++) {
            norm[i] += grads[k] * grads[k];
        }
        b.eval = true;
        br_run(&r, &b);
        br_stats(&r, stats);
        loss[3] = stats[0];
        b.eval = false;
        br_close(&r);
        gt_model_destroy(&model);
    }
    TH_TRUE(loss[0] == loss[1]);
    TH_TRUE(fabs(norm[0] / norm[1] - 1.0) < 1e-5);
    TH_TRUE(fabs(loss[0] / loss[2] - 1.0) > 1e-4);
    TH_TRUE(fabs(loss[0] / loss[3] - 1.0) > 1e-4);
    th_close(&h);
}

static void refuse(gt_model_config c, const char *part)
{
    gt_model *model;
    TH_OK(gt_model_create(&model));
    TH_FAILS(gt_model_add_gpt(model, &c), GT_ERR_CONFIG, part);
    gt_model_destroy(&model);
}

static void bad_configurations_are_refused(void **state)
{
    (void)state;
    gt_model_config c = tiny("gpt3");
    refuse(c, "wanted gpt2 or llama");
    c = tiny("gpt2");
    c.layers = 0;
    refuse(c, "model.layers is 0");
    c = tiny("gpt2");
    c.heads = 5;
    refuse(c, "heads = 5 does not divide model.width = 24");
    c = tiny("llama");
    c.kv_heads = 3;
    refuse(c, "kv_heads = 3");
    c = tiny("llama");
    c.heads = 8;
    c.kv_heads = 8;
    refuse(c, "even head size");
    c = tiny("gpt2");
    c.dropout = NAN;
    refuse(c, "model.dropout is nan");
    c = tiny("llama");
    snprintf(c.rope_scaling, sizeof(c.rope_scaling), "ntk");
    refuse(c, "\"ntk\"");
    gt_mesh_config mesh = {.tp = 3};
    c = tiny("gpt2");
    TH_FAILS(gt_model_config_check(&c, &mesh), GT_ERR_CONFIG, "mesh.tp = 3 does not divide");
    mesh.tp = 8;
    TH_FAILS(gt_model_config_check(&c, &mesh), GT_ERR_CONFIG, "model.heads = 4");
    mesh = (gt_mesh_config){.cp = 4};
    TH_FAILS(gt_model_config_check(&c, &mesh), GT_ERR_CONFIG, "2 x cp = 8");
}

static void sequence_longer_than_the_model_is_refused(void **state)
{
    (void)state;
    th h = {0};
    th_open(&h, "cpu");
    int32_t tokens[B * T], targets[B * T];
    br_batch b = some_batch(tokens, targets);
    br_options o = {.dtype = GT_F32};
    gt_model_config c = tiny("gpt2");
    c.seq = T - 1;
    gt_model *model;
    br r;
    TH_OK(gt_model_create(&model));
    TH_OK(gt_model_add_gpt(model, &c));
    TH_FAILS(br_plan(&r, &h, model, &b, &o), GT_ERR_CONFIG, "12 tokens");
    br_close(&r);
    gt_model_destroy(&model);
    th_close(&h);
}

static void destroy_counted(gt_block *block)
{
    (*(int *)block->state)++;
}

static void model_owns_its_blocks(void **state)
{
    (void)state;
    int destroyed = 0;
    gt_model *model;
    gt_block_ops ops = gti_transformer_ops;
    ops.destroy = destroy_counted;
    TH_OK(gt_model_create(&model));
    TH_OK(gt_model_add(model, "a", &ops, &destroyed));
    TH_FAILS(gt_model_add(model, "a", &ops, &destroyed), GT_ERR_ARGUMENT, "named a already");
    TH_EQUAL(destroyed, 1);
    gt_block *first = gt_model_block(model, 0);
    for (int i = 0; i < 40; i++) {
        char name[8];
        snprintf(name, sizeof(name), "b%d", i);
        TH_OK(gt_model_add(model, name, &ops, &destroyed));
    }
    TH_TRUE(gt_model_block(model, 0) == first);
    TH_TRUE(gt_model_block(model, 41) == NULL);
    gt_model_destroy(&model);
    TH_EQUAL(destroyed, 42);
    gt_model_destroy(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_matches_double),
        cmocka_unit_test(llama_matches_double),
        cmocka_unit_test(evaluation_computes_the_loss_only),
        cmocka_unit_test(dropout_is_repeatable),
        cmocka_unit_test(bad_configurations_are_refused),
        cmocka_unit_test(sequence_longer_than_the_model_is_refused),
        cmocka_unit_test(model_owns_its_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
