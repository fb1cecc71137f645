/* SPDX-License-Identifier: Apache-2.0
 * Flat ranges of a rank's tensor as boxes of the whole one. */
#include "params/table.h"

#include <string.h>

static int axis_of(const struct gti_param *p)
{
    return p->decl.tp_axis == GT_REPLICATED ? 0 : p->decl.tp_axis;
}

static int64_t inner_of(const struct gti_param *p, int axis)
{
    int64_t n = 1;
    for (int i = axis + 1; i < p->decl.ndim; i++) {
        n *= p->local_shape[i];
    }
    return n;
}

struct gti_run gti_param_run(const struct gti_param *p, int64_t at, int64_t end)
{
    struct gti_run run = {.first = at, .count = end - at, .piece_at = at};
    if (p->decl.tp_axis == GT_REPLICATED || p->pieces == 1) {
        return run; /* one piece: the local tensor is the piece */
    }
    int axis = axis_of(p);
    int64_t inner = inner_of(p, axis), row = p->local_shape[axis] * inner;
    int64_t o = at / row, in_row = at % row;
    for (int i = 0; i < p->pieces; i++) {
        int64_t first = p->piece[i].local_first * inner, size = p->piece[i].count * inner;
        if (in_row >= first && in_row < first + size) {
            int64_t left = first + size - in_row;
            run.piece = i;
            run.piece_at = o * size + in_row - first;
            run.count = left < end - at ? left : end - at;
        }
    }
    return run;
}

bool gti_param_counts(const gt_params *table, const struct gti_param *p, int piece)
{
    return p->decl.tp_axis == GT_REPLICATED ? table->tp_rank == 0 : p->piece[piece].replica == 0;
}

struct boxes {
    const gt_params *table;
    const struct gti_param *p;
    bool owned_only;
    int ndim, count;
    gt_slab *out;
};

static bool is_ours(const struct boxes *b, int piece)
{
    return !b->owned_only || (!b->p->copy && gti_param_counts(b->table, b->p, piece));
}

/* A box of the local tensor, cut where its pieces meet. */
static void emit(struct boxes *b, const gt_slab *box)
{
    int axis = axis_of(b->p);
    bool whole = b->p->decl.tp_axis == GT_REPLICATED;
    for (int i = 0; i < (whole ? 1 : b->p->pieces); i++) {
        gt_slab s = *box;
        if (!is_ours(b, i)) {
            continue;
        }
        if (!whole) {
            const gti_param_piece *piece = &b->p->piece[i];
            int64_t lo = s.local[axis], hi = lo + s.count[axis];
            int64_t first = piece->local_first, end = first + piece->count;
            lo = lo > first ? lo : first;
            hi = hi < end ? hi : end;
            if (hi <= lo) {
                continue;
            }
            s.local[axis] = lo;
            s.count[axis] = hi - lo;
            s.global[axis] = lo - first + piece->global_first;
        }
        b->out[b->count++] = s;
    }
}

/* Elements [from, to) of the box's dimensions from `dim` on, as whole boxes: the rest of the first
 * row, whole rows, the beginning of the last. */
static void decompose(struct boxes *b, gt_slab box, int dim, int64_t from, int64_t to)
{
    if (to <= from) {
        return;
    }
    if (dim >= b->ndim) {
        emit(b, &box);
        return;
    }
    int64_t inner = inner_of(b->p, dim);
    int64_t lo = from / inner, hi = to / inner;
    box.count[dim] = 1;
    box.local[dim] = box.global[dim] = lo;
    if (from % inner != 0) {
        int64_t stop = to - lo * inner < inner ? to - lo * inner : inner;
        decompose(b, box, dim + 1, from % inner, stop);
        lo++;
    }
    if (hi > lo) {
        gt_slab rows = box;
        rows.local[dim] = rows.global[dim] = lo;
        rows.count[dim] = hi - lo;
        for (int i = dim + 1; i < b->ndim; i++) {
            rows.local[i] = rows.global[i] = 0;
            rows.count[i] = b->p->local_shape[i];
        }
        emit(b, &rows);
    }
    if (hi >= lo && to % inner != 0) {
        box.local[dim] = box.global[dim] = hi;
        decompose(b, box, dim + 1, 0, to % inner);
    }
}

int gti_param_slabs(const struct gti_param *p, int64_t first, int64_t count, bool owned_only,
                    const gt_params *table, gt_slab out[GT_MAX_SLABS])
{
    struct boxes b = {
        .table = table, .p = p, .owned_only = owned_only, .ndim = p->decl.ndim, .out = out};
    gt_slab box = {.ndim = p->decl.ndim};
    if (count > 0) {
        decompose(&b, box, 0, first, first + count);
    }
    return b.count;
}

int gt_params_slabs(const gt_params *table, int param, int64_t first, int64_t count,
                    gt_slab out[GT_MAX_SLABS])
{
    const struct gti_param *p = gti_params_row(table, param);
    if (p == NULL || out == NULL || first < 0 || count < 0 || first > p->local_numel ||
        count > p->local_numel - first) {
        return 0;
    }
    return gti_param_slabs(p, first, count, false, table, out);
}

/* A vector is kept by every rank of the parameter: the first of them owns it. */
static int owned_vector(const gt_params *table, const struct gti_param *p, int64_t length,
                        gt_slab *out)
{
    bool mine = p->unit != GT_ELSEWHERE && !p->copy && table->tp_rank == 0 &&
                table->shard_rank == 0 && p->offset >= 0;
    *out = (gt_slab){.ndim = 1, .count = {length}};
    return mine && length > 0;
}

int gt_params_owned(const gt_params *table, int param, int state, gt_slab out[GT_MAX_SLABS])
{
    const struct gti_param *p = gti_params_row(table, param);
    if (p == NULL || out == NULL || state < 0 || state >= p->states) {
        return 0;
    }
    if (p->state[state].vector) {
        return owned_vector(table, p, p->state[state].length, out);
    }
    int64_t first, count;
    gti_param_shard(table, p, &first, &count);
    return gti_param_slabs(p, first, count, true, table, out);
}

/* Row by row of the last dimension. */
void gti_slab_copy(const struct gti_param *p, const gt_slab *slab, float *whole, float *range,
                   int64_t first, bool to_whole)
{
    int64_t rows = 1, at[4] = {0};
    int last = slab->ndim - 1;
    int64_t n = slab->ndim > 0 ? slab->count[last] : 1;
    for (int i = 0; i < last; i++) {
        rows *= slab->count[i];
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t g = 0, l = 0;
        for (int i = 0; i < slab->ndim; i++) {
            g = g * p->decl.shape[i] + slab->global[i] + at[i];
            l = l * p->local_shape[i] + slab->local[i] + at[i];
        }
        float *w = whole + g, *x = range + l - first;
        memcpy(to_whole ? w : x, to_whole ? x : w, (size_t)n * sizeof(float));
        for (int i = last - 1; i >= 0 && ++at[i] == slab->count[i]; i--) {
            at[i] = 0;
        }
    }
}
