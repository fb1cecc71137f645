/* SPDX-License-Identifier: Apache-2.0
 *
 * Which piece of a parameter a tensor-parallel rank holds: pure arithmetic, used for local shapes,
 * for initial values at global indices, for reading whole tensors, and for the replicas of
 * key/value heads.
 */
#ifndef GTI_PARAMS_PARAM_LAYOUT_H
#define GTI_PARAMS_PARAM_LAYOUT_H

#include <geektrain/params.h>

/* One contiguous range of the cut axis. The local tensor is [outer, sum of counts, inner]; this
 * piece is rows [local_first, +count) of it and rows [global_first, +count) of the whole. */
typedef struct gti_param_piece {
    int64_t global_first, local_first, count;
    int replicas;      /* ranks that hold exactly this piece, this one included           */
    int replica;       /* this rank's number among them; 0 owns it (norms count it there) */
    int replica_first; /* the first of those ranks, which are consecutive                 */
} gti_param_piece;

/* Checks name, shape, axis, unit and sections. Errors: GT_ERR_ARGUMENT, GT_ERR_SHAPE naming it. */
gt_status gti_param_check(const gt_param *param);
/* The pieces of `rank` among `tp`; returns how many (1 for a replicated parameter: all of it, with
 * replicas = tp; an empty piece has count 0 and replicas 1). */
int gti_param_pieces(const gt_param *param, int tp, int rank, gti_param_piece out[GT_MAX_SECTIONS]);
/* Shape of the local tensor; elements of it and of the whole one. */
void gti_param_local_shape(const gt_param *param, int tp, int rank, int64_t shape[4]);
int64_t gti_param_local_numel(const gt_param *param, int tp, int rank);
int64_t gti_param_numel(const gt_param *param);
/* Elements between consecutive indices of the cut axis; product of the dimensions before it. */
int64_t gti_param_inner(const gt_param *param);
int64_t gti_param_outer(const gt_param *param);
/* Whether some piece has replicas although the parameter is cut: its gradient must be summed over
 * them. (Parameters with tp_axis GT_REPLICATED answer false: see sequence_partial for those.) */
bool gti_param_has_replicas(const gt_param *param, int tp);

#endif
