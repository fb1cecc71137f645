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

/* Collective over world. Uses config (resolved: gt_config_resolve) except its model, data and train
 * sections; the model's blocks become the trainer's to call, the model is borrowed and must outlive
 * it. All ranks must pass equal configurations (checked by hash). */
GT_API gt_status gt_trainer_create(gt_trainer **out, gt_context *ctx, gt_comm *world,
                                   gt_model *model, const gt_config *config);
GT_API void gt_trainer_destroy(gt_trainer **trainer);
/* One optimizer step on a global batch. `batch` is this data rank's part (config.train_batch /
 * dp samples; fewer, or samples 0, is fine: missing ones count as ignored). Collective. After an
 * error the trainer is unusable, and every rank has got an error. */
GT_API gt_status gt_trainer_step(gt_trainer *trainer, const gt_batch *batch,
                                 gt_step_result *result);
/* Mean loss without gradients, dropout off. Collective. */
GT_API gt_status gt_trainer_evaluate(gt_trainer *trainer, const gt_batch *batch, double *loss,
                                     int64_t *tokens);
/* Continues `prompt` by `count` tokens (sampled at `temperature`, 0 = greedy). Collective; out
 * (count tokens) is the same on every rank. */
GT_API gt_status gt_trainer_generate(gt_trainer *trainer, const int32_t *prompt, int64_t length,
                                     int64_t count, float temperature, uint64_t seed, int32_t *out);
GT_API const gt_mesh *gt_trainer_mesh(const gt_trainer *trainer);
/* Number of parameters of the whole model, each tied one once. */
GT_API int64_t gt_trainer_parameters(const gt_trainer *trainer);
/* Model FLOP of one step of the whole world: forward + backward (3 x forward), without
 * recomputation. */
GT_API double gt_trainer_step_flops(const gt_trainer *trainer);
/* Whole tensors in f32 by full name, on every rank; collective. numel must be the parameter's (see
 * gt_trainer_param_name). */
GT_API gt_status gt_trainer_read_param(gt_trainer *trainer, const char *name, float *host,
                                       int64_t numel);
GT_API gt_status gt_trainer_load_param(gt_trainer *trainer, const char *name, const float *host,
                                       int64_t numel);
/* Names in model order; i from 0; NULL past the end. */
GT_API const char *gt_trainer_param_name(const gt_trainer *trainer, int i, int *ndim,
                                         int64_t shape[4]);
GT_API gt_zero *gt_trainer_zero(gt_trainer *trainer);
/* Borrowed: for their reports, timelines and measured costs. */
GT_API const gt_schedule *gt_trainer_schedule(const gt_trainer *trainer);
GT_API const gt_pipeline *gt_trainer_pipeline(const gt_trainer *trainer);

#ifdef __cplusplus
}
#endif
#endif
