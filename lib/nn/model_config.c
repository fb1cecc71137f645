/* SPDX-License-Identifier: Apache-2.0
 * Which models can be built, and over which mesh. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/machine.h"
#include "nn/gpt.h"

static gt_status check_sizes(const gt_model_config *c)
{
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"layers", c->layers},
                 {"width", c->width},
                 {"heads", c->heads},
                 {"vocab", c->vocab},
                 {"seq", c->seq}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (sizes[i].value < 1) {
            return GT_FAIL(GT_ERR_CONFIG, "model.%s is %lld, wanted at least 1", sizes[i].name,
                           (long long)sizes[i].value);
        }
    }
    if (c->vocab > INT32_MAX) {
        return GT_FAIL(GT_ERR_CONFIG, "model.vocab is %lld, token ids are 32-bit",
                       (long long)c->vocab);
    }
    if (c->width % c->heads != 0) {
        return GT_FAIL(GT_ERR_CONFIG, "model.heads = %lld does not divide model.width = %lld",
                       (long long)c->heads, (long long)c->width);
    }
    if (c->ffn < 0 || c->kv_heads < 0 || (c->kv_heads > 0 && c->heads % c->kv_heads != 0)) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "model.kv_heads = %lld, model.ffn = %lld: wanted a divisor of heads = %lld, "
                       "and at least 0",
                       (long long)c->kv_heads, (long long)c->ffn, (long long)c->heads);
    }
    return GT_OK;
}

static gt_status check_fraction(const char *name, float value, float end)
{
    if (!(value >= 0.0f && value < end)) {
        return GT_FAIL(GT_ERR_CONFIG, "model.%s is %g, wanted 0 <= %s < %g", name, (double)value,
                       name, (double)end);
    }
    return GT_OK;
}

static gt_status check_rope(const gt_model_config *c)
{
    const char *s = c->rope_scaling;
    if (c->width / c->heads % 2 != 0) {
        return GT_FAIL(GT_ERR_CONFIG, "rotary positions need an even head size, got %lld",
                       (long long)(c->width / c->heads));
    }
    if (!(c->rope_base >= 0.0f) || !isfinite(c->rope_base)) {
        return GT_FAIL(GT_ERR_CONFIG, "model.rope_base is %g, wanted a positive number",
                       (double)c->rope_base);
    }
    if (s[0] == '\0' || strcmp(s, "none") == 0) {
        return GT_OK;
    }
    if (strcmp(s, "linear") != 0 && strcmp(s, "llama3") != 0 && strcmp(s, "yarn") != 0) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "model.rope_scaling is \"%s\", wanted none, linear, llama3 or yarn", s);
    }
    if (!(c->rope_factor >= 1.0f) || !isfinite(c->rope_factor) || c->rope_original_seq < 0) {
        return GT_FAIL(GT_ERR_CONFIG, "model.rope_factor is %g, wanted at least 1",
                       (double)c->rope_factor);
    }
    return GT_OK;
}

static gt_status check_mesh(const gt_model_config *c, const gt_mesh_config *m)
{
    int64_t kv = c->kv_heads > 0 ? c->kv_heads : c->heads;
    int tp = m->tp > 0 ? m->tp : 1, cp = m->cp > 0 ? m->cp : 1;
    if (c->heads % tp != 0) {
        return GT_FAIL(GT_ERR_CONFIG, "mesh.tp = %d does not divide model.heads = %lld", tp,
                       (long long)c->heads);
    }
    if (kv % tp != 0 && tp % kv != 0) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "mesh.tp = %d and model.kv_heads = %lld: one must divide the other", tp,
                       (long long)kv);
    }
    if (c->seq % (2 * (int64_t)cp) != 0 && cp > 1) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "model.seq = %lld does not divide into the 2 x cp = %d pieces of context "
                       "parallelism",
                       (long long)c->seq, 2 * cp);
    }
    return GT_OK;
}

gt_status gt_model_config_check(const gt_model_config *config, const gt_mesh_config *mesh)
{
    if (config == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the model configuration is NULL");
    }
    bool llama = strcmp(config->type, "llama") == 0;
    if (!llama && strcmp(config->type, "gpt2") != 0) {
        return GT_FAIL(GT_ERR_CONFIG, "model.type is \"%s\", wanted gpt2 or llama", config->type);
    }
    GT_TRY(check_sizes(config));
    GT_TRY(check_fraction("dropout", config->dropout, 1.0f));
    GT_TRY(check_fraction("label_smoothing", config->label_smoothing, 1.0f));
    GT_TRY(check_fraction("z_loss", config->z_loss, INFINITY));
    GT_TRY(check_fraction("norm_eps", config->norm_eps, 1.0f));
    GT_TRY(check_fraction("init_std", config->init_std, INFINITY));
    if (llama) {
        GT_TRY(check_rope(config));
    }
    return mesh != NULL ? check_mesh(config, mesh) : GT_OK;
}

/* 4 C for GPT-2; for Llama 8/3 C, rounded up to a multiple of 64. */
static int64_t default_ffn(const gt_model_config *c, bool llama)
{
    return llama ? (8 * c->width / 3 + 63) / 64 * 64 : 4 * c->width;
}

gt_status gti_gpt_create(gti_gpt **out, const gt_model_config *config)
{
    GT_TRY(gt_model_config_check(config, NULL));
    gti_gpt *gpt = calloc(1, sizeof(*gpt));
    if (gpt == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for a block");
    }
    gpt->config = *config;
    gpt->llama = strcmp(config->type, "llama") == 0;
    gpt->head_size = config->width / config->heads;
    gpt->kv_heads = config->kv_heads > 0 ? config->kv_heads : config->heads;
    gpt->ffn = config->ffn > 0 ? config->ffn : default_ffn(config, gpt->llama);
    gpt->eps = config->norm_eps > 0.0f ? config->norm_eps : 1e-5f;
    gpt->init_std = config->init_std > 0.0f ? config->init_std : 0.02f;
    gpt->rope_scale = gti_rope_scale(config);
    *out = gpt;
    return GT_OK;
}

/* What every rank keeps on the host about a layer of any size, mostly names and shapes. */
#define LAYER_BYTES 14000 /* measured: 14 to 18 KB */

static gt_status check_layers(int64_t layers)
{
    size_t have = gti_machine_memory();
    if (layers > INT_MAX - 2) {
        return GT_FAIL(GT_ERR_CONFIG, "model.layers is %lld, wanted at most %d", (long long)layers,
                       INT_MAX - 2);
    }
    if ((size_t)layers > have / LAYER_BYTES) {
        return GT_FAIL(GT_ERR_MEMORY,
                       "model.layers is %lld: their names and shapes alone need %.4g GB, there are "
                       "%.4g",
                       (long long)layers, (double)layers * LAYER_BYTES / 1e9, (double)have / 1e9);
    }
    return GT_OK;
}

gt_status gt_model_add_gpt(gt_model *model, const gt_model_config *config)
{
    GT_TRY(gt_model_config_check(config, NULL));
    GT_TRY(check_layers(config->layers));
    GT_TRY(gt_model_add_embedding(model, "embed", config));
    for (int64_t i = 0; i < config->layers; i++) {
        char name[GT_PARAM_NAME_MAX];
        snprintf(name, sizeof(name), "blocks.%lld", (long long)i);
        GT_TRY(gt_model_add_transformer(model, name, config));
    }
    return gt_model_add_head(model, "head", config);
}
