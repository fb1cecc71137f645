/* SPDX-License-Identifier: Apache-2.0
 * States and gradients by name, whole, whatever the layout: each rank gives the boxes that it owns,
 * and takes those that it holds. */
#include "trainer/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "zero/state.h"

enum { GRADIENT = -1 }; /* in place of the number of a state */

struct whole {
    int param, state;
    const struct gti_param *row;
    int64_t numel;
};

/* The parameter's most precise value: its master, or its weight where it has none. */
static int precise_state(const struct gti_param *p)
{
    return p->states > 1 && strcmp(p->state[1].name, "master") == 0 ? 1 : 0;
}

static gt_status find(const gt_trainer *t, const char *name, const char *state, struct whole *w)
{
    w->param = gt_params_find(t->table, name);
    if (w->param < 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the model has no parameter named %s",
                       name ? name : "(null)");
    }
    w->row = &t->table->param[w->param];
    w->numel = w->row->numel;
    if (w->state == GRADIENT) {
        return GT_OK;
    }
    w->state = state ? gt_params_find_state(t->table, w->param, state) : precise_state(w->row);
    if (w->state < 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "parameter %s has no state named %s%s", name, state,
                       w->row->frozen ? "; it is frozen" : "");
    }
    const struct gti_state *s = &w->row->state[w->state];
    w->numel = s->vector ? s->length : w->row->numel;
    return GT_OK;
}

static gt_status find_sized(const gt_trainer *t, const char *name, const char *state,
                            const float *host, int64_t numel, struct whole *w)
{
    GT_TRY(find(t, name, state, w));
    if (numel != w->numel) {
        return GT_FAIL(GT_ERR_SHAPE, "parameter %s has %lld elements, the buffer %lld", name,
                       (long long)w->numel, (long long)numel);
    }
    if (host == NULL && numel > 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "parameter %s has %lld elements, the buffer is NULL", name,
                       (long long)numel);
    }
    return GT_OK;
}

static bool is_vector(const struct whole *w)
{
    return w->state != GRADIENT && w->row->state[w->state].vector;
}

static gt_status read_range(gt_trainer *t, const struct whole *w, struct zero_piece piece,
                            float *range)
{
    if (w->state != GRADIENT) {
        return gti_zero_read_piece(t->zero, w->param, w->state, piece, range);
    }
    return w->row->frozen || piece.count == 0
               ? GT_OK
               : gti_zero_read_grad_piece(t->zero, w->param, piece, range);
}

/* This rank's own boxes into their places; the rest of host stays 0. */
static gt_status give_owned(gt_trainer *t, const struct whole *w, float *host)
{
    gt_slab slabs[GT_MAX_SLABS];
    int state = w->state == GRADIENT ? 0 : w->state;
    int count = gt_params_owned(t->table, w->param, state, slabs);
    if (count == 0) {
        return GT_OK;
    }
    if (is_vector(w)) {
        return gti_zero_read_piece(t->zero, w->param, w->state,
                                   (struct zero_piece){.count = w->numel}, host);
    }
    struct zero_piece piece = gti_zero_shard_piece(t->zero, w->row);
    float *range = calloc((size_t)piece.count + 1, sizeof(float));
    if (range == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for %s", w->row->decl.name);
    }
    gt_status st = read_range(t, w, piece, range);
    for (int i = 0; st == GT_OK && i < count; i++) {
        gti_slab_copy(w->row, &slabs[i], host, range, piece.first, true);
    }
    free(range);
    return st;
}

static gt_status write_range(gt_trainer *t, const struct whole *w, struct zero_piece piece,
                             const float *range)
{
    if (w->state == GRADIENT) {
        return piece.count == 0 ? GT_OK
                                : gti_zero_write_grad_piece(t->zero, w->param, piece, range);
    }
    int into = w->state == 0 ? precise_state(w->row) : w->state;
    return gti_zero_write_piece(t->zero, w->param, into, piece, range);
}

/* What this rank holds, replicas and copies too. */
static gt_status take_held(gt_trainer *t, const struct whole *w, const float *host)
{
    if (w->row->unit == GT_ELSEWHERE) {
        return GT_OK;
    }
    if (is_vector(w)) {
        return write_range(t, w, (struct zero_piece){.count = w->numel}, host);
    }
    gt_slab slabs[GT_MAX_SLABS];
    struct zero_piece piece = gti_zero_state_piece(t->zero, w->row);
    int count = gt_params_slabs(t->table, w->param, piece.first, piece.count, slabs);
    float *range = malloc((size_t)piece.count * sizeof(float) + 1);
    if (range == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for %s", w->row->decl.name);
    }
    for (int i = 0; i < count; i++) {
        gti_slab_copy(w->row, &slabs[i], (float *)host, range, piece.first, false);
    }
    gt_status st = write_range(t, w, piece, range);
    free(range);
    return st;
}

static gt_status read_whole(gt_trainer *t, const char *name, const char *state, struct whole *w,
                            float *host, int64_t numel)
{
    GT_TRY(gti_trainer_usable(t));
    GT_TRY(gt_comm_agree(t->world, find_sized(t, name, state, host, numel, w)));
    if (numel == 0) {
        return GT_OK;
    }
    memset(host, 0, (size_t)numel * sizeof(float));
    GT_TRY(gt_comm_agree(t->world, give_owned(t, w, host)));
    return gti_zero_join(t->world, host, numel);
}

static gt_status load_whole(gt_trainer *t, const char *name, const char *state, struct whole *w,
                            const float *host, int64_t numel)
{
    GT_TRY(gti_trainer_usable(t));
    GT_TRY(gt_comm_agree(t->world, find_sized(t, name, state, host, numel, w)));
    return gt_comm_agree(t->world, take_held(t, w, host));
}

gt_status gt_trainer_read_state(gt_trainer *t, const char *name, const char *state, float *host,
                                int64_t numel)
{
    struct whole w = {0};
    return read_whole(t, name, state, &w, host, numel);
}

gt_status gt_trainer_load_state(gt_trainer *t, const char *name, const char *state,
                                const float *host, int64_t numel)
{
    struct whole w = {0};
    GT_TRY(load_whole(t, name, state, &w, host, numel));
    if (w.state > precise_state(w.row)) {
        return GT_OK;
    }
    gt_status st = gt_zero_publish(t->zero);
    return st == GT_OK ? GT_OK : gti_trainer_fail(t, st);
}

gt_status gt_trainer_read_param(gt_trainer *t, const char *name, float *host, int64_t numel)
{
    return gt_trainer_read_state(t, name, NULL, host, numel);
}

gt_status gt_trainer_load_param(gt_trainer *t, const char *name, const float *host, int64_t numel)
{
    return gt_trainer_load_state(t, name, NULL, host, numel);
}

/* ---- gradients: of the mean loss over the step's tokens ----------------------------------------
 */

/* From what lies in memory to the gradient of the mean loss. */
static double factor(const gt_trainer *t)
{
    return t->sums.tokens > 0 ? (double)t->nominal_tokens / t->sums.tokens / t->loss_scale : 0.0;
}

static gt_status finished(gt_trainer *t)
{
    double norm;
    return gt_trainer_gradient_norm(t, &norm);
}

gt_status gt_trainer_read_grad(gt_trainer *t, const char *name, float *host, int64_t numel)
{
    struct whole w = {.state = GRADIENT};
    GT_TRY(finished(t));
    GT_TRY(read_whole(t, name, NULL, &w, host, numel));
    double f = factor(t);
    for (int64_t i = 0; i < numel && f != 1.0; i++) {
        host[i] = (float)((double)host[i] * f);
    }
    return GT_OK;
}

static gt_status scaled(const gt_trainer *t, const float *host, int64_t numel, float **out)
{
    double f = factor(t);
    if (f <= 0) {
        return GT_FAIL(GT_ERR_STATE, "gradients of a step without a valid token cannot be loaded");
    }
    *out = malloc((size_t)numel * sizeof(float) + 1);
    if (*out == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for %lld gradients", (long long)numel);
    }
    for (int64_t i = 0; i < numel; i++) {
        (*out)[i] = f == 1.0 ? host[i] : (float)((double)host[i] / f);
    }
    return GT_OK;
}

static gt_status check_load_grad(const gt_trainer *t, const char *name, const float *host,
                                 int64_t numel, float **raw)
{
    struct whole w = {.state = GRADIENT};
    GT_TRY(find_sized(t, name, NULL, host, numel, &w));
    if (w.row->frozen) {
        return GT_FAIL(GT_ERR_STATE, "parameter %s is frozen and has no gradient", name);
    }
    return scaled(t, host, numel, raw);
}

gt_status gt_trainer_load_grad(gt_trainer *t, const char *name, const float *host, int64_t numel)
{
    struct whole w = {.state = GRADIENT};
    float *raw = NULL;
    GT_TRY(finished(t));
    gt_status st = gt_comm_agree(t->world, check_load_grad(t, name, host, numel, &raw));
    st = st == GT_OK ? load_whole(t, name, NULL, &w, raw, numel) : st;
    free(raw);
    if (st == GT_OK) {
        t->norm_known = false;
    }
    return st;
}
