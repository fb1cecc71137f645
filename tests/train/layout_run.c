/* SPDX-License-Identifier: Apache-2.0 */
#include "train/layout_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SEQ = 8 };

static int or_one(int n)
{
    return n ? n : 1;
}

int layout_ranks(const layout *l)
{
    return or_one(l->pp) * or_one(l->dp) * or_one(l->cp) * or_one(l->tp);
}

const char *layout_name(const layout *l)
{
    static _Thread_local char name[256];
    snprintf(name, sizeof(name),
             "pp%d dp%d cp%d tp%d%s zero%d %s micro%d %s%s%s chunks%d %s%s%s opt%d off%d V%d/%d",
             or_one(l->pp), or_one(l->dp), or_one(l->cp), or_one(l->tp),
             l->sequence_parallel ? " sp" : "", l->zero, gt_dtype_name(l->dtype), or_one(l->micro),
             l->schedule ? l->schedule : "1f1b", l->recompute ? " recompute" : "",
             l->llama ? " llama" : "", l->chunks, l->device ? l->device : "cpu",
             l->untied ? " untied" : "", l->remainder ? " remainder" : "", (int)l->optimizer,
             (int)l->offload, (int)l->vocab, (int)l->stride);
    return name;
}

static void model_config(gt_model_config *m, const layout *l)
{
    snprintf(m->type, sizeof(m->type), "%s", l->llama ? "llama" : "gpt2");
    m->layers = l->layers ? l->layers : 4;
    m->width = l->width ? l->width : 32;
    m->heads = l->heads ? l->heads : 4;
    m->kv_heads = l->kv_heads ? l->kv_heads : l->llama ? 2 : m->heads;
    m->ffn = l->llama ? 52 : 128;
    m->vocab = l->vocab ? l->vocab : 61;
    m->seq = SEQ;
    m->dropout = l->no_dropout ? 0.0f : 0.1f;
    m->untied = l->untied || l->llama;
    m->recompute = l->recompute;
}

void layout_config(gt_config *c, const layout *l)
{
    gt_config_init(c);
    c->mesh.pp = or_one(l->pp);
    c->mesh.dp = or_one(l->dp);
    c->mesh.cp = or_one(l->cp);
    c->mesh.tp = or_one(l->tp);
    c->mesh.sequence_parallel = l->sequence_parallel;
    if (l->schedule != NULL) {
        snprintf(c->mesh.schedule, sizeof(c->mesh.schedule), "%s", l->schedule);
    }
    c->mesh.chunks = l->chunks;
    c->micro_batch = or_one(l->micro);
    c->train_batch = LAYOUT_BATCH;
    c->grad_accum = LAYOUT_BATCH / (c->micro_batch * c->mesh.dp);
    c->dtype = l->dtype;
    c->communication_dtype = l->communication ? l->communication : l->dtype;
    c->accum_dtype = l->accumulation;
    c->gradient_clipping = 1.0;
    c->seed = 1;
    c->optimizer.type = l->optimizer;
    c->optimizer.lr = l->optimizer == GT_SGD ? 0.3 : l->optimizer == GT_LION ? 1e-3 : 1e-2;
    c->optimizer.weight_decay = 0.1;
    /* Of a gradient near zero Adam takes little but the sign. With 1e-8 the last bit of some seeds'
     * gradients (7, 12) turns a whole step round: one rank's microbatches of 3 and 12 samples then
     * have norms that differ by 9e-5 after three steps. */
    c->optimizer.eps = 1e-6;
    c->optimizer.momentum = l->optimizer == GT_SGD ? 0.9 : 0.0;
    c->optimizer.master_remainder = l->remainder;
    c->scaler.enabled = l->dtype == GT_F16;
    c->scaler.initial_power = 10;
    c->zero.stage = l->zero;
    c->zero.persistence_threshold = l->persistence;
    c->zero.hpz_partition_size = l->hpz;
    c->zero.offload_optimizer = l->offload;
    snprintf(c->zero.offload_path, sizeof(c->zero.offload_path), "/tmp");
    model_config(&c->model, l);
}

void layout_batch(gt_batch *out, int32_t *tokens, int32_t *targets, const gt_config *c, int step,
                  int dp_rank, int dp_size)
{
    int64_t each = LAYOUT_BATCH / dp_size, first = (int64_t)step * LAYOUT_BATCH + dp_rank * each;
    int64_t seq = c->model.seq, vocab = c->model.vocab;
    for (int64_t s = 0; s < each; s++) {
        int64_t sample = first + s;
        for (int64_t i = 0; i < seq; i++) {
            int64_t at = s * seq + i;
            tokens[at] = (int32_t)((sample * 7 + i * i * 3 + i) % vocab);
            targets[at] = (int32_t)((sample * 7 + (i + 1) * (i + 1) * 3 + (i + 1)) % vocab);
            if ((sample + i) % 5 == 0 && i > seq / 2) {
                targets[at] = -100;
            }
        }
    }
    *out = (gt_batch){
        .samples = each, .seq = seq, .tokens = tokens, .targets = targets, .first_sample = first};
}

/* Over the whole of a large vocabulary, so that every shard has some. */
static void spread(const layout *l, int32_t *ids, const gt_batch *b)
{
    for (int64_t i = 0; l->stride > 0 && i < b->samples * b->seq; i++) {
        ids[i] = ids[i] < 0 ? ids[i] : (int32_t)(ids[i] * l->stride % l->vocab);
    }
}

static void make_batch(const layout *l, gt_batch *out, int32_t *tokens, int32_t *targets,
                       const gt_config *config, int step, const gt_mesh *mesh)
{
    layout_batch(out, tokens, targets, config, step, gt_mesh_index(mesh, GT_AXIS_DP),
                 gt_mesh_size(mesh, GT_AXIS_DP));
    spread(l, tokens, out);
    spread(l, targets, out);
}

struct run {
    const layout *l;
    layout_curve *out;
};

static void one_rank(gt_comm *world, gt_context *ctx, void *user)
{
    struct run *run = user;
    layout_curve *out = run->out, scratch;
    if (gt_comm_rank(world) != 0 && gti_mpirun_size() == 0) { /* threads share `out` */
        out = &scratch;
    }
    gt_config config;
    gt_model *model = NULL;
    gt_trainer *trainer = NULL;
    layout_config(&config, run->l);
    TH_OK(gt_model_create(&model));
    TH_OK(gt_model_add_gpt(model, &config.model));
    TH_OK(gt_trainer_create(&trainer, ctx, world, model, &config));
    const gt_mesh *mesh = gt_trainer_mesh(trainer);
    int32_t tokens[LAYOUT_BATCH * SEQ], targets[LAYOUT_BATCH * SEQ];
    gt_batch batch;
    for (int step = 0; step < LAYOUT_STEPS; step++) {
        gt_memory_stats before;
        gt_memory_get_stats(ctx, &before);
        make_batch(run->l, &batch, tokens, targets, &config, step, mesh);
        out->last.struct_size = sizeof(out->last);
        TH_OK(gt_trainer_step(trainer, &batch, &out->last));
        out->loss[step] = out->last.loss;
        out->norm[step] = out->last.gradient_norm;
        gt_memory_get_stats(ctx, &out->memory);
        out->steady_allocations = out->memory.allocations - before.allocations;
    }
    gt_zero_formula(gt_trainer_zero(trainer), &out->formula);
    make_batch(run->l, &batch, tokens, targets, &config, LAYOUT_STEPS, mesh);
    TH_OK(gt_trainer_evaluate(trainer, &batch, &out->evaluation, NULL));
    const int32_t prompt[3] = {1, 2, 3};
    TH_OK(gt_trainer_generate(trainer, prompt, 3, 4, 0.0f, 1, out->sampled));
    gt_trainer_destroy(&trainer);
    gt_model_destroy(&model);
}

static void run_alone(struct run *run)
{
    th h = {0};
    gt_comm *world = NULL;
    gt_comm_params params = GT_COMM_PARAMS_INIT;
    params.transport = "self";
    th_open(&h, run->l->device ? run->l->device : "cpu");
    TH_OK(gt_comm_create(&world, h.ctx, &params));
    one_rank(world, h.ctx, run);
    gt_comm_destroy(&world);
    th_close(&h);
}

void layout_run(layout_curve *out, const layout *l)
{
    struct run run = {l, out};
    *out = (layout_curve){0};
    if (layout_ranks(l) == 1) { /* also under mpirun, where every process does it for itself */
        run_alone(&run);
        return;
    }
    gti_run_ranks(layout_ranks(l), one_rank, l->device, &run);
}

static void close_to(const layout *l, const char *what, int step, double got, double want,
                     double tolerance)
{
    if (!(fabs(got - want) <= tolerance * fabs(want))) {
        th_fail(__FILE__, __LINE__, "%s: %s at step %d is %.9g, wanted %.9g within %g relative",
                layout_name(l), what, step, got, want, tolerance);
    }
}

void layout_compare(const layout *l, const layout_curve *got, const layout_curve *want,
                    double tolerance)
{
    for (int i = 0; i < LAYOUT_STEPS; i++) {
        close_to(l, "loss", i, got->loss[i], want->loss[i], tolerance);
        close_to(l, "gradient norm", i, got->norm[i], want->norm[i], 10 * tolerance);
    }
    close_to(l, "evaluation", LAYOUT_STEPS, got->evaluation, want->evaluation, tolerance);
}
