/* SPDX-License-Identifier: Apache-2.0
 * Freezing and thawing between steps: a unit's buckets are laid out and made anew, and what its
 * parameters hold moves over. */
#include "zero/state.h"

#include <stdlib.h>

#include "core/fail.h"

/* What a parameter held, whole, on the host: weight, master and states in the order of its row. */
struct kept {
    float *value[GT_MAX_STATES];
    int states;
    bool was_frozen;
};

static void forget(struct kept *kept, int count)
{
    for (int i = 0; kept != NULL && i < count; i++) {
        for (int k = 0; k < GT_MAX_STATES; k++) {
            free(kept[i].value[k]);
        }
    }
    free(kept);
}

static gt_status keep(gt_zero *zero, int param, struct kept *out)
{
    const struct gti_param *p = &zero->table->param[param];
    out->states = p->states;
    out->was_frozen = p->frozen;
    gt_status st = GT_OK;
    for (int k = 0; k < p->states; k++) {
        int64_t n = p->state[k].vector ? p->state[k].length : p->local_numel;
        out->value[k] = malloc((size_t)n * sizeof(float) + 1);
        if (out->value[k] == NULL) {
            st = GT_FAIL(GT_ERR_MEMORY, "no host memory for the states of %s", p->decl.name);
        }
    }
    GT_TRY(gti_zero_fail(zero, st));
    for (int k = 0; k < p->states; k++) {
        GT_TRY(gt_zero_read_state(zero, param, k, out->value[k]));
    }
    return GT_OK;
}

/* Into the new place: everything where it goes on as before; the most precise value where it was
 * frozen or is now. */
static gt_status restore(gt_zero *zero, int param, const struct kept *kept)
{
    const struct gti_param *p = &zero->table->param[param];
    bool separate = gti_zero_separate_master(zero);
    if (p->frozen || kept->was_frozen) {
        int precise = separate && !kept->was_frozen ? 1 : 0;
        return gt_zero_load_param(zero, param, kept->value[precise]);
    }
    for (int k = separate ? 1 : 0; k < kept->states; k++) {
        GT_TRY(gt_zero_load_state(zero, param, k, kept->value[k]));
    }
    return GT_OK;
}

static gt_status rebuild_alone(gt_zero *zero, int unit, const bool *frozen)
{
    struct zero_unit *u = &zero->units[unit];
    for (int k = 0; k < GTI_BUCKETS; k++) {
        gti_zero_bucket_free(zero, &u->bucket[k]);
    }
    for (int i = 0; i < u->row->count; i++) {
        gti_zero_vectors_free(zero, u->row->param[i]);
        zero->table->param[u->row->param[i]].frozen = frozen[u->row->param[i]];
    }
    GT_TRY(gti_zero_name_states(zero));
    gti_params_lay_out_unit(zero->table, unit);
    for (int k = 0; k < GTI_BUCKETS; k++) {
        GT_TRY(gti_zero_bucket_allocate(zero, &u->bucket[k]));
    }
    for (int i = 0; i < u->row->count; i++) {
        GT_TRY(gti_zero_vectors_allocate(zero, u->row->param[i]));
    }
    return GT_OK;
}

static gt_status rebuild(gt_zero *zero, int unit, const bool *frozen)
{
    const struct gti_unit *u = zero->units[unit].row;
    struct kept *kept = calloc((size_t)u->count + 1, sizeof(*kept));
    gt_status st = kept ? GT_OK : GT_FAIL(GT_ERR_MEMORY, "no host memory for unit %s", u->name);
    st = gti_zero_fail(zero, st);
    for (int i = 0; st == GT_OK && i < u->count; i++) {
        st = keep(zero, u->param[i], &kept[i]);
    }
    st = st == GT_OK ? gti_zero_fail(zero, rebuild_alone(zero, unit, frozen)) : st;
    for (int i = 0; st == GT_OK && i < u->count; i++) {
        st = gti_zero_fail(zero, restore(zero, u->param[i], &kept[i]));
    }
    forget(kept, u->count);
    return st;
}

static gt_status check_idle(const gt_zero *zero)
{
    GT_TRY(gti_zero_check_released(zero, "gt_zero_freeze"));
    for (int i = 0; i < zero->count; i++) {
        const struct zero_bucket *b = &zero->units[i].bucket[GTI_TRAINED];
        if (b->grad_open || b->grad_summed || b->reduced) {
            return GT_FAIL(GT_ERR_STATE,
                           "gt_zero_freeze within a step: unit %s has gradients; update or discard "
                           "first",
                           b->unit->row->name);
        }
    }
    return GT_OK;
}

static gt_status check_freeze(const gt_zero *zero, const int *params, int count)
{
    if (zero == NULL || !zero->allocated || count < 0 || (count > 0 && params == NULL)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_zero_freeze needs allocated state and parameters");
    }
    for (int i = 0; i < count; i++) {
        if (gti_params_row(zero->table, params[i]) == NULL) {
            return GT_FAIL(GT_ERR_ARGUMENT, "gt_zero_freeze of parameter %d, there are %d",
                           params[i], zero->table->count);
        }
    }
    return check_idle(zero);
}

static gt_status freeze(gt_zero *zero, bool *wanted, const int *params, int count, bool frozen)
{
    for (int i = 0; i < zero->table->count; i++) {
        wanted[i] = zero->table->param[i].frozen;
    }
    for (int i = 0; i < count; i++) {
        wanted[params[i]] = frozen;
    }
    for (int u = 0; u < zero->count; u++) {
        const struct gti_unit *row = zero->units[u].row;
        bool changes = false;
        for (int k = 0; k < row->count; k++) {
            changes |= wanted[row->param[k]] != zero->table->param[row->param[k]].frozen;
        }
        if (changes) {
            GT_TRY(rebuild(zero, u, wanted));
        }
    }
    for (int i = 0; i < zero->table->count; i++) { /* those on other ranks too */
        zero->table->param[i].frozen = wanted[i];
    }
    GT_TRY(gti_zero_fail(zero, gti_zero_name_states(zero)));
    return gt_zero_publish(zero);
}

gt_status gt_zero_freeze(gt_zero *zero, const int *params, int count, bool frozen)
{
    gt_status st = check_freeze(zero, params, count);
    if (zero == NULL || !zero->allocated) {
        return st;
    }
    bool *wanted = calloc((size_t)zero->table->count + 1, sizeof(*wanted));
    if (st == GT_OK && wanted == NULL) {
        st = GT_FAIL(GT_ERR_MEMORY, "no host memory for %d flags", zero->table->count);
    }
    st = gt_comm_agree(zero->comm, st);
    st = st == GT_OK ? freeze(zero, wanted, params, count, frozen) : st;
    free(wanted);
    return st;
}
