/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor_parallel/tp_exchange.h"

#include <stdio.h>

#include "ops/check.h"
#include "ops/reduce.h"

enum { TAG_GATHER = 1, TAG_REDUCE = 2 };

gt_tensor gti_tp_rows(const gt_tensor *t, int64_t first, int64_t count)
{
    int64_t columns = t->ndim > 0 ? t->shape[t->ndim - 1] : 1;
    gt_tensor v = gt_tensor_2d(t->data, t->dtype, count, columns);
    v.device = t->device;
    if (v.data != NULL) {
        v.data = (char *)v.data + (size_t)(first * columns) * gt_dtype_size(t->dtype);
    }
    return v;
}

gt_status gti_tp_take(const gt_tp *tp, size_t *offset, gt_dtype dtype, int64_t rows,
                      int64_t columns, gt_tensor *out)
{
    size_t bytes = (size_t)(rows * columns) * gt_dtype_size(dtype);
    size_t have = gt_tensor_bytes(&tp->scratch);
    bytes = (bytes + 63) & ~(size_t)63;
    if (bytes > 0 && (tp->scratch.data == NULL || *offset + bytes > have)) {
        return GT_FAIL(GT_ERR_ARGUMENT,
                       "tensor-parallel scratch has %zu bytes, wanted at least %zu", have,
                       *offset + bytes);
    }
    *out = gt_tensor_2d(tp->scratch.data, dtype, rows, columns);
    out->device = tp->scratch.device;
    if (out->data != NULL) {
        out->data = (char *)out->data + *offset;
    } else {
        out->device = gt_context_device(tp->ctx); /* empty */
    }
    *offset += bytes;
    return GT_OK;
}

gt_status gti_works_finish(const gt_tp *tp, gti_works *works, gt_status status, gt_stream *stream)
{
    if (status != GT_OK && tp->comm != NULL) {
        char text[GTI_ERROR_MAX];
        snprintf(text, sizeof(text), "%s", gt_last_error());
        (void)gt_comm_fail(tp->comm, status);
        for (int i = 0; i < works->count; i++) {
            (void)gt_work_wait(&works->work[i], stream);
        }
        return gti_fail_text(status, text);
    }
    for (int i = 0; i < works->count; i++) {
        gt_status st = gt_work_wait(&works->work[i], stream);
        status = status == GT_OK ? st : status;
    }
    return status;
}

gt_status gti_tp_gather_begin(const gt_tp *tp, gti_works *works, const gt_tensor *whole,
                              const gt_tensor *in, gt_stream *stream)
{
    int size = gti_tp_size(tp), me = gti_tp_rank(tp);
    int64_t n, columns;
    gti_rows_columns(in, &n, &columns);
    gt_tensor mine = gti_tp_rows(in, 0, n);
    works->count = 2 * size;
    for (int i = 1; i < size; i++) {
        int from = (me + i) % size, to = (me + size - i) % size;
        gt_tensor there = gti_tp_rows(whole, from * n, n);
        GT_TRY(gt_recv(tp->comm, &there, from, TAG_GATHER, stream, &works->work[from]));
        GT_TRY(gt_send(tp->comm, &mine, to, TAG_GATHER, stream, &works->work[size + to]));
    }
    gt_tensor here = gti_tp_rows(whole, me * n, n);
    return here.data == mine.data ? GT_OK : gt_copy(tp->ctx, &here, &mine, stream);
}

gt_status gti_tp_gather_wait(gti_works *works, int rank, gt_stream *stream)
{
    return gt_work_wait(&works->work[rank], stream);
}

gt_status gti_tp_reduce_begin(const gt_tp *tp, gti_works *works, const gt_tensor *parts,
                              gt_stream *stream)
{
    int size = gti_tp_size(tp), me = gti_tp_rank(tp);
    int64_t n = parts->shape[0] / size;
    works->count = 2 * size;
    for (int i = 1; i < size; i++) {
        int from = (me + size - i) % size;
        gt_tensor there = gti_tp_rows(parts, from * n, n);
        GT_TRY(gt_recv(tp->comm, &there, from, TAG_REDUCE, stream, &works->work[from]));
    }
    return GT_OK;
}

gt_status gti_tp_reduce_send(const gt_tp *tp, gti_works *works, int peer, const gt_tensor *piece,
                             gt_stream *stream)
{
    return gt_send(tp->comm, piece, peer, TAG_REDUCE, stream, &works->work[gti_tp_size(tp) + peer]);
}

static gt_status add(const gt_tp *tp, gt_tensor *out, const gt_tensor *a, const gt_tensor *b,
                     gt_stream *stream)
{
    return gti_reduce(tp->ctx, out, a, b, GTI_REDUCE_SUM, stream);
}

gt_status gti_tp_reduce_sum(const gt_tp *tp, gt_tensor *out, const gt_tensor *parts,
                            gt_tensor *accum, gt_stream *stream)
{
    int size = gti_tp_size(tp);
    int64_t n = parts->shape[0] / size;
    gt_tensor flat = gti_tp_rows(out, 0, n), first = gti_tp_rows(parts, 0, n);
    gt_tensor second = gti_tp_rows(parts, n, n);
    if (size == 2 || out->dtype == GT_F32) {
        GT_TRY(add(tp, &flat, &first, &second, stream));
        for (int i = 2; i < size; i++) {
            gt_tensor next = gti_tp_rows(parts, i * n, n);
            GT_TRY(add(tp, &flat, &flat, &next, stream));
        }
        return GT_OK;
    }
    GT_TRY(gt_cast(tp->ctx, accum, &first, stream));
    for (int i = 1; i < size; i++) {
        gt_tensor next = gti_tp_rows(parts, i * n, n);
        GT_TRY(add(tp, accum, accum, &next, stream));
    }
    return gt_cast(tp->ctx, &flat, accum, stream);
}
