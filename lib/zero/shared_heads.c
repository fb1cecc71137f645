/* SPDX-License-Identifier: Apache-2.0
 * Pieces that several tensor-parallel ranks hold (fewer key/value heads than ranks): each adds its
 * own query heads' part to the gradient, so it is summed over them before anything else. */
#include "zero/state.h"

#include <stdlib.h>

#include "core/fail.h"

/* Sections of as many heads are shared by the same ranks. */
static int64_t units_of(const struct gti_param *p, int piece)
{
    int64_t unit = p->decl.tp_unit > 0 ? p->decl.tp_unit : 1;
    int64_t length = p->decl.sections > 1 ? p->decl.section[piece] : p->decl.shape[p->decl.tp_axis];
    return length / unit;
}

static bool is_shared(const gt_params *table, const struct gti_param *p, int piece)
{
    return p->decl.tp_axis != GT_REPLICATED && p->decl.tp_share &&
           units_of(p, piece) < table->tp_size && units_of(p, piece) > 0;
}

static struct zero_share *find_share(gt_zero *zero, int64_t units)
{
    for (int i = 0; i < zero->share_count; i++) {
        if (zero->shares[i].units == units) {
            return &zero->shares[i];
        }
    }
    return NULL;
}

static gt_status make_share(gt_zero *zero, const gti_param_piece *piece, int64_t units)
{
    struct zero_share *grown =
        realloc(zero->shares, (size_t)(zero->share_count + 1) * sizeof(*grown));
    gt_status st = grown ? GT_OK : GT_FAIL(GT_ERR_MEMORY, "no host memory for a group of ranks");
    if (grown != NULL) {
        zero->shares = grown;
    }
    GT_TRY(gt_comm_agree(zero->params.model_comm, st));
    struct zero_share *s = &zero->shares[zero->share_count];
    *s = (struct zero_share){.units = units};
    GT_TRY(gt_comm_split(&s->comm, zero->params.model_comm, piece->replica_first,
                         gt_comm_rank(zero->params.model_comm)));
    zero->share_count++;
    return GT_OK;
}

/* A strided piece is packed for its all-reduce. */
static int64_t packed_numel(const struct gti_param *p, int piece)
{
    int64_t outer = gti_param_outer(&p->decl), inner = gti_param_inner(&p->decl);
    return outer > 1 && p->pieces > 1 ? outer * p->piece[piece].count * inner : 0;
}

static gt_status make_scratch(gt_zero *zero, int64_t numel)
{
    gt_dtype dtype = zero->stage <= 1 ? zero->params.accum_dtype : zero->params.communication_dtype;
    if (numel == 0) {
        return GT_OK;
    }
    return gt_tensor_alloc(zero->ctx, &zero->share_scratch, GT_MEM_WORKSPACE, dtype, 1, &numel);
}

/* In the order of the table, which is the same on all ranks; also for what is on other stages. */
gt_status gti_zero_make_shares(gt_zero *zero)
{
    int64_t largest = 0;
    for (int i = 0; zero->params.model_comm != NULL && i < zero->table->count; i++) {
        const struct gti_param *p = &zero->table->param[i];
        for (int k = 0; k < p->pieces; k++) {
            if (!is_shared(zero->table, p, k)) {
                continue;
            }
            if (find_share(zero, units_of(p, k)) == NULL) {
                GT_TRY(make_share(zero, &p->piece[k], units_of(p, k)));
            }
            int64_t n = packed_numel(p, k);
            largest = n > largest ? n : largest;
        }
    }
    return gt_comm_agree(zero->comm, make_scratch(zero, largest));
}

void gti_zero_free_shares(gt_zero *zero)
{
    for (int i = 0; i < zero->share_count; i++) {
        gt_comm_destroy(&zero->shares[i].comm);
    }
    free(zero->shares);
    gt_tensor_free(zero->ctx, &zero->share_scratch);
}

static gt_status sum_packed(gt_zero *zero, const struct gti_param *p, int piece, gt_comm *comm,
                            const gt_tensor *grad)
{
    int64_t outer = gti_param_outer(&p->decl), inner = gti_param_inner(&p->decl);
    int64_t width = p->piece[piece].count * inner, first = p->piece[piece].local_first * inner;
    int64_t rows[2] = {outer, p->local_numel / outer}, packed[2] = {outer, width};
    gt_tensor matrix, flat, part;
    GT_TRY(gt_tensor_reshape(&matrix, grad, 2, rows));
    GT_TRY(gt_tensor_slice(&flat, &zero->share_scratch, 0, outer * width));
    GT_TRY(gt_tensor_reshape(&part, &flat, 2, packed));
    GT_TRY(gt_copy_columns(zero->ctx, &part, 0, &matrix, first, width, NULL));
    GT_TRY(gt_all_reduce(comm, &flat, GT_SUM, NULL, NULL));
    return gt_copy_columns(zero->ctx, &matrix, first, &part, 0, width, NULL);
}

static gt_status sum_piece(gt_zero *zero, const struct gti_param *p, int piece,
                           const gt_tensor *full)
{
    gt_comm *comm = find_share(zero, units_of(p, piece))->comm;
    int64_t inner = gti_param_inner(&p->decl);
    gt_tensor grad, range;
    if (gt_comm_size(comm) == 1 || p->local_numel == 0) {
        return GT_OK;
    }
    GT_TRY(gt_tensor_slice(&grad, full, p->offset, p->local_numel));
    if (packed_numel(p, piece) > 0) {
        return sum_packed(zero, p, piece, comm, &grad);
    }
    int64_t first = p->pieces > 1 ? p->piece[piece].local_first * inner : 0;
    int64_t count = p->pieces > 1 ? p->piece[piece].count * inner : p->local_numel;
    GT_TRY(gt_tensor_slice(&range, &grad, first, count));
    return gt_all_reduce(comm, &range, GT_SUM, NULL, NULL);
}

gt_status gti_zero_sum_shared(gt_zero *zero, struct zero_bucket *b, gt_tensor *full)
{
    const struct gti_unit *u = b->unit->row;
    for (int i = 0; zero->share_count > 0 && i < u->count; i++) {
        const struct gti_param *p = &zero->table->param[u->param[i]];
        for (int k = 0; !p->frozen && k < p->pieces; k++) {
            if (is_shared(zero->table, p, k)) {
                GT_TRY(sum_piece(zero, p, k, full));
            }
        }
    }
    return GT_OK;
}
