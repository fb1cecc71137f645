/* SPDX-License-Identifier: Apache-2.0
 *
 * Mesh: the world factored as pp x dp x cp x tp, tp innermost (fastest links):
 *
 *     rank = ((pp_index * dp + dp_index) * cp + cp_index) * tp + tp_index
 */
#ifndef GEEKTRAIN_MESH_H
#define GEEKTRAIN_MESH_H

#include <geektrain/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum gt_axis {
    GT_AXIS_PP = 0, /* pipeline stages                                                       */
    GT_AXIS_DP,     /* data                                                                  */
    GT_AXIS_CP,     /* context: pieces of one sequence                                       */
    GT_AXIS_TP,     /* tensor                                                                */
    GT_AXIS_SHARD,  /* dp x cp: gradients are summed and ZeRO shards over it                  */
    GT_AXIS_WORLD,  /* everything                                                            */
    GT_AXIS_EMBED,  /* first and last stage of one (dp,cp,tp) position; size 1 when pp is 1;
                       on middle stages a group of one                                       */
    GT_AXIS_COUNT
} gt_axis;

typedef struct gt_mesh gt_mesh;

typedef struct gt_mesh_params {
    size_t struct_size;
    int pp, dp, cp, tp; /* 0 = 1, except dp: 0 = whatever is left of the world */
} gt_mesh_params;
#define GT_MESH_PARAMS_INIT GT_PARAMS_INIT(gt_mesh_params)
GT_API void gt_mesh_params_init(gt_mesh_params *params, size_t size);

/* Collective over world. The mesh borrows world. Errors: GT_ERR_CONFIG when pp*dp*cp*tp is not the
 * world size; the sentence prints the numbers. */
GT_API gt_status gt_mesh_create(gt_mesh **out, gt_comm *world, const gt_mesh_params *params);
GT_API void gt_mesh_destroy(gt_mesh **mesh);
/* Borrowed; never NULL. */
GT_API gt_comm *gt_mesh_comm(const gt_mesh *mesh, gt_axis axis);
/* This rank's index and the size along an axis. */
GT_API int gt_mesh_index(const gt_mesh *mesh, gt_axis axis);
GT_API int gt_mesh_size(const gt_mesh *mesh, gt_axis axis);

/* Pure: the quotient-and-remainder cut of n things over parts; earlier parts get the remainder.
 * Used wherever something is split without padding (vocabulary, layers, rows). */
GT_API int64_t gt_split_first(int64_t n, int parts, int part);
GT_API int64_t gt_split_count(int64_t n, int parts, int part);

#ifdef __cplusplus
}
#endif
#endif
