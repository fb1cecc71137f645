/* SPDX-License-Identifier: Apache-2.0
 *
 * A block of your own in a model with built-in ones, trained by the step engine in any layout:
 *
 *     custom_block FILE [STEPS] [KEY=VALUE ...]
 *     mpirun -n 4 custom_block FILE 100 mesh.tp=2 zero_optimization.stage=3
 *
 * The block is a bottleneck adapter (Houlsby et al. 2019), [rows, C] -> [rows, C], whose hidden
 * units are cut over the tensor-parallel ranks:
 *
 *     h = x down^T        y = x + gelu(h) up^T        down [R,C], up [C,R]
 *
 * A block that is not cut is simpler: parameters have tp_axis = GT_REPLICATED and sequence_partial,
 * gt_linear_forward() and gt_linear_backward() do the products, and no scratch is needed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <geektrain/geektrain.h>

#define TRY(call)                                                                                  \
    do {                                                                                           \
        gt_status try_status = (call);                                                             \
        if (try_status != GT_OK) {                                                                 \
            return try_status;                                                                     \
        }                                                                                          \
    } while (0)

/* ---- the block --------------------------------------------------------------------------------*/
typedef struct adapter {
    int64_t width, rank;
} adapter;

/* Indices, in the order of declaration and planning. */
enum { P_DOWN, P_UP };
enum { S_H, S_A, S_DOUT, S_DH };
enum { W_DH, W_SCRATCH };

/* Global shapes; tp_axis says along which axis a rank has only its part. */
static gt_status declare(gt_block *block, gt_param_list *params)
{
    const adapter *a = block->state;
    gt_param down = {.struct_size = sizeof(gt_param),
                     .name = "down.weight",
                     .ndim = 2,
                     .shape = {a->rank, a->width},
                     .tp_axis = 0,
                     .init = GT_INIT_NORMAL,
                     .std = 0.02f};
    gt_param up = down;
    up.name = "up.weight";
    up.shape[0] = a->width;
    up.shape[1] = a->rank;
    up.tp_axis = 1;
    TRY(gt_param_add(params, &down));
    return gt_param_add(params, &up);
}

/* Every tensor that steps will need is named here: steps allocate nothing. What is cut by columns
 * has all rows, what is not has this rank's (fewer under sequence parallelism). */
static gt_status plan(gt_block *block, gt_plan *plan)
{
    const adapter *a = block->state;
    const gt_layout *l = gt_plan_layout(plan);
    int64_t all = gt_layout_all_rows(l), units = gt_split_count(a->rank, l->tp_size, l->tp_rank);
    int64_t wide[2] = {l->rows, a->width}, narrow[2] = {all, units};
    int64_t wide_kept[2] = {l->split_backward ? l->rows : 0, a->width};
    int64_t narrow_kept[2] = {l->split_backward ? all : 0, units};
    int64_t scratch = (int64_t)gt_layout_tp_scratch(l, a->width);
    TRY(gt_plan_output(plan, l->dtype, 2, wide));
    TRY(gt_plan_save(plan, l->dtype, 2, narrow));
    TRY(gt_plan_save(plan, l->dtype, 2, narrow));
    TRY(gt_plan_save(plan, l->dtype, 2, wide_kept));   /* a zero-bubble schedule asks for weight */
    TRY(gt_plan_save(plan, l->dtype, 2, narrow_kept)); /* gradients later: keep what they need   */
    TRY(gt_plan_workspace(plan, l->dtype, 2, narrow));
    TRY(gt_plan_workspace(plan, GT_U8, 1, &scratch));
    gt_plan_flops(plan, 4.0 * (double)all * (double)a->width * (double)units);
    return GT_OK;
}

static gt_status forward(gt_block *block, const gt_step *s, const gt_tensor *in, gt_tensor *out,
                         gt_saved *saved)
{
    gt_tp tp = gt_step_tp(s, &s->workspace[W_SCRATCH]);
    gt_tensor *act = gt_saved_tensor(saved, S_A);
    gt_tp_column_params down = GT_TP_COLUMN_PARAMS_INIT;
    down.gelu = true;
    down.pre_gelu = gt_saved_tensor(saved, S_H);
    TRY(gt_tp_column_forward(&tp, act, in, &s->params[P_DOWN], &down, s->stream));
    return gt_tp_row_forward(&tp, out, act, &s->params[P_UP], NULL, in, s->stream); /* in + ... */
}

/* A frozen parameter has no gradient. */
static gt_tensor *wanted(gt_tensor *grad)
{
    return grad->data != NULL ? grad : NULL;
}

static gt_status backward(gt_block *block, const gt_step *s, const gt_tensor *in,
                          const gt_tensor *dout, gt_tensor *din, gt_saved *saved, unsigned parts)
{
    gt_tp tp = gt_step_tp(s, &s->workspace[W_SCRATCH]);
    bool split = s->layout->split_backward;
    bool input = (parts & GT_BACKWARD_INPUT) != 0, weight = (parts & GT_BACKWARD_WEIGHT) != 0;
    const gt_tensor *down = &s->params[P_DOWN], *up = &s->params[P_UP];
    const gt_tensor *dy = input ? dout : gt_saved_tensor(saved, S_DOUT);
    gt_tensor *dh = split ? gt_saved_tensor(saved, S_DH) : &s->workspace[W_DH];
    gt_tensor *ddown = weight ? wanted(&s->grads[P_DOWN]) : NULL;
    gt_tensor *dup = weight ? wanted(&s->grads[P_UP]) : NULL;
    TRY(gt_tp_row_backward(&tp, input ? dh : NULL, dup, NULL, dy, gt_saved_tensor(saved, S_A), up,
                           s->stream));
    if (input) {
        TRY(gt_gelu_backward(s->ctx, dh, dh, gt_saved_tensor(saved, S_H), s->stream));
    }
    TRY(gt_tp_column_backward(&tp, input ? din : NULL, ddown, NULL, dh, in, down, s->stream));
    if (input) {
        TRY(gt_axpby(s->ctx, din, dout, 1, 1, s->stream)); /* the way past the adapter */
    }
    return input && split ? gt_copy(s->ctx, gt_saved_tensor(saved, S_DOUT), dout, s->stream)
                          : GT_OK;
}

static void destroy(gt_block *block)
{
    free(block->state);
}

static const gt_block_ops adapter_ops = {.type = "adapter",
                                         .declare = declare,
                                         .plan = plan,
                                         .forward = forward,
                                         .backward = backward,
                                         .destroy = destroy};

static gt_status add_adapter(gt_model *model, const char *name, int64_t width, int64_t rank)
{
    adapter *a = malloc(sizeof(*a));
    if (a == NULL) {
        return gt_set_error(GT_ERR_MEMORY, "no memory for block %s", name);
    }
    *a = (adapter){.width = width, .rank = rank};
    return gt_model_add(model, name, &adapter_ops, a); /* owns a from here on */
}

/* ---- a model with it, trained -----------------------------------------------------------------*/
typedef struct app {
    gt_context *ctx;
    gt_comm *world;
    gt_config config;
    gt_model *model;
    gt_tokens *tokens;
    gt_loader *loader;
    gt_trainer *trainer;
} app;

static gt_status configure(gt_config *c, gt_context *ctx, int argc, char **argv)
{
    gt_config_init(c);
    c->train_batch = 12;
    c->optimizer.lr = 3e-3;
    snprintf(c->model.type, sizeof(c->model.type), "gpt2");
    c->model.layers = 2;
    c->model.width = 48;
    c->model.heads = 4;
    c->model.vocab = 256;
    c->model.seq = 32;
    for (int i = 2; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (value != NULL) {
            *value = '\0';
            TRY(gt_config_set(c, ctx, argv[i], value + 1));
        }
    }
    return GT_OK;
}

static gt_status build_model(app *a)
{
    const gt_model_config *c = &a->config.model;
    TRY(gt_model_create(&a->model));
    TRY(gt_model_add_embedding(a->model, "embed", c));
    for (int64_t i = 0; i < c->layers; i++) {
        char name[GT_PARAM_NAME_MAX];
        snprintf(name, sizeof(name), "blocks.%lld", (long long)i);
        TRY(gt_model_add_transformer(a->model, name, c));
        snprintf(name, sizeof(name), "adapters.%lld", (long long)i);
        TRY(add_adapter(a->model, name, c->width, 8));
    }
    return gt_model_add_head(a->model, "head", c);
}

static gt_status open_data(app *a, const char *path)
{
    const gt_mesh *mesh = gt_trainer_mesh(a->trainer);
    gt_loader_params p = GT_LOADER_PARAMS_INIT;
    p.seq = a->config.model.seq;
    p.batch = a->config.train_batch;
    p.rank = gt_mesh_index(mesh, GT_AXIS_DP);
    p.size = gt_mesh_size(mesh, GT_AXIS_DP);
    p.shuffle = true;
    TRY(gt_tokens_open(&a->tokens, path, "bytes", 256));
    return gt_loader_create(&a->loader, a->tokens, &p);
}

static gt_status run(app *a, int argc, char **argv)
{
    int64_t steps = argc > 2 && strchr(argv[2], '=') == NULL ? atoll(argv[2]) : 100;
    TRY(gt_context_create(&a->ctx, NULL));
    TRY(gt_comm_create(&a->world, a->ctx, NULL));
    /* agreed: an error on one rank is an error on all */
    TRY(gt_comm_agree(a->world, configure(&a->config, a->ctx, argc, argv)));
    TRY(gt_config_resolve(&a->config, gt_comm_size(a->world)));
    TRY(gt_comm_agree(a->world, build_model(a)));
    TRY(gt_trainer_create(&a->trainer, a->ctx, a->world, a->model, &a->config));
    TRY(gt_comm_agree(a->world, open_data(a, argv[1])));
    for (int64_t step = 0; step < steps; step++) {
        gt_batch batch;
        gt_step_result r = GT_STEP_RESULT_INIT;
        gt_status st = gt_loader_next(a->loader, &batch);
        TRY(st == GT_OK ? GT_OK : gt_comm_fail(a->world, st));
        TRY(gt_trainer_step(a->trainer, &batch, &r));
        if (gt_comm_rank(a->world) == 0 && (step % 20 == 0 || step == steps - 1)) {
            printf("step %4lld  loss %.5f nats per byte  gradient norm %.4f\n", (long long)step,
                   r.loss, r.gradient_norm);
        }
    }
    return GT_OK;
}

int main(int argc, char **argv)
{
    app a = {0};
    if (argc < 2) {
        fprintf(stderr, "usage: custom_block FILE [STEPS] [KEY=VALUE ...]\n");
        return 1;
    }
    gt_status st = run(&a, argc, argv);
    if (st != GT_OK) {
        fprintf(stderr, "custom_block: %s: %s\n", gt_status_name(st), gt_last_error());
    }
    gt_trainer_destroy(&a.trainer);
    gt_loader_destroy(&a.loader);
    gt_tokens_close(&a.tokens);
    gt_model_destroy(&a.model);
    gt_comm_destroy(&a.world);
    gt_context_destroy(&a.ctx);
    return st == GT_OK ? 0 : 1;
}
