/* SPDX-License-Identifier: Apache-2.0
 *
 * A block of your own in a model with built-in ones, trained by the step engine in any layout:
 *
 *     custom_block FILE [STEPS] [KEY=VALUE ...]
 *     mpirun -n 4 custom_block FILE 100 mesh.tp=2 zero_optimization.stage=3
 *
 * The block is a bottleneck adapter (Houlsby et al. 2019), [rows, C] -> [rows, C]:
 *
 *     h = x down^T        y = x + gelu(h) up^T        down [R,C], up [C,R]
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
enum { W_DA };

/* Global shapes. Nothing is cut over tensor-parallel ranks here; sequence_partial says that with
 * sequence parallelism each of them sees only its own rows, so that gradients must be summed. */
static gt_status declare(gt_block *block, gt_param_list *params)
{
    const adapter *a = block->state;
    gt_param down = {.name = "down.weight",
                     .ndim = 2,
                     .shape = {a->rank, a->width},
                     .tp_axis = GT_REPLICATED,
                     .sequence_partial = true,
                     .init = GT_INIT_NORMAL,
                     .std = 0.02f};
    gt_param up = down;
    up.name = "up.weight";
    up.shape[0] = a->width;
    up.shape[1] = a->rank;
    TRY(gt_param_add(params, &down));
    return gt_param_add(params, &up);
}

/* Every tensor that steps will need is named here: steps allocate nothing. */
static gt_status plan(gt_block *block, gt_plan *plan)
{
    const adapter *a = block->state;
    const gt_layout *l = gt_plan_layout(plan);
    const gt_shape *in = gt_plan_input(plan, 0);
    int64_t wide[2] = {in->dims[0], in->dims[1]}, narrow[2] = {in->dims[0], a->rank};
    int64_t wide_kept[2] = {l->split_backward ? wide[0] : 0, wide[1]};
    int64_t narrow_kept[2] = {l->split_backward ? wide[0] : 0, a->rank};
    TRY(gt_plan_output(plan, l->dtype, 2, wide));
    TRY(gt_plan_save(plan, l->dtype, 2, narrow));
    TRY(gt_plan_save(plan, l->dtype, 2, narrow));
    TRY(gt_plan_save(plan, l->dtype, 2, wide_kept));   /* a zero-bubble schedule asks for weight */
    TRY(gt_plan_save(plan, l->dtype, 2, narrow_kept)); /* gradients later: keep what they need   */
    TRY(gt_plan_workspace(plan, l->dtype, 2, narrow));
    gt_plan_flops(plan, 4.0 * (double)wide[0] * (double)a->width * (double)a->rank);
    return GT_OK;
}

static gt_status forward(gt_block *block, const gt_step *s, const gt_tensor *in, gt_tensor *out,
                         gt_saved *saved)
{
    gt_tensor *h = gt_saved_tensor(saved, S_H), *act = gt_saved_tensor(saved, S_A);
    gt_gemm_params up = GT_GEMM_PARAMS_INIT;
    up.trans_b = true;
    up.accumulate = true;
    TRY(gt_linear_forward(s->ctx, h, in, &s->params[P_DOWN], NULL, s->stream));
    TRY(gt_gelu_forward(s->ctx, act, h, s->stream));
    TRY(gt_copy(s->ctx, out, in, s->stream));
    return gt_gemm(s->ctx, out, act, &s->params[P_UP], &up, s->stream); /* out += act up^T */
}

/* dw += dy^T x, for either linear; the gradient is absent where a parameter is frozen. */
static gt_status weight_gradient(const gt_step *s, int index, const gt_tensor *dy,
                                 const gt_tensor *x)
{
    gt_tensor *dw = &s->grads[index];
    return dw->data == NULL
               ? GT_OK
               : gt_linear_backward(s->ctx, NULL, dw, NULL, dy, x, &s->params[index], s->stream);
}

static gt_status backward(gt_block *block, const gt_step *s, const gt_tensor *in,
                          const gt_tensor *dout, gt_tensor *din, gt_saved *saved, unsigned parts)
{
    bool split = s->layout->split_backward;
    gt_tensor *dh = split ? gt_saved_tensor(saved, S_DH) : &s->workspace[W_DA];
    const gt_tensor *dy = split ? gt_saved_tensor(saved, S_DOUT) : dout;
    if (parts & GT_BACKWARD_INPUT) {
        gt_gemm_params add = GT_GEMM_PARAMS_INIT;
        add.accumulate = true;
        if (split) {
            TRY(gt_copy(s->ctx, gt_saved_tensor(saved, S_DOUT), dout, s->stream));
        }
        TRY(gt_linear_backward(s->ctx, dh, NULL, NULL, dout, gt_saved_tensor(saved, S_A),
                               &s->params[P_UP], s->stream));
        TRY(gt_gelu_backward(s->ctx, dh, dh, gt_saved_tensor(saved, S_H), s->stream));
        TRY(gt_copy(s->ctx, din, dout, s->stream));
        TRY(gt_gemm(s->ctx, din, dh, &s->params[P_DOWN], &add, s->stream)); /* din += dh down */
    }
    if (parts & GT_BACKWARD_WEIGHT) {
        TRY(weight_gradient(s, P_UP, dy, gt_saved_tensor(saved, S_A)));
        TRY(weight_gradient(s, P_DOWN, dh, in));
    }
    return GT_OK;
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
        gt_step_result r;
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
