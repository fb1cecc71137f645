/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensor and sequence parallelism as primitives on your own tensors: one layer cut over the P ranks
 * of a communicator (Shoeybi et al. 2019; Korthikanti et al. 2022). The built-in blocks use nothing
 * else.
 *
 *     column-parallel  w[O,I] cut along O   y_r[N,O_r] = x w_r^T + b_r     dx = sum of dy_r w_r
 *     row-parallel     w[O,I] cut along I   y[N,O] = sum of x_r w_r^T + b  dx_r = dy w_r
 *
 * A column-parallel linear followed by a row-parallel one costs one all-reduce forward and one
 * backward. With sequence_parallel the tensors outside that pair are cut by rows, contiguously:
 * rank r holds rows [r*N/P, (r+1)*N/P) of N. An all-gather of rows before and a reduce-scatter of
 * rows after take the place of the all-reduce, for the same bytes, and what lies between the pairs
 * (norms, dropout, residuals) is neither stored nor computed twice. N must then divide by P
 * (GT_ERR_SHAPE prints both); nothing else must: gt_split_first/gt_split_count cut O, I and the
 * vocabulary, also to empty shards.
 *
 * N always counts the rows of the whole tensor below; "[N or N/P, C]" is N/P rows with
 * sequence_parallel, else N.
 *
 * Overlap: the input gradient's reduction runs under the weight gradient's GEMM; a row-parallel
 * forward is reduced in chunks of rows while the next chunk is computed; with sequence_parallel a
 * rank's own rows are computed while the others' arrive, and the rows meant for others are computed
 * first and sent while the own ones are. no_overlap does the same sums one after another.
 *
 * Collective over: tp->comm, every primitive. Async: on return, `stream` is ordered after all
 * communication. Errors: those of the operations and of gt_comm; a rank that fails in a primitive
 * that communicates, also by refusing arguments that the others have right, breaks the
 * communicator's world (gt_comm_fail), so that no peer hangs: the others return GT_ERR_PEER with
 * its sentence.
 */
#ifndef GEEKTRAIN_TENSOR_PARALLEL_H
#define GEEKTRAIN_TENSOR_PARALLEL_H

#include <geektrain/comm.h>
#include <geektrain/mesh.h>
#include <geektrain/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What every primitive works with; a value, made per use or kept. */
typedef struct gt_tp {
    size_t struct_size;
    gt_context *ctx;
    gt_comm *comm; /* NULL, or of size 1: each primitive is the plain operation          */
    bool sequence_parallel;
    bool no_overlap;
    int chunks;        /* pieces of a row-parallel all-reduce; 0: by size, at most 4         */
    gt_tensor scratch; /* u8, at least gt_tp_scratch_bytes(); contents last for one call     */
    bool dw_unset;     /* linear backward writes dw, whatever it holds, instead of adding     */
} gt_tp;
#define GT_TP_INIT GT_PARAMS_INIT(gt_tp)
GT_API void gt_tp_init(gt_tp *tp, size_t size);

/* Scratch that any primitive needs for N rows of `width` columns, where width is the width of the
 * uncut side: I of a column-parallel linear, O of a row-parallel one, C of an embedding. */
GT_API size_t gt_tp_scratch_bytes(const gt_tp *tp, gt_dtype dtype, int64_t n, int64_t width);
/* The same for gt_tp_cross_entropy over n rows. */
GT_API size_t gt_tp_cross_entropy_scratch_bytes(const gt_tp *tp, int64_t n);

/* ---- linear ---------------------------------------------------------------------------------- */
typedef struct gt_tp_column_params {
    size_t struct_size;
    const gt_tensor *bias; /* [O_r], optional                                               */
    bool gelu;             /* y = gelu(x w^T + b)                                           */
    gt_tensor *pre_gelu;   /* [N,O_r], optional: the value before the GELU                  */
    bool gathered;         /* x is already whole, [N,I], although sequence_parallel         */
} gt_tp_column_params;
#define GT_TP_COLUMN_PARAMS_INIT GT_PARAMS_INIT(gt_tp_column_params)
/* y[N,O_r] from x[N or N/P, I], w[O_r,I]. params may be NULL. */
GT_API gt_status gt_tp_column_forward(const gt_tp *tp, gt_tensor *y, const gt_tensor *x,
                                      const gt_tensor *w, const gt_tp_column_params *params,
                                      gt_stream *stream);
/* dx[N or N/P, I] = sum over ranks of dy w; dw[O_r,I] += dy^T x; dbias[O_r] += column sums of dy.
 * Each may be NULL: dx alone, later dw and dbias, is how a zero-bubble schedule asks. dx must not
 * be dy, nor x where dw is asked for (GT_ERR_ARGUMENT); gt_tp_row_backward the same. */
GT_API gt_status gt_tp_column_backward(const gt_tp *tp, gt_tensor *dx, gt_tensor *dw,
                                       gt_tensor *dbias, const gt_tensor *dy, const gt_tensor *x,
                                       const gt_tensor *w, gt_stream *stream);
/* y[N or N/P, O] = sum over ranks of x[N,I_r] w[O,I_r]^T, + bias[O] + residual (y's shape, may not
 * be y): both optional, added once. */
GT_API gt_status gt_tp_row_forward(const gt_tp *tp, gt_tensor *y, const gt_tensor *x,
                                   const gt_tensor *w, const gt_tensor *bias,
                                   const gt_tensor *residual, gt_stream *stream);
/* dx[N,I_r] = dy w; dw[O,I_r] += dy^T x; dbias[O] += column sums of dy[N or N/P, O]. Each optional.
 * With sequence_parallel dbias is the sum over this rank's rows only: sum it over the ranks once
 * per step, as every gradient of a replicated parameter that is applied to cut rows. */
GT_API gt_status gt_tp_row_backward(const gt_tp *tp, gt_tensor *dx, gt_tensor *dw, gt_tensor *dbias,
                                    const gt_tensor *dy, const gt_tensor *x, const gt_tensor *w,
                                    gt_stream *stream);

/* ---- vocabulary ------------------------------------------------------------------------------ */
/* y[N or N/P, C] = table[ids] + positions[rows % seq] (optional; replicated). table [V_r,C] holds
 * rows gt_split_first(vocab, P, r).. of the whole. ids i32 [N], rows i64 [N]. params->first is
 * ignored. */
GT_API gt_status gt_tp_embedding_forward(const gt_tp *tp, gt_tensor *y, const gt_tensor *table,
                                         const gt_tensor *positions, const gt_tensor *ids,
                                         const gt_tensor *rows, const gt_embedding_params *params,
                                         gt_stream *stream);
/* dtable[V_r,C] += , dpositions += : each optional, whole on every rank (no sum left to do). */
GT_API gt_status gt_tp_embedding_backward(const gt_tp *tp, gt_tensor *dtable, gt_tensor *dpositions,
                                          const gt_tensor *dy, const gt_tensor *ids,
                                          const gt_tensor *rows, const gt_embedding_params *params,
                                          gt_stream *stream);
/* Softmax cross entropy over logits[N,V_r], columns gt_split_first(vocab, P, r).. of V: one MAX
 * all-reduce and one SUM all-reduce of three packed numbers per row; the gradient, which replaces
 * the logits, needs none. losses f32 [N] (optional) and stats f64[2] are the same on every rank;
 * label smoothing and z-loss are over the whole vocabulary. sequence_parallel plays no part: every
 * rank has all N rows. */
GT_API gt_status gt_tp_cross_entropy(const gt_tp *tp, gt_tensor *logits, gt_tensor *losses,
                                     gt_tensor *stats, const gt_tensor *targets, int64_t vocab,
                                     const gt_cross_entropy_params *params, gt_stream *stream);

/* ---- regions ----------------------------------------------------------------------------------
 *     region            forward               backward
 *     copy              nothing               gt_tp_reduce
 *     reduce            gt_tp_reduce          nothing
 *     gather columns    gt_tp_gather_columns  gt_tp_scatter_columns
 *     scatter columns   gt_tp_scatter_columns gt_tp_gather_columns
 *     gather rows       gt_tp_gather_rows     gt_tp_reduce_scatter_rows (followed by cut work),
 *                                             gt_tp_scatter_rows (followed by replicated work)
 *     scatter rows      gt_tp_scatter_rows    gt_tp_gather_rows
 *     reduce-scatter    gt_tp_reduce_scatter_rows  gt_tp_gather_rows
 * Rows are cut evenly, columns by gt_split_first/gt_split_count. */
GT_API gt_status gt_tp_reduce(const gt_tp *tp, gt_tensor *inout, gt_stream *stream);
/* out[N,C] from in[N/P,C]. */
GT_API gt_status gt_tp_gather_rows(const gt_tp *tp, gt_tensor *out, const gt_tensor *in,
                                   gt_stream *stream);
/* out[N/P,C] = this rank's rows of in[N,C], without communication. */
GT_API gt_status gt_tp_scatter_rows(const gt_tp *tp, gt_tensor *out, const gt_tensor *in,
                                    gt_stream *stream);
/* out[N/P,C] = this rank's rows of the sum over ranks of in[N,C]. */
GT_API gt_status gt_tp_reduce_scatter_rows(const gt_tp *tp, gt_tensor *out, const gt_tensor *in,
                                           gt_stream *stream);
/* out[N,C] from in[N,C_r]. Needs gt_tp_scratch_bytes(tp, dtype, N, C). */
GT_API gt_status gt_tp_gather_columns(const gt_tp *tp, gt_tensor *out, const gt_tensor *in,
                                      gt_stream *stream);
/* out[N,C_r] = this rank's columns of in[N,C], without communication. */
GT_API gt_status gt_tp_scatter_columns(const gt_tp *tp, gt_tensor *out, const gt_tensor *in,
                                       gt_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
