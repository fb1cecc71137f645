/* SPDX-License-Identifier: Apache-2.0
 * Parameters: declared by blocks, gathered into ZeRO units. */
#include "trainer/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "config/param_names.h"
#include "core/fail.h"
#include "core/tensor.h"
#include "params/param_layout.h"

/* A tied parameter must come after its owner and be cut as it is. */
static gt_status resolve_tie(gt_trainer *t, const struct engine_block *b, const gt_param *decl,
                             int *out)
{
    int owner = gt_params_find(t->table, decl->tied_to);
    if (owner < 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s.%s is tied to %s, which no earlier block declares",
                       b->block->name, decl->name, decl->tied_to);
    }
    struct gti_param *o = &t->table->param[owner];
    if (o->numel != gti_param_numel(decl) || o->decl.tp_axis != decl->tp_axis) {
        return GT_FAIL(GT_ERR_SHAPE, "%s.%s (%lld elements) is tied to %s (%lld elements)",
                       b->block->name, decl->name, (long long)gti_param_numel(decl), decl->tied_to,
                       (long long)o->numel);
    }
    o->decl.sets_gradient |= decl->sets_gradient;
    t->uses[owner].shared = true;
    *out = owner;
    return GT_OK;
}

/* A row of the table, by its full name and with what the configuration says of it. */
static gt_status add_row(gt_trainer *t, const struct engine_block *b, const gt_param *decl,
                         int *out)
{
    char name[GTI_NAME_MAX];
    float lr_scale, decay_scale;
    snprintf(name, sizeof(name), "%s.%s", b->block->name, decl->name);
    gt_param full = *decl;
    full.name = name;
    GT_TRY(gt_params_add(t->table, GT_ELSEWHERE, &full, out));
    gti_config_group_scales(&t->config, name, decl->no_decay, &lr_scale, &decay_scale);
    lr_scale *= decl->lr_scale == 0 ? 1.0f : decl->lr_scale;
    decay_scale *= decl->decay_scale == 0 ? 1.0f : decl->decay_scale;
    gti_params_set(t->table, *out, lr_scale, decay_scale,
                   decl->frozen || gti_config_is_frozen(&t->config, name));
    t->uses[*out] = (struct param_use){.block = b->index};
    return GT_OK;
}

static gt_status add_params(gt_trainer *t, struct engine_block *b)
{
    int rows = t->table->count + b->declared.count;
    b->param = calloc((size_t)b->declared.count + 1, sizeof(int));
    struct param_use *grown = realloc(t->uses, (size_t)(rows + 1) * sizeof(*t->uses));
    if (grown != NULL) {
        t->uses = grown;
    }
    if (b->param == NULL || grown == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for the parameters of %s", b->block->name);
    }
    for (int i = 0; i < b->declared.count; i++) {
        const gt_param *decl = &b->declared.params[i];
        if (decl->tied_to != NULL) {
            GT_TRY(resolve_tie(t, b, decl, &b->param[i]));
            continue;
        }
        if (gti_param_numel(decl) > GTI_NUMEL_MAX - t->parameters) {
            return GT_FAIL(GT_ERR_SHAPE, "the model has more than 2^52 parameters");
        }
        GT_TRY(add_row(t, b, decl, &b->param[i]));
        t->parameters += gti_param_numel(decl);
    }
    return GT_OK;
}

static gt_status make_table(gt_trainer *t)
{
    gt_params_params p = GT_PARAMS_PARAMS_INIT;
    p.tp_size = t->layout[LAYOUT_TRAIN].tp_size;
    p.tp_rank = t->layout[LAYOUT_TRAIN].tp_rank;
    p.sequence_parallel = t->layout[LAYOUT_TRAIN].sequence_parallel;
    return gt_params_create(&t->table, &p);
}

static const char *row_name(const void *table, int index)
{
    return ((const gt_params *)table)->param[index].decl.name;
}

gt_status gti_trainer_declare(gt_trainer *t)
{
    GT_TRY(make_table(t));
    t->block_count = gt_model_blocks(t->model);
    if (t->block_count == 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the model has no blocks");
    }
    t->blocks = calloc((size_t)t->block_count, sizeof(*t->blocks));
    if (t->blocks == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for %d blocks", t->block_count);
    }
    for (int i = 0; i < t->block_count; i++) {
        struct engine_block *b = &t->blocks[i];
        b->block = gt_model_block(t->model, i);
        b->index = i;
        if (b->block->ops->is_loss != (i == t->block_count - 1)) {
            return GT_FAIL(GT_ERR_ARGUMENT,
                           "block %s (%d of %d) is %s; the last block, and only "
                           "it, must be a loss block",
                           b->block->name, i + 1, t->block_count,
                           b->block->ops->is_loss ? "a loss block" : "not a loss block");
        }
        GT_TRY(b->block->ops->declare(b->block, &b->declared));
        GT_TRY(add_params(t, b));
    }
    return gti_config_unmatched_pattern(&t->config, row_name, t->table, t->table->count);
}

static uint64_t mix(uint64_t h, const void *bytes, size_t size)
{
    return size ? XXH3_64bits_withSeed(bytes, size, h) : h;
}

static uint64_t mix_text(uint64_t h, const char *text)
{
    return mix(h, text ? text : "", text ? strlen(text) + 1 : 1);
}

static uint64_t mix_param(uint64_t h, const gt_param *p)
{
    const int64_t numbers[] = {p->ndim,     p->tp_axis,          p->tp_unit,
                               p->sections, p->tp_share,         p->no_decay,
                               p->frozen,   p->sequence_partial, p->init};
    const float values[] = {p->mean, p->std};
    h = mix_text(mix_text(h, p->name), p->tied_to);
    h = mix(h, p->shape, (size_t)p->ndim * sizeof(p->shape[0]));
    h = mix(h, p->section, p->sections > 1 ? (size_t)p->sections * sizeof(p->section[0]) : 0);
    return mix(mix(h, numbers, sizeof(numbers)), values, sizeof(values));
}

uint64_t gti_trainer_model_hash(const gt_trainer *t)
{
    uint64_t h = 0;
    for (int i = 0; i < t->block_count; i++) {
        const struct engine_block *b = &t->blocks[i];
        h = mix_text(mix_text(h, b->block->ops->type), b->block->name);
        for (int k = 0; k < b->declared.count; k++) {
            h = mix_param(h, &b->declared.params[k]);
        }
    }
    return h;
}

/* ---- units ------------------------------------------------------------------------------------
 */

static gt_status add_unit(gt_trainer *t, const char *name, const int *params, int count,
                          const gt_unit_params *tie, int reduce_after)
{
    int unit;
    struct engine_unit *grown = realloc(t->units, (size_t)(t->unit_count + 1) * sizeof(*t->units));
    if (grown == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for unit %s", name);
    }
    t->units = grown;
    GT_TRY(gt_params_add_unit(t->table, name, tie, &unit));
    GT_ASSERT(unit == t->unit_count); /* all units of the table are in the list */
    for (int i = 0; i < count; i++) {
        GT_TRY(gti_params_assign(t->table, params[i], unit));
    }
    t->units[t->unit_count++] = (struct engine_unit){.unit = unit, .reduce_after = reduce_after};
    return GT_OK;
}

/* A parameter that several blocks use is a unit of its own. Its gradient is whole after the
 * backward of the first local block that uses it; a copy on another stage than the owner's is tied.
 */
static gt_status add_shared_unit(gt_trainer *t, int param)
{
    const char *name = t->table->param[param].decl.name;
    bool elsewhere = false;
    int first = -1;
    for (int i = 0; i < t->block_count; i++) {
        for (int k = 0; k < t->blocks[i].declared.count; k++) {
            if (t->blocks[i].param[k] == param) {
                elsewhere |= !t->blocks[i].local;
                first = first < 0 && t->blocks[i].local ? i : first;
            }
        }
    }
    if (first < 0) {
        return GT_OK;
    }
    gt_unit_params u = GT_UNIT_PARAMS_INIT;
    u.tie = elsewhere ? gt_mesh_comm(t->mesh, GT_AXIS_EMBED) : NULL;
    u.copy = !t->blocks[t->uses[param].block].local;
    if (elsewhere && gt_comm_size(u.tie) != 2) {
        return GT_FAIL(GT_ERR_UNSUPPORTED,
                       "%s is used on several pipeline stages other than the "
                       "first and the last",
                       name);
    }
    return add_unit(t, name, &param, 1, &u, first);
}

static gt_status add_block_units(gt_trainer *t, struct engine_block *b)
{
    int *own = calloc((size_t)b->declared.count + 1, sizeof(int));
    if (own == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for unit %s", b->block->name);
    }
    int count = 0;
    gt_status st = GT_OK;
    for (int i = 0; i < b->declared.count; i++) {
        if (!t->uses[b->param[i]].shared) {
            own[count++] = b->param[i];
        }
    }
    if (count > 0) {
        st = add_unit(t, b->block->name, own, count, NULL, b->index);
    }
    free(own);
    return st;
}

static gt_status list_units(gt_trainer *t, struct engine_block *b)
{
    b->units = calloc((size_t)b->declared.count + 1, sizeof(int));
    if (b->units == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for the units of %s", b->block->name);
    }
    for (int i = 0; i < b->declared.count; i++) {
        int unit = t->table->param[b->param[i]].unit;
        bool known = false;
        for (int k = 0; k < b->unit_count; k++) {
            known |= b->units[k] == unit;
        }
        if (!known) {
            b->units[b->unit_count++] = unit;
        }
    }
    for (int k = 0; k < b->unit_count; k++) {
        t->units[b->units[k]].uses++;
    }
    return GT_OK;
}

/* Shared ones first, in model order, which is the same on the stages that sum their gradients. */
gt_status gti_trainer_make_units(gt_trainer *t)
{
    for (int i = 0; i < t->table->count; i++) {
        if (t->uses[i].shared) {
            GT_TRY(add_shared_unit(t, i));
        }
    }
    for (int i = 0; i < t->block_count; i++) {
        if (t->blocks[i].local) {
            GT_TRY(add_block_units(t, &t->blocks[i]));
            GT_TRY(list_units(t, &t->blocks[i]));
        }
    }
    return GT_OK;
}
