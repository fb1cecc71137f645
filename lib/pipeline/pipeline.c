/* SPDX-License-Identifier: Apache-2.0
 * The pipeline executor: set-up and buffers. */
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "pipeline/executor.h"

void gt_pipeline_params_init(gt_pipeline_params *params, size_t size)
{
    memset(params, 0, size);
    params->struct_size = size;
}

/* ---- buffers ------------------------------------------------------------------------------------
 */
static bool is_gradient_pool(int pool)
{
    return pool == GTI_POOL_GRAD || pool == GTI_POOL_INPUT_GRAD;
}

static gt_status boundary_alloc(gti_program *program, const gt_pipeline *pl, gti_boundary *b,
                                const gt_bundle *bundle, bool gradient)
{
    for (int i = 0; i < bundle->ports; i++) {
        const gt_shape *s = &bundle->shape[i];
        if (gradient && bundle->no_gradient[i]) {
            continue;
        }
        GT_TRY(
            gt_tensor_alloc(pl->ctx, &b->ports[i], GT_MEM_ACTIVATIONS, s->dtype, s->ndim, s->dims));
        program->bytes += gt_tensor_bytes(&b->ports[i]);
    }
    return GT_OK;
}

static gt_status open_pool(gti_program *program, const gt_pipeline *pl, int pool)
{
    const int *count = program->schedule->slots[pl->rank].count[pool];
    gti_boundary **chunks = calloc((size_t)pl->chunks, sizeof(gti_boundary *));
    program->pools[pool] = chunks;
    for (int c = 0; chunks && c < pl->chunks; c++) {
        const gti_stage_info *info = &pl->stages[c];
        bool inputs = pool == GTI_POOL_INPUT || pool == GTI_POOL_INPUT_GRAD;
        chunks[c] = calloc((size_t)count[c] + 1, sizeof(gti_boundary));
        if (!chunks[c]) {
            break;
        }
        for (int i = 0; i < count[c]; i++) {
            GT_TRY(boundary_alloc(program, pl, &chunks[c][i], inputs ? &info->in : &info->out,
                                  is_gradient_pool(pool)));
        }
    }
    if (!chunks || !chunks[pl->chunks - 1]) {
        return GT_FAIL(GT_ERR_MEMORY, "no memory for the boundary buffers of %d chunks",
                       pl->chunks);
    }
    return GT_OK;
}

gt_status gti_program_open(gti_program *program, const gt_pipeline *pl, const gt_schedule *s)
{
    program->schedule = s;
    gt_status st = GT_OK;
    for (int pool = 0; pool < GTI_POOL_COUNT && st == GT_OK; pool++) {
        st = open_pool(program, pl, pool);
    }
    if (st != GT_OK) {
        gti_program_close(program, pl);
    }
    return st;
}

static void boundary_free(gti_boundary *b, const gt_pipeline *pl)
{
    for (int i = 0; i < GT_MAX_PORTS; i++) {
        (void)gt_work_wait(&b->works[i], NULL); /* nobody may write into freed memory */
        if (b->ports[i].data) {
            gt_tensor_free(pl->ctx, &b->ports[i]);
        }
    }
}

void gti_program_close(gti_program *program, const gt_pipeline *pl)
{
    for (int pool = 0; pool < GTI_POOL_COUNT; pool++) {
        gti_boundary **chunks = program->pools[pool];
        for (int c = 0; chunks && c < pl->chunks; c++) {
            int count = chunks[c] ? program->schedule->slots[pl->rank].count[pool][c] : 0;
            for (int i = 0; i < count; i++) {
                boundary_free(&chunks[c][i], pl);
            }
            free(chunks[c]);
        }
        free(chunks);
    }
    gt_schedule_destroy(&program->own);
    *program = (gti_program){0};
}

/* ---- set-up
 * --------------------------------------------------------------------------------------- */
static gt_status check_bundle(const gt_bundle *b, int64_t rows, int chunk, const char *what)
{
    if (b->ports < 0 || b->ports > GT_MAX_PORTS) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the %s of chunk %d has %d ports; want 0..%d", what, chunk,
                       b->ports, GT_MAX_PORTS);
    }
    for (int i = 0; i < b->ports; i++) {
        const gt_shape *s = &b->shape[i];
        if ((unsigned)s->dtype >= GT_DTYPE_COUNT || s->ndim < 0 || s->ndim > GT_MAX_DIMS) {
            return GT_FAIL(GT_ERR_ARGUMENT,
                           "port %d of the %s of chunk %d has dtype %d, %d dimensions", i, what,
                           chunk, (int)s->dtype, s->ndim);
        }
        for (int d = 0; d < s->ndim; d++) {
            if (s->dims[d] < 0) {
                return GT_FAIL(GT_ERR_SHAPE,
                               "port %d of the %s of chunk %d has dimension %d of %lld", i, what,
                               chunk, d, (long long)s->dims[d]);
            }
        }
        if (rows > 0 && (s->ndim == 0 || s->dims[0] % rows)) {
            return GT_FAIL(
                GT_ERR_SHAPE,
                "port %d of the %s of chunk %d has %lld rows; want a multiple of the %lld of a "
                "microbatch",
                i, what, chunk, s->ndim ? (long long)s->dims[0] : 0LL, (long long)rows);
        }
    }
    return GT_OK;
}

static gt_status check_params(gt_context *ctx, gt_comm *comm, const gt_schedule *s,
                              const gt_pipeline_params *p)
{
    if (!ctx || !s || !p->forward) {
        return GT_FAIL(GT_ERR_ARGUMENT, "pipeline_create: context, schedule or forward is NULL");
    }
    int size = comm ? gt_comm_size(comm) : 1;
    if (size != s->ranks) {
        return GT_FAIL(GT_ERR_ARGUMENT, "schedule %s is for %d ranks, the communicator has %d",
                       s->name, s->ranks, size);
    }
    if (p->rows < 0 || ((!p->inputs || !p->outputs) && s->stages > 1)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "pipeline_create: %lld rows, inputs %s, outputs %s",
                       (long long)p->rows, p->inputs ? "given" : "missing",
                       p->outputs ? "given" : "missing");
    }
    for (int c = 0; c < s->chunks; c++) {
        if (p->inputs) {
            GT_TRY(check_bundle(&p->inputs[c], p->rows, c, "input"));
        }
        if (p->outputs) {
            GT_TRY(check_bundle(&p->outputs[c], p->rows, c, "output"));
        }
    }
    return GT_OK;
}

/* Copies what counts, so that bundles can be compared and sent as bytes. */
static void take_bundle(gt_bundle *to, const gt_bundle *from)
{
    memset(to, 0, sizeof(*to));
    to->ports = from->ports;
    for (int i = 0; i < from->ports; i++) {
        gt_dtype dtype = from->shape[i].dtype;
        to->shape[i].dtype = dtype;
        to->shape[i].ndim = from->shape[i].ndim;
        for (int d = 0; d < from->shape[i].ndim; d++) {
            to->shape[i].dims[d] = from->shape[i].dims[d];
        }
        to->no_gradient[i] =
            from->no_gradient[i] || dtype == GT_I32 || dtype == GT_I64 || dtype == GT_U8;
    }
}

static void describe_stage(gt_pipeline *pl, int chunk, const gt_pipeline_params *p)
{
    const gt_schedule *s = pl->schedule;
    gti_stage_info *info = &pl->stages[chunk];
    int stage = info->stage = s->stage[pl->rank * s->chunks + chunk], next = s->next[stage];
    info->next_rank = next < 0 ? -1 : s->stage_rank[next];
    info->sends = gti_schedule_sends(s, stage);
    info->receives = gti_schedule_receives(s, stage);
    info->next_chunk = next < 0 || info->sends ? -1 : s->stage_chunk[next];
    info->previous_chunk = -1;
    info->previous_count = s->previous_count[stage];
    for (int i = 0; i < info->previous_count; i++) {
        int from = s->previous[stage * GT_MAX_PORTS + i];
        info->previous_rank[i] = s->stage_rank[from];
        info->previous_tag_chunk[i] = s->stage_chunk[from];
        if (!info->receives) {
            info->previous_chunk = s->stage_chunk[from];
        }
    }
    if (p->inputs) {
        take_bundle(&info->in, &p->inputs[chunk]);
    }
    if (p->outputs) {
        take_bundle(&info->out, &p->outputs[chunk]);
    }
}

/* Everything that must be equal on all ranks, as numbers. */
static gt_status check_same_schedule(gt_comm *comm, const gt_schedule *s, int64_t rows,
                                     bool training)
{
    size_t n = 5 + 2 * (size_t)s->stages, at = 0;
    for (int r = 0; r < s->ranks; r++) {
        n += 3 * (size_t)s->lists[r].count;
    }
    int64_t *numbers = calloc(n, sizeof(*numbers));
    gt_status st = numbers ? GT_OK : GT_FAIL(GT_ERR_MEMORY, "no memory to compare schedules");
    st = gt_comm_agree(comm, st);
    if (st == GT_OK) {
        const int64_t head[] = {s->ranks, s->chunks, s->microbatches, rows, training};
        memcpy(numbers, head, sizeof(head));
        at = 5;
        for (int i = 0; i < s->stages; i++) {
            numbers[at++] = s->stage[i];
            numbers[at++] = s->next[i];
        }
        for (int r = 0; r < s->ranks; r++) {
            for (int i = 0; i < s->lists[r].count; i++) {
                numbers[at++] = (int64_t)s->lists[r].items[i].kind;
                numbers[at++] = s->lists[r].items[i].microbatch;
                numbers[at++] = s->lists[r].items[i].chunk;
            }
        }
        st = gt_comm_check_equal(comm, "the pipeline schedule", numbers, n * sizeof(*numbers));
    }
    free(numbers);
    return st;
}

static gt_status open_pipeline(gt_pipeline *pl, const gt_pipeline_params *p)
{
    for (int c = 0; c < pl->chunks; c++) {
        describe_stage(pl, c, p);
    }
    if (pl->comm) {
        GT_TRY(check_same_schedule(pl->comm, pl->schedule, pl->rows, pl->backward != NULL));
    }
    GT_TRY(gti_pipeline_agree_shapes(pl));
    if (!pl->backward) {
        return GT_OK;
    }
    gt_status st = gti_program_open(&pl->training, pl, pl->schedule);
    pl->stats.buffer_bytes = pl->training.bytes;
    return pl->comm ? gt_comm_agree(pl->comm, st) : st;
}

gt_status gt_pipeline_create(gt_pipeline **out, gt_context *ctx, gt_comm *comm,
                             const gt_schedule *schedule, const gt_pipeline_params *params)
{
    if (!out || !params) {
        return GT_FAIL(GT_ERR_ARGUMENT, "pipeline_create: out or params is NULL");
    }
    gt_pipeline_params p = GT_PIPELINE_PARAMS_INIT;
    size_t size = params->struct_size < sizeof(p) ? params->struct_size : sizeof(p);
    memcpy(&p, params, size);
    gt_status st = check_params(ctx, comm, schedule, &p);
    gt_pipeline *pl = st == GT_OK ? calloc(1, sizeof(*pl)) : NULL;
    if (pl) {
        pl->stages = calloc((size_t)schedule->chunks, sizeof(*pl->stages));
    }
    if (st == GT_OK && (!pl || !pl->stages)) {
        st = GT_FAIL(GT_ERR_MEMORY, "no memory for a pipeline of %d chunks", schedule->chunks);
    }
    st = comm ? gt_comm_agree(comm, st) : st;
    if (st != GT_OK) {
        gt_pipeline_destroy(&pl);
        return st;
    }
    pl->ctx = ctx;
    pl->comm = comm;
    pl->schedule = schedule;
    pl->rank = comm ? gt_comm_rank(comm) : 0;
    pl->chunks = schedule->chunks;
    pl->user = p.user;
    pl->forward = p.forward;
    pl->backward = p.backward;
    pl->reduce = p.reduce;
    pl->rows = p.rows;
    st = open_pipeline(pl, &p);
    if (st != GT_OK) {
        gt_pipeline_destroy(&pl);
        return st;
    }
    *out = pl;
    return GT_OK;
}

void gt_pipeline_destroy(gt_pipeline **pipeline)
{
    if (!pipeline || !*pipeline) {
        return;
    }
    gt_pipeline *pl = *pipeline;
    gti_program_close(&pl->training, pl);
    for (int i = 0; i < GTI_FORWARD_PROGRAMS; i++) {
        gti_program_close(&pl->forwards[i], pl);
    }
    free(pl->stages);
    free(pl);
    *pipeline = NULL;
}

void gt_pipeline_get_stats(const gt_pipeline *pipeline, gt_pipeline_stats *out)
{
    *out = pipeline->stats;
}

void gt_pipeline_get_costs(const gt_pipeline *pipeline, gt_stage_cost *cost)
{
    for (int c = 0; c < pipeline->chunks; c++) {
        const gti_stage_info *info = &pipeline->stages[c];
        double mean[3];
        for (int i = 0; i < 3; i++) {
            mean[i] = info->calls[i] > 0 ? info->spent[i] / info->calls[i] : 0;
        }
        cost[c] = (gt_stage_cost){
            .forward = mean[0], .backward_input = mean[1], .backward_weight = mean[2]};
    }
}
