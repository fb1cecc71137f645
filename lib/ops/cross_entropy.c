/* SPDX-License-Identifier: Apache-2.0
 * Cross entropy, whole and over a vocabulary shard: the checks. */
#include <geektrain/ops.h>

#include <math.h>

#include "backend/backend.h"
#include "core/params.h"
#include "ops/check.h"

void gt_cross_entropy_params_init(gt_cross_entropy_params *params, size_t size)
{
    const gt_cross_entropy_params defaults = GT_CROSS_ENTROPY_PARAMS_INIT;
    gti_params_init(params, size);
    if (size >= sizeof defaults) {
        *params = defaults;
        params->struct_size = size;
    }
}

static gt_status take_params(gt_cross_entropy_params *p, const gt_cross_entropy_params *params)
{
    GT_TRY(gti_take_params("gt_cross_entropy_params", p, sizeof *p, params));
    if (!(p->label_smoothing >= 0.0f && p->label_smoothing <= 1.0f)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "label_smoothing is %g, wanted one in [0, 1]",
                       (double)p->label_smoothing);
    }
    if (!(p->z_loss >= 0.0f) || isinf(p->z_loss)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "z_loss is %g, wanted a number from 0 on",
                       (double)p->z_loss);
    }
    return GT_OK;
}

static gt_status check_rows(const gt_context *ctx, const char *name, const gt_tensor *t,
                            gt_dtype dtype, int64_t n)
{
    GT_TRY(gti_check_tensor(ctx, name, t, GTI_ONLY(dtype)));
    return gti_check_numel(name, t, "N", n);
}

static gt_status check_losses(const gt_context *ctx, const gt_tensor *losses,
                              const gt_tensor *stats, int64_t n)
{
    if (gti_present(losses)) {
        GT_TRY(check_rows(ctx, "losses", losses, GT_F32, n));
    }
    GT_TRY(gti_check_tensor(ctx, "stats", stats, GTI_ONLY(GT_F64)));
    return gti_check_numel("stats", stats, "{loss, tokens}", 2);
}

gt_status gt_cross_entropy(gt_context *ctx, gt_tensor *logits, gt_tensor *losses, gt_tensor *stats,
                           const gt_tensor *targets, const gt_cross_entropy_params *params,
                           gt_stream *stream)
{
    gt_cross_entropy_params p = GT_CROSS_ENTROPY_PARAMS_INIT;
    int64_t n, v;
    GT_TRY(take_params(&p, params));
    GT_TRY(gti_check_tensor(ctx, "logits", logits, GTI_FLOATS));
    gti_rows_columns(logits, &n, &v);
    GT_TRY(check_losses(ctx, losses, stats, n));
    GT_TRY(check_rows(ctx, "targets", targets, GT_I32, n));
    struct gti_xent_args args = {
        .logits = *logits,
        .losses = gti_optional(losses),
        .stats = *stats,
        .targets = *targets,
        .grad_scale = p.grad_scale,
        .label_smoothing = p.label_smoothing,
        .z_loss = p.z_loss,
        .ignore_index = p.ignore_index,
        .with_grad = !p.no_grad,
    };
    return GTI_RUN(ctx, stream, xent, &args);
}

static gt_status check_shard(int64_t first, int64_t columns, int64_t vocab)
{
    if (first < 0 || first > vocab - columns) {
        return GT_FAIL(GT_ERR_SHAPE,
                       "logits are columns [%lld, %lld), wanted a part of the vocabulary [0, %lld)",
                       (long long)first, (long long)(first + columns), (long long)vocab);
    }
    return GT_OK;
}

/* Rows and columns of a shard's logits. An empty shard must still say its rows: [N,0]. */
static gt_status check_logits(const gt_context *ctx, const gt_tensor *logits, int64_t *n,
                              int64_t *columns)
{
    GT_TRY(gti_check_tensor(ctx, "logits", logits, GTI_FLOATS));
    gti_rows_columns(logits, n, columns);
    return GT_OK;
}

gt_status gt_cross_entropy_max(gt_context *ctx, gt_tensor *max, const gt_tensor *logits,
                               gt_stream *stream)
{
    int64_t n, columns;
    GT_TRY(check_logits(ctx, logits, &n, &columns));
    GT_TRY(check_rows(ctx, "max", max, GT_F32, n));
    struct gti_xent_max_args args = {.max = *max, .logits = *logits};
    return GTI_RUN(ctx, stream, xent_max, &args);
}

static gt_status check_sums(const gt_context *ctx, const gt_tensor *sums, int64_t n)
{
    GT_TRY(gti_check_tensor(ctx, "sums", sums, GTI_ONLY(GT_F32)));
    return gti_check_numel("sums", sums, "3N", 3 * n);
}

gt_status gt_cross_entropy_sums(gt_context *ctx, gt_tensor *sums, const gt_tensor *logits,
                                const gt_tensor *max, const gt_tensor *targets,
                                const gt_cross_entropy_params *params, int64_t first, int64_t vocab,
                                gt_stream *stream)
{
    gt_cross_entropy_params p = GT_CROSS_ENTROPY_PARAMS_INIT;
    int64_t n, columns;
    GT_TRY(take_params(&p, params));
    GT_TRY(check_logits(ctx, logits, &n, &columns));
    GT_TRY(check_shard(first, columns, vocab));
    GT_TRY(check_sums(ctx, sums, n));
    GT_TRY(check_rows(ctx, "max", max, GT_F32, n));
    GT_TRY(check_rows(ctx, "targets", targets, GT_I32, n));
    struct gti_xent_sums_args args = {
        .sums = *sums,
        .logits = *logits,
        .max = *max,
        .targets = *targets,
        .first = first,
        .vocab = vocab,
        .ignore_index = p.ignore_index,
    };
    return GTI_RUN(ctx, stream, xent_sums, &args);
}

gt_status gt_cross_entropy_grad(gt_context *ctx, gt_tensor *logits, gt_tensor *losses,
                                gt_tensor *stats, const gt_tensor *max, const gt_tensor *sums,
                                const gt_tensor *targets, const gt_cross_entropy_params *params,
                                int64_t first, int64_t vocab, gt_stream *stream)
{
    gt_cross_entropy_params p = GT_CROSS_ENTROPY_PARAMS_INIT;
    int64_t n, columns;
    GT_TRY(take_params(&p, params));
    GT_TRY(check_logits(ctx, logits, &n, &columns));
    GT_TRY(check_shard(first, columns, vocab));
    GT_TRY(check_losses(ctx, losses, stats, n));
    GT_TRY(check_rows(ctx, "max", max, GT_F32, n));
    GT_TRY(check_sums(ctx, sums, n));
    GT_TRY(check_rows(ctx, "targets", targets, GT_I32, n));
    struct gti_xent_grad_args args = {
        .logits = *logits,
        .losses = gti_optional(losses),
        .stats = *stats,
        .max = *max,
        .sums = *sums,
        .targets = *targets,
        .first = first,
        .vocab = vocab,
        .grad_scale = p.grad_scale,
        .label_smoothing = p.label_smoothing,
        .z_loss = p.z_loss,
        .ignore_index = p.ignore_index,
        .with_grad = !p.no_grad,
    };
    return GTI_RUN(ctx, stream, xent_grad, &args);
}
