/* SPDX-License-Identifier: Apache-2.0
 * The stage functions that the pipeline executor drives: a chunk's blocks, forward and backward. */
#include "trainer/engine.h"

#include "core/fail.h"
#include "params/param_layout.h"

/* ---- slots ------------------------------------------------------------------------------------
 */

static struct slot *find_slot(struct chunk *c, int microbatch)
{
    for (int i = 0; i < c->slot_count; i++) {
        if (c->slots[i].microbatch == microbatch) {
            return &c->slots[i];
        }
    }
    return NULL;
}

static bool is_taken(const gt_trainer *t, const struct chunk *c, int i)
{
    bool taken = c->slots[i].microbatch >= 0;
    for (int other = 0; t->slots_shared && other < t->chunk_count; other++) {
        taken = taken || t->chunks[other].slots[i].microbatch >= 0;
    }
    return taken;
}

static struct slot *free_slot(const gt_trainer *t, struct chunk *c)
{
    for (int i = 0; i < c->slot_count; i++) {
        if (!is_taken(t, c, i)) {
            return &c->slots[i];
        }
    }
    return NULL;
}

void gti_stage_reset(gt_trainer *t)
{
    for (int c = 0; c < t->chunk_count; c++) {
        for (int i = 0; i < t->chunks[c].slot_count; i++) {
            t->chunks[c].slots[i].microbatch = -1;
        }
    }
    for (int i = 0; i < t->unit_count; i++) {
        t->units[i].done = 0;
    }
}

/* ---- parameters and gradients of one call -----------------------------------------------------
 */

static gt_status view_as_declared(const gt_trainer *t, const gt_param *decl, gt_tensor *flat)
{
    int64_t shape[4];
    gt_tensor shaped;
    gti_param_local_shape(decl, gt_mesh_size(t->mesh, GT_AXIS_TP),
                          gt_mesh_index(t->mesh, GT_AXIS_TP), shape);
    GT_TRY(gt_tensor_reshape(&shaped, flat, decl->ndim, shape));
    *flat = shaped;
    return GT_OK;
}

static gt_status gather(gt_trainer *t, struct engine_block *b)
{
    for (int i = 0; i < b->unit_count; i++) {
        GT_TRY(gt_zero_prefetch(t->zero, b->units[i]));
    }
    for (int i = 0; i < b->unit_count; i++) {
        GT_TRY(gt_zero_gather(t->zero, b->units[i]));
    }
    for (int i = 0; i < b->declared.count; i++) {
        GT_TRY(gt_zero_param(t->zero, b->param[i], &b->params[i]));
        GT_TRY(view_as_declared(t, &b->declared.params[i], &b->params[i]));
    }
    return GT_OK;
}

static gt_status prefetch(gt_trainer *t, struct engine_block *b)
{
    for (int i = 0; i < b->unit_count; i++) {
        GT_TRY(gt_zero_prefetch(t->zero, b->units[i]));
    }
    return GT_OK;
}

static gt_status release(gt_trainer *t, struct engine_block *b)
{
    for (int i = 0; i < b->unit_count; i++) {
        GT_TRY(gt_zero_release(t->zero, b->units[i]));
    }
    return GT_OK;
}

/* In the forward call of a loss block, else in backward: where the block sets its gradients. A loss
 * block's backward finds those of its forward, or of nobody where the unit was reduced between. */
static gt_status open_gradients(gt_trainer *t, struct engine_block *b, bool forward)
{
    for (int i = 0; i < b->declared.count; i++) {
        b->unset[i] = false;
        if (b->declared.params[i].sets_gradient && b->block->ops->is_loss == forward) {
            GT_TRY(gt_zero_grad_unset(t->zero, b->param[i], &b->grads[i], &b->unset[i]));
        } else {
            GT_TRY(gt_zero_grad(t->zero, b->param[i], &b->grads[i]));
        }
        if (b->grads[i].data != NULL) {
            GT_TRY(view_as_declared(t, &b->declared.params[i], &b->grads[i]));
        }
    }
    return GT_OK;
}

static void no_gradients(struct engine_block *b)
{
    for (int i = 0; i < b->declared.count; i++) {
        b->grads[i] = (gt_tensor){0};
        b->unset[i] = false;
    }
}

bool gti_block_uses_unit(const struct engine_block *b, int unit)
{
    for (int i = 0; i < b->unit_count; i++) {
        if (b->units[i] == unit) {
            return true;
        }
    }
    return false;
}

/* Starts the reduction of every unit whose gradient this block has just completed. Schedules may
 * put the weight gradients of another block that uses the unit after this one's: the last of all
 * ends the step. */
static gt_status reduce(gt_trainer *t, struct engine_block *b)
{
    int microbatches = gt_schedule_microbatches(t->schedule);
    /* Gradients are given away each time; alone in its group a rank keeps them to the last. */
    bool each = t->config.zero.stage >= 2 && gt_mesh_size(t->mesh, GT_AXIS_SHARD) > 1;
    for (int i = t->unit_count - 1; i >= 0; i--) {
        struct engine_unit *u = &t->units[i];
        if (!gti_block_uses_unit(b, u->unit)) {
            continue;
        }
        bool last = ++u->done == microbatches * u->uses;
        if (!last && (!each || u->reduce_after != b->index)) {
            continue;
        }
        GT_TRY(gt_zero_reduce(t->zero, u->unit, last && t->ends_step));
    }
    return GT_OK;
}

/* ---- one block --------------------------------------------------------------------------------
 */

static gt_status microbatch_views(gt_trainer *t, int microbatch, gt_tensor *tokens,
                                  gt_tensor *targets, gt_tensor *rows)
{
    const gt_layout *l = &t->layout[t->mode];
    int64_t n = l->batch * l->seq_local;
    int64_t first = (int64_t)microbatch * n;
    GT_TRY(gt_tensor_slice(tokens, &t->tokens, first, n));
    GT_TRY(gt_tensor_slice(targets, &t->targets, first, n));
    return gt_tensor_slice(rows, &t->rows, first, n);
}

struct call {
    gt_step step;
    gt_tensor tokens, targets, rows;
};

static gt_status prepare(gt_trainer *t, struct engine_block *b, int microbatch, struct call *call)
{
    GT_TRY(microbatch_views(t, microbatch, &call->tokens, &call->targets, &call->rows));
    call->step = (gt_step){
        .ctx = t->ctx,
        .stream = gt_context_stream(t->ctx, GT_STREAM_COMPUTE),
        .layout = &t->layout[t->mode],
        .mesh = t->mesh,
        .tp = t->tp,
        .cp = t->cp,
        .params = b->params,
        .grads = b->grads,
        .unset = b->unset,
        .workspace = b->workspace[t->mode],
        .constants = b->constants[t->mode],
        .tokens = &call->tokens,
        .targets = &call->targets,
        .rows = &call->rows,
        .positions = &t->positions,
        .stats = &t->loss_stats,
        .training = t->training,
        .seed = t->config.seed,
        .block_index = b->index,
        .grad_scale = (float)(t->loss_scale / (double)t->nominal_tokens),
        .ignore_index = -100,
        .microbatch = microbatch,
    };
    return GT_OK;
}

/* Saved tensors of block i in the shapes of the present mode; recomputed blocks share one region.
 */
static gt_saved *place_saved(gt_trainer *t, const struct chunk *c, struct slot *s, int i)
{
    const gti_shape_list *planned = &t->blocks[c->first + i].plan[t->mode].saved;
    bool recomputed = s->saved[i].tensors == NULL;
    gt_saved *saved = recomputed ? &t->recompute : &s->saved[i];
    saved->count = planned->count;
    if (planned->count > 0) {
        void *base = recomputed ? t->recompute_saved : saved->tensors[0].data;
        gti_shape_list_place(planned, base, gt_context_device(t->ctx), saved->tensors);
    }
    return saved;
}

/* The planned output shapes at the memory of `out`. */
static void shape_outputs(const gt_trainer *t, const struct engine_block *b, void *memory,
                          gt_tensor *out)
{
    char *at = memory;
    const gt_plan *plan = &b->plan[t->mode];
    for (int p = 0; p < plan->outputs; p++) {
        out[p] = gti_plan_shape_tensor(&plan->out[p], at, gt_context_device(t->ctx));
        at += gti_plan_shape_room(&plan->out[p]);
    }
}

static gt_status forward_block(gt_trainer *t, struct engine_block *b, int microbatch,
                               const gt_tensor *in, gt_tensor *out, gt_saved *saved,
                               bool recomputing)
{
    struct call call;
    GT_TRY(prepare(t, b, microbatch, &call));
    call.step.recomputing = recomputing;
    if (b->block->ops->is_loss && t->training) {
        GT_TRY(open_gradients(t, b, true));
    } else {
        no_gradients(b);
    }
    if (b->block->ops->is_loss && t->mode == LAYOUT_GENERATE) {
        if (t->generate_row < 0) {
            return GT_OK;
        }
        if (b->block->ops->logits == NULL) {
            return GT_FAIL(GT_ERR_UNSUPPORTED, "block %s has no logits to generate from",
                           b->block->name);
        }
        return b->block->ops->logits(b->block, &call.step, in, t->generate_row, &t->logits);
    }
    return b->block->ops->forward(b->block, &call.step, in, out, saved);
}

gt_status gti_stage_forward(void *user, int microbatch, int chunk, const gt_tensor *in,
                            gt_tensor *out)
{
    gt_trainer *t = user;
    struct chunk *c = &t->chunks[chunk];
    struct slot *s = free_slot(t, c);
    if (s == NULL) {
        return GT_FAIL(GT_ERR_INTERNAL, "chunk %d has no free slot for microbatch %d", chunk,
                       microbatch);
    }
    s->microbatch = microbatch;
    for (int i = 0; i < c->count; i++) {
        struct engine_block *b = &t->blocks[c->first + i];
        bool last = i == c->count - 1;
        if (!last) {
            shape_outputs(t, b, s->outputs[i][0].data, s->outputs[i]);
        }
        GT_TRY(gather(t, b));
        if (!last) {
            GT_TRY(prefetch(t, &t->blocks[c->first + i + 1]));
        }
        gt_status st = forward_block(t, b, microbatch, in, last ? out : s->outputs[i],
                                     place_saved(t, c, s, i), false);
        if (st != GT_OK) {
            return gti_fail_in(st, "forward of block %s, microbatch %d", b->block->name,
                               microbatch);
        }
        GT_TRY(release(t, b));
        in = s->outputs[i];
    }
    if (!t->training) {
        s->microbatch = -1;
    }
    return GT_OK;
}

static gt_status backward_block(gt_trainer *t, struct chunk *c, struct slot *s, int i,
                                const gt_tensor *in, const gt_tensor *dout, gt_tensor *din,
                                unsigned parts)
{
    struct engine_block *b = &t->blocks[c->first + i];
    gt_saved *saved = place_saved(t, c, s, i);
    if (saved == &t->recompute) {
        gt_tensor again[GT_MAX_PORTS];
        shape_outputs(t, b, t->recompute_out, again);
        GT_TRY(forward_block(t, b, s->microbatch, in, again, saved, true));
    }
    struct call call;
    GT_TRY(prepare(t, b, s->microbatch, &call));
    if (parts & GT_BACKWARD_WEIGHT) {
        GT_TRY(open_gradients(t, b, false));
    } else {
        no_gradients(b);
    }
    return b->block->ops->backward(b->block, &call.step, in, dout, din, saved, parts);
}

/* Gradient of block i's input: the executor's for the first of the chunk (none for the model's
 * first), else one of two buffers that take turns. */
static gt_tensor *input_gradient(gt_trainer *t, struct chunk *c, int i, gt_tensor *din,
                                 gt_tensor scratch[2][GT_MAX_PORTS])
{
    if (i == 0) {
        return din;
    }
    shape_outputs(t, &t->blocks[c->first + i - 1], t->gradient[i % 2], scratch[i % 2]);
    return scratch[i % 2];
}

gt_status gti_stage_backward(void *user, int microbatch, int chunk, const gt_tensor *in,
                             const gt_tensor *dout, gt_tensor *din, unsigned parts)
{
    gt_trainer *t = user;
    struct chunk *c = &t->chunks[chunk];
    struct slot *s = find_slot(c, microbatch);
    if (s == NULL) {
        return GT_FAIL(GT_ERR_INTERNAL, "microbatch %d has no slot in chunk %d", microbatch, chunk);
    }
    bool weights = parts & GT_BACKWARD_WEIGHT;
    if (t->config.model.recompute) { /* one recomputation serves both parts */
        if (parts == GT_BACKWARD_WEIGHT) {
            s->microbatch = -1;
            return GT_OK;
        }
        parts = GT_BACKWARD_BOTH;
    }
    gt_tensor scratch[2][GT_MAX_PORTS];
    gt_tensor none[GT_MAX_PORTS] = {{0}};
    for (int i = c->count - 1; i >= 0; i--) {
        struct engine_block *b = &t->blocks[c->first + i];
        GT_TRY(gather(t, b));
        if (i > 0) {
            GT_TRY(prefetch(t, &t->blocks[c->first + i - 1]));
        }
        gt_tensor *gradient =
            parts & GT_BACKWARD_INPUT ? input_gradient(t, c, i, din, scratch) : none;
        gt_status st = backward_block(t, c, s, i, i ? s->outputs[i - 1] : in, dout,
                                      gradient ? gradient : none, parts);
        if (st != GT_OK) {
            return gti_fail_in(st, "backward of block %s, microbatch %d", b->block->name,
                               microbatch);
        }
        if (parts & GT_BACKWARD_WEIGHT) {
            GT_TRY(reduce(t, b));
        }
        GT_TRY(release(t, b));
        dout = gradient;
    }
    if (weights) {
        s->microbatch = -1;
    }
    return GT_OK;
}
