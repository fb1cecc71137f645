/* SPDX-License-Identifier: Apache-2.0
 *
 * The row exchanges of sequence parallelism, in pieces that a GEMM can run between: every rank
 * sends its rows straight to each peer, and sums are formed in rank order in f32, so the bytes and
 * the bits are those of an all-gather and a reduce-scatter.
 */
#ifndef GTI_TP_EXCHANGE_H
#define GTI_TP_EXCHANGE_H

#include <geektrain/tensor_parallel.h>

#define GTI_TP_PEERS 64 /* more ranks use whole collectives */

/* Works in flight, to be waited for also when something failed. */
typedef struct gti_works {
    gt_work *work[2 * GTI_TP_PEERS + 1];
    int count;
} gti_works;

static inline int gti_tp_size(const gt_tp *tp)
{
    return tp->comm != NULL ? gt_comm_size(tp->comm) : 1;
}
static inline int gti_tp_rank(const gt_tp *tp)
{
    return tp->comm != NULL ? gt_comm_rank(tp->comm) : 0;
}
/* Rows of the whole tensor that stand outside a column/row pair are cut. */
static inline bool gti_tp_cut(const gt_tp *tp)
{
    return tp->sequence_parallel && gti_tp_size(tp) > 1;
}
static inline bool gti_tp_pieces(const gt_tp *tp)
{
    return !tp->no_overlap && gti_tp_size(tp) <= GTI_TP_PEERS;
}

size_t gti_tp_scratch(int size, gt_dtype dtype, int64_t n, int64_t width);

/* Rows [first, first + count) of t seen as [rows, columns]. */
gt_tensor gti_tp_rows(const gt_tensor *t, int64_t first, int64_t count);
/* The next `rows` x `columns` of the scratch, *offset bytes in. */
gt_status gti_tp_take(const gt_tp *tp, size_t *offset, gt_dtype dtype, int64_t rows,
                      int64_t columns, gt_tensor *out);

/* Waits for everything in flight. A status other than GT_OK breaks the world first, so that the
 * waits return; the first error is passed on. */
gt_status gti_works_finish(const gt_tp *tp, gti_works *works, gt_status status, gt_stream *stream);

/* Sends own rows `in` to all peers and receives theirs into whole[N,C]; works->work[r] is rank r's
 * arrival. in need not be a part of whole; its copy into it is done here. */
gt_status gti_tp_gather_begin(const gt_tp *tp, gti_works *works, const gt_tensor *whole,
                              const gt_tensor *in, gt_stream *stream);
gt_status gti_tp_gather_wait(gti_works *works, int rank, gt_stream *stream);

/* A reduce-scatter in pieces. parts[P*n,C]: slice r holds what rank r sent us (own slice: own sum).
 */
gt_status gti_tp_reduce_begin(const gt_tp *tp, gti_works *works, const gt_tensor *parts,
                              gt_stream *stream);
/* Our contribution to rank `peer`'s rows is ready. */
gt_status gti_tp_reduce_send(const gt_tp *tp, gti_works *works, int peer, const gt_tensor *piece,
                             gt_stream *stream);
/* out[n,C] = slices of parts summed in rank order; accum f32 [n,C] is scratch, used for 16-bit data
 * of more than two ranks. The works must have been waited for. */
gt_status gti_tp_reduce_sum(const gt_tp *tp, gt_tensor *out, const gt_tensor *parts,
                            gt_tensor *accum, gt_stream *stream);

#endif
