/* SPDX-License-Identifier: Apache-2.0 */
#include "block_runner.h"

#include <stdio.h>

#include "params/param_layout.h"

static int comm_size(gt_comm *c)
{
    return c != NULL ? gt_comm_size(c) : 1;
}

static int comm_rank(gt_comm *c)
{
    return c != NULL ? gt_comm_rank(c) : 0;
}

void br_local_positions(int64_t seq, int cp, int rank, int64_t *positions)
{
    int64_t piece = seq / (2 * cp), n = 0;
    if (cp == 1) {
        for (int64_t t = 0; t < seq; t++) {
            positions[t] = t;
        }
        return;
    }
    for (int64_t t = 0; t < piece; t++) {
        positions[n++] = rank * piece + t;
    }
    for (int64_t t = 0; t < piece; t++) {
        positions[n++] = (2 * cp - 1 - rank) * piece + t;
    }
}

static gt_layout layout_of(const br_batch *batch, const br_options *o)
{
    gt_layout l = {.dtype = o->dtype,
                   .batch = batch->batch,
                   .seq = batch->seq,
                   .seq_local = batch->seq / comm_size(o->cp),
                   .tp_size = comm_size(o->tp),
                   .tp_rank = comm_rank(o->tp),
                   .cp_size = comm_size(o->cp),
                   .cp_rank = comm_rank(o->cp),
                   .sequence_parallel = o->sequence_parallel,
                   .split_backward = o->split_backward,
                   .no_overlap = o->no_overlap};
    l.rows = l.batch * l.seq_local;
    if (l.sequence_parallel && l.tp_size > 1) {
        l.rows /= l.tp_size;
        l.row_first = l.rows * l.tp_rank;
    }
    return l;
}

gt_status br_plan(br *r, th *h, gt_model *model, const br_batch *batch, const br_options *options)
{
    *r = (br){.h = h, .options = *options, .layout = layout_of(batch, options)};
    TH_TRUE(gt_model_blocks(model) <= BR_MAX_BLOCKS);
    const gt_shape *in = NULL;
    for (int i = 0; i < gt_model_blocks(model); i++) {
        br_block *b = &r->blocks[i];
        r->count = i + 1;
        b->block = gt_model_block(model, i);
        gti_param_list_init(&b->list);
        gti_plan_init(&b->plan, &r->layout, in != NULL, in);
        gt_status st = b->block->ops->declare(b->block, &b->list);
        st = st == GT_OK ? b->block->ops->plan(b->block, &b->plan) : st;
        if (st != GT_OK) {
            return st;
        }
        in = &b->plan.out[0];
    }
    return GT_OK;
}

static gt_tensor *tensors_of(br *r, const gti_shape_list *list)
{
    gt_tensor *t = calloc((size_t)list->count + 1, sizeof(*t));
    for (int i = 0; i < list->count; i++) {
        t[i] = th_new(r->h, list->shapes[i].dtype, list->shapes[i].ndim, list->shapes[i].dims);
    }
    return t;
}

/* The block and index that a tied parameter's memory is. */
static void find_tied(const br *r, const char *full, int *block, int *index)
{
    for (int i = 0; i < r->count; i++) {
        for (int j = 0; j < r->blocks[i].list.count; j++) {
            char name[2 * GT_PARAM_NAME_MAX];
            snprintf(name, sizeof(name), "%s.%s", r->blocks[i].block->name,
                     r->blocks[i].list.params[j].name);
            if (strcmp(name, full) == 0) {
                *block = i;
                *index = j;
                return;
            }
        }
    }
    th_fail(__FILE__, __LINE__, "no parameter %s", full);
}

static void init_param(br *r, const gt_param *p, gt_tensor *t, uint64_t stream)
{
    gti_param_piece piece[GT_MAX_SECTIONS];
    int n = gti_param_pieces(p, r->layout.tp_size, r->layout.tp_rank, piece);
    int64_t inner = gti_param_inner(p);
    for (int i = 0; i < n; i++) {
        gt_init_params init = GT_INIT_PARAMS_INIT;
        gt_tensor view = *t;
        init.kind = p->init;
        init.mean = p->mean;
        init.std = p->std;
        init.seed = r->options.seed;
        init.stream_id = stream;
        if (p->tp_axis != GT_REPLICATED) {
            init.inner = inner;
            init.axis_local = piece[i].count;
            init.axis_first = piece[i].global_first;
            init.axis_global = p->shape[p->tp_axis];
        }
        if (n > 1) {
            TH_OK(gt_tensor_slice(&view, t, piece[i].local_first * inner, piece[i].count * inner));
        }
        if (gt_tensor_numel(&view) > 0) {
            TH_OK(gt_init(r->h->ctx, &view, &init, NULL));
        }
    }
}

static void open_params(br *r, int i)
{
    br_block *b = &r->blocks[i];
    b->params = calloc((size_t)b->list.count + 1, sizeof(gt_tensor));
    b->grads = calloc((size_t)b->list.count + 1, sizeof(gt_tensor));
    for (int j = 0; j < b->list.count; j++) {
        const gt_param *p = &b->list.params[j];
        int64_t shape[4];
        if (p->tied_to != NULL) {
            int block = 0, index = 0;
            find_tied(r, p->tied_to, &block, &index);
            b->params[j] = r->blocks[block].params[index];
            b->grads[j] = r->blocks[block].grads[index];
            continue;
        }
        gti_param_local_shape(p, r->layout.tp_size, r->layout.tp_rank, shape);
        b->params[j] = th_new(r->h, r->layout.dtype, p->ndim, shape);
        b->grads[j] = th_new(r->h, GT_F32, p->ndim, shape);
        init_param(r, p, &b->params[j], (uint64_t)(i * 100 + j));
    }
}

static void open_constants(br *r, br_block *b)
{
    b->constants = calloc((size_t)b->plan.constant_count + 1, sizeof(gt_tensor));
    for (int j = 0; j < b->plan.constant_count; j++) {
        const gti_constant *c = &b->plan.constants[j];
        b->constants[j] = th_new(r->h, c->shape.dtype, c->shape.ndim, c->shape.dims);
        TH_OK(gt_copy_from_host(r->h->ctx, &b->constants[j], c->host, NULL));
    }
}

static void open_batch(br *r, const br_batch *batch)
{
    int64_t n = r->layout.batch * r->layout.seq_local, t_local = r->layout.seq_local;
    r->tokens = th_new(r->h, GT_I32, TH_SHAPE(n));
    r->targets = th_new(r->h, GT_I32, TH_SHAPE(n));
    r->rows = th_new(r->h, GT_I64, TH_SHAPE(n));
    r->positions = th_new(r->h, GT_I64, TH_SHAPE(t_local));
    r->stats = th_new(r->h, GT_F64, TH_SHAPE(2));
    int64_t *positions = calloc((size_t)t_local, sizeof(int64_t));
    double *values = th_host(r->h, 4 * n);
    br_local_positions(batch->seq, r->layout.cp_size, r->layout.cp_rank, positions);
    for (int64_t i = 0; i < n; i++) {
        int64_t sample = i / t_local, at = sample * batch->seq + positions[i % t_local];
        values[i] = batch->tokens[at];
        values[n + i] = batch->targets[at];
        values[2 * n + i] = (double)(batch->first_sample * batch->seq + at);
        values[3 * n + i] = (double)positions[i % t_local];
    }
    th_set(r->h, &r->tokens, values);
    th_set(r->h, &r->targets, values + n);
    th_set(r->h, &r->rows, values + 2 * n);
    th_set(r->h, &r->positions, values + 3 * n);
    free(positions);
}

void br_open(br *r, th *h, gt_model *model, const br_batch *batch, const br_options *options)
{
    TH_OK(br_plan(r, h, model, batch, options));
    open_batch(r, batch);
    for (int i = 0; i < r->count; i++) {
        br_block *b = &r->blocks[i];
        open_params(r, i);
        open_constants(r, b);
        b->saved = tensors_of(r, &b->plan.saved);
        b->workspace = tensors_of(r, &b->plan.workspace);
        b->keep = (gt_saved){.tensors = b->saved, .count = b->plan.saved.count};
        if (b->plan.outputs > 0) {
            const gt_shape *s = &b->plan.out[0];
            b->out = th_new(h, s->dtype, s->ndim, s->dims);
            b->dout = th_new(h, s->dtype, s->ndim, s->dims);
        }
        if (i > 0) {
            b->in = r->blocks[i - 1].out;
            b->din = r->blocks[i - 1].dout;
        }
    }
}

void br_close(br *r)
{
    for (int i = 0; i < r->count; i++) {
        br_block *b = &r->blocks[i];
        gti_param_list_free(&b->list);
        gti_plan_free(&b->plan);
        free(b->params);
        free(b->grads);
        free(b->saved);
        free(b->workspace);
        free(b->constants);
    }
}

gt_step br_step(br *r, int i, const br_batch *batch)
{
    br_block *b = &r->blocks[i];
    return (gt_step){.ctx = r->h->ctx,
                     .stream = gt_context_stream(r->h->ctx, GT_STREAM_COMPUTE),
                     .layout = &r->layout,
                     .tp = comm_size(r->options.tp) > 1 ? r->options.tp : NULL,
                     .cp = comm_size(r->options.cp) > 1 ? r->options.cp : NULL,
                     .params = b->params,
                     .grads = b->grads,
                     .workspace = b->workspace,
                     .constants = b->constants,
                     .tokens = &r->tokens,
                     .targets = &r->targets,
                     .rows = &r->rows,
                     .positions = &r->positions,
                     .stats = &r->stats,
                     .training = !batch->eval,
                     .seed = r->options.seed,
                     .block_index = i,
                     .grad_scale = batch->grad_scale,
                     .ignore_index = batch->ignore_index};
}

static void backward(br *r, const br_batch *batch, unsigned parts)
{
    for (int i = r->count - 1; i >= 0; i--) {
        br_block *b = &r->blocks[i];
        gt_step step = br_step(r, i, batch);
        TH_OK(b->block->ops->backward(b->block, &step, &b->in, &b->dout, &b->din, &b->keep, parts));
    }
}

void br_run(br *r, const br_batch *batch)
{
    th_fill(r->h, &r->stats, 0.0);
    for (int i = 0; i < r->count; i++) {
        br_block *b = &r->blocks[i];
        for (int j = 0; j < b->list.count; j++) {
            TH_OK(gt_fill(r->h->ctx, &b->grads[j], 0.0, NULL));
        }
    }
    for (int i = 0; i < r->count; i++) {
        br_block *b = &r->blocks[i];
        gt_step step = br_step(r, i, batch);
        TH_OK(b->block->ops->forward(b->block, &step, &b->in, &b->out, &b->keep));
    }
    if (batch->eval) {
        return;
    }
    if (!r->options.split_backward) {
        backward(r, batch, GT_BACKWARD_BOTH);
        return;
    }
    backward(r, batch, GT_BACKWARD_INPUT);
    for (int i = 0; i < r->count; i++) { /* no longer valid between the parts */
        if (r->blocks[i].plan.outputs > 0) {
            th_poison(r->h, &r->blocks[i].dout);
        }
        for (int j = 0; j < r->blocks[i].plan.workspace.count; j++) {
            th_poison(r->h, &r->blocks[i].workspace[j]);
        }
    }
    backward(r, batch, GT_BACKWARD_WEIGHT);
}

void br_stats(br *r, double stats[2])
{
    const double *s = th_get(r->h, &r->stats);
    stats[0] = s[0];
    stats[1] = s[1];
}

int64_t br_offset(const br *r, int block, int index)
{
    int64_t offset = 0;
    if (r->blocks[block].list.params[index].tied_to != NULL) {
        return -1;
    }
    for (int i = 0; i <= block; i++) {
        int end = i == block ? index : r->blocks[i].list.count;
        for (int j = 0; j < end; j++) {
            const gt_param *p = &r->blocks[i].list.params[j];
            offset += p->tied_to == NULL ? gti_param_numel(p) : 0;
        }
    }
    return offset;
}

int64_t br_total(const br *r)
{
    int64_t total = 0;
    for (int i = 0; i < r->count; i++) {
        for (int j = 0; j < r->blocks[i].list.count; j++) {
            const gt_param *p = &r->blocks[i].list.params[j];
            total += p->tied_to == NULL ? gti_param_numel(p) : 0;
        }
    }
    return total;
}

/* Visits (element of the whole, element here) of a parameter. */
static void place(const br *r, const gt_param *p, double *whole, const double *local, bool add)
{
    gti_param_piece piece[GT_MAX_SECTIONS];
    int n = gti_param_pieces(p, r->layout.tp_size, r->layout.tp_rank, piece);
    int64_t inner = gti_param_inner(p), outer = gti_param_outer(p);
    int64_t axis = p->tp_axis == GT_REPLICATED ? piece[0].count : p->shape[p->tp_axis];
    int64_t axis_local = piece[n - 1].local_first + piece[n - 1].count;
    for (int i = 0; i < n; i++) {
        for (int64_t o = 0; o < outer; o++) {
            double *to = whole + (o * axis + piece[i].global_first) * inner;
            const double *from = local + (o * axis_local + piece[i].local_first) * inner;
            for (int64_t k = 0; k < piece[i].count * inner; k++) {
                to[k] = add ? to[k] + from[k] : from[k];
            }
        }
    }
}

void br_add_gradients(br *r, double *whole)
{
    bool cut = r->layout.sequence_parallel && r->layout.tp_size > 1;
    for (int i = 0; i < r->count; i++) {
        for (int j = 0; j < r->blocks[i].list.count; j++) {
            const gt_param *p = &r->blocks[i].list.params[j];
            bool once = p->tp_axis == GT_REPLICATED && !(cut && p->sequence_partial);
            if (p->tied_to != NULL || (once && r->layout.tp_rank != 0)) {
                continue;
            }
            const double *local = th_get(r->h, &r->blocks[i].grads[j]);
            place(r, p, whole + br_offset(r, i, j), local, true);
        }
    }
}

void br_get_params(br *r, double *whole)
{
    for (int i = 0; i < r->count; i++) {
        for (int j = 0; j < r->blocks[i].list.count; j++) {
            const gt_param *p = &r->blocks[i].list.params[j];
            if (p->tied_to == NULL) {
                const double *local = th_get(r->h, &r->blocks[i].params[j]);
                place(r, p, whole + br_offset(r, i, j), local, false);
            }
        }
    }
}
