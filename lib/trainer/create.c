/* SPDX-License-Identifier: Apache-2.0
 * Construction: each step needs the ones before it. What a rank does alone is followed by an
 * agreement, so that a rank that fails alone makes all ranks return its sentence. */
#include "trainer/engine.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/params.h"
#include "core/tensor.h"
#include "params/param_layout.h"

static gt_status check_config(const gt_config *c)
{
    if (c->micro_batch < 1 || c->grad_accum < 1 || c->train_batch < 1) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "batch sizes %lld = %lld x %lld x data ranks are not resolved; call "
                       "gt_config_resolve first",
                       (long long)c->train_batch, (long long)c->micro_batch,
                       (long long)c->grad_accum);
    }
    if (c->model.seq < 1) {
        return GT_FAIL(GT_ERR_CONFIG, "model.seq is %lld, wanted at least 1",
                       (long long)c->model.seq);
    }
    if (c->grad_accum > INT_MAX) {
        return GT_FAIL(GT_ERR_CONFIG, "%lld microbatches per step, wanted at most %d",
                       (long long)c->grad_accum, INT_MAX);
    }
    int64_t tokens;
    if (__builtin_mul_overflow(c->train_batch, c->model.seq, &tokens) || tokens > GTI_NUMEL_MAX) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "train_batch_size %lld x model.seq %lld: wanted at most 2^52 tokens a step",
                       (long long)c->train_batch, (long long)c->model.seq);
    }
    if (c->mesh.cp > 1 && c->model.seq % (2 * c->mesh.cp) != 0) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "model.seq %lld is not a multiple of 2 x cp = %d, which context parallelism "
                       "needs",
                       (long long)c->model.seq, 2 * c->mesh.cp);
    }
    return gt_lr_check(&c->scheduler, c->optimizer.lr);
}

static gt_status same_config(gt_trainer *t)
{
    char *text = NULL;
    gt_status st = gt_comm_agree(t->world, gt_config_to_json(&t->config, &text));
    if (st == GT_OK) {
        st = gt_comm_check_equal(t->world, "the configuration", text, strlen(text));
    }
    free(text);
    return st;
}

static gt_status make_mesh(gt_trainer *t)
{
    gt_mesh_params m = GT_MESH_PARAMS_INIT;
    m.pp = t->config.mesh.pp;
    m.dp = t->config.mesh.dp;
    m.cp = t->config.mesh.cp;
    m.tp = t->config.mesh.tp;
    GT_TRY(gt_mesh_create(&t->mesh, t->world, &m));
    t->tp = gt_mesh_size(t->mesh, GT_AXIS_TP) > 1 ? gt_mesh_comm(t->mesh, GT_AXIS_TP) : NULL;
    t->cp = gt_mesh_size(t->mesh, GT_AXIS_CP) > 1 ? gt_mesh_comm(t->mesh, GT_AXIS_CP) : NULL;
    int dp = gt_mesh_size(t->mesh, GT_AXIS_DP);
    if (t->config.train_batch != t->config.micro_batch * t->config.grad_accum * dp) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "train_batch_size %lld is not micro %lld x accumulation %lld x data ranks "
                       "%d = %lld",
                       (long long)t->config.train_batch, (long long)t->config.micro_batch,
                       (long long)t->config.grad_accum, dp,
                       (long long)(t->config.micro_batch * t->config.grad_accum * dp));
    }
    return GT_OK;
}

static gt_status fill_layout(gt_trainer *t, int which, int64_t batch, bool splits)
{
    gt_layout *l = &t->layout[which];
    *l = (gt_layout){
        .dtype = t->config.dtype,
        .batch = batch,
        .seq = t->config.model.seq,
        .tp_rank = gt_mesh_index(t->mesh, GT_AXIS_TP),
        .tp_size = gt_mesh_size(t->mesh, GT_AXIS_TP),
        .cp_rank = gt_mesh_index(t->mesh, GT_AXIS_CP),
        .cp_size = gt_mesh_size(t->mesh, GT_AXIS_CP),
        .split_backward = splits && !t->config.model.recompute,
        .no_overlap = t->config.mesh.no_overlap,
    };
    l->sequence_parallel = t->config.mesh.sequence_parallel && l->tp_size > 1;
    l->seq_local = l->seq / l->cp_size;
    l->rows = l->batch * l->seq_local;
    if (l->sequence_parallel) {
        if (l->rows % l->tp_size != 0) {
            return GT_FAIL(GT_ERR_CONFIG,
                           "sequence_parallel cuts micro batch %lld x %lld tokens = %lld rows over "
                           "tp %d, which does not divide them",
                           (long long)l->batch, (long long)l->seq_local, (long long)l->rows,
                           l->tp_size);
        }
        l->rows /= l->tp_size;
        l->row_first = l->rows * l->tp_rank;
    }
    return GT_OK;
}

static gt_status fill_layouts(gt_trainer *t)
{
    bool splits = gt_schedule_splits_backward(t->schedule);
    GT_TRY(fill_layout(t, LAYOUT_TRAIN, t->config.micro_batch, splits));
    int64_t local = t->layout[LAYOUT_TRAIN].seq_local;
    bool cut = t->layout[LAYOUT_TRAIN].sequence_parallel && local % t->layout[0].tp_size != 0;
    return fill_layout(t, LAYOUT_GENERATE, cut ? t->config.micro_batch : 1, splits);
}

static gt_status make_zero(gt_trainer *t)
{
    gt_zero_params p = GT_ZERO_PARAMS_INIT;
    p.stage = t->config.zero.stage;
    p.dtype = t->config.dtype;
    p.communication_dtype = t->config.communication_dtype;
    p.accum_dtype = t->config.accum_dtype;
    p.optimizer = t->config.optimizer;
    p.persistence_threshold = t->config.zero.persistence_threshold;
    p.hpz_partition_size = t->config.zero.hpz_partition_size;
    p.reduce_bucket_size = t->config.zero.reduce_bucket_size;
    p.offload_optimizer = t->config.zero.offload_optimizer;
    p.offload_path = t->config.zero.offload_path;
    p.model_comm = t->tp;
    p.rule = t->rule.struct_size ? &t->rule : NULL;
    p.rule_user = t->rule_user;
    GT_TRY(gt_comm_agree(t->world, gti_trainer_make_units(t)));
    return gt_zero_create(&t->zero, t->ctx, gt_mesh_comm(t->mesh, GT_AXIS_SHARD), t->table, &p);
}

static gt_status plan_alone(gt_trainer *t)
{
    GT_TRY(gti_trainer_make_schedule(t, NULL));
    GT_TRY(fill_layouts(t));
    GT_TRY(gti_trainer_declare(t));
    return gti_trainer_plan(t);
}

/* Before anything is done per block or parameter with others. */
static gt_status same_model(gt_trainer *t)
{
    const uint64_t model[] = {(uint64_t)t->block_count, (uint64_t)t->table->count,
                              (uint64_t)t->parameters, gti_trainer_model_hash(t)};
    return gt_comm_check_equal(t->world, "the model (its blocks and their parameters)", model,
                               sizeof(model));
}

static gt_status place_alone(gt_trainer *t)
{
    t->samples = t->config.micro_batch * t->config.grad_accum;
    t->nominal_tokens = t->config.train_batch * t->config.model.seq;
    GT_TRY(gti_trainer_place(t));
    return gt_loss_scaler_init(&t->scaler, &t->config.scaler);
}

static gt_status allocate_alone(gt_trainer *t)
{
    GT_TRY(gti_trainer_allocate(t));
    return gti_batch_allocate(t);
}

static void bundle_of(gt_bundle *out, const gt_shape *shapes, int count)
{
    *out = (gt_bundle){.ports = count};
    for (int i = 0; i < count; i++) {
        out->shape[i] = shapes[i];
    }
}

static gt_status make_pipeline(gt_trainer *t)
{
    gt_bundle *bundles = calloc(2 * (size_t)t->chunk_count, sizeof(gt_bundle));
    gt_status st = bundles ? GT_OK : GT_FAIL(GT_ERR_MEMORY, "no host memory for stages' shapes");
    st = gt_comm_agree(t->world, st); /* the pipeline is made by a smaller group */
    if (st != GT_OK) {
        free(bundles);
        return st;
    }
    for (int c = 0; c < t->chunk_count; c++) {
        const struct chunk *k = &t->chunks[c];
        const gt_plan *head = &t->blocks[k->first].plan[LAYOUT_TRAIN];
        const gt_plan *tail = &t->blocks[k->first + k->count - 1].plan[LAYOUT_TRAIN];
        bundle_of(&bundles[c], head->in, head->inputs);
        bundle_of(&bundles[t->chunk_count + c], tail->out, tail->outputs);
    }
    gt_pipeline_params p = GT_PIPELINE_PARAMS_INIT;
    p.user = t;
    p.forward = gti_stage_forward;
    p.backward = gti_stage_backward;
    p.inputs = bundles;
    p.outputs = bundles + t->chunk_count;
    p.rows = t->config.micro_batch;
    st = gt_pipeline_create(&t->pipeline, t->ctx, gt_mesh_comm(t->mesh, GT_AXIS_PP), t->schedule,
                            &p);
    free(bundles);
    return st;
}

static gt_status count_flops(gt_trainer *t)
{
    double flops = 0;
    for (int i = 0; i < t->block_count; i++) {
        flops += t->blocks[i].local ? t->blocks[i].plan[LAYOUT_TRAIN].forward_flops : 0;
    }
    flops *= 3.0 * (double)t->config.grad_accum;
    gt_tensor sum = gt_tensor_1d(&flops, GT_F64, 1);
    GT_TRY(gt_all_reduce(t->world, &sum, GT_SUM, NULL, NULL));
    t->step_flops = flops;
    return GT_OK;
}

/* Agreed before anything is published: a publication under way waits for all ranks. */
static gt_status init_values(gt_trainer *t)
{
    GT_TRY(gt_comm_agree(t->world, gt_zero_init_values(t->zero, t->config.seed)));
    return gt_zero_publish(t->zero);
}

static gt_status build(gt_trainer *t)
{
    GT_TRY(gt_comm_agree(t->world, check_config(&t->config)));
    GT_TRY(same_config(t));
    GT_TRY(gt_comm_agree(t->world, make_mesh(t)));
    GT_TRY(gt_comm_agree(t->world, plan_alone(t)));
    GT_TRY(same_model(t));
    GT_TRY(gt_comm_agree(t->world, gti_trainer_share_costs(t)));
    GT_TRY(gt_comm_agree(t->world, place_alone(t)));
    GT_TRY(gt_comm_agree(t->world, make_zero(t)));
    GT_TRY(gt_comm_agree(t->world, gti_trainer_check_memory(t)));
    GT_TRY(gt_comm_agree(t->world, gt_zero_allocate(t->zero)));
    GT_TRY(gt_comm_agree(t->world, init_values(t)));
    GT_TRY(gt_comm_agree(t->world, allocate_alone(t)));
    GT_TRY(gt_comm_agree(t->world, make_pipeline(t)));
    return count_flops(t);
}

static gt_status take_options(gt_trainer *t, const gt_trainer_options *options)
{
    gt_trainer_options o;
    GT_TRY(GTI_PARAMS_COPY(&o, options, gt_trainer_options));
    if (o.optimizer != NULL) {
        GT_TRY(GTI_PARAMS_COPY(&t->rule, o.optimizer, gt_optimizer));
    }
    t->rule_user = o.optimizer_user;
    return GT_OK;
}

void gt_trainer_options_init(gt_trainer_options *options, size_t size)
{
    gti_params_init(options, size);
}

gt_status gt_trainer_create(gt_trainer **out, gt_context *ctx, gt_comm *world, gt_model *model,
                            const gt_config *config)
{
    return gt_trainer_create_with(out, ctx, world, model, config, NULL);
}

gt_status gt_trainer_create_with(gt_trainer **out, gt_context *ctx, gt_comm *world, gt_model *model,
                                 const gt_config *config, const gt_trainer_options *options)
{
    bool given = out && ctx && world && model && config;
    gt_trainer *t = given ? calloc(1, sizeof(*t)) : NULL;
    if (t == NULL) {
        gt_status st =
            given
                ? GT_FAIL(GT_ERR_MEMORY, "no host memory for a trainer")
                : GT_FAIL(GT_ERR_ARGUMENT,
                          "gt_trainer_create needs out, ctx, world, model and config, got %s NULL",
                          !out     ? "out"
                          : !ctx   ? "ctx"
                          : !world ? "world"
                          : !model ? "model"
                                   : "config");
        return world ? gt_comm_agree(world, st) : st; /* the others are in check_config's */
    }
    t->ctx = ctx;
    t->world = world;
    t->model = model;
    t->config = *config;
    t->loss_scale = 1.0;
    t->learning_rate = NAN;
    gt_status st = gt_comm_agree(world, take_options(t, options));
    st = st == GT_OK ? build(t) : st;
    if (st != GT_OK) {
        char cause[GTI_ERROR_MAX];
        snprintf(cause, sizeof(cause), "%s", gt_last_error());
        gt_trainer_destroy(&t);
        return gti_fail_text(st, cause);
    }
    *out = t;
    return GT_OK;
}

void gt_trainer_destroy(gt_trainer **trainer)
{
    if (trainer == NULL || *trainer == NULL) {
        return;
    }
    gt_trainer *t = *trainer;
    (void)gt_context_synchronize(t->ctx);
    gt_pipeline_destroy(&t->pipeline);
    gti_batch_free(t);
    gt_zero_destroy(&t->zero);
    gti_trainer_free_memory(t);
    gt_schedule_destroy(&t->schedule);
    gt_params_destroy(&t->table);
    free(t->uses);
    gt_mesh_destroy(&t->mesh);
    free(t);
    *trainer = NULL;
}

const gt_mesh *gt_trainer_mesh(const gt_trainer *trainer)
{
    return trainer ? trainer->mesh : NULL;
}

int64_t gt_trainer_parameters(const gt_trainer *trainer)
{
    return trainer ? trainer->parameters : 0;
}

double gt_trainer_step_flops(const gt_trainer *trainer)
{
    return trainer ? trainer->step_flops : 0;
}

const gt_params *gt_trainer_params(const gt_trainer *trainer)
{
    return trainer ? trainer->table : NULL;
}

gt_zero *gt_trainer_zero(gt_trainer *trainer)
{
    return trainer ? trainer->zero : NULL;
}

const gt_schedule *gt_trainer_schedule(const gt_trainer *trainer)
{
    return trainer ? trainer->schedule : NULL;
}

const gt_pipeline *gt_trainer_pipeline(const gt_trainer *trainer)
{
    return trainer ? trainer->pipeline : NULL;
}
