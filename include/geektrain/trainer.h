/* SPDX-License-Identifier: Apache-2.0
 *
 * The step engine: model, mesh, ZeRO, pipeline schedule, loss scaler and optimizer put together.
 */
#ifndef GEEKTRAIN_TRAINER_H
#define GEEKTRAIN_TRAINER_H

#include <geektrain/block.h>
#include <geektrain/config.h>
#include <geektrain/data.h>
#include <geektrain/optimizer.h>
#include <geektrain/params.h>
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
typedef struct gt_trainer_options {
    size_t struct_size;
    const gt_optimizer
        *optimizer;       /* of your own, in place of the configuration's type (optimizer.h).
                             Copied; its functions must outlive the trainer             */
    void *optimizer_user; /* handed to them                                               */
} gt_trainer_options;
#define GT_TRAINER_OPTIONS_INIT GT_PARAMS_INIT(gt_trainer_options)
GT_API void gt_trainer_options_init(gt_trainer_options *options, size_t size);
/* The same with what no configuration can say. options may be NULL. */
GT_API gt_status gt_trainer_create_with(gt_trainer **out, gt_context *ctx, gt_comm *world,
                                        gt_model *model, const gt_config *config,
                                        const gt_trainer_options *options);
GT_API void gt_trainer_destroy(gt_trainer **trainer);

/* ---- a step, whole --------------------------------------------------------------------------- */
/* One optimizer step on a global batch. `batch` is this data rank's part (config.train_batch /
 * dp samples; fewer, or samples 0, is fine: missing ones count as ignored); ranks that share a data
 * rank pass the same. Its memory is read before the call returns. result (GT_STEP_RESULT_INIT) may
 * be NULL. A skipped step is GT_OK: see result->outcome; after config.max_skipped_steps of them in
 * a row for gradients that are not finite it is GT_ERR_STATE, and the trainer goes on when called
 * again. Collective. Errors: GT_ERR_SHAPE (batch), GT_ERR_ARGUMENT (a token or target outside the
 * vocabulary), the collectives'; after one of these the trainer is unusable, every rank has got an
 * error, and later calls repeat the first cause. */
GT_API gt_status gt_trainer_step(gt_trainer *trainer, const gt_batch *batch,
                                 gt_step_result *result);

/* ---- a step, taken apart ---------------------------------------------------------------------
 *
 *     gt_trainer_forward_backward   any number of times: gradients add up over the batches
 *     gt_trainer_gradient_norm, _read_grad, _load_grad       look at gradients, change them
 *     gt_trainer_apply or gt_trainer_discard
 *
 * With one batch and nothing changed it is gt_trainer_step to the bit, in any layout. All are
 * collective over the world. What a step is made of is examples/own_step.c. */

/* Forward and backward of one global batch (as gt_trainer_step's). loss (mean over its valid
 * tokens) and tokens may be NULL. The step's loss is the mean over all its batches' tokens. Errors:
 * as gt_trainer_step; GT_ERR_STATE once the step's gradients were asked for. */
GT_API gt_status gt_trainer_forward_backward(gt_trainer *trainer, const gt_batch *batch,
                                             double *loss, int64_t *tokens);
/* Norm of the gradient of the step's mean loss, before clipping; not finite where a gradient is
 * not. */
GT_API gt_status gt_trainer_gradient_norm(gt_trainer *trainer, double *norm);
/* The whole gradient of a parameter, f32, on every rank; of the mean loss, unscaled. A frozen one's
 * is 0, and cannot be loaded. Loading takes the same values on every rank; the norm follows. */
GT_API gt_status gt_trainer_read_grad(gt_trainer *trainer, const char *name, float *host,
                                      int64_t numel);
GT_API gt_status gt_trainer_load_grad(gt_trainer *trainer, const char *name, const float *host,
                                      int64_t numel);
typedef struct gt_apply_params {
    size_t struct_size;
    double clip_factor;   /* gradients are multiplied by it; 0: as the configuration clips        */
    double learning_rate; /* of this step; 0: the schedule's, or gt_trainer_set_learning_rate's   */
} gt_apply_params;
#define GT_APPLY_PARAMS_INIT GT_PARAMS_INIT(gt_apply_params)
GT_API void gt_apply_params_init(gt_apply_params *params, size_t size);
/* Ends the step: updates, or skips as gt_trainer_step does. params and result may be NULL. */
GT_API gt_status gt_trainer_apply(gt_trainer *trainer, const gt_apply_params *params,
                                  gt_step_result *result);
/* Ends the step without an update and without a trace: no count, no loss scaling. */
GT_API gt_status gt_trainer_discard(gt_trainer *trainer);

/* ---- settings at run time --------------------------------------------------------------------
 * Collective over the world, between steps; the same on every rank. */
/* From the next step on, in place of the schedule's; NaN: the schedule again. */
GT_API gt_status gt_trainer_set_learning_rate(gt_trainer *trainer, double learning_rate);
GT_API gt_status gt_trainer_set_weight_decay(gt_trainer *trainer, double weight_decay);
/* Parameters whose full name matches the pattern (fnmatch: "blocks.*.attn.*") are not trained from
 * now on, or are again: gradient, master and optimizer state are freed, or made anew from 0.
 * Errors: GT_ERR_ARGUMENT (nothing matches). */
GT_API gt_status gt_trainer_freeze(gt_trainer *trainer, const char *pattern, bool frozen);
/* What is the trainer's own beside its parameters' states. */
typedef struct gt_trainer_state {
    size_t struct_size;
    int64_t applied, skipped, skipped_in_row; /* steps; applied + 1 is the next update's number */
    gt_loss_scaler scaler;
} gt_trainer_state;
#define GT_TRAINER_STATE_INIT GT_PARAMS_INIT(gt_trainer_state)
GT_API void gt_trainer_state_init(gt_trainer_state *state, size_t size);
GT_API gt_status gt_trainer_get_state(const gt_trainer *trainer, gt_trainer_state *out);
GT_API gt_status gt_trainer_set_state(gt_trainer *trainer, const gt_trainer_state *state);

/* ---- evaluation, generation ------------------------------------------------------------------ */
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
/* Borrowed: every parameter of the model, each tied one once, in model order; the same rows on
 * every rank, with this rank's parts. */
GT_API const gt_params *gt_trainer_params(const gt_trainer *trainer);
/* Whole states in f32 by the parameter's full name and the state's ("weight", "master", "m": see
 * gt_params_state), on every rank, whatever the layout: host has numel floats, numel must be the
 * state's. state NULL, and gt_trainer_read_param: the master, or the weight where there is none.
 * Collective; loading takes the same values on every rank. Loading the weight loads the master too.
 * Errors: GT_ERR_ARGUMENT (no such parameter or state), GT_ERR_SHAPE. */
GT_API gt_status gt_trainer_read_state(gt_trainer *trainer, const char *name, const char *state,
                                       float *host, int64_t numel);
GT_API gt_status gt_trainer_load_state(gt_trainer *trainer, const char *name, const char *state,
                                       const float *host, int64_t numel);
GT_API gt_status gt_trainer_read_param(gt_trainer *trainer, const char *name, float *host,
                                       int64_t numel);
GT_API gt_status gt_trainer_load_param(gt_trainer *trainer, const char *name, const float *host,
                                       int64_t numel);
/* Borrowed: its memory by gt_zero_formula(), for instance. */
GT_API gt_zero *gt_trainer_zero(gt_trainer *trainer);
/* Borrowed: for their reports, timelines and measured costs. */
GT_API const gt_schedule *gt_trainer_schedule(const gt_trainer *trainer);
GT_API const gt_pipeline *gt_trainer_pipeline(const gt_trainer *trainer);

#ifdef __cplusplus
}
#endif
#endif
