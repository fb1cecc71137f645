/* SPDX-License-Identifier: Apache-2.0
 * The last block: final norm, linear head, cross entropy. The logits exist only for a chunk of rows
 * at a time, so forward computes everything while a chunk is there: loss, the gradient of the
 * normed input, and the head weight's gradient. backward is left with the norm. */
#include "core/fail.h"
#include "nn/gpt.h"
#include "tensor_parallel/tp_exchange.h"
#include "ops/linear.h"

enum { S_MEAN, S_RSTD, S_DNORMED };
enum { W_TP, W_XENT, W_NORMED, W_WHOLE, W_DWHOLE, W_LOGITS, W_ROW, W_ROW_LOGITS };
enum { CHUNK_BYTES = 128 << 20, CHUNK_LEAST = 64 };

static int weight_index(const gti_gpt *gpt)
{
    return gpt->llama ? 1 : 2;
}

static gt_status declare(gt_block *block, gt_param_list *params)
{
    const gti_gpt *gpt = block->state;
    gt_param p = {.struct_size = sizeof(p),
                  .name = "weight",
                  .ndim = 2,
                  .shape = {gpt->config.vocab, gpt->config.width},
                  .tp_axis = 0,
                  .init = GT_INIT_NORMAL,
                  .std = gpt->init_std,
                  .sets_gradient = true,
                  .tied_to = gpt->config.untied ? NULL : "embed.tokens"};
    GT_TRY(gti_norm_declare(gpt, params, "norm.weight", "norm.bias"));
    return gt_param_add(params, &p);
}

static int64_t local_vocab(const gti_gpt *gpt, const gt_layout *l)
{
    return gt_split_count(gpt->config.vocab, l->tp_size, l->tp_rank);
}

/* Chunks of about CHUNK_BYTES of logits: small against memory, large enough for the GEMM. All ranks
 * must choose alike, so the largest shard decides. */
static int64_t chunk_count(const gti_gpt *gpt, const gt_layout *l)
{
    int64_t rows = gt_layout_all_rows(l);
    int64_t row =
        gt_split_count(gpt->config.vocab, l->tp_size, 0) * (int64_t)gt_dtype_size(l->dtype);
    int64_t fit = CHUNK_BYTES / row;
    fit = fit < CHUNK_LEAST ? CHUNK_LEAST : fit;
    return rows <= fit ? 1 : (rows + fit - 1) / fit;
}

static gt_status work(gt_plan *plan, gt_dtype dtype, int64_t rows, int64_t columns)
{
    int64_t dims[2] = {rows, columns};
    return gt_plan_workspace(plan, dtype, 2, dims);
}

static gt_status plan(gt_block *block, gt_plan *plan)
{
    const gti_gpt *gpt = block->state;
    const gt_layout *l = gt_plan_layout(plan);
    int64_t rows = l->rows, all = gt_layout_all_rows(l), c = gpt->config.width;
    int64_t v = local_vocab(gpt, l), chunk = (all + chunk_count(gpt, l) - 1) / chunk_count(gpt, l);
    int64_t whole = gti_layout_cut(l) ? all : 0, mean = gpt->llama ? 0 : rows, dims[2] = {rows, c};
    int64_t scratch = gti_plan_tp_scratch(l, c), xent = l->tp_size == 1 ? 0 : chunk * 16 + 128;
    GT_TRY(gti_gpt_check_plan(gpt, plan, 1));
    GT_TRY(gt_plan_save(plan, GT_F32, 1, &mean));
    GT_TRY(gt_plan_save(plan, GT_F32, 1, &rows));
    GT_TRY(gt_plan_save(plan, l->dtype, 2, dims));
    GT_TRY(gt_plan_workspace(plan, GT_U8, 1, &scratch));
    GT_TRY(gt_plan_workspace(plan, GT_U8, 1, &xent));
    GT_TRY(work(plan, l->dtype, rows, c));
    GT_TRY(work(plan, l->dtype, whole, c));
    GT_TRY(work(plan, l->dtype, whole, c));
    GT_TRY(work(plan, l->dtype, chunk, v));
    GT_TRY(work(plan, l->dtype, 1, c));
    GT_TRY(work(plan, GT_F32, 1, v));
    gt_plan_flops(plan, 2.0 * (double)all * (double)c * (double)v);
    return GT_OK;
}

static gti_norm norm_of(const gti_gpt *gpt, const gt_step *step, gt_tensor *y, const gt_tensor *x)
{
    return (gti_norm){
        .y = y, .x = x, .gamma = &step->params[0], .beta = gpt->llama ? NULL : &step->params[1]};
}

/* One chunk of rows: logits, loss and, when training, the gradients that come of it. */
typedef struct chunk_job {
    const gti_gpt *gpt;
    const gt_step *step;
    gt_tp xent;
    const gt_tensor *normed; /* [all rows, C] */
    gt_tensor *dnormed;      /* the same; this rank's part of the sum over tp */
    gt_work *reducing;       /* the chunk before, under way */
} chunk_job;

static gt_status chunk_loss(chunk_job *job, gt_tensor *logits, const gt_tensor *x, int64_t first)
{
    const gt_step *step = job->step;
    const gt_model_config *config = &job->gpt->config;
    gt_cross_entropy_params p = GT_CROSS_ENTROPY_PARAMS_INIT;
    gt_gemm_params gemm = GT_GEMM_PARAMS_INIT;
    gt_tensor targets = *step->targets;
    targets.data = (char *)targets.data + (size_t)first * sizeof(int32_t);
    targets.ndim = 1;
    targets.shape[0] = x->shape[0];
    p.grad_scale = step->grad_scale;
    p.label_smoothing = config->label_smoothing;
    p.z_loss = config->z_loss;
    p.ignore_index = step->ignore_index;
    p.no_grad = !step->training;
    gemm.trans_b = true;
    if (gt_tensor_numel(logits) > 0) {
        GT_TRY(gt_gemm(step->ctx, logits, x, &step->params[weight_index(job->gpt)], &gemm,
                       step->stream));
    }
    return gt_tp_cross_entropy(&job->xent, logits, NULL, step->stats, &targets, config->vocab, &p,
                               step->stream);
}

static gt_status chunk_gradients(chunk_job *job, const gt_tensor *dlogits, const gt_tensor *x,
                                 int64_t first)
{
    const gt_step *step = job->step;
    int index = weight_index(job->gpt);
    gt_tensor dx = gti_tp_rows(job->dnormed, first, x->shape[0]);
    if (gt_tensor_numel(dlogits) > 0) {
        gt_gemm_params gemm = GT_GEMM_PARAMS_INIT;
        GT_TRY(gt_gemm(step->ctx, &dx, dlogits, &step->params[index], &gemm, step->stream));
    } else { /* an empty shard of the vocabulary */
        GT_TRY(gt_fill(step->ctx, &dx, 0.0, step->stream));
    }
    if (step->tp != NULL && !gti_layout_cut(step->layout)) { /* runs under the next GEMMs */
        GT_TRY(gt_work_wait(&job->reducing, step->stream));
        GT_TRY(gt_all_reduce(step->tp, &dx, GT_SUM, step->stream,
                             step->layout->no_overlap ? NULL : &job->reducing));
    }
    gt_tensor *dw = gti_step_grad(step, index);
    bool unset = first == 0 && gti_step_unset(step, index);
    if (dw == NULL) {
        return GT_OK;
    }
    if (gt_tensor_numel(dlogits) == 0) {
        return unset ? gt_fill(step->ctx, dw, 0.0, step->stream) : GT_OK;
    }
    return gti_linear_backward(step->ctx, NULL, dw, unset, NULL, dlogits, x, &step->params[index],
                               step->stream);
}

static gt_status all_chunks(chunk_job *job)
{
    const gt_layout *l = job->step->layout;
    int64_t rows = gt_layout_all_rows(l), count = chunk_count(job->gpt, l);
    for (int64_t i = 0; i < count; i++) {
        int64_t first = gt_split_first(rows, (int)count, (int)i);
        int64_t n = gt_split_count(rows, (int)count, (int)i);
        gt_tensor x = gti_tp_rows(job->normed, first, n);
        gt_tensor logits = gti_tp_rows(&job->step->workspace[W_LOGITS], 0, n);
        GT_TRY(chunk_loss(job, &logits, &x, first));
        if (job->step->training) {
            GT_TRY(chunk_gradients(job, &logits, &x, first));
        }
    }
    return gt_work_wait(&job->reducing, job->step->stream);
}

static gt_status forward(gt_block *block, const gt_step *step, const gt_tensor *in, gt_tensor *out,
                         gt_saved *saved)
{
    const gti_gpt *gpt = block->state;
    gt_tensor *workspace = step->workspace, *dnormed = gt_saved_tensor(saved, S_DNORMED);
    bool cut = gti_layout_cut(step->layout);
    gt_tp tp = gt_step_tp(step, &workspace[W_TP]);
    gti_norm norm = norm_of(gpt, step, &workspace[W_NORMED], in);
    norm.mean = gt_saved_tensor(saved, S_MEAN);
    norm.rstd = gt_saved_tensor(saved, S_RSTD);
    chunk_job job = {.gpt = gpt,
                     .step = step,
                     .xent = gt_step_tp(step, &workspace[W_XENT]),
                     .normed = cut ? &workspace[W_WHOLE] : norm.y,
                     .dnormed = cut ? &workspace[W_DWHOLE] : dnormed};
    GT_TRY(gti_norm_forward(step, gpt, &norm));
    if (cut) {
        GT_TRY(gt_tp_gather_rows(&tp, &workspace[W_WHOLE], norm.y, step->stream));
    }
    gt_status st = all_chunks(&job);
    gti_works left = {.work = {job.reducing}, .count = 1};
    GT_TRY(gti_works_finish(&tp, &left, st, step->stream));
    if (cut && step->training) {
        return gt_tp_reduce_scatter_rows(&tp, dnormed, &workspace[W_DWHOLE], step->stream);
    }
    return GT_OK;
}

static gt_status backward(gt_block *block, const gt_step *step, const gt_tensor *in,
                          const gt_tensor *dout, gt_tensor *din, gt_saved *saved, unsigned parts)
{
    const gti_gpt *gpt = block->state;
    bool weight = parts & GT_BACKWARD_WEIGHT;
    gti_norm_grad n = {.dx = (parts & GT_BACKWARD_INPUT) && din->data != NULL ? din : NULL,
                       .dgamma = weight ? gti_step_grad(step, 0) : NULL,
                       .dbeta = weight && !gpt->llama ? gti_step_grad(step, 1) : NULL,
                       .dy = gt_saved_tensor(saved, S_DNORMED),
                       .x = in,
                       .gamma = &step->params[0],
                       .mean = gt_saved_tensor(saved, S_MEAN),
                       .rstd = gt_saved_tensor(saved, S_RSTD)};
    return gti_norm_backward(step, gpt, &n);
}

/* The normed row, on every tensor-parallel rank. */
static gt_status normed_row(const gti_gpt *gpt, const gt_step *step, const gt_tensor *in,
                            int64_t row, gt_tensor *y)
{
    const gt_layout *l = step->layout;
    bool cut = gti_layout_cut(l);
    int owner = cut ? (int)(row / l->rows) : 0;
    if (!cut || owner == l->tp_rank) {
        gt_tensor x = gti_tp_rows(in, cut ? row % l->rows : row, 1);
        gti_norm norm = norm_of(gpt, step, y, &x);
        GT_TRY(gti_norm_forward(step, gpt, &norm));
    }
    return cut ? gt_broadcast(step->tp, y, owner, step->stream, NULL) : GT_OK;
}

static gt_status logits(gt_block *block, const gt_step *step, const gt_tensor *in, int64_t row,
                        gt_tensor *out)
{
    const gti_gpt *gpt = block->state;
    const gt_layout *l = step->layout;
    int64_t v = local_vocab(gpt, l),
            first = gt_split_first(gpt->config.vocab, l->tp_size, l->tp_rank);
    if (row < 0 || row >= gt_layout_all_rows(l)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "logits of row %lld, wanted 0 to %lld", (long long)row,
                       (long long)gt_layout_all_rows(l) - 1);
    }
    gt_tensor *y = &step->workspace[W_ROW], *part = &step->workspace[W_ROW_LOGITS];
    gt_gemm_params gemm = GT_GEMM_PARAMS_INIT;
    gemm.trans_b = true;
    GT_TRY(normed_row(gpt, step, in, row, y));
    gt_tensor flat = gti_tp_rows(out, 0, 1);
    flat.shape[1] = gpt->config.vocab;
    if (step->tp == NULL) {
        return gt_gemm(step->ctx, &flat, y, &step->params[weight_index(gpt)], &gemm, step->stream);
    }
    GT_TRY(gt_fill(step->ctx, &flat, 0.0, step->stream));
    if (v > 0) {
        GT_TRY(gt_gemm(step->ctx, part, y, &step->params[weight_index(gpt)], &gemm, step->stream));
        GT_TRY(gt_copy_columns(step->ctx, &flat, first, part, 0, v, step->stream));
    }
    return gt_all_reduce(step->tp, &flat, GT_SUM, step->stream, NULL);
}

const gt_block_ops gti_head_ops = {.type = "head",
                                   .declare = declare,
                                   .plan = plan,
                                   .forward = forward,
                                   .backward = backward,
                                   .destroy = gti_gpt_destroy,
                                   .logits = logits,
                                   .is_loss = true};
