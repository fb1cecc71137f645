/* SPDX-License-Identifier: Apache-2.0
 * Planning the whole model, and memory for the blocks of this rank: exactly what the plans say. */
#include "trainer/engine.h"

#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "core/env.h"
#include "core/fail.h"
#include "params/param_layout.h"

static gt_status plan_block(gt_trainer *t, int index, int which, gt_plan *before)
{
    struct engine_block *b = &t->blocks[index];
    gt_plan *plan = &b->plan[which];
    gti_plan_init(plan, &t->layout[which], before ? before->outputs : 0,
                  before ? before->out : NULL);
    gt_status st = b->block->ops->plan(b->block, plan);
    if (st != GT_OK) {
        return gti_fail_in(st, "planning block %s", b->block->name);
    }
    if (plan->outputs == 0 && !b->block->ops->is_loss) {
        return GT_FAIL(GT_ERR_ARGUMENT, "block %s plans no output", b->block->name);
    }
    return GT_OK;
}

gt_status gti_trainer_plan(gt_trainer *t)
{
    for (int which = 0; which < LAYOUT_COUNT; which++) {
        for (int i = 0; i < t->block_count; i++) {
            GT_TRY(plan_block(t, i, which, i ? &t->blocks[i - 1].plan[which] : NULL));
        }
    }
    return GT_OK;
}

static size_t outputs_bytes(const gt_plan *plan)
{
    size_t bytes = 0;
    for (int i = 0; i < plan->outputs; i++) {
        bytes += gti_plan_shape_room(&plan->out[i]);
    }
    return bytes;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static bool recomputes(const gt_trainer *t, const struct engine_block *b)
{
    return t->config.model.recompute && !b->block->ops->is_loss;
}

static bool owns_output(const struct chunk *c, const struct engine_block *b)
{
    return b->index != c->first + c->count - 1;
}

static size_t slot_bytes(const gt_trainer *t, const struct chunk *c)
{
    size_t bytes = 0;
    for (int i = 0; i < c->count; i++) {
        const struct engine_block *b = &t->blocks[c->first + i];
        bytes += owns_output(c, b) ? outputs_bytes(&b->plan[LAYOUT_TRAIN]) : 0;
        bytes += recomputes(t, b) ? 0 : b->plan[LAYOUT_TRAIN].saved.bytes;
    }
    return bytes;
}

static char *place_outputs(const gt_trainer *t, const gt_plan *plan, char *at, gt_tensor *out)
{
    for (int p = 0; p < plan->outputs; p++) {
        out[p] = gti_plan_shape_tensor(&plan->out[p], at, gt_context_device(t->ctx));
        at += gti_plan_shape_room(&plan->out[p]);
    }
    return at;
}

static gt_status fill_slot(gt_trainer *t, const struct chunk *c, struct slot *s)
{
    s->outputs = calloc((size_t)c->count, sizeof(*s->outputs));
    s->saved = calloc((size_t)c->count, sizeof(*s->saved));
    if (s->outputs == NULL || s->saved == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for an activation slot");
    }
    char *at = s->memory;
    for (int i = 0; i < c->count; i++) {
        const struct engine_block *b = &t->blocks[c->first + i];
        const gt_plan *plan = &b->plan[LAYOUT_TRAIN];
        if (owns_output(c, b)) {
            at = place_outputs(t, plan, at, s->outputs[i]);
        }
        if (recomputes(t, b)) {
            continue;
        }
        s->saved[i].count = plan->saved.count;
        s->saved[i].tensors = calloc((size_t)plan->saved.count + 1, sizeof(gt_tensor));
        if (s->saved[i].tensors == NULL) {
            return GT_FAIL(GT_ERR_MEMORY, "no host memory for the saved tensors of %s",
                           b->block->name);
        }
        gti_shape_list_place(&plan->saved, at, gt_context_device(t->ctx), s->saved[i].tensors);
        at += plan->saved.bytes;
    }
    return GT_OK;
}

/* Most microbatches that are between their forward and their last backward part in a chunk; of all
 * chunks together with chunk -1. */
static int peak_live(const gt_trainer *t, int chunk)
{
    const gt_action *actions;
    int n = gt_schedule_actions(t->schedule, gt_mesh_index(t->mesh, GT_AXIS_PP), &actions);
    bool split = gt_schedule_splits_backward(t->schedule);
    int live = 0, peak = 1;
    for (int i = 0; i < n; i++) {
        if (chunk >= 0 && actions[i].chunk != chunk) {
            continue;
        }
        if (actions[i].kind == GT_ACTION_FORWARD) {
            live++;
            peak = live > peak ? live : peak;
        } else if (actions[i].kind == GT_ACTION_BACKWARD ||
                   (split && actions[i].kind == GT_ACTION_BACKWARD_WEIGHT)) {
            live--;
        }
    }
    return peak;
}

/* Chunks do not have their most microbatches at the same time. With slots as large as the largest
 * chunk needs, fewer are enough for all of them: shared where that takes less memory. */
static bool plan_slots(gt_trainer *t, size_t *largest)
{
    size_t apart = 0;
    *largest = 0;
    for (int c = 0; c < t->chunk_count; c++) {
        size_t bytes = slot_bytes(t, &t->chunks[c]);
        t->chunks[c].slot_count = peak_live(t, c);
        apart += (size_t)t->chunks[c].slot_count * bytes;
        *largest = larger(*largest, bytes);
    }
    int together = peak_live(t, -1);
    if ((size_t)together * *largest >= apart) {
        return false;
    }
    for (int c = 0; c < t->chunk_count; c++) {
        t->chunks[c].slot_count = together;
    }
    return true;
}

static gt_status allocate_slots(gt_trainer *t, int chunk, size_t largest)
{
    struct chunk *c = &t->chunks[chunk];
    c->slots = calloc((size_t)c->slot_count, sizeof(*c->slots));
    if (c->slots == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for %d activation slots", c->slot_count);
    }
    for (int i = 0; i < c->slot_count; i++) {
        struct slot *s = &c->slots[i];
        s->microbatch = -1;
        if (t->slots_shared && chunk > 0) {
            s->memory = t->chunks[0].slots[i].memory;
        } else {
            size_t bytes = t->slots_shared ? largest : slot_bytes(t, c);
            GT_TRY(gt_alloc(t->ctx, &s->memory, bytes, GT_MEM_ACTIVATIONS));
        }
        GT_TRY(fill_slot(t, c, s));
    }
    return GT_OK;
}

static gt_status upload_constants(gt_trainer *t, struct engine_block *b, int which)
{
    const gt_plan *plan = &b->plan[which];
    b->constants[which] = calloc((size_t)plan->constant_count + 1, sizeof(gt_tensor));
    if (b->constants[which] == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for the constants of %s", b->block->name);
    }
    for (int i = 0; i < plan->constant_count; i++) {
        const gt_shape *s = &plan->constants[i].shape;
        gt_tensor *c = &b->constants[which][i];
        GT_TRY(gt_tensor_alloc(t->ctx, c, GT_MEM_OTHER, s->dtype, s->ndim, s->dims));
        GT_TRY(gt_copy_from_host(t->ctx, c, plan->constants[i].host, NULL));
    }
    return GT_OK;
}

static gt_status allocate_block(gt_trainer *t, struct engine_block *b)
{
    size_t n = (size_t)b->declared.count + 1;
    b->params = calloc(n, sizeof(gt_tensor));
    b->grads = calloc(n, sizeof(gt_tensor));
    b->unset = calloc(n, sizeof(bool));
    if (b->params == NULL || b->grads == NULL || b->unset == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for the tensors of %s", b->block->name);
    }
    for (int which = 0; which < LAYOUT_COUNT; which++) {
        const gt_plan *plan = &b->plan[which];
        b->workspace[which] = calloc((size_t)plan->workspace.count + 1, sizeof(gt_tensor));
        if (b->workspace[which] == NULL) {
            return GT_FAIL(GT_ERR_MEMORY, "no host memory for the tensors of %s", b->block->name);
        }
        gti_shape_list_place(&plan->workspace, t->workspace, gt_context_device(t->ctx),
                             b->workspace[which]);
        GT_TRY(upload_constants(t, b, which));
    }
    return GT_OK;
}

struct needs {
    size_t workspace, saved, output, gradient;
    int saved_count;
};

static struct needs largest_needs(const gt_trainer *t)
{
    struct needs n = {0};
    for (int i = 0; i < t->block_count; i++) {
        const struct engine_block *b = &t->blocks[i];
        if (!b->local) {
            continue;
        }
        for (int which = 0; which < LAYOUT_COUNT; which++) {
            n.workspace = larger(n.workspace, b->plan[which].workspace.bytes);
        }
        const gt_plan *plan = &b->plan[LAYOUT_TRAIN];
        n.gradient = larger(n.gradient, outputs_bytes(plan));
        if (recomputes(t, b)) {
            n.saved = larger(n.saved, plan->saved.bytes);
            n.output = larger(n.output, outputs_bytes(plan));
            n.saved_count = plan->saved.count > n.saved_count ? plan->saved.count : n.saved_count;
        }
    }
    return n;
}

static gt_status allocate_scratch(gt_trainer *t)
{
    struct needs n = largest_needs(t);
    GT_TRY(gt_alloc(t->ctx, &t->workspace, n.workspace, GT_MEM_WORKSPACE));
    GT_TRY(gt_alloc(t->ctx, &t->gradient[0], n.gradient, GT_MEM_ACTIVATIONS));
    GT_TRY(gt_alloc(t->ctx, &t->gradient[1], n.gradient, GT_MEM_ACTIVATIONS));
    if (t->config.model.recompute) {
        GT_TRY(gt_alloc(t->ctx, &t->recompute_saved, n.saved, GT_MEM_ACTIVATIONS));
        GT_TRY(gt_alloc(t->ctx, &t->recompute_out, n.output, GT_MEM_ACTIVATIONS));
        t->recompute.tensors = calloc((size_t)n.saved_count + 1, sizeof(gt_tensor));
        if (t->recompute.tensors == NULL) {
            return GT_FAIL(GT_ERR_MEMORY, "no host memory for recomputation");
        }
    }
    return GT_OK;
}

/* ---- is there enough? -------------------------------------------------------------------------
 */
/* In double: absurd sizes do not overflow. */
static double activation_bytes(gt_trainer *t, const struct needs *n)
{
    size_t largest;
    double bytes = 2 * (double)n->gradient + (double)n->saved + (double)n->output;
    t->slots_shared = plan_slots(t, &largest);
    for (int c = 0; c < t->chunk_count && !t->slots_shared; c++) {
        bytes += (double)t->chunks[c].slot_count * (double)slot_bytes(t, &t->chunks[c]);
    }
    return t->slots_shared ? bytes + (double)t->chunks[0].slot_count * (double)largest : bytes;
}

/* Tokens, targets and rows, on the host and on the device. */
static double batch_bytes(const gt_trainer *t)
{
    return (double)t->samples * (double)t->layout[LAYOUT_TRAIN].seq_local * 32.0;
}

/* Ranks that are threads of a process, or all processes of mpirun. */
static bool share_a_machine(const gt_trainer *t)
{
    const char *local = gti_env(GTI_ENV_LOCAL_RANKS);
    return strcmp(gt_comm_transport(t->world), "mpi") != 0 ||
           (local != NULL && atoi(local) == gt_comm_size(t->world));
}

/* Of the large things; those of communication come to it. */
gt_status gti_trainer_check_memory(gt_trainer *t)
{
    struct needs n = largest_needs(t);
    gt_zero_bytes states;
    gt_zero_formula(t->zero, &states);
    double model = (double)states.params + (double)states.grads + (double)states.optimizer;
    double activations = activation_bytes(t, &n), workspace = (double)n.workspace;
    double batch = batch_bytes(t), mine = model + activations + workspace + batch, all = mine;
    double have = (double)gti_context_memory(t->ctx);
    gt_tensor sum = gt_tensor_1d(&all, GT_F64, 1);
    GT_TRY(gt_all_reduce(t->world, &sum, GT_SUM, NULL, NULL));
    if (mine > have) {
        return GT_FAIL(GT_ERR_MEMORY,
                       "at least %.4g GB are needed (parameters, gradients and optimizer %.4g, "
                       "activations %.4g, workspace %.4g, batch %.4g), there are %.4g",
                       mine / 1e9, model / 1e9, activations / 1e9, workspace / 1e9, batch / 1e9,
                       have / 1e9);
    }
    if (share_a_machine(t) && all > have) {
        return GT_FAIL(GT_ERR_MEMORY, "the %d ranks need at least %.4g GB together, there are %.4g",
                       gt_comm_size(t->world), all / 1e9, have / 1e9);
    }
    return GT_OK;
}

gt_status gti_trainer_allocate(gt_trainer *t)
{
    size_t largest;
    GT_TRY(allocate_scratch(t));
    t->slots_shared = plan_slots(t, &largest);
    for (int c = 0; c < t->chunk_count; c++) {
        GT_TRY(allocate_slots(t, c, largest));
        for (int i = 0; i < t->chunks[c].count; i++) {
            GT_TRY(allocate_block(t, &t->blocks[t->chunks[c].first + i]));
        }
    }
    return GT_OK;
}

static void free_chunk(gt_trainer *t, struct chunk *c)
{
    for (int i = 0; c->slots != NULL && i < c->slot_count; i++) {
        struct slot *s = &c->slots[i];
        for (int k = 0; s->saved != NULL && k < c->count; k++) {
            free(s->saved[k].tensors);
        }
        if (!t->slots_shared || c == t->chunks) {
            gt_free(t->ctx, s->memory);
        }
        free(s->outputs);
        free(s->saved);
    }
    free(c->slots);
}

static void free_block(gt_trainer *t, struct engine_block *b)
{
    for (int which = 0; which < LAYOUT_COUNT; which++) {
        for (int i = 0; b->constants[which] != NULL && i < b->plan[which].constant_count; i++) {
            gt_tensor_free(t->ctx, &b->constants[which][i]);
        }
        free(b->constants[which]);
        free(b->workspace[which]);
        gti_plan_free(&b->plan[which]);
    }
    gti_param_list_free(&b->declared);
    free(b->param);
    free(b->units);
    free(b->params);
    free(b->grads);
    free(b->unset);
}

void gti_trainer_free_memory(gt_trainer *t)
{
    for (int i = 0; t->chunks != NULL && i < t->chunk_count; i++) {
        free_chunk(t, &t->chunks[i]);
    }
    for (int i = 0; t->blocks != NULL && i < t->block_count; i++) {
        free_block(t, &t->blocks[i]);
    }
    void *regions[] = {t->workspace, t->recompute_saved, t->recompute_out, t->gradient[0],
                       t->gradient[1]};
    for (size_t i = 0; i < sizeof(regions) / sizeof(regions[0]); i++) {
        gt_free(t->ctx, regions[i]);
    }
    free(t->recompute.tensors);
    free(t->chunks);
    free(t->blocks);
    free(t->units);
}
