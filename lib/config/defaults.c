/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include <geektrain/config.h>

static void optimizer_defaults(gt_optimizer_config *o)
{
    o->type = GT_ADAMW;
    o->lr = 1e-3;
    o->beta1 = 0.9;
    o->beta2 = 0.999;
    o->eps = 1e-8;
    o->max_coeff = 10;
    o->min_coeff = 0.01;
    o->moments_dtype = GT_F32;
}

static void scheduler_defaults(gt_scheduler_config *s)
{
    s->type = GT_LR_CONSTANT;
    s->max_lr = -1;
    s->warmup_steps = 1000;
    s->warmup_log = true;
    s->cos_min_ratio = 1e-4;
}

static void scaler_defaults(gt_scaler_config *s)
{
    s->initial_power = 16;
    s->window = 1000;
    s->hysteresis = 2;
    s->min_scale = 1;
}

static void model_defaults(gt_model_config *m)
{
    strcpy(m->type, "gpt2");
    m->width = 256;
    m->heads = 8;
    m->vocab = 256;
    m->seq = 256;
    m->norm_eps = 1e-5f;
    m->rope_base = 10000;
    strcpy(m->rope_scaling, "none");
    m->rope_factor = 1;
    m->rope_low = 1;
    m->rope_high = 4;
    m->init_std = 0.02f;
}

void gt_config_init(gt_config *config)
{
    memset(config, 0, sizeof *config);
    config->struct_size = sizeof *config;
    config->gradient_clipping = 1.0;
    config->steps_per_print = 10;
    config->dtype = GT_F32;
    config->communication_dtype = GT_F32;
    config->accum_dtype = GT_F32;
    config->seed = 1234;
    config->communication_timeout_s = 600;
    config->max_skipped_steps = 100;
    optimizer_defaults(&config->optimizer);
    scheduler_defaults(&config->scheduler);
    scaler_defaults(&config->scaler);
    config->zero.reduce_bucket_size = 500000000;
    config->zero.persistence_threshold = 100000;
    config->zero.hpz_partition_size = 1;
    gt_mesh_config *mesh = &config->mesh;
    mesh->pp = mesh->cp = mesh->tp = 1;
    strcpy(mesh->schedule, "1f1b");
    strcpy(mesh->partition, "cost");
    model_defaults(&config->model);
    strcpy(config->data.format, "auto");
    config->data.validation_fraction = 0.05;
    config->data.shuffle = true;
    config->train.eval_batches = 16;
    config->train.sample_tokens = 256;
    config->train.temperature = 0.8f;
    config->checkpoint.keep = 2;
}
