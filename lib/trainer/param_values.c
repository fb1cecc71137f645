/* SPDX-License-Identifier: Apache-2.0
 * Values of parameters: initial ones, and whole tensors in and out. */
#include "trainer/engine.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "params/param_layout.h"

/* The Philox stream of a parameter depends on its name alone, so on no layout. */
static uint64_t name_hash(const char *name)
{
    uint64_t h = 1469598103934665603u;
    for (; *name; name++) {
        h = (h ^ (uint64_t)(unsigned char)*name) * 1099511628211u;
    }
    return h;
}

static gt_status init_param(gt_trainer *t, const struct model_param *p)
{
    int tp = gt_mesh_size(t->mesh, GT_AXIS_TP), rank = gt_mesh_index(t->mesh, GT_AXIS_TP);
    gti_param_piece pieces[GT_MAX_SECTIONS];
    int count = gti_param_pieces(&p->decl, tp, rank, pieces);
    int64_t inner = gti_param_inner(&p->decl), outer = gti_param_outer(&p->decl);
    for (int i = 0; i < count; i++) {
        gt_init_params init = GT_INIT_PARAMS_INIT;
        init.kind = p->decl.init;
        init.mean = p->decl.mean;
        init.std = p->decl.std;
        init.seed = t->config.seed;
        init.stream_id = name_hash(p->name);
        if (p->decl.tp_axis != GT_REPLICATED && pieces[i].count > 0) {
            init.axis_local = pieces[i].count;
            init.inner = inner;
            init.axis_global = p->decl.shape[p->decl.tp_axis];
            init.axis_first = pieces[i].global_first;
        }
        bool whole = p->decl.tp_axis == GT_REPLICATED;
        int64_t first = whole ? 0 : pieces[i].local_first * inner;
        int64_t n = whole ? gti_param_numel(&p->decl) : outer * pieces[i].count * inner;
        GT_TRY(gt_zero_init_param(t->zero, p->unit, p->tensor, first, n, &init));
    }
    return GT_OK;
}

static gt_status init_alone(gt_trainer *t)
{
    for (int i = 0; i < t->param_count; i++) {
        if (t->params[i].unit >= 0) {
            GT_TRY(init_param(t, &t->params[i]));
        }
    }
    return GT_OK;
}

/* Agreed before anything is published: a publication under way waits for all ranks. */
gt_status gti_trainer_init_values(gt_trainer *t)
{
    GT_TRY(gt_comm_agree(t->world, init_alone(t)));
    return gt_zero_publish(t->zero);
}

/* Copies between the local tensor and its places in the whole one. */
static void copy_pieces(const gt_trainer *t, const struct model_param *p, float *local,
                        float *whole, bool to_whole)
{
    int tp = gt_mesh_size(t->mesh, GT_AXIS_TP), rank = gt_mesh_index(t->mesh, GT_AXIS_TP);
    gti_param_piece pieces[GT_MAX_SECTIONS];
    int count = gti_param_pieces(&p->decl, tp, rank, pieces);
    int64_t inner = gti_param_inner(&p->decl), outer = gti_param_outer(&p->decl);
    bool replicated = p->decl.tp_axis == GT_REPLICATED;
    int64_t numel = gti_param_numel(&p->decl);
    int64_t global_axis = replicated ? 1 : p->decl.shape[p->decl.tp_axis];
    int64_t local_numel = gti_param_local_numel(&p->decl, tp, rank);
    int64_t local_axis = replicated || outer * inner == 0 ? 1 : local_numel / (outer * inner);
    for (int i = 0; i < count; i++) {
        if (to_whole && pieces[i].replica > 0) {
            continue;
        }
        for (int64_t o = 0; o < (replicated ? 1 : outer); o++) {
            float *l = local + (replicated ? 0 : (o * local_axis + pieces[i].local_first) * inner);
            float *w =
                whole + (replicated ? 0 : (o * global_axis + pieces[i].global_first) * inner);
            size_t n = (size_t)(replicated ? numel : pieces[i].count * inner);
            memcpy(to_whole ? w : l, to_whole ? l : w, n * sizeof(float));
        }
    }
}

static gt_status find_sized(const gt_trainer *t, const char *name, const float *host, int64_t numel,
                            const struct model_param **out)
{
    if (t->broken) {
        return GT_FAIL(GT_ERR_STATE, "the trainer failed before and cannot go on");
    }
    int i = name == NULL ? -1 : gti_trainer_find_param(t, name);
    if (i < 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the model has no parameter named %s",
                       name ? name : "(null)");
    }
    *out = &t->params[i];
    if (numel != gti_param_numel(&t->params[i].decl)) {
        return GT_FAIL(GT_ERR_SHAPE, "parameter %s has %lld elements, the buffer %lld", name,
                       (long long)gti_param_numel(&t->params[i].decl), (long long)numel);
    }
    if (host == NULL && numel > 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "parameter %s has %lld elements, the buffer is NULL", name,
                       (long long)numel);
    }
    return GT_OK;
}

static float *local_copy(const gt_trainer *t, const struct model_param *p)
{
    int tp = gt_mesh_size(t->mesh, GT_AXIS_TP), rank = gt_mesh_index(t->mesh, GT_AXIS_TP);
    return calloc((size_t)gti_param_local_numel(&p->decl, tp, rank) + 1, sizeof(float));
}

/* Room for this rank's part of a parameter; *local stays NULL where it has none. */
static gt_status take_local(gt_trainer *t, const struct model_param *p, float **local)
{
    if (p->unit < 0) {
        return GT_OK;
    }
    *local = local_copy(t, p);
    return *local ? GT_OK : GT_FAIL(GT_ERR_MEMORY, "no host memory for %s", p->name);
}

gt_status gt_trainer_read_param(gt_trainer *t, const char *name, float *host, int64_t numel)
{
    const struct model_param *p = NULL;
    float *local = NULL;
    if (t == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the trainer is NULL");
    }
    gt_status st = find_sized(t, name, host, numel, &p);
    st = gt_comm_agree(t->world, st == GT_OK ? take_local(t, p, &local) : st);
    if (st != GT_OK || numel == 0) {
        free(local);
        return st;
    }
    memset(host, 0, (size_t)numel * sizeof(float));
    st = local ? gt_zero_read_param(t->zero, p->unit, p->tensor, local) : GT_OK;
    /* One rank of each shard group, on the owner's stage, gives its piece to the sum. */
    if (st == GT_OK && local && t->blocks[p->block].local &&
        gt_mesh_index(t->mesh, GT_AXIS_SHARD) == 0) {
        copy_pieces(t, p, local, host, true);
    }
    free(local);
    if (st != GT_OK) {
        return gt_comm_fail(t->world, st);
    }
    gt_tensor whole = gt_tensor_1d(host, GT_F32, numel);
    return gt_all_reduce(t->world, &whole, GT_SUM, NULL, NULL);
}

gt_status gt_trainer_load_param(gt_trainer *t, const char *name, const float *host, int64_t numel)
{
    const struct model_param *p = NULL;
    float *local = NULL;
    if (t == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the trainer is NULL");
    }
    gt_status st = find_sized(t, name, host, numel, &p);
    st = gt_comm_agree(t->world, st == GT_OK ? take_local(t, p, &local) : st);
    if (st != GT_OK || local == NULL) {
        free(local);
        return st;
    }
    copy_pieces(t, p, local, (float *)host, false);
    st = gt_zero_load_param(t->zero, p->unit, p->tensor, local);
    free(local);
    st = st == GT_OK ? gt_zero_publish(t->zero) : st;
    return st == GT_OK ? GT_OK : gt_comm_fail(t->world, st);
}
