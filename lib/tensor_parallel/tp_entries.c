/* SPDX-License-Identifier: Apache-2.0
 *
 * The public entries: a rank that fails, also by arguments that only it has wrong, tells the
 * others, who wait for it in this primitive or in the next.
 */
#include "tensor_parallel/tp_primitives.h"

#include "ops/check.h"

static gt_status told(const gt_tp *tp, gt_status st)
{
    return st == GT_OK || gti_tp_size(tp) == 1 ? st : gt_comm_fail(tp->comm, st);
}

/* dx is written, and travels, while dy and (for dw) x are still read. */
static gt_status check_apart(const gt_tensor *dx, const gt_tensor *dw, const gt_tensor *dy,
                             const gt_tensor *x)
{
    if (!gti_present(dx) || dy == NULL || x == NULL || gt_tensor_numel(dx) == 0) {
        return GT_OK; /* an empty share may lie anywhere */
    }
    if (dx->data == dy->data && gt_tensor_numel(dy) > 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "dx is the memory of dy, wanted its own");
    }
    if (gti_present(dw) && dx->data == x->data && gt_tensor_numel(x) > 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "dx is the memory of x, wanted its own");
    }
    return GT_OK;
}

gt_status gt_tp_column_forward(const gt_tp *tp, gt_tensor *y, const gt_tensor *x,
                               const gt_tensor *w, const gt_tp_column_params *params,
                               gt_stream *stream)
{
    return told(tp, gti_tp_column_forward(tp, y, x, w, params, stream));
}

gt_status gt_tp_column_backward(const gt_tp *tp, gt_tensor *dx, gt_tensor *dw, gt_tensor *dbias,
                                const gt_tensor *dy, const gt_tensor *x, const gt_tensor *w,
                                gt_stream *stream)
{
    gt_status st = check_apart(dx, dw, dy, x);
    st = st == GT_OK ? gti_tp_column_backward(tp, dx, dw, dbias, dy, x, w, stream) : st;
    return told(tp, st);
}

gt_status gt_tp_row_forward(const gt_tp *tp, gt_tensor *y, const gt_tensor *x, const gt_tensor *w,
                            const gt_tensor *bias, const gt_tensor *residual, gt_stream *stream)
{
    return told(tp, gti_tp_row_forward(tp, y, x, w, bias, residual, stream));
}

gt_status gt_tp_row_backward(const gt_tp *tp, gt_tensor *dx, gt_tensor *dw, gt_tensor *dbias,
                             const gt_tensor *dy, const gt_tensor *x, const gt_tensor *w,
                             gt_stream *stream)
{
    gt_status st = check_apart(dx, dw, dy, x);
    st = st == GT_OK ? gti_tp_row_backward(tp, dx, dw, dbias, dy, x, w, stream) : st;
    return told(tp, st);
}

gt_status gt_tp_embedding_forward(const gt_tp *tp, gt_tensor *y, const gt_tensor *table,
                                  const gt_tensor *positions, const gt_tensor *ids,
                                  const gt_tensor *rows, const gt_embedding_params *params,
                                  gt_stream *stream)
{
    return told(tp, gti_tp_embedding_forward(tp, y, table, positions, ids, rows, params, stream));
}

gt_status gt_tp_embedding_backward(const gt_tp *tp, gt_tensor *dtable, gt_tensor *dpositions,
                                   const gt_tensor *dy, const gt_tensor *ids, const gt_tensor *rows,
                                   const gt_embedding_params *params, gt_stream *stream)
{
    return told(tp,
                gti_tp_embedding_backward(tp, dtable, dpositions, dy, ids, rows, params, stream));
}

gt_status gt_tp_cross_entropy(const gt_tp *tp, gt_tensor *logits, gt_tensor *losses,
                              gt_tensor *stats, const gt_tensor *targets, int64_t vocab,
                              const gt_cross_entropy_params *params, gt_stream *stream)
{
    return told(tp,
                gti_tp_cross_entropy(tp, logits, losses, stats, targets, vocab, params, stream));
}

gt_status gt_tp_reduce(const gt_tp *tp, gt_tensor *inout, gt_stream *stream)
{
    return told(tp, gti_tp_reduce(tp, inout, stream));
}

gt_status gt_tp_gather_rows(const gt_tp *tp, gt_tensor *out, const gt_tensor *in, gt_stream *stream)
{
    return told(tp, gti_tp_gather_rows(tp, out, in, stream));
}

gt_status gt_tp_reduce_scatter_rows(const gt_tp *tp, gt_tensor *out, const gt_tensor *in,
                                    gt_stream *stream)
{
    return told(tp, gti_tp_reduce_scatter_rows(tp, out, in, stream));
}

gt_status gt_tp_gather_columns(const gt_tp *tp, gt_tensor *out, const gt_tensor *in,
                               gt_stream *stream)
{
    return told(tp, gti_tp_gather_columns(tp, out, in, stream));
}
