/* SPDX-License-Identifier: Apache-2.0
 * Creation, units and their flat layout, allocation, destruction. */
#include "zero/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

void gt_zero_params_init(gt_zero_params *params, size_t size)
{
    if (params != NULL) {
        memset(params, 0, size);
        params->struct_size = size;
    }
}

static gt_status check_params(const gt_zero_params *p)
{
    if (p->stage < 0 || p->stage > 3) {
        return GT_FAIL(GT_ERR_ARGUMENT, "ZeRO stage %d, wanted 0, 1, 2 or 3", p->stage);
    }
    const gt_dtype dtypes[] = {p->dtype, p->communication_dtype, p->accum_dtype};
    for (int i = 0; i < 3; i++) {
        if (dtypes[i] != GT_F32 && dtypes[i] != GT_BF16 && dtypes[i] != GT_F16) {
            return GT_FAIL(GT_ERR_DTYPE, "ZeRO %s dtype is %s, wanted f32, bf16 or f16",
                           (const char *[]){"parameter", "communication", "accumulation"}[i],
                           gt_dtype_name(dtypes[i]));
        }
    }
    if (p->optimizer.master_remainder && p->dtype != GT_BF16) {
        return GT_FAIL(GT_ERR_DTYPE, "master_remainder needs bf16 parameters, they are %s",
                       gt_dtype_name(p->dtype));
    }
    if (p->optimizer.master_remainder && p->optimizer.type != GT_ADAMW &&
        p->optimizer.type != GT_ADAM) {
        return GT_FAIL(GT_ERR_UNSUPPORTED,
                       "master_remainder works with Adam and AdamW, the other optimizers keep an "
                       "f32 master");
    }
    return GT_OK;
}

/* hpz (Wang et al. 2023, ZeRO++): ranks n*h .. n*h+h-1 are a node, whose h ranks hold all
 * parameters among them, so that gathers stay inside. State is still sharded over all P ranks. Rank
 * (node n, place i) owns shard i*(P/h) + n: the node piece number i is then the shards of all ranks
 * with place i, and one all-gather across nodes renews it. */
static gt_status make_nodes(gt_zero *z, gt_comm *comm)
{
    int h = z->params.hpz_partition_size;
    if (h <= 1 || h >= z->size || z->stage < 3) {
        return GT_OK;
    }
    if (z->size % h != 0) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "zero_hpz_partition_size %d does not divide the %d ranks that share state",
                       h, z->size);
    }
    int node = z->rank / h, place = z->rank % h;
    z->comm = z->node = NULL;
    z->owns_comms = true;
    GT_TRY(gt_comm_split(&z->comm, comm, 0, place * (z->size / h) + node));
    GT_TRY(gt_comm_split(&z->node, comm, node, place));
    GT_TRY(gt_comm_split(&z->across, comm, place, node));
    z->rank = gt_comm_rank(z->comm);
    return GT_OK;
}

gt_status gt_zero_create(gt_zero **out, gt_context *ctx, gt_comm *comm,
                         const gt_zero_params *params)
{
    if (comm == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_zero_create: comm is NULL");
    }
    gt_status st = out && ctx && params
                       ? check_params(params)
                       : GT_FAIL(GT_ERR_ARGUMENT, "gt_zero_create needs out, ctx and params");
    gt_zero *z = st == GT_OK ? calloc(1, sizeof(*z)) : NULL;
    if (st == GT_OK && z == NULL) {
        st = GT_FAIL(GT_ERR_MEMORY, "no host memory for a gt_zero");
    }
    st = gt_comm_agree(comm, st); /* the others are about to split comm */
    if (st != GT_OK) {
        free(z);
        return st;
    }
    z->ctx = ctx;
    z->comm = z->node = comm;
    z->params = *params;
    z->size = gt_comm_size(comm);
    z->rank = gt_comm_rank(comm);
    z->stage = z->size == 1 ? 0 : params->stage;
    z->deferred = -1;
    if (params->offload_path != NULL) {
        snprintf(z->offload_path, sizeof(z->offload_path), "%s", params->offload_path);
    }
    st = make_nodes(z, comm);
    if (st != GT_OK) {
        gt_zero_destroy(&z);
        return st;
    }
    *out = z;
    return GT_OK;
}

gt_status gti_zero_fail(const gt_zero *zero, gt_status mine)
{
    bool alone = zero->size == 1 && zero->params.model_comm == NULL;
    return alone ? mine : gt_comm_fail(zero->comm, mine);
}

gt_status gti_zero_unit_check(const gt_zero *zero, int unit, int tensor)
{
    if (zero == NULL || unit < 0 || unit >= zero->count) {
        return GT_FAIL(GT_ERR_ARGUMENT, "ZeRO unit %d, there are %d", unit,
                       zero == NULL ? 0 : zero->count);
    }
    if (tensor < 0 || (tensor > 0 && tensor >= zero->units[unit].count)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "tensor %d of unit %s, which has %d", tensor,
                       zero->units[unit].name, zero->units[unit].count);
    }
    return GT_OK;
}

/* Partial tensors come first, so that one all-reduce over a contiguous range serves them. */
static void lay_out(const gt_zero *zero, struct zero_unit *u)
{
    int64_t end = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < u->count; i++) {
            if (u->tensors[i].partial == (pass == 0)) {
                u->tensors[i].offset = end;
                end += round_up(u->tensors[i].numel, GTI_ZERO_ALIGN);
            }
        }
        if (pass == 0) {
            u->partial = end;
        }
    }
    u->real = end;
    u->shard = round_up(gt_partition_size(end, zero->size), GTI_ZERO_ALIGN);
    u->padded = u->shard * zero->size;
    u->persistent = zero->stage < 3 || u->real < zero->params.persistence_threshold;
}

static gt_status add_record(gt_zero *zero, struct zero_unit **out)
{
    if (zero->count == zero->room) {
        int room = zero->room ? 2 * zero->room : 16;
        struct zero_unit *grown = realloc(zero->units, (size_t)room * sizeof(*grown));
        if (grown == NULL) {
            return GT_FAIL(GT_ERR_MEMORY, "no host memory for %d ZeRO units", room);
        }
        zero->units = grown;
        zero->room = room;
    }
    *out = &zero->units[zero->count];
    memset(*out, 0, sizeof(**out));
    return GT_OK;
}

gt_status gt_zero_add_unit(gt_zero *zero, const char *name, int count,
                           const gt_zero_tensor *tensors, gt_comm *tie, int *unit)
{
    if (zero == NULL || name == NULL || count < 0 || (count > 0 && tensors == NULL)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_zero_add_unit needs a name and its tensors");
    }
    if (zero->allocated) {
        return GT_FAIL(GT_ERR_STATE, "unit %s added after gt_zero_allocate", name);
    }
    for (int i = 0; i < count; i++) {
        if (tensors[i].numel < 0) {
            return GT_FAIL(GT_ERR_SHAPE, "tensor %s of unit %s has %lld elements, wanted 0 or more",
                           tensors[i].name, name, (long long)tensors[i].numel);
        }
    }
    struct zero_unit *u;
    GT_TRY(add_record(zero, &u));
    u->tensors = calloc((size_t)count + 1, sizeof(*u->tensors));
    if (u->tensors == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for the %d tensors of %s", count, name);
    }
    snprintf(u->name, sizeof(u->name), "%s", name);
    u->count = count;
    u->tie = tie;
    for (int i = 0; i < count; i++) {
        struct zero_tensor *t = &u->tensors[i];
        snprintf(t->name, sizeof(t->name), "%s", tensors[i].name);
        t->numel = tensors[i].numel;
        t->counted = tensors[i].replica_from > 0 ? tensors[i].replica_from : t->numel;
        t->lr_scale = tensors[i].lr_scale;
        t->decay_scale = tensors[i].decay_scale;
        t->frozen = tensors[i].frozen;
        t->norm_weight = tensors[i].norm_weight;
        t->partial = tensors[i].partial && !tensors[i].frozen && zero->params.model_comm != NULL;
        t->sets_gradient = tensors[i].sets_gradient && !tensors[i].frozen && !t->partial;
    }
    lay_out(zero, u);
    if (unit != NULL) {
        *unit = zero->count;
    }
    zero->count++;
    return GT_OK;
}

int64_t gti_zero_state_first(const gt_zero *zero, const struct zero_unit *u)
{
    return zero->stage == 0 ? 0 : zero->rank * u->shard;
}

int64_t gti_zero_state_count(const gt_zero *zero, const struct zero_unit *u)
{
    return zero->stage == 0 ? u->padded : u->shard;
}

struct zero_piece gti_zero_piece(const struct zero_tensor *t, int64_t first, int64_t count)
{
    int64_t lo = t->offset > first ? t->offset : first;
    int64_t end = t->offset + t->numel;
    int64_t hi = end < first + count ? end : first + count;
    if (hi <= lo) {
        return (struct zero_piece){0, 0, 0};
    }
    return (struct zero_piece){lo - first, lo - t->offset, hi - lo};
}

static gt_status alloc_flat(gt_zero *zero, gt_tensor *out, gt_memory_tag tag, gt_dtype dtype,
                            int64_t count)
{
    GT_TRY(gt_tensor_alloc(zero->ctx, out, tag, dtype, 1, &count));
    return gt_fill(zero->ctx, out, 0.0, NULL);
}

static gt_status alloc_params(gt_zero *zero, struct zero_unit *u)
{
    int64_t first = gti_zero_state_first(zero, u);
    int64_t count = gti_zero_state_count(zero, u);
    if (u->persistent) {
        GT_TRY(alloc_flat(zero, &u->full, GT_MEM_PARAMS, zero->params.dtype, u->padded));
        return gt_tensor_slice(&u->own, &u->full, first, count);
    }
    int64_t nodes = zero->across ? gt_comm_size(zero->across) : 1;
    GT_TRY(alloc_flat(zero, &u->near, GT_MEM_PARAMS, zero->params.dtype, nodes * u->shard));
    return gt_tensor_slice(&u->own, &u->near, zero->rank % nodes * u->shard, u->shard);
}

static gt_status alloc_grads(gt_zero *zero, struct zero_unit *u)
{
    if (zero->stage <= 1) {
        GT_TRY(alloc_flat(zero, &u->grad_full, GT_MEM_GRADS, zero->params.accum_dtype, u->padded));
        return gt_tensor_slice(&u->grad, &u->grad_full, gti_zero_state_first(zero, u),
                               gti_zero_state_count(zero, u));
    }
    return alloc_flat(zero, &u->grad, GT_MEM_GRADS, zero->params.accum_dtype, u->shard);
}

/* Which moments an optimizer keeps. */
static void moments_of(const gt_optimizer_config *o, bool has[2])
{
    has[0] = o->type != GT_SGD;
    has[1] = o->type == GT_ADAMW || o->type == GT_ADAM || o->type == GT_LAMB ||
             (o->type == GT_SGD && o->momentum != 0.0);
}

static size_t state_bytes(const gt_zero *zero, const struct zero_unit *u)
{
    bool has[2];
    moments_of(&zero->params.optimizer, has);
    size_t per = (size_t)(has[0] + has[1]) * gt_dtype_size(zero->params.optimizer.moments_dtype);
    if (zero->params.dtype != GT_F32) {
        per += zero->params.optimizer.master_remainder ? 2 : 4;
    }
    return per * (size_t)gti_zero_state_count(zero, u);
}

static gt_status alloc_states(gt_zero *zero, struct zero_unit *u)
{
    int64_t count = gti_zero_state_count(zero, u);
    bool has[2];
    moments_of(&zero->params.optimizer, has);
    if (zero->params.dtype == GT_F32) {
        u->master = u->own;
    } else if (zero->params.optimizer.master_remainder) {
        GT_TRY(gti_zero_state_alloc(zero, &u->master, GT_U8, 2 * count));
    } else {
        GT_TRY(gti_zero_state_alloc(zero, &u->master, GT_F32, count));
    }
    for (int i = 0; i < 2; i++) {
        if (has[i]) {
            GT_TRY(gti_zero_state_alloc(zero, &u->moment[i], zero->params.optimizer.moments_dtype,
                                        count));
        }
    }
    return GT_OK;
}

/* Ranks must agree on every unit and length, or collectives would mix tensors up. */
static gt_status check_agreement(gt_zero *zero)
{
    for (int i = 0; i < zero->count; i++) {
        const struct zero_unit *u = &zero->units[i];
        char what[2 * GT_PARAM_NAME_MAX];
        snprintf(what, sizeof(what), "the tensors of ZeRO unit %d (%s here)", i, u->name);
        uint64_t sum = 1469598103934665603u;
        for (int t = 0; t < u->count; t++) {
            for (const char *c = u->tensors[t].name; *c; c++) {
                sum = (sum ^ (uint64_t)(unsigned char)*c) * 1099511628211u;
            }
            sum = (sum ^ (uint64_t)u->tensors[t].numel) * 1099511628211u;
        }
        GT_TRY(gt_comm_check_equal(zero->comm, what, &sum, sizeof(sum)));
    }
    return GT_OK;
}

static gt_status allocate_all(gt_zero *zero)
{
    size_t offloaded = 0;
    for (int i = 0; i < zero->count; i++) {
        offloaded += state_bytes(zero, &zero->units[i]) + 3 * 64;
    }
    if (zero->params.offload_optimizer != GT_OFFLOAD_NONE) {
        GT_TRY(gti_zero_offload_open(zero, offloaded));
    }
    for (int i = 0; i < zero->count; i++) {
        GT_TRY(alloc_params(zero, &zero->units[i]));
        GT_TRY(alloc_grads(zero, &zero->units[i]));
        GT_TRY(alloc_states(zero, &zero->units[i]));
    }
    return GT_OK;
}

gt_status gt_zero_allocate(gt_zero *zero)
{
    if (zero == NULL || zero->allocated) {
        return GT_FAIL(GT_ERR_STATE, "gt_zero_allocate called twice");
    }
    GT_TRY(gt_comm_check_equal(zero->comm, "the number of ZeRO units", &zero->count,
                               sizeof(zero->count)));
    GT_TRY(check_agreement(zero));
    GT_TRY(gt_comm_agree(zero->comm, allocate_all(zero)));
    zero->allocated = true;
    return GT_OK;
}

static void destroy_unit(gt_zero *zero, struct zero_unit *u)
{
    gt_work *works[] = {u->reduce_work, u->partial_work, u->gather_work};
    for (int i = 0; i < 3; i++) {
        (void)gt_work_wait(&works[i], NULL);
    }
    if (zero->params.dtype != GT_F32 && zero->offload == NULL) {
        gt_tensor_free(zero->ctx, &u->master);
    }
    if (zero->offload == NULL) {
        gt_tensor_free(zero->ctx, &u->moment[0]);
        gt_tensor_free(zero->ctx, &u->moment[1]);
    }
    gt_tensor_free(zero->ctx, u->full.data ? &u->full : &u->near);
    gt_tensor_free(zero->ctx, u->grad_full.data ? &u->grad_full : &u->grad);
    free(u->tensors);
}

void gt_zero_destroy(gt_zero **zero)
{
    if (zero == NULL || *zero == NULL) {
        return;
    }
    gt_zero *z = *zero;
    for (int i = 0; i < z->count; i++) {
        destroy_unit(z, &z->units[i]);
    }
    gti_zero_pool_destroy(z, &z->gather_pool);
    gti_zero_pool_destroy(z, &z->grad_pool);
    gti_zero_offload_close(z);
    gt_tensor_free(z->ctx, &z->lamb_update);
    gt_tensor_free(z->ctx, &z->lamb_norms);
    free(z->lamb_host);
    if (z->owns_comms) {
        gt_comm_destroy(&z->across);
        gt_comm_destroy(&z->node);
        gt_comm_destroy(&z->comm);
    }
    free(z->units);
    free(z->order);
    free(z);
    *zero = NULL;
}

void gt_zero_formula(const gt_zero *zero, gt_zero_bytes *out)
{
    *out = (gt_zero_bytes){0};
    size_t element = gt_dtype_size(zero->params.dtype);
    size_t accum = gt_dtype_size(zero->params.accum_dtype);
    for (int i = 0; i < zero->count; i++) {
        const struct zero_unit *u = &zero->units[i];
        int64_t nodes = zero->across ? gt_comm_size(zero->across) : 1;
        out->params += (u->persistent ? u->padded : nodes * u->shard) * (int64_t)element;
        out->grads += (zero->stage <= 1 ? u->padded : u->shard) * (int64_t)accum;
        if (zero->params.offload_optimizer == GT_OFFLOAD_NONE) {
            out->optimizer += (int64_t)state_bytes(zero, u);
        }
    }
    out->gather_buffers = (int64_t)(zero->gather_pool.bytes + zero->grad_pool.bytes);
}
