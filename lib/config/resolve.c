/* SPDX-License-Identifier: Apache-2.0
 * Fits a configuration to a world: mesh, batch sizes, and whatever relates several keys. */
#include <geektrain/config.h>

#include "config/keys.h"
#include "config/param_names.h"
#include "core/fail.h"

#define LL(x) ((long long)(x))

/* A product of positive numbers, INT64_MAX where it does not fit. */
static int64_t times(int64_t a, int64_t b)
{
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

static gt_status resolve_mesh(gt_mesh_config *m, int world)
{
    if (world < 1) {
        return GT_FAIL(GT_ERR_ARGUMENT, "world size is %d, wanted at least 1", world);
    }
    int64_t fixed = times(times(m->pp, m->cp), m->tp);
    if (m->dp == 0 && fixed <= world && world % fixed == 0) {
        m->dp = (int)(world / fixed);
    }
    if (m->dp == 0) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "mesh pp %d x cp %d x tp %d = %lld does not divide the world of %d ranks",
                       m->pp, m->cp, m->tp, LL(fixed), world);
    }
    if (times(fixed, m->dp) != world) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "mesh pp %d x dp %d x cp %d x tp %d = %lld ranks, but the world has %d",
                       m->pp, m->dp, m->cp, m->tp, LL(times(fixed, m->dp)), world);
    }
    return GT_OK;
}

/* What no world can satisfy, so that it is said when the file is read. */
gt_status gti_batch_possible(const gt_config *c)
{
    int64_t train = c->train_batch, accum = c->grad_accum, micro = c->micro_batch;
    if (train > 0 && accum > 0 && train % accum != 0) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "train_batch_size %lld is %s gradient_accumulation_steps %lld, "
                       "for any number of ranks",
                       LL(train), train < accum ? "less than" : "no multiple of", LL(accum));
    }
    if (train > 0 && micro > 0 && train % micro != 0) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "train_batch_size %lld is %s train_micro_batch_size_per_gpu %lld, "
                       "for any number of ranks",
                       LL(train), train < micro ? "less than" : "no multiple of", LL(micro));
    }
    return GT_OK;
}

/* Two of the three give the third; one alone means accumulation 1 (DeepSpeed's rules). */
static gt_status resolve_batch(gt_config *c, int64_t ranks)
{
    int64_t train = c->train_batch, micro = c->micro_batch, accum = c->grad_accum, product;
    if (train == 0 && micro == 0) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "no batch size: give train_batch_size or train_micro_batch_size_per_gpu");
    }
    if (train > 0 && micro == 0) {
        accum = accum > 0 ? accum : 1;
        micro = train / accum / ranks;
        if (micro == 0 || micro * accum * ranks != train) {
            return GT_FAIL(GT_ERR_CONFIG,
                           "train_batch_size %lld cannot be split over accumulation %lld x data "
                           "ranks %lld = %lld",
                           LL(train), LL(accum), LL(ranks), LL(accum * ranks));
        }
    }
    if (train > 0 && accum == 0) {
        accum = train / micro / ranks;
        accum = accum > 0 ? accum : 1;
    }
    accum = accum > 0 ? accum : 1;
    if (__builtin_mul_overflow(micro, accum, &product) ||
        __builtin_mul_overflow(product, ranks, &product)) {
        return GT_FAIL(GT_ERR_CONFIG, "micro %lld x accumulation %lld x data ranks %lld overflows",
                       LL(micro), LL(accum), LL(ranks));
    }
    if (train > 0 && product != train) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "train_batch_size %lld is not micro %lld x accumulation %lld x data ranks "
                       "%lld = %lld",
                       LL(train), LL(micro), LL(accum), LL(ranks), LL(product));
    }
    c->train_batch = product;
    c->micro_batch = micro;
    c->grad_accum = accum;
    return GT_OK;
}

/* layers 0: no model section, the caller brings blocks of their own. */
static gt_status check_model(const gt_model_config *m, const gt_mesh_config *mesh)
{
    if (m->layers == 0) {
        return GT_OK;
    }
    if (m->width % m->heads != 0) {
        return GT_FAIL(GT_ERR_CONFIG, "model.heads %lld does not divide model.width %lld",
                       LL(m->heads), LL(m->width));
    }
    if (m->kv_heads > 0 && m->heads % m->kv_heads != 0) {
        return GT_FAIL(GT_ERR_CONFIG, "model.kv_heads %lld does not divide model.heads %lld",
                       LL(m->kv_heads), LL(m->heads));
    }
    int64_t kv = m->kv_heads > 0 ? m->kv_heads : m->heads;
    if (m->heads % mesh->tp != 0) {
        return GT_FAIL(GT_ERR_CONFIG, "mesh.tp %d does not divide model.heads %lld", mesh->tp,
                       LL(m->heads));
    }
    if (kv % mesh->tp != 0 && mesh->tp % kv != 0) { /* fewer key/value heads are replicated */
        return GT_FAIL(GT_ERR_CONFIG,
                       "mesh.tp %d and model.kv_heads %lld: one must divide the other", mesh->tp,
                       LL(kv));
    }
    return GT_OK;
}

static gt_status resolve_scheduler(gt_config *c)
{
    gt_scheduler_config *s = &c->scheduler;
    bool needs_total = s->type != GT_LR_CONSTANT && s->type != GT_LR_WARMUP;
    if (needs_total && s->total_steps == 0) {
        s->total_steps = c->train.steps;
    }
    if (needs_total && s->total_steps == 0) {
        return GT_FAIL(GT_ERR_CONFIG, "the scheduler needs scheduler.params.total_num_steps, or "
                                      "train.steps to take it from");
    }
    return GT_OK;
}

static gt_status check_relations(const gt_config *c)
{
    if (c->scaler.enabled != (c->dtype == GT_F16)) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "the loss scaler is %s but parameters are %s; it belongs to f16",
                       c->scaler.enabled ? "on" : "off", gt_dtype_name(c->dtype));
    }
    if (c->optimizer.master_remainder && c->dtype != GT_BF16) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "optimizer.params.master_remainder needs bf16 parameters, not %s",
                       gt_dtype_name(c->dtype));
    }
    if (c->optimizer.master_remainder && c->optimizer.type != GT_ADAMW &&
        c->optimizer.type != GT_ADAM) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "optimizer.params.master_remainder works with Adam and AdamW, the other "
                       "optimizers keep an f32 master");
    }
    int shard = c->mesh.dp * c->mesh.cp, hpz = c->zero.hpz_partition_size;
    if (hpz > 1 && shard % hpz != 0) {
        return GT_FAIL(
            GT_ERR_CONFIG,
            "zero_optimization.zero_hpz_partition_size %d does not divide dp %d x cp %d = %d", hpz,
            c->mesh.dp, c->mesh.cp, shard);
    }
    if (c->zero.offload_optimizer == GT_OFFLOAD_FILE && c->zero.offload_path[0] == '\0') {
        return GT_FAIL(GT_ERR_CONFIG, "zero_optimization.offload_optimizer.device is nvme, but "
                                      "nvme_path is not given");
    }
    GT_TRY(gti_config_check_groups(&c->optimizer));
    return check_model(&c->model, &c->mesh);
}

gt_status gt_config_resolve(gt_config *config, int world_size)
{
    gt_config c = *config;
    for (size_t i = 0; i < gti_key_count; i++) {
        GT_TRY(gti_key_check(&c, &gti_keys[i]));
    }
    GT_TRY(resolve_mesh(&c.mesh, world_size));
    GT_TRY(resolve_batch(&c, c.mesh.dp));
    GT_TRY(resolve_scheduler(&c));
    GT_TRY(check_relations(&c));
    *config = c;
    return GT_OK;
}
