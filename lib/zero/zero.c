/* SPDX-License-Identifier: Apache-2.0
 * Creation, agreement, allocation, destruction. */
#include "zero/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/fail.h"
#include "core/params.h"

void gt_zero_params_init(gt_zero_params *params, size_t size)
{
    gti_params_init(params, size);
}

static gt_status check_dtypes(const gt_zero_params *p)
{
    const gt_dtype dtypes[] = {p->dtype, p->communication_dtype, p->accum_dtype};
    for (int i = 0; i < 3; i++) {
        if (dtypes[i] != GT_F32 && dtypes[i] != GT_BF16 && dtypes[i] != GT_F16) {
            return GT_FAIL(GT_ERR_DTYPE, "ZeRO %s dtype is %s, wanted f32, bf16 or f16",
                           (const char *[]){"parameter", "communication", "accumulation"}[i],
                           gt_dtype_name(dtypes[i]));
        }
    }
    return GT_OK;
}

/* "All zero is the default" holds of the optimizer too: betas of 0 train, but nobody means them. */
static void default_optimizer(gt_zero_params *p)
{
    static const gt_optimizer_config nothing;
    if (memcmp(&p->optimizer, &nothing, sizeof(nothing)) == 0) {
        gt_config defaults;
        gt_config_init(&defaults);
        p->optimizer = defaults.optimizer;
    }
}

static gt_status check_params(const gt_zero_params *p)
{
    if (p->stage < 0 || p->stage > 3) {
        return GT_FAIL(GT_ERR_ARGUMENT, "ZeRO stage %d, wanted 0, 1, 2 or 3", p->stage);
    }
    GT_TRY(check_dtypes(p));
    if ((unsigned)p->offload_optimizer > GT_OFFLOAD_FILE) {
        return GT_FAIL(GT_ERR_ARGUMENT, "offload_optimizer is %d, wanted one of gt_offload",
                       (int)p->offload_optimizer);
    }
    if (p->optimizer.master_remainder && p->dtype != GT_BF16) {
        return GT_FAIL(GT_ERR_DTYPE, "master_remainder needs bf16 parameters, they are %s",
                       gt_dtype_name(p->dtype));
    }
    return GT_OK;
}

static gt_status take_rule(gt_zero *z)
{
    const gt_zero_params *p = &z->params;
    z->rule = gt_optimizer_of(&p->optimizer);
    if (p->rule != NULL) {
        GT_TRY(GTI_PARAMS_COPY(&z->rule_copy, p->rule, gt_optimizer));
        z->rule = &z->rule_copy;
    }
    if (z->rule == NULL || z->rule->type == NULL || z->rule->update == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT,
                       "optimizer type %d, wanted one of gt_optimizer_type, or a "
                       "rule with type and update",
                       (int)p->optimizer.type);
    }
    if (z->rule->sums != NULL && z->rule->measure == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "optimizer %s wants sums and has no measure",
                       z->rule->type);
    }
    if (p->optimizer.master_remainder && !z->rule->takes_remainder) {
        return GT_FAIL(GT_ERR_UNSUPPORTED,
                       "master_remainder works with Adam and AdamW, %s keeps an f32 master",
                       z->rule->type);
    }
    if (z->rule->check != NULL) {
        GT_TRY(z->rule->check(&p->optimizer, p->rule_user));
    }
    z->elementwise = z->rule->states ? z->rule->states(&p->optimizer, p->rule_user, z->state) : 0;
    if (z->elementwise < 0 || z->elementwise > GT_OPTIMIZER_STATES) {
        return GT_FAIL(GT_ERR_ARGUMENT, "optimizer %s has %d states, wanted 0 to %d", z->rule->type,
                       z->elementwise, GT_OPTIMIZER_STATES);
    }
    return GT_OK;
}

static gt_status check_table(const gt_params *table, const gt_zero_params *p)
{
    int tp = p->model_comm ? gt_comm_size(p->model_comm) : 1;
    if (table->taken) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the parameter table is another gt_zero's already");
    }
    if (table->tp_size != tp) {
        return GT_FAIL(GT_ERR_ARGUMENT,
                       "the parameter table is of %d tensor-parallel ranks, model_comm has %d",
                       table->tp_size, tp);
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

static gt_status make_units(gt_zero *z)
{
    gt_params *table = z->table;
    gti_params_lay_out(table, z->size, z->rank);
    z->count = table->unit_count;
    z->units = calloc((size_t)z->count + 1, sizeof(*z->units));
    z->param = calloc((size_t)table->count + 1, sizeof(*z->param));
    if (z->units == NULL || z->param == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for %d ZeRO units", z->count);
    }
    for (int i = 0; i < z->count; i++) {
        struct zero_unit *u = &z->units[i];
        u->row = &table->unit[i];
        for (int k = 0; k < GTI_BUCKETS; k++) {
            u->bucket[k] = (struct zero_bucket){
                .unit = u, .flat = &table->unit[i].bucket[k], .frozen = k == GTI_FROZEN};
        }
    }
    return gti_zero_name_states(z);
}

static gt_status set_up(gt_zero *z, gt_comm *comm)
{
    GT_TRY(make_nodes(z, comm));
    GT_TRY(gt_comm_agree(comm, make_units(z)));
    return gti_zero_make_shares(z);
}

static gt_status check_create(gt_zero **out, gt_context *ctx, const gt_params *table,
                              const gt_zero_params *params, gt_zero_params *own)
{
    if (out == NULL || ctx == NULL || table == NULL || params == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_zero_create needs out, ctx, table and params");
    }
    GT_TRY(GTI_PARAMS_COPY(own, params, gt_zero_params));
    default_optimizer(own);
    GT_TRY(check_params(own));
    return check_table(table, own);
}

static gt_status make(gt_zero **made, gt_context *ctx, gt_comm *comm, gt_params *table,
                      const gt_zero_params *params)
{
    gt_zero *z = calloc(1, sizeof(*z));
    if (z == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for a gt_zero");
    }
    z->ctx = ctx;
    z->comm = z->node = comm;
    z->table = table;
    z->params = *params;
    z->size = gt_comm_size(comm);
    z->rank = gt_comm_rank(comm);
    z->stage = z->size == 1 ? 0 : params->stage;
    if (params->offload_path != NULL) {
        snprintf(z->offload_path, sizeof(z->offload_path), "%s", params->offload_path);
    }
    gt_status st = take_rule(z);
    if (st != GT_OK) {
        free(z);
        return st;
    }
    *made = z;
    return GT_OK;
}

gt_status gt_zero_create(gt_zero **out, gt_context *ctx, gt_comm *comm, gt_params *table,
                         const gt_zero_params *params)
{
    if (comm == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_zero_create: comm is NULL");
    }
    gt_zero_params own;
    gt_zero *z = NULL;
    gt_status st = check_create(out, ctx, table, params, &own);
    st = st == GT_OK ? make(&z, ctx, comm, table, &own) : st;
    st = gt_comm_agree(comm, st); /* the others are about to split comm */
    st = st == GT_OK ? set_up(z, comm) : st;
    if (st != GT_OK) {
        gt_zero_destroy(&z);
        return st;
    }
    table->taken = true;
    *out = z;
    return GT_OK;
}

gt_status gti_zero_fail(const gt_zero *zero, gt_status mine)
{
    bool alone = zero->size == 1 && zero->params.model_comm == NULL;
    return alone ? mine : gt_comm_fail(zero->comm, mine);
}

gt_status gti_zero_check_unit(const gt_zero *zero, int unit)
{
    if (zero == NULL || unit < 0 || unit >= zero->count) {
        return GT_FAIL(GT_ERR_ARGUMENT, "ZeRO unit %d, there are %d", unit,
                       zero == NULL ? 0 : zero->count);
    }
    if (!zero->allocated) {
        return GT_FAIL(GT_ERR_STATE, "unit %s is used before gt_zero_allocate",
                       zero->units[unit].row->name);
    }
    return GT_OK;
}

gt_status gti_zero_check_param(const gt_zero *zero, int param, const struct gti_param **row)
{
    const struct gti_param *p = zero ? gti_params_row(zero->table, param) : NULL;
    if (p == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "ZeRO parameter %d, there are %d", param,
                       zero == NULL ? 0 : zero->table->count);
    }
    if (p->unit == GT_ELSEWHERE) {
        return GT_FAIL(GT_ERR_ARGUMENT, "parameter %s is not on this rank", p->decl.name);
    }
    if (!zero->allocated) {
        return GT_FAIL(GT_ERR_STATE, "parameter %s is used before gt_zero_allocate", p->decl.name);
    }
    *row = p;
    return GT_OK;
}

int64_t gti_zero_state_first(const gt_zero *zero, const struct zero_bucket *b)
{
    return zero->stage == 0 ? 0 : zero->rank * b->flat->shard;
}

int64_t gti_zero_state_count(const gt_zero *zero, const struct zero_bucket *b)
{
    return zero->stage == 0 ? b->flat->padded : b->flat->shard;
}

static struct zero_piece piece_of(const gt_zero *zero, const struct gti_param *p, int64_t first,
                                  int64_t count)
{
    const struct zero_bucket *b = &zero->units[p->unit].bucket[gti_param_bucket(p)];
    return (struct zero_piece){first, count, p->offset + first - gti_zero_state_first(zero, b)};
}

struct zero_piece gti_zero_state_piece(const gt_zero *zero, const struct gti_param *p)
{
    const struct zero_bucket *b = &zero->units[p->unit].bucket[gti_param_bucket(p)];
    int64_t first, count;
    gti_param_range(p, gti_zero_state_first(zero, b), gti_zero_state_count(zero, b), &first,
                    &count);
    return piece_of(zero, p, first, count);
}

struct zero_piece gti_zero_shard_piece(const gt_zero *zero, const struct gti_param *p)
{
    int64_t first, count;
    gti_param_shard(zero->table, p, &first, &count);
    return piece_of(zero, p, first, count);
}

/* Ranks must agree on every unit and length, or collectives would mix tensors up. */
static gt_status check_agreement(gt_zero *zero)
{
    for (int i = 0; i < zero->count; i++) {
        const struct gti_unit *u = zero->units[i].row;
        char what[2 * GT_PARAM_NAME_MAX + 64];
        snprintf(what, sizeof(what), "the tensors of ZeRO unit %d (%s here)", i, u->name);
        uint64_t sum = 0;
        for (int t = 0; t < u->count; t++) {
            const struct gti_param *p = &zero->table->param[u->param[t]];
            const int64_t numbers[] = {p->local_numel, p->frozen, p->partial};
            sum = XXH3_64bits_withSeed(p->decl.name, strlen(p->decl.name) + 1, sum);
            sum = XXH3_64bits_withSeed(numbers, sizeof(numbers), sum);
        }
        GT_TRY(gt_comm_check_equal(zero->comm, what, &sum, sizeof(sum)));
    }
    return GT_OK;
}

static gt_status allocate_all(gt_zero *zero)
{
    for (int i = 0; i < zero->count; i++) {
        for (int k = 0; k < GTI_BUCKETS; k++) {
            GT_TRY(gti_zero_bucket_allocate(zero, &zero->units[i].bucket[k]));
        }
    }
    for (int i = 0; i < zero->table->count; i++) {
        const struct gti_param *p = &zero->table->param[i];
        zero->param[i].sets_gradient = p->decl.sets_gradient && !p->partial;
        GT_TRY(gti_zero_vectors_allocate(zero, i));
    }
    return GT_OK;
}

gt_status gt_zero_allocate(gt_zero *zero)
{
    if (zero == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_zero_allocate: zero is NULL");
    }
    if (zero->allocated) {
        return GT_FAIL(GT_ERR_STATE, "gt_zero_allocate called twice");
    }
    GT_TRY(gt_comm_check_equal(zero->comm, "the number of ZeRO units", &zero->count,
                               sizeof(zero->count)));
    GT_TRY(check_agreement(zero));
    GT_TRY(gt_comm_agree(zero->comm, allocate_all(zero)));
    zero->allocated = true;
    return GT_OK;
}

void gt_zero_destroy(gt_zero **zero)
{
    if (zero == NULL || *zero == NULL) {
        return;
    }
    gt_zero *z = *zero;
    for (int i = 0; z->units != NULL && i < z->count; i++) {
        for (int k = 0; k < GTI_BUCKETS; k++) {
            gti_zero_bucket_free(z, &z->units[i].bucket[k]);
        }
    }
    for (int i = 0; z->param != NULL && i < z->table->count; i++) {
        gti_zero_vectors_free(z, i);
    }
    gti_zero_pool_destroy(z, &z->gather_pool);
    gti_zero_pool_destroy(z, &z->grad_pool);
    gti_zero_free_shares(z);
    for (int i = 0; i < 1 + GT_OPTIMIZER_STATES; i++) {
        gt_tensor_free(z->ctx, &z->staging[i]);
    }
    gt_tensor_free(z->ctx, &z->scratch);
    gt_tensor_free(z->ctx, &z->sums);
    free(z->host_sums);
    if (z->owns_comms) {
        gt_comm_destroy(&z->across);
        gt_comm_destroy(&z->node);
        gt_comm_destroy(&z->comm);
    }
    free(z->units);
    free(z->param);
    free(z);
    *zero = NULL;
}
