/* SPDX-License-Identifier: Apache-2.0
 * Values in and out of the sharded state: initial ones, states and gradients by number. */
#include "zero/state.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"

/* ---- one range --------------------------------------------------------------------------------
 */

/* An f32 form of a range of a state, and where it lives. */
struct window {
    gt_tensor wide;              /* f32 [count], on the device        */
    gt_tensor narrow;            /* the state itself, where it is not f32 */
    gt_tensor weight, remainder; /* of a split master                 */
    bool own;                    /* wide is a copy that was made for this */
};

static gt_status open_copy(gt_zero *zero, int64_t count, struct window *w)
{
    w->own = true;
    return gt_tensor_alloc(zero->ctx, &w->wide, GT_MEM_WORKSPACE, GT_F32, 1, &count);
}

static gt_status open_flat(gt_zero *zero, const gt_tensor *state, struct zero_piece piece,
                           struct window *w)
{
    if (state->dtype == GT_F32) {
        return gt_tensor_slice(&w->wide, state, piece.at, piece.count);
    }
    GT_TRY(gt_tensor_slice(&w->narrow, state, piece.at, piece.count));
    return open_copy(zero, piece.count, w);
}

static gt_status open_master(gt_zero *zero, struct zero_bucket *b, const gt_tensor *master,
                             struct zero_piece piece, struct window *w)
{
    if (master->dtype != GT_U8) {
        return open_flat(zero, master, piece, w);
    }
    GT_TRY(gt_tensor_slice(&w->weight, &b->own, piece.at, piece.count));
    GT_TRY(gt_tensor_slice(&w->remainder, master, 2 * piece.at, 2 * piece.count));
    return open_copy(zero, piece.count, w);
}

static gt_status open_window(gt_zero *zero, int param, int state, const struct zero_states *states,
                             struct zero_piece piece, struct window *w)
{
    const struct gti_param *p = &zero->table->param[param];
    struct zero_bucket *b = gti_zero_bucket(zero, p);
    int first = gti_zero_separate_master(zero) && !p->frozen ? 2 : 1;
    *w = (struct window){0};
    if (p->state[state].vector) {
        w->wide = zero->param[param].vector[state - first - zero->elementwise];
        return GT_OK;
    }
    if (state == 0) {
        return open_flat(zero, &b->own, piece, w);
    }
    return state < first ? open_master(zero, b, &states->master, piece, w)
                         : open_flat(zero, &states->state[state - first], piece, w);
}

static gt_status fill_wide(gt_zero *zero, struct window *w)
{
    if (w->remainder.data != NULL) {
        return gt_master_join(zero->ctx, &w->wide, &w->weight, &w->remainder, NULL);
    }
    return w->own ? gt_cast(zero->ctx, &w->wide, &w->narrow, NULL) : GT_OK;
}

static gt_status store_wide(gt_zero *zero, struct window *w)
{
    if (w->remainder.data != NULL) {
        return gt_master_split(zero->ctx, &w->weight, &w->remainder, &w->wide, NULL);
    }
    return w->own ? gt_cast(zero->ctx, &w->narrow, &w->wide, NULL) : GT_OK;
}

static void close_window(gt_zero *zero, struct window *w)
{
    if (w->own) {
        gt_tensor_free(zero->ctx, &w->wide);
    }
}

/* ---- pieces of states and gradients -----------------------------------------------------------
 */

static bool needs_offload(const struct zero_bucket *b, int state)
{
    return state > 0 && b->offload.data != NULL;
}

gt_status gti_zero_read_piece(gt_zero *zero, int param, int state, struct zero_piece piece,
                              float *host)
{
    struct zero_bucket *b = gti_zero_bucket(zero, &zero->table->param[param]);
    struct zero_states states = b->states;
    struct window w = {0};
    GT_TRY(gt_work_wait(&b->gather_work, NULL)); /* the last publication reads what is here */
    if (piece.count == 0) {
        return GT_OK;
    }
    if (needs_offload(b, state)) {
        GT_TRY(gti_zero_offload_begin(zero, b, &states));
    }
    gt_status st = open_window(zero, param, state, &states, piece, &w);
    st = st == GT_OK ? fill_wide(zero, &w) : st;
    st = st == GT_OK ? gt_copy_to_host(zero->ctx, host, &w.wide, NULL) : st;
    close_window(zero, &w);
    return st;
}

gt_status gti_zero_write_piece(gt_zero *zero, int param, int state, struct zero_piece piece,
                               const float *host)
{
    struct zero_bucket *b = gti_zero_bucket(zero, &zero->table->param[param]);
    struct zero_states states = b->states;
    struct window w = {0};
    GT_TRY(gt_work_wait(&b->gather_work, NULL));
    if (piece.count == 0) {
        return GT_OK;
    }
    if (needs_offload(b, state)) {
        GT_TRY(gti_zero_offload_begin(zero, b, &states));
    }
    gt_status st = open_window(zero, param, state, &states, piece, &w);
    st = st == GT_OK ? gt_copy_from_host(zero->ctx, &w.wide, host, NULL) : st;
    st = st == GT_OK ? store_wide(zero, &w) : st;
    close_window(zero, &w);
    if (st == GT_OK && needs_offload(b, state)) {
        st = gti_zero_offload_end(zero, b, &states);
    }
    return st;
}

static gt_status open_gradient(gt_zero *zero, int param, struct zero_piece piece, struct window *w)
{
    struct zero_bucket *b = gti_zero_bucket(zero, &zero->table->param[param]);
    *w = (struct window){0};
    return open_flat(zero, &b->grad, piece, w);
}

gt_status gti_zero_read_grad_piece(gt_zero *zero, int param, struct zero_piece piece, float *host)
{
    struct window w;
    gt_status st = open_gradient(zero, param, piece, &w);
    st = st == GT_OK ? fill_wide(zero, &w) : st;
    st = st == GT_OK ? gt_copy_to_host(zero->ctx, host, &w.wide, NULL) : st;
    close_window(zero, &w);
    return st;
}

gt_status gti_zero_write_grad_piece(gt_zero *zero, int param, struct zero_piece piece,
                                    const float *host)
{
    struct window w;
    gt_status st = open_gradient(zero, param, piece, &w);
    st = st == GT_OK ? gt_copy_from_host(zero->ctx, &w.wide, host, NULL) : st;
    st = st == GT_OK ? store_wide(zero, &w) : st;
    close_window(zero, &w);
    return st;
}

/* ---- initial values ---------------------------------------------------------------------------
 */

/* The Philox stream of a parameter depends on its name alone, so on no layout (FNV-1a). */
static uint64_t stream_of(const char *name)
{
    uint64_t h = 1469598103934665603u;
    for (; *name; name++) {
        h = (h ^ (uint64_t)(unsigned char)*name) * 1099511628211u;
    }
    return h;
}

static gt_init_params init_of(const struct gti_param *p, struct gti_run run, uint64_t seed)
{
    gt_init_params init = GT_INIT_PARAMS_INIT;
    init.kind = p->decl.init;
    init.mean = p->decl.mean;
    init.std = p->decl.std;
    init.seed = seed;
    init.stream_id = stream_of(p->decl.name);
    init.offset = run.piece_at;
    if (p->decl.tp_axis != GT_REPLICATED) {
        const gti_param_piece *piece = &p->piece[run.piece];
        init.axis_local = piece->count;
        init.inner = gti_param_inner(&p->decl);
        init.axis_global = p->decl.shape[p->decl.tp_axis];
        init.axis_first = piece->global_first;
    }
    return init;
}

/* The most precise state: the master where there is one. */
static int precise_state(const gt_zero *zero, const struct gti_param *p)
{
    return gti_zero_separate_master(zero) && !p->frozen ? 1 : 0;
}

static gt_status init_param(gt_zero *zero, int param, uint64_t seed)
{
    const struct gti_param *p = &zero->table->param[param];
    struct zero_bucket *b = gti_zero_bucket(zero, p);
    struct zero_piece all = gti_zero_state_piece(zero, p);
    struct zero_states states = b->states;
    struct window w = {0};
    if (all.count == 0) {
        return GT_OK;
    }
    int state = precise_state(zero, p);
    if (needs_offload(b, state)) {
        GT_TRY(gti_zero_offload_begin(zero, b, &states));
    }
    gt_status st = open_window(zero, param, state, &states, all, &w);
    for (int64_t at = all.first, end = all.first + all.count; st == GT_OK && at < end;) {
        struct gti_run run = gti_param_run(p, at, end);
        gt_init_params init = init_of(p, run, seed);
        gt_tensor range;
        st = gt_tensor_slice(&range, &w.wide, at - all.first, run.count);
        st = st == GT_OK ? gt_init(zero->ctx, &range, &init, NULL) : st;
        at += run.count;
    }
    st = st == GT_OK ? store_wide(zero, &w) : st;
    close_window(zero, &w);
    if (st == GT_OK && needs_offload(b, state)) {
        st = gti_zero_offload_end(zero, b, &states);
    }
    return st;
}

gt_status gt_zero_init_values(gt_zero *zero, uint64_t seed)
{
    if (zero == NULL || !zero->allocated) {
        return GT_FAIL(GT_ERR_STATE, "gt_zero_init_values before gt_zero_allocate");
    }
    for (int i = 0; i < zero->table->count; i++) {
        if (zero->table->param[i].unit != GT_ELSEWHERE) {
            GT_TRY(init_param(zero, i, seed));
            zero->units[zero->table->param[i].unit].unpublished = true;
        }
    }
    return GT_OK;
}

/* ---- whole tensors of this tensor-parallel rank -----------------------------------------------
 */

/* As integers: a sum of floats would make +0 of a -0. */
gt_status gti_zero_join(gt_comm *comm, float *host, int64_t n)
{
    gt_tensor bits = gt_tensor_1d(host, GT_I32, n);
    return n == 0 ? GT_OK : gt_all_reduce(comm, &bits, GT_SUM, NULL, NULL);
}

static gt_status check_state(const gt_zero *zero, int param, int state, const void *host,
                             const struct gti_param **p)
{
    GT_TRY(gti_zero_check_param(zero, param, p));
    if (state < 0 || state >= (*p)->states) {
        return GT_FAIL(GT_ERR_ARGUMENT, "state %d of parameter %s, which has %d", state,
                       (*p)->decl.name, (*p)->states);
    }
    if (host == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "state %s of parameter %s: the buffer is NULL",
                       (*p)->state[state].name, (*p)->decl.name);
    }
    return GT_OK;
}

static struct zero_piece vector_piece(const struct gti_param *p, int state)
{
    return (struct zero_piece){.count = p->state[state].length};
}

gt_status gt_zero_read_state(gt_zero *zero, int param, int state, float *host)
{
    const struct gti_param *p;
    GT_TRY(check_state(zero, param, state, host, &p));
    if (p->state[state].vector) {
        return gti_zero_read_piece(zero, param, state, vector_piece(p, state), host);
    }
    struct zero_piece piece =
        zero->stage == 0 ? gti_zero_state_piece(zero, p) : gti_zero_shard_piece(zero, p);
    memset(host, 0, (size_t)p->local_numel * sizeof(float));
    GT_TRY(gti_zero_fail(zero, gti_zero_read_piece(zero, param, state, piece, host + piece.first)));
    return zero->stage == 0 ? GT_OK : gti_zero_join(zero->comm, host, p->local_numel);
}

/* Loading the weight loads what it is rounded from, so that the next step begins there too. */
gt_status gt_zero_load_state(gt_zero *zero, int param, int state, const float *host)
{
    const struct gti_param *p;
    GT_TRY(check_state(zero, param, state, host, &p));
    zero->units[p->unit].unpublished |= state <= precise_state(zero, p);
    if (p->state[state].vector) {
        return gti_zero_write_piece(zero, param, state, vector_piece(p, state), host);
    }
    struct zero_piece piece = gti_zero_state_piece(zero, p);
    int into = state == 0 ? precise_state(zero, p) : state;
    return gti_zero_write_piece(zero, param, into, piece, host + piece.first);
}

gt_status gt_zero_read_param(gt_zero *zero, int param, float *host)
{
    const struct gti_param *p;
    GT_TRY(gti_zero_check_param(zero, param, &p));
    return gt_zero_read_state(zero, param, precise_state(zero, p), host);
}

gt_status gt_zero_load_param(gt_zero *zero, int param, const float *host)
{
    const struct gti_param *p;
    GT_TRY(gti_zero_check_param(zero, param, &p));
    return gt_zero_load_state(zero, param, precise_state(zero, p), host);
}

static gt_status check_grad(const gt_zero *zero, int param, const void *host,
                            const struct gti_param **p)
{
    GT_TRY(gti_zero_check_param(zero, param, p));
    const struct zero_bucket *b = &zero->units[(*p)->unit].bucket[GTI_TRAINED];
    if (host == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gradient of %s: the buffer is NULL", (*p)->decl.name);
    }
    if (!(*p)->frozen && !b->reduced_last && b->flat->padded > 0) {
        return GT_FAIL(GT_ERR_STATE, "gradient of %s before gt_zero_finish", (*p)->decl.name);
    }
    return GT_OK;
}

gt_status gt_zero_read_grad(gt_zero *zero, int param, float *host)
{
    const struct gti_param *p;
    GT_TRY(check_grad(zero, param, host, &p));
    memset(host, 0, (size_t)p->local_numel * sizeof(float));
    struct zero_piece piece =
        zero->stage == 0 ? gti_zero_state_piece(zero, p) : gti_zero_shard_piece(zero, p);
    if (p->frozen) {
        return GT_OK;
    }
    if (piece.count > 0) {
        GT_TRY(
            gti_zero_fail(zero, gti_zero_read_grad_piece(zero, param, piece, host + piece.first)));
    }
    return zero->stage == 0 ? GT_OK : gti_zero_join(zero->comm, host, p->local_numel);
}

gt_status gt_zero_load_grad(gt_zero *zero, int param, const float *host)
{
    const struct gti_param *p;
    GT_TRY(check_grad(zero, param, host, &p));
    if (p->frozen) {
        return GT_FAIL(GT_ERR_STATE, "parameter %s is frozen and has no gradient", p->decl.name);
    }
    struct zero_piece piece = gti_zero_state_piece(zero, p);
    return piece.count == 0 ? GT_OK
                            : gti_zero_write_grad_piece(zero, param, piece, host + piece.first);
}

/* ---- publication ------------------------------------------------------------------------------
 */

/* From masters to working parameters. */
static gt_status round_bucket(gt_zero *zero, struct zero_bucket *b)
{
    if (!gti_zero_separate_master(zero) || b->frozen || b->flat->padded == 0) {
        return GT_OK;
    }
    struct zero_states states;
    GT_TRY(gt_work_wait(&b->gather_work, NULL)); /* the last publication reads what is written */
    GT_TRY(gti_zero_offload_begin(zero, b, &states));
    if (states.master.dtype == GT_F32) {
        GT_TRY(gt_cast(zero->ctx, &b->own, &states.master, NULL));
    }
    return gti_zero_offload_end(zero, b, &states);
}

static gt_status publish(gt_zero *zero)
{
    for (int i = 0; i < zero->count; i++) {
        for (int k = 0; k < GTI_BUCKETS; k++) {
            GT_TRY(round_bucket(zero, &zero->units[i].bucket[k]));
            GT_TRY(gti_zero_publish_bucket(zero, &zero->units[i].bucket[k]));
        }
        zero->units[i].unpublished = false;
    }
    return GT_OK;
}

gt_status gt_zero_publish(gt_zero *zero)
{
    if (zero == NULL || !zero->allocated) {
        return GT_FAIL(GT_ERR_STATE, "gt_zero_publish before gt_zero_allocate");
    }
    return gti_zero_fail(zero, publish(zero));
}
