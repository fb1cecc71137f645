/* SPDX-License-Identifier: Apache-2.0
 * The pipeline executor: runs this rank's list. Every action is a table look-up, the stage
 * function, and the posting of transfers. */
#include <string.h>
#include <time.h>

#include "core/fail.h"
#include "pipeline/executor.h"

/* Tags name (microbatch, chunk of the earlier stage, direction, port). Messages of one tag keep
 * their order, so microbatch numbers may come round again. */
#define TAG_LIMIT (1 << 17)

typedef struct run {
    gt_pipeline *pl;
    const gti_program *program;
    const gt_schedule *s;
    const int64_t *rows;
    int reduces_left;
} run;

/* Views for one call. */
typedef struct ports {
    gt_tensor t[GT_MAX_PORTS];
} ports;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static gti_boundary *boundary(const run *w, gti_pool pool, int microbatch, int chunk)
{
    int slot = w->s->slots[w->pl->rank].slot[pool][microbatch * w->s->chunks + chunk];
    return slot < 0 ? NULL : &w->program->pools[pool][chunk][slot];
}

static int64_t rows_of(const run *w, int microbatch)
{
    return w->rows ? w->rows[microbatch] : w->pl->rows;
}

/* The rows of this microbatch in a buffer of full size. */
static gt_tensor cut(const run *w, const gt_tensor *full, int microbatch)
{
    gt_tensor t = *full;
    if (w->rows && t.ndim > 0) {
        t.shape[0] = t.shape[0] / w->pl->rows * w->rows[microbatch];
    }
    return t;
}

static void view(const run *w, ports *out, const gti_boundary *b, int microbatch)
{
    for (int i = 0; i < GT_MAX_PORTS; i++) {
        out->t[i] = b && b->ports[i].data ? cut(w, &b->ports[i], microbatch) : (gt_tensor){0};
    }
}

static gt_status wait_for(const run *w, gti_boundary *b)
{
    if (!b) {
        return GT_OK;
    }
    for (int i = 0; i < GT_MAX_PORTS; i++) {
        if (b->works[i]) {
            double start = now();
            gt_status st = gt_work_wait(&b->works[i], NULL);
            w->pl->stats.wait_s += now() - start;
            if (st != GT_OK) {
                return st;
            }
        }
    }
    return GT_OK;
}

static int tag_of(const run *w, int microbatch, int chunk, bool backward, int port)
{
    int window = TAG_LIMIT / (2 * GT_MAX_PORTS * w->s->chunks);
    return (((microbatch % window) * w->s->chunks + chunk) * 2 + backward) * GT_MAX_PORTS + port;
}

/* One transfer per port with data; `tag_port` is the port's number on the earlier stage. */
static gt_status post(const run *w, gti_boundary *b, bool send, int port, int peer, int microbatch,
                      int tag)
{
    gt_comm *comm = w->pl->comm;
    if (!b->ports[port].data) {
        return GT_OK;
    }
    gt_tensor t = cut(w, &b->ports[port], microbatch);
    return send ? gt_send(comm, &t, peer, tag, NULL, &b->works[port])
                : gt_recv(comm, &t, peer, tag, NULL, &b->works[port]);
}

/* Output out, or its gradient in. */
static gt_status post_next(const run *w, gt_action a, bool backward)
{
    const gti_stage_info *info = &w->pl->stages[a.chunk];
    gti_boundary *b =
        boundary(w, backward ? GTI_POOL_GRAD : GTI_POOL_OUTPUT, a.microbatch, a.chunk);
    for (int i = 0; i < info->out.ports; i++) {
        GT_TRY(post(w, b, !backward, i, info->next_rank, a.microbatch,
                    tag_of(w, a.microbatch, a.chunk, backward, i)));
    }
    return GT_OK;
}

/* Input in, or its gradient out. */
static gt_status post_previous(const run *w, gt_action a, bool backward)
{
    const gti_stage_info *info = &w->pl->stages[a.chunk];
    gti_boundary *b =
        boundary(w, backward ? GTI_POOL_INPUT_GRAD : GTI_POOL_INPUT, a.microbatch, a.chunk);
    for (int k = 0; k < info->previous_count; k++) {
        for (int i = info->first_port[k]; i < info->first_port[k + 1]; i++) {
            int tag = tag_of(w, a.microbatch, info->previous_tag_chunk[k], backward,
                             i - info->first_port[k]);
            GT_TRY(post(w, b, backward, i, info->previous_rank[k], a.microbatch, tag));
        }
    }
    return GT_OK;
}

/* part: 0 forward, 1 backward or its input part, 2 weight part. */
static void account(gt_pipeline *pl, int chunk, int part, double seconds)
{
    pl->stats.compute_s += seconds;
    pl->stages[chunk].spent[part] += seconds;
    pl->stages[chunk].calls[part]++;
}

static gt_status forward(run *w, gt_action a)
{
    gt_pipeline *pl = w->pl;
    const gti_stage_info *info = &pl->stages[a.chunk];
    gti_boundary *in = boundary(w, GTI_POOL_INPUT, a.microbatch, a.chunk);
    gti_boundary *out = info->next_chunk >= 0
                            ? boundary(w, GTI_POOL_INPUT, a.microbatch, info->next_chunk)
                            : boundary(w, GTI_POOL_OUTPUT, a.microbatch, a.chunk);
    GT_TRY(wait_for(w, in));
    GT_TRY(wait_for(w, out));
    if (w->rows && rows_of(w, a.microbatch) == 0) {
        return GT_OK;
    }
    ports x, y;
    view(w, &x, in, a.microbatch);
    view(w, &y, out, a.microbatch);
    double start = now();
    gt_status st = pl->forward(pl->user, a.microbatch, a.chunk, x.t, y.t);
    account(pl, a.chunk, 0, now() - start);
    return st;
}

static gt_status backward(run *w, gt_action a, unsigned parts)
{
    gt_pipeline *pl = w->pl;
    const gti_stage_info *info = &pl->stages[a.chunk];
    gti_boundary *in = boundary(w, GTI_POOL_INPUT, a.microbatch, a.chunk), *dout = NULL,
                 *din = NULL;
    if (parts & GT_BACKWARD_INPUT) {
        dout = boundary(w, GTI_POOL_GRAD, a.microbatch, a.chunk);
        din = info->previous_chunk >= 0
                  ? boundary(w, GTI_POOL_GRAD, a.microbatch, info->previous_chunk)
                  : boundary(w, GTI_POOL_INPUT_GRAD, a.microbatch, a.chunk);
        GT_TRY(wait_for(w, dout));
        GT_TRY(wait_for(w, din));
    }
    if (w->rows && rows_of(w, a.microbatch) == 0) {
        return GT_OK;
    }
    ports x, dy, dx;
    view(w, &x, in, a.microbatch);
    view(w, &dy, dout, a.microbatch);
    view(w, &dx, din, a.microbatch);
    double start = now();
    gt_status st = pl->backward(pl->user, a.microbatch, a.chunk, x.t, dy.t, dx.t, parts);
    account(pl, a.chunk, parts == GT_BACKWARD_WEIGHT ? 2 : 1, now() - start);
    return st;
}

static gt_status reduce(run *w, gt_action a)
{
    w->reduces_left--;
    if (!w->pl->reduce) {
        return GT_OK;
    }
    double start = now();
    gt_status st = w->pl->reduce(w->pl->user, a.chunk, w->reduces_left == 0);
    w->pl->stats.compute_s += now() - start;
    return st;
}

static gt_status act(run *w, gt_action a)
{
    switch (a.kind) {
    case GT_ACTION_FORWARD:
        return forward(w, a);
    case GT_ACTION_BACKWARD:
        return backward(w, a, GT_BACKWARD_BOTH);
    case GT_ACTION_BACKWARD_INPUT:
        return backward(w, a, GT_BACKWARD_INPUT);
    case GT_ACTION_BACKWARD_WEIGHT:
        return backward(w, a, GT_BACKWARD_WEIGHT);
    case GT_ACTION_SEND_FORWARD:
        return post_next(w, a, false);
    case GT_ACTION_RECV_BACKWARD:
        return post_next(w, a, true);
    case GT_ACTION_RECV_FORWARD:
        return post_previous(w, a, false);
    case GT_ACTION_SEND_BACKWARD:
        return post_previous(w, a, true);
    case GT_ACTION_REDUCE:
        return reduce(w, a);
    default:
        return GT_FAIL(GT_ERR_INTERNAL, "action %d in a schedule", (int)a.kind);
    }
}

static gt_status check_rows(const gt_pipeline *pl, int microbatches, const int64_t *rows)
{
    for (int i = 0; rows && i < microbatches; i++) {
        if (rows[i] < 0 || rows[i] > pl->rows) {
            return GT_FAIL(GT_ERR_ARGUMENT,
                           "microbatch %d has %lld rows; the pipeline is for 0..%lld", i,
                           (long long)rows[i], (long long)pl->rows);
        }
    }
    return GT_OK;
}

/* The pipeline cannot go on: nor can any other rank. */
static gt_status fail(gt_pipeline *pl, gt_status st)
{
    pl->broken = st;
    return pl->comm ? gt_comm_fail(pl->comm, st) : st;
}

static gt_status run_program(gt_pipeline *pl, const gti_program *program, const int64_t *rows)
{
    const gt_schedule *s = program->schedule;
    gt_status st = check_rows(pl, s->microbatches, rows);
    if (st != GT_OK) {
        return fail(pl, st);
    }
    run w = {pl, program, s, rows, s->chunks};
    const gti_action_list *list = &s->lists[pl->rank];
    double start = now();
    pl->stats.compute_s = pl->stats.wait_s = 0;
    for (int c = 0; c < pl->chunks; c++) {
        memset(pl->stages[c].spent, 0, sizeof(pl->stages[c].spent));
        memset(pl->stages[c].calls, 0, sizeof(pl->stages[c].calls));
    }
    for (int i = 0; i < list->count && st == GT_OK; i++) {
        st = act(&w, list->items[i]);
    }
    pl->stats.seconds = now() - start;
    return st == GT_OK ? GT_OK : fail(pl, st);
}

static gt_status check_usable(const gt_pipeline *pl, const char *what)
{
    if (!pl) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s: pipeline is NULL", what);
    }
    if (pl->broken != GT_OK) {
        return GT_FAIL(GT_ERR_STATE, "%s: an earlier run failed (%s)", what,
                       gt_status_name(pl->broken));
    }
    return GT_OK;
}

gt_status gt_pipeline_run(gt_pipeline *pl, const int64_t *rows)
{
    GT_TRY(check_usable(pl, "pipeline_run"));
    if (!pl->backward) {
        return GT_FAIL(GT_ERR_STATE, "pipeline_run: the pipeline was created without a backward");
    }
    return run_program(pl, &pl->training, rows);
}

/* The program for so many microbatches: kept, or made in place of the oldest. */
static gt_status forward_program(gt_pipeline *pl, int microbatches, gti_program **out)
{
    for (int i = 0; i < GTI_FORWARD_PROGRAMS; i++) {
        const gt_schedule *s = pl->forwards[i].schedule;
        if (s && s->microbatches == microbatches) {
            *out = &pl->forwards[i];
            return GT_OK;
        }
    }
    gt_schedule *s = NULL;
    gti_program *program = &pl->forwards[pl->next_forward];
    gt_status st = gti_generate_forward(&s, pl->schedule, microbatches);
    if (st == GT_OK) {
        gti_program_close(program, pl);
        st = gti_program_open(program, pl, s);
    }
    st = pl->comm ? gt_comm_agree(pl->comm, st) : st;
    if (st != GT_OK) {
        gti_program_close(program, pl);
        gt_schedule_destroy(&s);
        return st;
    }
    program->own = s;
    pl->next_forward = (pl->next_forward + 1) % GTI_FORWARD_PROGRAMS;
    *out = program;
    return GT_OK;
}

gt_status gt_pipeline_forward(gt_pipeline *pl, int microbatches, const int64_t *rows)
{
    GT_TRY(check_usable(pl, "pipeline_forward"));
    gti_program *program = NULL;
    GT_TRY(forward_program(pl, microbatches, &program));
    return run_program(pl, program, rows);
}
