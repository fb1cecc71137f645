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

static const char *param_name(const void *t, int index)
{
    return ((const gt_trainer *)t)->params[index].name;
}

int gti_trainer_find_param(const gt_trainer *t, const char *name)
{
    return gti_names_find(&t->param_names, t, name);
}

/* A tied parameter must come after its owner and be cut as it is. */
static gt_status resolve_tie(gt_trainer *t, const struct engine_block *b, const gt_param *decl,
                             int *out)
{
    int owner = gti_trainer_find_param(t, decl->tied_to);
    if (owner < 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s.%s is tied to %s, which no earlier block declares",
                       b->block->name, decl->name, decl->tied_to);
    }
    const gt_param *o = &t->params[owner].decl;
    if (gti_param_numel(o) != gti_param_numel(decl) || o->tp_axis != decl->tp_axis) {
        return GT_FAIL(GT_ERR_SHAPE, "%s.%s (%lld elements) is tied to %s (%lld elements)",
                       b->block->name, decl->name, (long long)gti_param_numel(decl), decl->tied_to,
                       (long long)gti_param_numel(o));
    }
    t->params[owner].shared = true;
    *out = owner;
    return GT_OK;
}

static gt_status add_params(gt_trainer *t, struct engine_block *b)
{
    b->param = calloc((size_t)b->declared.count + 1, sizeof(int));
    struct model_param *grown =
        realloc(t->params, (size_t)(t->param_count + b->declared.count + 1) * sizeof(*t->params));
    if (grown != NULL) {
        t->params = grown;
    }
    if (b->param == NULL || grown == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for the parameters of %s", b->block->name);
    }
    for (int i = 0; i < b->declared.count; i++) {
        const gt_param *decl = &b->declared.params[i];
        if (decl->tied_to != NULL) {
            GT_TRY(resolve_tie(t, b, decl, &b->param[i]));
            t->params[b->param[i]].sets_gradient |= decl->sets_gradient;
            continue;
        }
        struct model_param *p = &t->params[t->param_count];
        *p = (struct model_param){.decl = *decl,
                                  .block = b->index,
                                  .sets_gradient = decl->sets_gradient,
                                  .unit = -1,
                                  .tensor = -1};
        snprintf(p->name, sizeof(p->name), "%s.%s", b->block->name, decl->name);
        if (gti_trainer_find_param(t, p->name) >= 0) {
            return GT_FAIL(GT_ERR_ARGUMENT, "two parameters are named %s", p->name);
        }
        GT_TRY(gti_names_add(&t->param_names, t));
        if (gti_param_numel(decl) > GTI_NUMEL_MAX - t->parameters) {
            return GT_FAIL(GT_ERR_SHAPE, "the model has more than 2^52 parameters");
        }
        t->parameters += gti_param_numel(decl);
        b->param[i] = t->param_count++;
    }
    return GT_OK;
}

gt_status gti_trainer_declare(gt_trainer *t)
{
    t->param_names.name_of = param_name;
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
    return gti_config_unmatched_pattern(&t->config, param_name, t, t->param_count);
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

static gt_zero_tensor describe(const gt_trainer *t, const struct model_param *p, bool copy)
{
    int tp = gt_mesh_size(t->mesh, GT_AXIS_TP), rank = gt_mesh_index(t->mesh, GT_AXIS_TP);
    gt_zero_tensor z = {.name = p->name,
                        .numel = gti_param_local_numel(&p->decl, tp, rank),
                        .frozen = p->decl.frozen,
                        .sets_gradient = p->sets_gradient,
                        .norm_weight = copy ? 0.0 : 1.0};
    gti_config_group_scales(&t->config, p->name, p->decl.no_decay, &z.lr_scale, &z.decay_scale);
    if (p->decl.tp_axis == GT_REPLICATED) {
        z.partial = p->decl.sequence_partial && t->layout[LAYOUT_TRAIN].sequence_parallel;
        z.norm_weight = rank == 0 ? z.norm_weight : 0.0;
        return z;
    }
    gti_param_piece pieces[GT_MAX_SECTIONS];
    int count = gti_param_pieces(&p->decl, tp, rank, pieces);
    for (int i = count - 1; i >= 0; i--) {
        if (pieces[i].replica > 0) {
            z.replica_from = pieces[i].local_first * gti_param_inner(&p->decl);
            if (z.replica_from == 0) {
                z.norm_weight = 0.0;
            }
        }
    }
    return z;
}

static gt_status add_unit(gt_trainer *t, const char *name, const int *params, int count, bool copy,
                          gt_comm *tie, int reduce_after)
{
    gt_zero_tensor *tensors = calloc((size_t)count + 1, sizeof(*tensors));
    struct engine_unit *grown = realloc(t->units, (size_t)(t->unit_count + 1) * sizeof(*t->units));
    if (grown != NULL) {
        t->units = grown;
    }
    if (tensors == NULL || grown == NULL) {
        free(tensors);
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for unit %s", name);
    }
    for (int i = 0; i < count; i++) {
        tensors[i] = describe(t, &t->params[params[i]], copy);
    }
    int unit;
    gt_status st = gt_zero_add_unit(t->zero, name, count, tensors, tie, &unit);
    free(tensors);
    GT_TRY(st);
    GT_ASSERT(unit == t->unit_count); /* all of t->zero's units are in the list */
    for (int i = 0; i < count; i++) {
        t->params[params[i]].unit = unit;
        t->params[params[i]].tensor = i;
    }
    t->units[t->unit_count++] = (struct engine_unit){.unit = unit, .reduce_after = reduce_after};
    return GT_OK;
}

/* A parameter that several blocks use is a unit of its own. Its gradient is whole after the
 * backward of the first local block that uses it; a copy on another stage than the owner's is tied.
 */
static gt_status add_shared_unit(gt_trainer *t, int param)
{
    struct model_param *p = &t->params[param];
    int first = -1;
    bool elsewhere = false;
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
    gt_comm *tie = elsewhere ? gt_mesh_comm(t->mesh, GT_AXIS_EMBED) : NULL;
    if (elsewhere && gt_comm_size(tie) != 2) {
        return GT_FAIL(GT_ERR_UNSUPPORTED,
                       "%s is used on several pipeline stages other than the "
                       "first and the last",
                       p->name);
    }
    return add_unit(t, p->name, &param, 1, !t->blocks[p->block].local, tie, first);
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
        if (!t->params[b->param[i]].shared) {
            own[count++] = b->param[i];
        }
    }
    if (count > 0) {
        st = add_unit(t, b->block->name, own, count, false, NULL, b->index);
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
        int unit = t->params[b->param[i]].unit;
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
    for (int i = 0; i < t->param_count; i++) {
        if (t->params[i].shared) {
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

const char *gt_trainer_param_name(const gt_trainer *t, int i, int *ndim, int64_t shape[4])
{
    if (i < 0 || i >= t->param_count) {
        return NULL;
    }
    const gt_param *decl = &t->params[i].decl;
    if (ndim != NULL) {
        *ndim = decl->ndim;
    }
    for (int d = 0; shape != NULL && d < decl->ndim; d++) {
        shape[d] = decl->shape[d];
    }
    return t->params[i].name;
}
