/* SPDX-License-Identifier: Apache-2.0 */
#include <geektrain/mesh.h>

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"

struct gt_mesh {
    gt_comm *comm[GT_AXIS_COUNT]; /* WORLD is borrowed */
    int index[GT_AXIS_COUNT], size[GT_AXIS_COUNT];
};

void gt_mesh_params_init(gt_mesh_params *params, size_t size)
{
    if (params != NULL) {
        memset(params, 0, size);
        params->struct_size = size;
    }
}

static gt_status factor_world(gt_mesh *m, const gt_mesh_params *p, int world)
{
    const int given[] = {p->pp, p->dp, p->cp, p->tp};
    for (int i = 0; i < 4; i++) {
        if (given[i] < 0) {
            return GT_FAIL(GT_ERR_CONFIG, "mesh: %s is %d, wanted 1 or more (0: default)",
                           (const char *[]){"pp", "dp", "cp", "tp"}[i], given[i]);
        }
    }
    int pp = p->pp ? p->pp : 1, cp = p->cp ? p->cp : 1, tp = p->tp ? p->tp : 1;
    int64_t others = (int64_t)pp * cp * tp;
    int64_t dp = p->dp ? p->dp : world / others;
    if (others * dp != world) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "mesh: pp %d x dp %lld x cp %d x tp %d = %lld ranks, but the world has %d",
                       pp, (long long)dp, cp, tp, (long long)(others * dp), world);
    }
    const int sizes[] = {pp, (int)dp, cp, tp};
    memcpy(m->size, sizes, sizeof(sizes));
    return GT_OK;
}

/* Ranks of equal color share an axis' group: the color is the rank with that axis' index taken out.
 */
static gt_status split_axes(gt_mesh *m, gt_comm *world)
{
    int rank = gt_comm_rank(world);
    int pp = m->size[GT_AXIS_PP], dp = m->size[GT_AXIS_DP], cp = m->size[GT_AXIS_CP],
        tp = m->size[GT_AXIS_TP];
    int t = rank % tp, c = rank / tp % cp, d = rank / tp / cp % dp, p = rank / tp / cp / dp;
    int place = (d * cp + c) * tp + t; /* within a stage */
    const int colors[] = {
        [GT_AXIS_PP] = place,
        [GT_AXIS_DP] = (p * cp + c) * tp + t,
        [GT_AXIS_CP] = (p * dp + d) * tp + t,
        [GT_AXIS_TP] = (p * dp + d) * cp + c,
        [GT_AXIS_SHARD] = p * tp + t,
        [GT_AXIS_WORLD] = -1,
        [GT_AXIS_EMBED] = p == 0 || p == pp - 1 ? place : dp * cp * tp + rank,
    };
    for (int axis = 0; axis < GT_AXIS_COUNT; axis++) {
        m->comm[axis] = world;
        if (axis != GT_AXIS_WORLD) {
            m->comm[axis] = NULL;
            GT_TRY(gt_comm_split(&m->comm[axis], world, colors[axis], rank));
        }
        m->index[axis] = gt_comm_rank(m->comm[axis]);
        m->size[axis] = gt_comm_size(m->comm[axis]);
    }
    return GT_OK;
}

gt_status gt_mesh_create(gt_mesh **out, gt_comm *world, const gt_mesh_params *params)
{
    if (out == NULL || world == NULL || params == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_mesh_create needs out, world and params");
    }
    gt_mesh *m = calloc(1, sizeof(*m));
    gt_status st = m ? factor_world(m, params, gt_comm_size(world))
                     : GT_FAIL(GT_ERR_MEMORY, "no host memory for a mesh");
    st = gt_comm_agree(world, st);
    if (st == GT_OK) {
        st = split_axes(m, world);
    }
    if (st != GT_OK) {
        gt_mesh_destroy(&m);
        return st;
    }
    *out = m;
    return GT_OK;
}

void gt_mesh_destroy(gt_mesh **mesh)
{
    if (mesh == NULL || *mesh == NULL) {
        return;
    }
    for (int axis = GT_AXIS_COUNT - 1; axis >= 0; axis--) {
        if (axis != GT_AXIS_WORLD) {
            gt_comm_destroy(&(*mesh)->comm[axis]);
        }
    }
    free(*mesh);
    *mesh = NULL;
}

gt_comm *gt_mesh_comm(const gt_mesh *mesh, gt_axis axis)
{
    return mesh->comm[axis];
}

int gt_mesh_index(const gt_mesh *mesh, gt_axis axis)
{
    return mesh->index[axis];
}

int gt_mesh_size(const gt_mesh *mesh, gt_axis axis)
{
    return mesh->size[axis];
}
