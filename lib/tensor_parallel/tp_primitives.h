/* SPDX-License-Identifier: Apache-2.0
 *
 * The primitives of tensor_parallel.h without the promise that a failure is told to the other
 * ranks.
 */
#ifndef GTI_TP_PRIMITIVES_H
#define GTI_TP_PRIMITIVES_H

#include "tensor_parallel/tp_exchange.h"

gt_status gti_tp_column_forward(const gt_tp *tp, gt_tensor *y, const gt_tensor *x,
                                const gt_tensor *w, const gt_tp_column_params *params,
                                gt_stream *stream);
gt_status gti_tp_column_backward(const gt_tp *tp, gt_tensor *dx, gt_tensor *dw, gt_tensor *dbias,
                                 const gt_tensor *dy, const gt_tensor *x, const gt_tensor *w,
                                 gt_stream *stream);
gt_status gti_tp_row_forward(const gt_tp *tp, gt_tensor *y, const gt_tensor *x, const gt_tensor *w,
                             const gt_tensor *bias, const gt_tensor *residual, gt_stream *stream);
gt_status gti_tp_row_backward(const gt_tp *tp, gt_tensor *dx, gt_tensor *dw, gt_tensor *dbias,
                              const gt_tensor *dy, const gt_tensor *x, const gt_tensor *w,
                              gt_stream *stream);
gt_status gti_tp_embedding_forward(const gt_tp *tp, gt_tensor *y, const gt_tensor *table,
                                   const gt_tensor *positions, const gt_tensor *ids,
                                   const gt_tensor *rows, const gt_embedding_params *params,
                                   gt_stream *stream);
gt_status gti_tp_embedding_backward(const gt_tp *tp, gt_tensor *dtable, gt_tensor *dpositions,
                                    const gt_tensor *dy, const gt_tensor *ids,
                                    const gt_tensor *rows, const gt_embedding_params *params,
                                    gt_stream *stream);
gt_status gti_tp_cross_entropy(const gt_tp *tp, gt_tensor *logits, gt_tensor *losses,
                               gt_tensor *stats, const gt_tensor *targets, int64_t vocab,
                               const gt_cross_entropy_params *params, gt_stream *stream);
gt_status gti_tp_reduce(const gt_tp *tp, gt_tensor *inout, gt_stream *stream);
gt_status gti_tp_gather_rows(const gt_tp *tp, gt_tensor *out, const gt_tensor *in,
                             gt_stream *stream);
gt_status gti_tp_reduce_scatter_rows(const gt_tp *tp, gt_tensor *out, const gt_tensor *in,
                                     gt_stream *stream);
gt_status gti_tp_gather_columns(const gt_tp *tp, gt_tensor *out, const gt_tensor *in,
                                gt_stream *stream);

#endif
