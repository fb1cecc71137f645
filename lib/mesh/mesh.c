/* SPDX-License-Identifier: Apache-2.0 */
#include <geektrain/mesh.h>

#include <stdlib.h>

#include "core/fail.h"
#include "core/params.h"

struct gt_mesh {
    gt_comm *world; /* borrowed */
    gt_comm *comms[GT_AXIS_COUNT];
};

void gt_mesh_params_init(gt_mesh_params *params, size_t size)
{
    gti_params_init(params, size);
}

/* Zeros replaced, the product checked. */
static gt_status resolve(gt_mesh_params *p, int world)
{
    const struct {
        const char *name;
        int size;
    } axes[] = {{"pp", p->pp}, {"dp", p->dp}, {"cp", p->cp}, {"tp", p->tp}};
    for (int i = 0; i < 4; i++) {
        if (axes[i].size < 0) {
            return GT_FAIL(GT_ERR_CONFIG, "mesh: %s is %d, wanted 0 or more", axes[i].name,
                           axes[i].size);
        }
    }
    p->pp = p->pp ? p->pp : 1;
    p->cp = p->cp ? p->cp : 1;
    p->tp = p->tp ? p->tp : 1;
    int64_t others = (int64_t)p->pp * p->cp * p->tp;
    if (p->dp == 0) {
        if (others > world || world % others != 0) {
            return GT_FAIL(GT_ERR_CONFIG,
                           "mesh: pp %d x cp %d x tp %d = %lld does not divide the %d ranks", p->pp,
                           p->cp, p->tp, (long long)others, world);
        }
        p->dp = (int)(world / others);
    }
    if (others * p->dp != world) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "mesh: pp %d x dp %d x cp %d x tp %d = %lld ranks, but the world has %d",
                       p->pp, p->dp, p->cp, p->tp, (long long)others * p->dp, world);
    }
    return GT_OK;
}

static gt_status split_axes(gt_mesh *mesh, const gt_mesh_params *p)
{
    int rank = gt_comm_rank(mesh->world);
    int tp = rank % p->tp, cp = rank / p->tp % p->cp;
    int dp = rank / (p->tp * p->cp) % p->dp, pp = rank / (p->tp * p->cp * p->dp);
    int place = (dp * p->cp + cp) * p->tp + tp, places = p->dp * p->cp * p->tp;
    bool outer = pp == 0 || pp == p->pp - 1;
    /* Ranks of one color form a group: the color is what they share, the key their index in it. */
    const struct {
        gt_axis axis;
        int color, key;
    } splits[] = {
        {GT_AXIS_PP, place, pp},
        {GT_AXIS_DP, (pp * p->cp + cp) * p->tp + tp, dp},
        {GT_AXIS_CP, (pp * p->dp + dp) * p->tp + tp, cp},
        {GT_AXIS_TP, (pp * p->dp + dp) * p->cp + cp, tp},
        {GT_AXIS_SHARD, pp * p->tp + tp, dp * p->cp + cp},
        {GT_AXIS_EMBED, outer ? place : places + rank, pp},
    };
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        GT_TRY(gt_comm_split(&mesh->comms[splits[i].axis], mesh->world, splits[i].color,
                             splits[i].key));
    }
    mesh->comms[GT_AXIS_WORLD] = mesh->world;
    return GT_OK;
}

gt_status gt_mesh_create(gt_mesh **out, gt_comm *world, const gt_mesh_params *params)
{
    gt_mesh_params p;
    if (out == NULL || world == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "mesh_create: %s is NULL", out == NULL ? "out" : "world");
    }
    GT_TRY(GTI_PARAMS_COPY(&p, params, gt_mesh_params));
    gt_mesh *mesh = NULL;
    gt_status st = resolve(&p, gt_comm_size(world));
    if (st == GT_OK) {
        mesh = calloc(1, sizeof *mesh);
        st = mesh != NULL ? GT_OK : GT_FAIL(GT_ERR_MEMORY, "no memory for a mesh");
    }
    st = gt_comm_agree(world, st);
    if (st == GT_OK) {
        mesh->world = world;
        st = split_axes(mesh, &p);
    }
    if (st != GT_OK) {
        gt_mesh_destroy(&mesh);
        return st;
    }
    *out = mesh;
    return GT_OK;
}

void gt_mesh_destroy(gt_mesh **mesh)
{
    if (mesh == NULL || *mesh == NULL) {
        return;
    }
    for (int a = 0; a < GT_AXIS_COUNT; a++) {
        if (a != GT_AXIS_WORLD) {
            gt_comm_destroy(&(*mesh)->comms[a]);
        }
    }
    free(*mesh);
    *mesh = NULL;
}

gt_comm *gt_mesh_comm(const gt_mesh *mesh, gt_axis axis)
{
    return mesh->comms[axis];
}

int gt_mesh_index(const gt_mesh *mesh, gt_axis axis)
{
    return gt_comm_rank(mesh->comms[axis]);
}

int gt_mesh_size(const gt_mesh *mesh, gt_axis axis)
{
    return gt_comm_size(mesh->comms[axis]);
}
