/* SPDX-License-Identifier: Apache-2.0
 * The two ends of a model, with the vocabulary cut over the ranks. */
#include "tensor_parallel/tp_primitives.h"

#include "ops/check.h"

static gt_status check_rows(const gt_tp *tp, const char *name, const gt_tensor *t,
                            const gt_tensor *ids)
{
    int64_t rows, columns, n = gt_tensor_numel(ids), size = gti_tp_cut(tp) ? gti_tp_size(tp) : 1;
    gti_rows_columns(t, &rows, &columns);
    if (rows * size != n) {
        return GT_FAIL(GT_ERR_SHAPE,
                       "%s has %lld rows on each of %lld ranks, wanted %lld in all "
                       "(the number of ids)",
                       name, (long long)rows, (long long)size, (long long)n);
    }
    return GT_OK;
}

static gt_status check_table(const gt_tp *tp, const gt_tensor *table, int64_t vocab)
{
    int size = gti_tp_size(tp), me = gti_tp_rank(tp);
    int64_t want = gt_split_count(vocab, size, me);
    if (table->ndim != 2 || table->shape[0] != want) {
        char text[GTI_SHAPE_TEXT];
        return GT_FAIL(GT_ERR_SHAPE,
                       "table is %s, wanted %lld rows: rank %d's of %d over a vocabulary of %lld",
                       gti_shape_text(text, table), (long long)want, me, size, (long long)vocab);
    }
    return GT_OK;
}

gt_status gti_tp_embedding_forward(const gt_tp *tp, gt_tensor *y, const gt_tensor *table,
                                   const gt_tensor *positions, const gt_tensor *ids,
                                   const gt_tensor *rows, const gt_embedding_params *params,
                                   gt_stream *stream)
{
    gt_embedding_params p = GT_EMBEDDING_PARAMS_INIT;
    GT_TRY(gti_take_params("gt_embedding_params", &p, sizeof(p), params));
    int size = gti_tp_size(tp), me = gti_tp_rank(tp);
    GT_TRY(check_rows(tp, "y", y, ids));
    GT_TRY(check_table(tp, table, p.vocab));
    p.first = gt_split_first(p.vocab, size, me);
    positions = me == 0 ? positions : NULL; /* added once */
    if (!gti_tp_cut(tp)) {
        GT_TRY(gt_embedding_forward(tp->ctx, y, table, positions, ids, rows, &p, stream));
        return gti_tp_reduce(tp, y, stream);
    }
    gt_tensor whole;
    size_t offset = 0;
    GT_TRY(gti_tp_take(tp, &offset, y->dtype, gt_tensor_numel(ids), table->shape[1], &whole));
    GT_TRY(gt_embedding_forward(tp->ctx, &whole, table, positions, ids, rows, &p, stream));
    return gt_reduce_scatter(tp->comm, y, &whole, GT_SUM, stream, NULL);
}

gt_status gti_tp_embedding_backward(const gt_tp *tp, gt_tensor *dtable, gt_tensor *dpositions,
                                    const gt_tensor *dy, const gt_tensor *ids,
                                    const gt_tensor *rows, const gt_embedding_params *params,
                                    gt_stream *stream)
{
    gt_embedding_params p = GT_EMBEDDING_PARAMS_INIT;
    GT_TRY(gti_take_params("gt_embedding_params", &p, sizeof(p), params));
    GT_TRY(check_rows(tp, "dy", dy, ids));
    p.first = gt_split_first(p.vocab, gti_tp_size(tp), gti_tp_rank(tp));
    gt_tensor whole = *dy;
    if (gti_tp_cut(tp)) {
        size_t offset = 0;
        int64_t n, columns;
        gti_rows_columns(dy, &n, &columns);
        GT_TRY(gti_tp_take(tp, &offset, dy->dtype, gt_tensor_numel(ids), columns, &whole));
        GT_TRY(gt_all_gather(tp->comm, &whole, dy, stream, NULL));
    }
    return gt_embedding_backward(tp->ctx, dtable, dpositions, &whole, ids, rows, &p, stream);
}

size_t gt_tp_cross_entropy_scratch_bytes(const gt_tp *tp, int64_t n)
{
    return gti_tp_size(tp) == 1 ? 0 : (size_t)n * 4 * sizeof(float) + 2 * 64;
}

gt_status gti_tp_cross_entropy(const gt_tp *tp, gt_tensor *logits, gt_tensor *losses,
                               gt_tensor *stats, const gt_tensor *targets, int64_t vocab,
                               const gt_cross_entropy_params *params, gt_stream *stream)
{
    int size = gti_tp_size(tp), me = gti_tp_rank(tp);
    int64_t n, columns, first = gt_split_first(vocab, size, me);
    gti_rows_columns(logits, &n, &columns);
    if (columns != gt_split_count(vocab, size, me)) {
        return GT_FAIL(
            GT_ERR_SHAPE,
            "logits have %lld columns, wanted %lld: rank %d's of %d over a vocabulary of "
            "%lld",
            (long long)columns, (long long)gt_split_count(vocab, size, me), me, size,
            (long long)vocab);
    }
    if (size == 1) {
        return gt_cross_entropy(tp->ctx, logits, losses, stats, targets, params, stream);
    }
    size_t offset = 0;
    gt_tensor max, sums;
    GT_TRY(gti_tp_take(tp, &offset, GT_F32, 1, n, &max));
    GT_TRY(gti_tp_take(tp, &offset, GT_F32, 3, n, &sums));
    max.ndim = 1;
    max.shape[0] = n;
    GT_TRY(gt_cross_entropy_max(tp->ctx, &max, logits, stream));
    GT_TRY(gt_all_reduce(tp->comm, &max, GT_MAX, stream, NULL));
    GT_TRY(
        gt_cross_entropy_sums(tp->ctx, &sums, logits, &max, targets, params, first, vocab, stream));
    GT_TRY(gt_all_reduce(tp->comm, &sums, GT_SUM, stream, NULL));
    return gt_cross_entropy_grad(tp->ctx, logits, losses, stats, &max, &sums, targets, params,
                                 first, vocab, stream);
}
