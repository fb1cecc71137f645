/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks of a user's own, with what the built-in ones lack: frozen parameters, parameters of no
 * elements and of one, parameters that no gradient reaches, weights shared by several blocks in any
 * order, on one stage and on two. Each layout gives the losses of one rank.
 */
#include <math.h>
#include <stdio.h>

#include "train/layout_run.h"

enum { WIDTH = 12, INNER = 4, STEPS = 3, SEQ = 8 };

/* y = x + x a^T + x b^T. */
typedef struct twin {
    const char *a_tied, *b_tied; /* NULL: its own */
    bool swapped;                /* declares b first */
    bool frozen;                 /* b is */
    bool odd;                    /* declares parameters without elements, and one unused */
    bool heads;                  /* declares two heads, which tensor-parallel ranks share */
} twin;

static gt_status declare_weight(gt_param_list *list, const char *name, const char *tied,
                                bool frozen)
{
    return gt_param_add(list, &(gt_param){.struct_size = sizeof(gt_param),
                                          .name = name,
                                          .ndim = 2,
                                          .shape = {WIDTH, WIDTH},
                                          .tp_axis = GT_REPLICATED,
                                          .init = GT_INIT_NORMAL,
                                          .std = 0.05f,
                                          .sequence_partial = true,
                                          .frozen = frozen,
                                          .tied_to = tied});
}

static gt_status declare_odd(gt_param_list *list, const char *name, int ndim, int64_t n, int64_t m)
{
    return gt_param_add(list, &(gt_param){.struct_size = sizeof(gt_param),
                                          .name = name,
                                          .ndim = ndim,
                                          .shape = {n, m},
                                          .tp_axis = GT_REPLICATED,
                                          .mean = 1.0f,
                                          .no_decay = true});
}

static gt_status declare(gt_block *block, gt_param_list *list)
{
    const twin *t = block->state;
    gt_status st = GT_OK;
    for (int i = 0; i < 2 && st == GT_OK; i++) {
        bool b = (i == 1) != t->swapped;
        st = declare_weight(list, b ? "b" : "a", b ? t->b_tied : t->a_tied, b && t->frozen);
    }
    if (st == GT_OK && t->odd) {
        st = declare_odd(list, "none", 2, 0, 8);
        st = st == GT_OK ? declare_odd(list, "rows", 2, 3, 0) : st;
        st = st == GT_OK ? declare_odd(list, "one", 1, 1, 0) : st;
        st = st == GT_OK ? declare_odd(list, "scalar", 0, 0, 0) : st;
        st = st == GT_OK ? declare_odd(list, "unused", 2, 4, 2) : st;
    }
    if (t->heads && st == GT_OK) {
        st = gt_param_add(list, &(gt_param){.struct_size = sizeof(gt_param),
                                            .name = "heads",
                                            .ndim = 2,
                                            .shape = {2, 4},
                                            .tp_axis = 0,
                                            .tp_share = true,
                                            .mean = 1.0f});
    }
    return st;
}

static gt_status plan(gt_block *block, gt_plan *p)
{
    const gt_layout *l = gt_plan_layout(p);
    const gt_shape *in = gt_plan_input(p, 0);
    int64_t kept[2] = {l->split_backward ? in->dims[0] : 0, WIDTH};
    TH_OK(gt_plan_output(p, l->dtype, 2, in->dims));
    TH_OK(gt_plan_save(p, l->dtype, 2, kept));
    gt_plan_flops(p, 4.0 * (double)in->dims[0] * WIDTH * WIDTH);
    (void)block;
    return GT_OK;
}

static gt_status add_product(const gt_step *s, gt_tensor *y, const gt_tensor *x, int w, bool trans)
{
    gt_gemm_params p = GT_GEMM_PARAMS_INIT;
    p.trans_b = trans;
    p.accumulate = true;
    return gt_gemm(s->ctx, y, x, &s->params[w], &p, s->stream);
}

static gt_status forward(gt_block *block, const gt_step *s, const gt_tensor *in, gt_tensor *out,
                         gt_saved *saved)
{
    gt_status st = gt_copy(s->ctx, out, in, s->stream);
    for (int w = 0; w < 2 && st == GT_OK; w++) {
        st = add_product(s, out, in, w, true);
    }
    (void)block;
    (void)saved;
    return st;
}

static gt_status backward(gt_block *block, const gt_step *s, const gt_tensor *in,
                          const gt_tensor *dout, gt_tensor *din, gt_saved *saved, unsigned parts)
{
    bool split = s->layout->split_backward;
    gt_status st = GT_OK;
    if (parts & GT_BACKWARD_INPUT) {
        st = gt_copy(s->ctx, din, dout, s->stream);
        for (int w = 0; w < 2 && st == GT_OK; w++) {
            st = add_product(s, din, dout, w, false);
        }
        if (split && st == GT_OK) {
            st = gt_copy(s->ctx, gt_saved_tensor(saved, 0), dout, s->stream);
        }
    }
    for (int w = 0; w < 2 && st == GT_OK && (parts & GT_BACKWARD_WEIGHT); w++) {
        if (s->grads[w].data != NULL) {
            st = gt_linear_backward(s->ctx, NULL, &s->grads[w], NULL,
                                    split ? gt_saved_tensor(saved, 0) : dout, in, &s->params[w],
                                    s->stream);
        }
    }
    (void)block;
    return st;
}

static void destroy(gt_block *block)
{
    free(block->state);
}

static const gt_block_ops twin_ops = {.type = "twin",
                                      .declare = declare,
                                      .plan = plan,
                                      .forward = forward,
                                      .backward = backward,
                                      .destroy = destroy};

struct model_row {
    const char *name;
    twin blocks[INNER];
};

static const struct model_row models[] = {
    {"frozen weights", {{.frozen = true}, {.frozen = true}, {0}, {.frozen = true}}},
    {"odd sizes", {{.odd = true}, {0}, {.odd = true, .frozen = true}, {.odd = true}}},
    {"the last block's weights are the first's, in another order",
     {{0}, {0}, {0}, {.a_tied = "twins.0.a", .b_tied = "twins.0.b", .swapped = true}}},
    {"the first three blocks share", {{0}, {.a_tied = "twins.0.a"}, {.b_tied = "twins.0.b"}, {0}}},
    {"the last two blocks share", {{0}, {0}, {0}, {.a_tied = "twins.2.a"}}},
    {"two heads, of any number of ranks", {{.heads = true}, {0}, {.heads = true}, {0}}},
};

static const layout rows[] = {
    {.micro = 3},
    {.micro = 3, .recompute = true},
    {.dp = 2, .micro = 2},
    {.dp = 3, .micro = 2, .zero = 1},
    {.dp = 2, .micro = 2, .zero = 2},
    {.dp = 4, .micro = 1, .zero = 3},
    {.dp = 2, .micro = 2, .zero = 3, .persistence = 1000, .recompute = true},
    {.tp = 2, .micro = 2, .sequence_parallel = true, .zero = 2},
    {.tp = 3, .micro = 2, .zero = 1},
    {.cp = 2, .micro = 2, .zero = 3},
    {.micro = 3, .schedule = "zb-h1"},
    {.pp = 2, .micro = 2},
    {.pp = 2, .dp = 2, .micro = 2, .zero = 3},
    {.pp = 2, .micro = 2, .schedule = "zb-h1"},
    {.pp = 2, .micro = 2, .schedule = "zb-h2"},
    {.pp = 2, .micro = 2, .schedule = "zb-v", .chunks = 2},
    {.pp = 2, .dp = 2, .micro = 2, .schedule = "zb-v", .chunks = 2, .zero = 3},
    {.pp = 2, .micro = 2, .schedule = "interleaved", .chunks = 2},
    {.pp = 2, .dp = 2, .micro = 2, .schedule = "interleaved", .chunks = 2, .zero = 2},
    {.pp = 2, .micro = 2, .schedule = "gpipe", .chunks = 2},
    {.pp = 3, .micro = 2},
    {.pp = 4, .micro = 6, .schedule = "zb-h1"},
};

struct run {
    const struct model_row *model;
    const layout *row;
    layout_curve curve;
    bool refused;
};

static gt_status build(gt_model *model, const gt_model_config *c, const struct model_row *m)
{
    gt_status st = gt_model_add_embedding(model, "embed", c);
    for (int i = 0; i < INNER && st == GT_OK; i++) {
        char name[32];
        snprintf(name, sizeof(name), "twins.%d", i);
        twin *state = malloc(sizeof(*state));
        *state = m->blocks[i];
        st = gt_model_add(model, name, &twin_ops, state);
    }
    return st == GT_OK ? gt_model_add_head(model, "head", c) : st;
}

static void one_rank(gt_comm *world, gt_context *ctx, void *user)
{
    struct run *run = user;
    gt_config c;
    gt_model *model = NULL;
    gt_trainer *t = NULL;
    layout_config(&c, run->row);
    c.model.width = WIDTH;
    TH_OK(gt_model_create(&model));
    TH_OK(build(model, &c.model, run->model));
    gt_status st = gt_trainer_create(&t, ctx, world, model, &c);
    bool root = gt_comm_rank(world) == 0;
    if (st != GT_OK) {
        TH_TRUE(strstr(gt_last_error(), "several pipeline stages") != NULL);
        run->refused |= root;
    }
    for (int step = 0; step < STEPS && st == GT_OK; step++) {
        int32_t tokens[LAYOUT_BATCH * SEQ], targets[LAYOUT_BATCH * SEQ];
        gt_batch batch;
        gt_step_result r = GT_STEP_RESULT_INIT;
        layout_batch(&batch, tokens, targets, &c, step,
                     gt_mesh_index(gt_trainer_mesh(t), GT_AXIS_DP), c.mesh.dp);
        TH_OK(gt_trainer_step(t, &batch, &r));
        if (root) {
            run->curve.loss[step] = r.loss;
            run->curve.norm[step] = r.gradient_norm;
        }
    }
    gt_trainer_destroy(&t);
    gt_model_destroy(&model);
}

static void same(const struct run *run, const char *what, double got, double want)
{
    if (!(fabs(got - want) <= 1e-5 * want)) {
        th_fail(__FILE__, __LINE__, "%s, %s: %s %.9g, wanted %.9g", run->model->name,
                layout_name(run->row), what, got, want);
    }
}

static void run_model(void **state)
{
    const layout alone = {.micro = LAYOUT_BATCH};
    struct run one = {.model = *state, .row = &alone};
    gti_run_ranks(1, one_rank, "cpu", &one);
    int refused = 0;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct run run = {.model = *state, .row = &rows[i]};
        gti_run_ranks(layout_ranks(&rows[i]), one_rank, "cpu", &run);
        refused += run.refused;
        for (int step = 0; step < STEPS && !run.refused; step++) {
            same(&run, "loss", run.curve.loss[step], one.curve.loss[step]);
            same(&run, "norm", run.curve.norm[step], one.curve.norm[step]);
        }
    }
    printf("%s: %d layouts refused\n", one.model->name, refused);
}

int main(void)
{
    enum { MODELS = sizeof(models) / sizeof(models[0]) };
    struct CMUnitTest tests[MODELS];
    for (int i = 0; i < MODELS; i++) {
        tests[i] = (struct CMUnitTest){models[i].name, run_model, NULL, NULL, (void *)&models[i]};
    }
    return cmocka_run_group_tests_name("custom blocks", tests, NULL, NULL);
}
