/* SPDX-License-Identifier: Apache-2.0
 * Memory of buckets: parameters, gradients, states; and what it comes to. */
#include "zero/state.h"

#include "core/fail.h"

bool gti_zero_separate_master(const gt_zero *zero)
{
    return zero->params.dtype != GT_F32;
}

/* ---- which states there are -------------------------------------------------------------------
 */

static gt_status name_vectors(gt_zero *zero, int param)
{
    struct gti_param *p = &zero->table->param[param];
    gt_optimizer_state vectors[GT_OPTIMIZER_STATES];
    gt_param_info info = GT_PARAM_INFO_INIT;
    GT_TRY(gt_params_get(zero->table, param, &info));
    int count =
        zero->rule->vectors(&zero->params.optimizer, zero->params.rule_user, &info, vectors);
    if (count < 0 || count > GT_OPTIMIZER_STATES - zero->elementwise) {
        return GT_FAIL(GT_ERR_ARGUMENT, "optimizer %s has %d vectors of %s, wanted 0 to %d",
                       zero->rule->type, count, p->decl.name,
                       GT_OPTIMIZER_STATES - zero->elementwise);
    }
    for (int i = 0; i < count; i++) {
        GT_TRY(gti_param_add_state(p, vectors[i].name, GT_F32, true, vectors[i].length));
    }
    return GT_OK;
}

static gt_status name_states_of(gt_zero *zero, int param)
{
    struct gti_param *p = &zero->table->param[param];
    gti_param_clear_states(p);
    GT_TRY(gti_param_add_state(p, "weight", zero->params.dtype, false, 0));
    if (p->frozen) {
        return GT_OK;
    }
    if (gti_zero_separate_master(zero)) {
        GT_TRY(gti_param_add_state(p, "master", GT_F32, false, 0));
    }
    for (int i = 0; i < zero->elementwise; i++) {
        GT_TRY(gti_param_add_state(p, zero->state[i].name, zero->state[i].dtype, false, 0));
    }
    return zero->rule->vectors ? name_vectors(zero, param) : GT_OK;
}

/* Of parameters on other ranks too: the table is the same everywhere. */
gt_status gti_zero_name_states(gt_zero *zero)
{
    for (int i = 0; i < zero->table->count; i++) {
        GT_TRY(name_states_of(zero, i));
    }
    return GT_OK;
}

/* ---- buckets ----------------------------------------------------------------------------------
 */

static gt_status alloc_flat(gt_zero *zero, gt_tensor *out, gt_memory_tag tag, gt_dtype dtype,
                            int64_t count)
{
    GT_TRY(gt_tensor_alloc(zero->ctx, out, tag, dtype, 1, &count));
    return gt_fill(zero->ctx, out, 0.0, NULL);
}

/* Of a whole unit, so that freezing some of it does not change how it is kept. */
static bool is_persistent(const gt_zero *zero, const struct zero_bucket *b)
{
    const struct gti_unit *u = b->unit->row;
    int64_t real = u->bucket[GTI_TRAINED].real + u->bucket[GTI_FROZEN].real;
    return zero->stage < 3 || real < zero->params.persistence_threshold;
}

static int64_t nodes_of(const gt_zero *zero)
{
    return zero->across ? gt_comm_size(zero->across) : 1;
}

static gt_status alloc_params(gt_zero *zero, struct zero_bucket *b)
{
    int64_t first = gti_zero_state_first(zero, b), count = gti_zero_state_count(zero, b);
    b->persistent = is_persistent(zero, b);
    if (b->persistent) {
        GT_TRY(alloc_flat(zero, &b->full, GT_MEM_PARAMS, zero->params.dtype, b->flat->padded));
        return gt_tensor_slice(&b->own, &b->full, first, count);
    }
    int64_t nodes = nodes_of(zero), shard = b->flat->shard;
    GT_TRY(alloc_flat(zero, &b->near, GT_MEM_PARAMS, zero->params.dtype, nodes * shard));
    return gt_tensor_slice(&b->own, &b->near, zero->rank % nodes * shard, shard);
}

static gt_status alloc_grads(gt_zero *zero, struct zero_bucket *b)
{
    gt_dtype dtype = zero->params.accum_dtype;
    if (zero->stage <= 1) {
        GT_TRY(alloc_flat(zero, &b->grad_full, GT_MEM_GRADS, dtype, b->flat->padded));
        return gt_tensor_slice(&b->grad, &b->grad_full, gti_zero_state_first(zero, b),
                               gti_zero_state_count(zero, b));
    }
    return alloc_flat(zero, &b->grad, GT_MEM_GRADS, dtype, b->flat->shard);
}

static size_t state_bytes(const gt_zero *zero, const struct zero_bucket *b)
{
    size_t per = 0;
    for (int i = 0; i < zero->elementwise; i++) {
        per += gt_dtype_size(zero->state[i].dtype);
    }
    if (gti_zero_separate_master(zero)) {
        per += zero->params.optimizer.master_remainder ? 2 : 4;
    }
    return per * (size_t)gti_zero_state_count(zero, b);
}

static gt_status alloc_states(gt_zero *zero, struct zero_bucket *b)
{
    int64_t count = gti_zero_state_count(zero, b);
    if (zero->params.offload_optimizer != GT_OFFLOAD_NONE) {
        size_t gaps = (1 + GT_OPTIMIZER_STATES) * 64;
        GT_TRY(gti_zero_offload_open(zero, &b->offload, state_bytes(zero, b) + gaps));
    }
    if (!gti_zero_separate_master(zero)) {
        b->states.master = b->own;
    } else if (zero->params.optimizer.master_remainder) {
        GT_TRY(gti_zero_state_alloc(zero, &b->offload, &b->states.master, GT_U8, 2 * count));
    } else {
        GT_TRY(gti_zero_state_alloc(zero, &b->offload, &b->states.master, GT_F32, count));
    }
    for (int i = 0; i < zero->elementwise; i++) {
        GT_TRY(gti_zero_state_alloc(zero, &b->offload, &b->states.state[i], zero->state[i].dtype,
                                    count));
    }
    return GT_OK;
}

gt_status gti_zero_bucket_allocate(gt_zero *zero, struct zero_bucket *b)
{
    if (b->flat->padded == 0) {
        return GT_OK;
    }
    GT_TRY(alloc_params(zero, b));
    if (b->frozen) {
        return GT_OK;
    }
    GT_TRY(alloc_grads(zero, b));
    return alloc_states(zero, b);
}

void gti_zero_bucket_free(gt_zero *zero, struct zero_bucket *b)
{
    gt_work **works[] = {&b->reduce_work, &b->partial_work, &b->gather_work};
    for (int i = 0; i < 3; i++) {
        (void)gt_work_wait(works[i], NULL);
    }
    gti_zero_pool_give(&b->grad_buffer);
    gti_zero_pool_give(&b->buffer);
    bool mapped = b->offload.data != NULL;
    if (gti_zero_separate_master(zero) && !mapped) {
        gt_tensor_free(zero->ctx, &b->states.master);
    }
    for (int i = 0; i < zero->elementwise && !mapped; i++) {
        gt_tensor_free(zero->ctx, &b->states.state[i]);
    }
    gti_zero_offload_close(&b->offload);
    gt_tensor_free(zero->ctx, b->full.data ? &b->full : &b->near);
    gt_tensor_free(zero->ctx, b->grad_full.data ? &b->grad_full : &b->grad);
    *b = (struct zero_bucket){.unit = b->unit, .flat = b->flat, .frozen = b->frozen};
}

/* ---- vectors ----------------------------------------------------------------------------------
 */

static int first_vector(const struct gti_param *p)
{
    int k = 0;
    while (k < p->states && !p->state[k].vector) {
        k++;
    }
    return k;
}

gt_status gti_zero_vectors_allocate(gt_zero *zero, int param)
{
    const struct gti_param *p = &zero->table->param[param];
    int first = first_vector(p);
    for (int k = first; p->unit != GT_ELSEWHERE && k < p->states; k++) {
        GT_TRY(alloc_flat(zero, &zero->param[param].vector[k - first], GT_MEM_OPTIMIZER, GT_F32,
                          p->state[k].length));
    }
    return GT_OK;
}

void gti_zero_vectors_free(gt_zero *zero, int param)
{
    for (int i = 0; i < GT_OPTIMIZER_STATES; i++) {
        gt_tensor_free(zero->ctx, &zero->param[param].vector[i]);
    }
}

/* ---- bytes ------------------------------------------------------------------------------------
 */

static void add_bucket(const gt_zero *zero, const struct zero_bucket *b, gt_zero_bytes *out)
{
    int64_t element = (int64_t)gt_dtype_size(zero->params.dtype);
    int64_t accum = (int64_t)gt_dtype_size(zero->params.accum_dtype);
    int64_t shard = b->flat->shard, padded = b->flat->padded;
    out->params += (is_persistent(zero, b) ? padded : nodes_of(zero) * shard) * element;
    if (b->frozen) {
        return;
    }
    out->grads += (zero->stage <= 1 ? padded : shard) * accum;
    if (zero->params.offload_optimizer == GT_OFFLOAD_NONE) {
        out->optimizer += (int64_t)state_bytes(zero, b);
    }
}

void gt_zero_formula(const gt_zero *zero, gt_zero_bytes *out)
{
    if (out == NULL) {
        return;
    }
    *out = (gt_zero_bytes){0};
    for (int i = 0; zero != NULL && i < zero->count; i++) {
        for (int k = 0; k < GTI_BUCKETS; k++) {
            add_bucket(zero, &zero->units[i].bucket[k], out);
        }
    }
    for (int i = 0; zero != NULL && i < zero->table->count; i++) {
        const struct gti_param *p = &zero->table->param[i];
        for (int k = first_vector(p); p->unit != GT_ELSEWHERE && k < p->states; k++) {
            out->optimizer += p->state[k].length * (int64_t)sizeof(float);
        }
    }
    if (zero != NULL) {
        out->gather_buffers = (int64_t)(zero->gather_pool.bytes + zero->grad_pool.bytes);
    }
}
