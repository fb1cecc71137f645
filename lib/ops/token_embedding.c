/* SPDX-License-Identifier: Apache-2.0
 * Embedding: the checks. */
#include <geektrain/ops.h>

#include "backend/backend.h"
#include "ops/check.h"

/* What both directions share: ids, rows (needed with positions) and the vocabulary shard. */
static gt_status check_indices(const gt_context *ctx, const gt_tensor *ids, const gt_tensor *rows,
                               const gt_embedding_params *p, int64_t n, bool positions)
{
    GT_TRY(gti_check_tensor(ctx, "ids", ids, GTI_ONLY(GT_I32)));
    GT_TRY(gti_check_numel("ids", ids, "N", n));
    if (positions) {
        GT_TRY(gti_check_tensor(ctx, "rows", rows, GTI_ONLY(GT_I64)));
        GT_TRY(gti_check_numel("rows", rows, "N", n));
        if (p->seq <= 0) {
            return GT_FAIL(GT_ERR_ARGUMENT, "seq is %lld, wanted the tokens per sample",
                           (long long)p->seq);
        }
    }
    if (p->first < 0 || p->vocab < 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "first is %lld and vocab %lld, wanted both from 0 on",
                       (long long)p->first, (long long)p->vocab);
    }
    return GT_OK;
}

static gt_status check_table(const gt_context *ctx, const char *name, const gt_tensor *t,
                             unsigned dtypes, int64_t c)
{
    GT_TRY(gti_check_tensor(ctx, name, t, dtypes));
    if (t->ndim != 2 || t->shape[1] != c) {
        char text[GTI_SHAPE_TEXT];
        return GT_FAIL(GT_ERR_SHAPE, "%s is %s, wanted [rows,C] with C=%lld", name,
                       gti_shape_text(text, t), (long long)c);
    }
    return GT_OK;
}

static gt_status check_shard(const char *name, const gt_tensor *t, const gt_embedding_params *p)
{
    if (p->first > p->vocab - t->shape[0]) {
        return GT_FAIL(
            GT_ERR_SHAPE, "%s holds tokens [%lld, %lld), wanted a part of the vocabulary [0, %lld)",
            name, (long long)p->first, (long long)(p->first + t->shape[0]), (long long)p->vocab);
    }
    return GT_OK;
}

/* vocab 0 in the params: the table is the whole vocabulary. */
static gt_status take_params(gt_embedding_params *p, const gt_embedding_params *params,
                             const gt_tensor *table)
{
    GT_TRY(gti_take_params("gt_embedding_params", p, sizeof *p, params));
    if (p->vocab == 0 && table != NULL && table->ndim == 2) {
        p->vocab = table->shape[0];
    }
    return GT_OK;
}

gt_status gt_embedding_forward(gt_context *ctx, gt_tensor *y, const gt_tensor *table,
                               const gt_tensor *positions, const gt_tensor *ids,
                               const gt_tensor *rows, const gt_embedding_params *params,
                               gt_stream *stream)
{
    gt_embedding_params p = GT_EMBEDDING_PARAMS_INIT;
    int64_t n, c;
    GT_TRY(take_params(&p, params, table));
    GT_TRY(gti_check_tensor(ctx, "y", y, GTI_FLOATS));
    gti_rows_columns(y, &n, &c);
    GT_TRY(check_table(ctx, "table", table, GTI_ONLY(y->dtype), c));
    GT_TRY(check_shard("table", table, &p));
    if (gti_present(positions)) {
        GT_TRY(check_table(ctx, "positions", positions, GTI_ONLY(y->dtype), c));
    }
    GT_TRY(check_indices(ctx, ids, rows, &p, n, gti_present(positions)));
    struct gti_embedding_fwd_args args = {
        .y = *y,
        .table = *table,
        .positions = gti_optional(positions),
        .ids = *ids,
        .rows = gti_optional(rows),
        .first = p.first,
        .vocab = p.vocab,
        .seq = p.seq,
    };
    return GTI_RUN(ctx, stream, embedding_fwd, &args);
}

gt_status gt_embedding_backward(gt_context *ctx, gt_tensor *dtable, gt_tensor *dpositions,
                                const gt_tensor *dy, const gt_tensor *ids, const gt_tensor *rows,
                                const gt_embedding_params *params, gt_stream *stream)
{
    gt_embedding_params p = GT_EMBEDDING_PARAMS_INIT;
    int64_t n, c;
    GT_TRY(take_params(&p, params, dtable));
    GT_TRY(gti_check_tensor(ctx, "dy", dy, GTI_FLOATS));
    gti_rows_columns(dy, &n, &c);
    if (gti_present(dtable)) {
        GT_TRY(check_table(ctx, "dtable", dtable, GTI_GRAD_OF(dy->dtype), c));
        GT_TRY(check_shard("dtable", dtable, &p));
    }
    if (gti_present(dpositions)) {
        GT_TRY(check_table(ctx, "dpositions", dpositions, GTI_GRAD_OF(dy->dtype), c));
    }
    GT_TRY(check_indices(ctx, ids, rows, &p, n, gti_present(dpositions)));
    struct gti_embedding_bwd_args args = {
        .dtable = gti_optional(dtable),
        .dpositions = gti_optional(dpositions),
        .dy = *dy,
        .ids = *ids,
        .rows = gti_optional(rows),
        .first = p.first,
        .vocab = p.vocab,
        .seq = p.seq,
    };
    return GTI_RUN(ctx, stream, embedding_bwd, &args);
}
