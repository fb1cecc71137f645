/* SPDX-License-Identifier: Apache-2.0
 *
 * The step engine: model, mesh, ZeRO, pipeline schedule, loss scaler and optimizer put together.
 */
#ifndef GEEKTRAIN_TRAINER_H
#define GEEKTRAIN_TRAINER_H

#include <geektrain/block.h>
#include <geektrain/config.h>
#include <geektrain/data.h>
#include <geektrain/mesh.h>
#include <geektrain/pipeline.h>
#include <geektrain/step.h>
#include <geektrain/zero.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gt_trainer gt_trainer;

/* Collective over world. Takes a resolved configuration (gt_config_resolve), which is copied; it
 * must be the same on all ranks (compared by hash). Of its model section only seq, vocab and
 * recompute are used, of data and train nothing: the model is the list of blocks. ctx, world and
 * model are borrowed and must outlive the trainer. config.seed gives initial values and dropout.
 * Declares and plans the whole model, then allocates what this rank needs: steps allocate nothing
 * (but for ZeRO's buffers in the first). Errors: a rank that fails alone makes all ranks return its
 * sentence. */
GT_API gt_status gt_trainer_create(gt_trainer **out, gt_context *ctx, gt_comm *world,
                                   gt_model *model, const gt_config *config);
GT_API void gt_trainer_destroy(gt_trainer **trainer);
/* One optimizer step on a global batch. `batch` is this data rank's part (config.train_batch /
 * dp samples; fewer, or samples 0, is fine: missing ones count as ignored); ranks that share a data
 * rank pass the same. Its memory is read before the call returns. result may be NULL. A skipped
 * step is GT_OK: see result->outcome. Collective. Errors: GT_ERR_SHAPE (batch), GT_ERR_ARGUMENT (a
 * token or target outside the vocabulary), the collectives'; after one the trainer is unusable, and
 * every rank has got an error. */
GT_API gt_status gt_trainer_step(gt_trainer *trainer, const gt_batch *batch,
                                 gt_step_result *result);
/* Mean loss over the valid tokens of a global batch, without gradients, dropout off. loss and
 * tokens may be NULL; 0 tokens: loss 0. Collective; errors as gt_trainer_step. */
GT_API gt_status gt_trainer_evaluate(gt_trainer *trainer, const gt_batch *batch, double *loss,
                                     int64_t *tokens);
/* Continues `prompt` by `count` tokens (sampled at `temperature`, 0 = greedy), each from at most
 * the last seq tokens: one forward pass per token. Collective; prompt must be, and out (count
 * tokens) is, the same on every rank. Errors: GT_ERR_ARGUMENT (empty prompt, a token outside the
 * vocabulary), GT_ERR_UNSUPPORTED (the loss block has no logits). */
GT_API gt_status gt_trainer_generate(gt_trainer *trainer, const int32_t *prompt, int64_t length,
                                     int64_t count, float temperature, uint64_t seed, int32_t *out);
/* Borrowed: this rank's place, for the data it has to load (GT_AXIS_DP). */
GT_API const gt_mesh *gt_trainer_mesh(const gt_trainer *trainer);
/* Number of parameters of the whole model, each tied one once. */
GT_API int64_t gt_trainer_parameters(const gt_trainer *trainer);
/* Model FLOP of one step of the whole world: forward + backward (3 x forward), without
 * recomputation. */
GT_API double gt_trainer_step_flops(const gt_trainer *trainer);
/* Whole tensors in f32 (masters) by full name, on every rank, whatever the layout: host has numel
 * floats, numel must be the tensor's. Collective; loading takes the same values on every rank.
 * Errors: GT_ERR_ARGUMENT (no such parameter), GT_ERR_SHAPE. */
GT_API gt_status gt_trainer_read_param(gt_trainer *trainer, const char *name, float *host,
                                       int64_t numel);
GT_API gt_status gt_trainer_load_param(gt_trainer *trainer, const char *name, const float *host,
                                       int64_t numel);
/* Names and global shapes in model order, each tied parameter once; i from 0; NULL past the end.
 * ndim and shape may be NULL. The name is valid as long as the trainer. */
GT_API const char *gt_trainer_param_name(const gt_trainer *trainer, int i, int *ndim,
                                         int64_t shape[4]);
/* Borrowed: its memory by gt_zero_formula(), for instance. */
GT_API gt_zero *gt_trainer_zero(gt_trainer *trainer);
/* Borrowed: for their reports, timelines and measured costs. */
GT_API const gt_schedule *gt_trainer_schedule(const gt_trainer *trainer);
GT_API const gt_pipeline *gt_trainer_pipeline(const gt_trainer *trainer);

#ifdef __cplusplus
}
#endif
#endif
