/* SPDX-License-Identifier: Apache-2.0
 * Whole values in and out of the sharded state: initialisation, loading, reading. */
#include "zero/state.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"

/* An f32 view of a piece of the masters, to be written. A remainder master has no f32 form: its
 * values go through `scratch` (f32, the piece's length), which store_master() then splits. */
struct master_piece {
    gt_tensor f32, param, remainder;
    bool split;
};

static gt_status open_master(gt_zero *zero, struct zero_unit *u,
                             const gt_tensor states[GTI_MAX_STATES], struct zero_piece p,
                             struct master_piece *out)
{
    *out = (struct master_piece){.split = states[0].dtype == GT_U8};
    if (!out->split) {
        return gt_tensor_slice(&out->f32, &states[0], p.in_range, p.count);
    }
    GT_TRY(gt_tensor_slice(&out->param, &u->own, p.in_range, p.count));
    GT_TRY(gt_tensor_slice(&out->remainder, &states[0], 2 * p.in_range, 2 * p.count));
    return gt_tensor_alloc(zero->ctx, &out->f32, GT_MEM_WORKSPACE, GT_F32, 1, &p.count);
}

static gt_status close_master(gt_zero *zero, struct master_piece *m, bool store, gt_status st)
{
    if (m->split) {
        if (st == GT_OK && store) {
            st = gt_master_split(zero->ctx, &m->param, &m->remainder, &m->f32, NULL);
        }
        gt_tensor_free(zero->ctx, &m->f32);
    }
    return st;
}

gt_status gt_zero_init_param(gt_zero *zero, int unit, int tensor, int64_t first, int64_t count,
                             const gt_init_params *init)
{
    GT_TRY(gti_zero_unit_check(zero, unit, tensor));
    struct zero_unit *u = &zero->units[unit];
    /* The range to fill, seen as a tensor of its own. */
    struct zero_tensor range = u->tensors[tensor];
    range.offset += first;
    range.numel = count;
    struct zero_piece p =
        gti_zero_piece(&range, gti_zero_state_first(zero, u), gti_zero_state_count(zero, u));
    if (p.count == 0) {
        return GT_OK;
    }
    gt_tensor states[GTI_MAX_STATES];
    struct master_piece m;
    GT_TRY(gti_zero_offload_begin(zero, u, states));
    GT_TRY(open_master(zero, u, states, p, &m));
    gt_init_params shifted = *init;
    shifted.offset += p.in_tensor;
    gt_status st = gt_init(zero->ctx, &m.f32, &shifted, NULL);
    GT_TRY(close_master(zero, &m, true, st));
    return gti_zero_offload_end(zero, u, states);
}

gt_status gt_zero_load_param(gt_zero *zero, int unit, int tensor, const float *host)
{
    GT_TRY(gti_zero_unit_check(zero, unit, tensor));
    struct zero_unit *u = &zero->units[unit];
    struct zero_piece p = gti_zero_piece(&u->tensors[tensor], gti_zero_state_first(zero, u),
                                         gti_zero_state_count(zero, u));
    if (p.count == 0) {
        return GT_OK;
    }
    gt_tensor states[GTI_MAX_STATES];
    struct master_piece m;
    GT_TRY(gt_work_wait(&u->gather_work, NULL)); /* the last publication reads what is written */
    GT_TRY(gti_zero_offload_begin(zero, u, states));
    GT_TRY(open_master(zero, u, states, p, &m));
    gt_status st = gt_copy_from_host(zero->ctx, &m.f32, host + p.in_tensor, NULL);
    GT_TRY(close_master(zero, &m, true, st));
    return gti_zero_offload_end(zero, u, states);
}

/* Every rank has filled in its own piece of host, zeros elsewhere: now all have everything. */
static gt_status join(gt_zero *zero, float *host, int64_t numel)
{
    if (zero->stage == 0 || numel == 0) {
        return GT_OK;
    }
    gt_tensor whole = gt_tensor_1d(host, GT_F32, numel);
    return gt_all_reduce(zero->comm, &whole, GT_SUM, NULL, NULL);
}

/* This rank's piece of a parameter's master into its place. */
static gt_status read_piece(gt_zero *zero, struct zero_unit *u, struct zero_piece p, float *host)
{
    gt_tensor states[GTI_MAX_STATES];
    struct master_piece m;
    gt_status st = GT_OK;
    GT_TRY(gt_work_wait(&u->gather_work, NULL));
    if (p.count == 0) {
        return GT_OK;
    }
    GT_TRY(gti_zero_offload_begin(zero, u, states));
    GT_TRY(open_master(zero, u, states, p, &m));
    if (m.split) {
        st = gt_master_join(zero->ctx, &m.f32, &m.param, &m.remainder, NULL);
    }
    if (st == GT_OK) {
        st = gt_copy_to_host(zero->ctx, host + p.in_tensor, &m.f32, NULL);
    }
    return close_master(zero, &m, false, st);
}

gt_status gt_zero_read_param(gt_zero *zero, int unit, int tensor, float *host)
{
    GT_TRY(gti_zero_unit_check(zero, unit, tensor));
    struct zero_unit *u = &zero->units[unit];
    const struct zero_tensor *t = &u->tensors[tensor];
    struct zero_piece p =
        gti_zero_piece(t, gti_zero_state_first(zero, u), gti_zero_state_count(zero, u));
    memset(host, 0, (size_t)t->numel * sizeof(float));
    GT_TRY(gti_zero_fail(zero, read_piece(zero, u, p, host)));
    return join(zero, host, t->numel);
}

static gt_status read_grad_piece(gt_zero *zero, const struct zero_unit *u, struct zero_piece p,
                                 float *host)
{
    gt_tensor piece, wide;
    GT_TRY(gt_tensor_slice(&piece, &u->grad, p.in_range, p.count));
    GT_TRY(gt_tensor_alloc(zero->ctx, &wide, GT_MEM_WORKSPACE, GT_F32, 1, &p.count));
    gt_status st = gt_cast(zero->ctx, &wide, &piece, NULL);
    if (st == GT_OK) {
        st = gt_copy_to_host(zero->ctx, host + p.in_tensor, &wide, NULL);
    }
    gt_tensor_free(zero->ctx, &wide);
    return st;
}

gt_status gt_zero_read_grad(gt_zero *zero, int unit, int tensor, float *host)
{
    GT_TRY(gti_zero_unit_check(zero, unit, tensor));
    struct zero_unit *u = &zero->units[unit];
    const struct zero_tensor *t = &u->tensors[tensor];
    struct zero_piece p =
        gti_zero_piece(t, gti_zero_state_first(zero, u), gti_zero_state_count(zero, u));
    memset(host, 0, (size_t)t->numel * sizeof(float));
    if (p.count > 0 && !t->frozen) {
        GT_TRY(gti_zero_fail(zero, read_grad_piece(zero, u, p, host)));
    }
    return join(zero, host, t->numel);
}
