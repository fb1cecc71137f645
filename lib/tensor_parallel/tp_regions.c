/* SPDX-License-Identifier: Apache-2.0
 * Going between whole and cut tensors. */
#include "tensor_parallel/tp_primitives.h"

#include "ops/check.h"

enum { TAG_COLUMNS = 3 };

gt_status gti_tp_reduce(const gt_tp *tp, gt_tensor *inout, gt_stream *stream)
{
    return gti_tp_size(tp) == 1 ? GT_OK : gt_all_reduce(tp->comm, inout, GT_SUM, stream, NULL);
}

static gt_status check_shares(const gt_tp *tp, const char *whole_name, const gt_tensor *whole,
                              const char *cut_name, const gt_tensor *cut)
{
    int64_t rows, columns, n, c, size = gti_tp_size(tp);
    gti_rows_columns(whole, &rows, &columns);
    gti_rows_columns(cut, &n, &c);
    if (n * size != rows || c != columns) {
        return GT_FAIL(GT_ERR_SHAPE,
                       "%s is [%lld,%lld] and %s [%lld,%lld], wanted its rows / %lld "
                       "ranks",
                       whole_name, (long long)rows, (long long)columns, cut_name, (long long)n,
                       (long long)c, (long long)size);
    }
    return GT_OK;
}

gt_status gti_tp_gather_rows(const gt_tp *tp, gt_tensor *out, const gt_tensor *in,
                             gt_stream *stream)
{
    GT_TRY(check_shares(tp, "out", out, "in", in));
    if (gti_tp_size(tp) == 1) {
        return out->data == in->data ? GT_OK : gt_copy(tp->ctx, out, in, stream);
    }
    return gt_all_gather(tp->comm, out, in, stream, NULL);
}

gt_status gt_tp_scatter_rows(const gt_tp *tp, gt_tensor *out, const gt_tensor *in,
                             gt_stream *stream)
{
    GT_TRY(check_shares(tp, "in", in, "out", out));
    int64_t n, columns;
    gti_rows_columns(out, &n, &columns);
    gt_tensor mine = gti_tp_rows(in, gti_tp_rank(tp) * n, n), flat = gti_tp_rows(out, 0, n);
    return flat.data == mine.data ? GT_OK : gt_copy(tp->ctx, &flat, &mine, stream);
}

gt_status gti_tp_reduce_scatter_rows(const gt_tp *tp, gt_tensor *out, const gt_tensor *in,
                                     gt_stream *stream)
{
    GT_TRY(check_shares(tp, "in", in, "out", out));
    if (gti_tp_size(tp) == 1) {
        return out->data == in->data ? GT_OK : gt_copy(tp->ctx, out, in, stream);
    }
    return gt_reduce_scatter(tp->comm, out, in, GT_SUM, stream, NULL);
}

static gt_status check_columns(const gt_tp *tp, const gt_tensor *whole, const gt_tensor *cut)
{
    int64_t rows, columns, n, c;
    int size = gti_tp_size(tp), me = gti_tp_rank(tp);
    gti_rows_columns(whole, &rows, &columns);
    gti_rows_columns(cut, &n, &c);
    if (rows != n || c != gt_split_count(columns, size, me)) {
        return GT_FAIL(GT_ERR_SHAPE,
                       "the piece is [%lld,%lld], wanted [%lld,%lld]: rank %d's of %d",
                       (long long)n, (long long)c, (long long)rows,
                       (long long)gt_split_count(columns, size, me), me, size);
    }
    return GT_OK;
}

/* Copies `count` columns between a matrix and its piece. */
static gt_status place(const gt_tp *tp, gt_tensor *out, const gt_tensor *piece, int rank,
                       gt_stream *stream)
{
    int64_t rows, columns;
    gti_rows_columns(out, &rows, &columns);
    int64_t first = gt_split_first(columns, gti_tp_size(tp), rank);
    int64_t count = gt_split_count(columns, gti_tp_size(tp), rank);
    return gt_copy_columns(tp->ctx, out, first, piece, 0, count, stream);
}

gt_status gt_tp_scatter_columns(const gt_tp *tp, gt_tensor *out, const gt_tensor *in,
                                gt_stream *stream)
{
    GT_TRY(check_columns(tp, in, out));
    int64_t rows, columns;
    gti_rows_columns(in, &rows, &columns);
    int64_t first = gt_split_first(columns, gti_tp_size(tp), gti_tp_rank(tp));
    int64_t count = gt_split_count(columns, gti_tp_size(tp), gti_tp_rank(tp));
    return gt_copy_columns(tp->ctx, out, 0, in, first, count, stream);
}

/* Every rank's piece travels dense, is put in its place as it arrives. */
static gt_status gather_columns(const gt_tp *tp, gti_works *works, gt_tensor *out,
                                const gt_tensor *in, gt_stream *stream)
{
    int size = gti_tp_size(tp), me = gti_tp_rank(tp);
    int64_t rows, columns;
    size_t offset = 0;
    gt_tensor piece[GTI_TP_PEERS];
    gti_rows_columns(out, &rows, &columns);
    works->count = 2 * size;
    for (int i = 1; i < size; i++) {
        int from = (me + i) % size, to = (me + size - i) % size;
        GT_TRY(gti_tp_take(tp, &offset, in->dtype, rows, gt_split_count(columns, size, from),
                           &piece[from]));
        GT_TRY(gt_recv(tp->comm, &piece[from], from, TAG_COLUMNS, stream, &works->work[from]));
        GT_TRY(gt_send(tp->comm, in, to, TAG_COLUMNS, stream, &works->work[size + to]));
    }
    GT_TRY(place(tp, out, in, me, stream));
    for (int i = 1; i < size; i++) {
        int from = (me + i) % size;
        GT_TRY(gt_work_wait(&works->work[from], stream));
        GT_TRY(place(tp, out, &piece[from], from, stream));
    }
    return GT_OK;
}

gt_status gti_tp_gather_columns(const gt_tp *tp, gt_tensor *out, const gt_tensor *in,
                                gt_stream *stream)
{
    GT_TRY(check_columns(tp, out, in));
    if (gti_tp_size(tp) > GTI_TP_PEERS) {
        return GT_FAIL(GT_ERR_UNSUPPORTED, "columns are gathered from %d ranks, the most is %d",
                       gti_tp_size(tp), GTI_TP_PEERS);
    }
    gti_works works = {.count = 0};
    gt_status st = gather_columns(tp, &works, out, in, stream);
    return gti_works_finish(tp, &works, st, stream);
}
