/* SPDX-License-Identifier: Apache-2.0
 *
 * ZeRO: parameters, gradients and optimizer state sharded over a communicator, as a primitive that
 * works on any training loop (Rajbhandari et al. 2020). The step engine uses nothing else.
 *
 * Parameters are grouped in *units* (a layer, usually) of a parameter table (params.h), and are
 * known by their number there. Stage 0 keeps everything, 1 shards the optimizer state, 2 also the
 * gradients, 3 also the parameters, which are gathered before use into rotating buffers. With one
 * rank there is nothing to share: every stage is then 0. The calls below are the same for all
 * stages. Guide: docs/zero.md; a whole program: examples/zero3_own_loop.c.
 *
 *     for each unit in forward order:   gt_zero_gather; compute with gt_zero_param; gt_zero_release
 *     for each unit in backward order:  gt_zero_gather; add into gt_zero_grad; gt_zero_release;
 *                                       gt_zero_reduce
 *     gt_zero_finish  (waits for the reductions)   gt_zero_norm   gt_zero_update or _discard
 *
 * Everything that communicates is collective over the communicator: all ranks make these calls for
 * the same units in the same order. Errors of all: GT_ERR_ARGUMENT (a unit or parameter that there
 * is not), GT_ERR_STATE (wrong order of calls, naming the unit), and those of the collectives. A
 * rank that lacks memory for its part, or cannot reach its offload file, breaks the world, so that
 * the others do not wait for it (gt_comm_fail).
 */
#ifndef GEEKTRAIN_ZERO_H
#define GEEKTRAIN_ZERO_H

#include <geektrain/comm.h>
#include <geektrain/config.h>
#include <geektrain/optim.h>
#include <geektrain/optimizer.h>
#include <geektrain/params.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- partition arithmetic: pure ---------------------------------------------------------------
 * n elements over `parts`: each part gets ceil(n/parts), the last ones less or nothing. */
GT_API int64_t gt_partition_size(int64_t n, int parts);           /* ceil                    */
GT_API int64_t gt_partition_real(int64_t n, int parts, int part); /* real elements of a part */

typedef struct gt_zero gt_zero;

typedef struct gt_zero_params {
    size_t struct_size;
    int stage;                    /* 0..3                                                         */
    gt_dtype dtype;               /* of parameters: f32 (0), bf16, f16                            */
    gt_dtype communication_dtype; /* of gradients between ranks; sums are formed in f32. Stages 2
                                   and 3: also what gt_zero_grad hands out */
    gt_dtype accum_dtype; /* in which gradients are summed over microbatches. Stages 0 and 1:
                             also what gt_zero_grad hands out                             */
    gt_optimizer_config optimizer; /* type and constants; all zero: gt_config_init()'s           */
    const gt_optimizer *rule; /* an optimizer of your own in place of the built-in one of the type;
                                 it reads what it likes of `optimizer`. Borrowed                  */
    void *rule_user;          /* handed to it                                                     */
    int64_t persistence_threshold; /* stage 3: units with fewer elements stay gathered          */
    int hpz_partition_size;       /* stage 3: this many neighbouring ranks hold all parameters among
                                     them, so that gathers stay inside (ZeRO++, Wang et al. 2023);
                                     divides the ranks. 0, 1: off                              */
    int64_t reduce_bucket_size;   /* not used: each unit is reduced by itself                  */
    gt_offload offload_optimizer; /* masters and moments: device memory, host memory, or a file */
    const char *offload_path; /* directory of the file, NULL: "."; it is unlinked at once      */
    gt_comm *model_comm;      /* tensor-parallel group: the table's tp_size ranks, NULL for one.
                                 Partial gradients, shared heads, sums of whole tensors           */
} gt_zero_params;
#define GT_ZERO_PARAMS_INIT GT_PARAMS_INIT(gt_zero_params)
GT_API void gt_zero_params_init(gt_zero_params *params, size_t size);

/* Collective over comm, the group over which state is sharded and gradients summed, and over
 * params.model_comm. The table is taken: nothing can be added to it, and it now knows flat ranges
 * and states. ctx, comm, table and model_comm are borrowed and must outlive it; params is required.
 * Allocates no state yet. Errors: GT_ERR_ARGUMENT (stage, a table that another gt_zero has, of
 * another tp_size than model_comm), GT_ERR_DTYPE, GT_ERR_CONFIG (hpz does not divide the ranks;
 * what the optimizer refuses). */
GT_API gt_status gt_zero_create(gt_zero **out, gt_context *ctx, gt_comm *comm, gt_params *table,
                                const gt_zero_params *params);
/* Waits for what is under way. Every rank should, before the communicator goes. */
GT_API void gt_zero_destroy(gt_zero **zero);
/* Allocates all state, collective: GT_MEM_PARAMS, GT_MEM_GRADS, GT_MEM_OPTIMIZER as
 * gt_zero_formula() says. Parameters are zero until they are initialised or loaded.
 * Errors: GT_ERR_MEMORY or GT_ERR_IO (offload file) on one rank is an error on all;
 * GT_ERR_MISMATCH naming the first unit whose tensors differ. */
GT_API gt_status gt_zero_allocate(gt_zero *zero);
/* Initial values as the parameters' declarations say, computed where they live, without
 * communication: functions of the seed, the parameter's full name and the place in the whole
 * tensor, so the same in any layout. Not collective, but every rank must; then gt_zero_publish. */
GT_API gt_status gt_zero_init_values(gt_zero *zero, uint64_t seed);
/* A state of one parameter, as f32, from / to host memory of local_numel floats (a vector: its
 * length), by its number in the table: gt_params_find_state(table, param, "m"). Each rank takes its
 * part; reading is collective over comm and gives every rank of it the whole. After loading call
 * gt_zero_publish. Loading state 0, the weight, sets the master too; so does state 1. */
GT_API gt_status gt_zero_load_state(gt_zero *zero, int param, int state, const float *host);
GT_API gt_status gt_zero_read_state(gt_zero *zero, int param, int state, float *host);
/* The most precise value of a parameter: its master, or its weight where it has none. */
GT_API gt_status gt_zero_load_param(gt_zero *zero, int param, const float *host);
GT_API gt_status gt_zero_read_param(gt_zero *zero, int param, float *host);
/* The whole gradient of the step, summed over ranks, between gt_zero_finish and gt_zero_update; of
 * a frozen parameter zeros, which cannot be loaded. Reading is collective, loading is done by all
 * ranks with the same values. */
GT_API gt_status gt_zero_read_grad(gt_zero *zero, int param, float *host);
GT_API gt_status gt_zero_load_grad(gt_zero *zero, int param, const float *host);
/* Rounds freshly initialised or loaded masters into the parameters of all ranks. Collective.
 * gt_zero_gather refuses a unit that was loaded and not published. */
GT_API gt_status gt_zero_publish(gt_zero *zero);
/* From now on params[0..count) are not trained (frozen), or are again: frees or makes gradient,
 * master and optimizer state, which begin at 0 again. Between steps: no gradients open, nothing
 * gathered. Collective over comm. Needs host memory for one unit's states at a time. */
GT_API gt_status gt_zero_freeze(gt_zero *zero, const int *params, int count, bool frozen);
/* In place of params.optimizer.weight_decay, from the next update on; the same on all ranks. */
GT_API gt_status gt_zero_set_weight_decay(gt_zero *zero, double weight_decay);

/* Begins to gather a unit so that a later gt_zero_gather waits less; does nothing where two buffers
 * of its size are in use already, or there is nothing to gather. Must be followed by gt_zero_gather
 * of the unit. Collective. */
GT_API gt_status gt_zero_prefetch(gt_zero *zero, int unit);
/* The unit's parameters are ready on the compute stream until gt_zero_release; calls nest. Wanted
 * at every stage: the update's last part may still be on its way. Collective at stage 3. */
GT_API gt_status gt_zero_gather(gt_zero *zero, int unit);
GT_API gt_status gt_zero_release(gt_zero *zero, int unit);
/* A flat view of a parameter of a gathered unit, in params.dtype, on the context's device; valid
 * until the unit is released. Not to be written to. */
GT_API gt_status gt_zero_param(gt_zero *zero, int param, gt_tensor *out);
/* The full gradient of a parameter (flat), to be added to; zero at its first use after a reduce or
 * a step, valid until the unit's next gt_zero_reduce. data NULL when frozen. */
GT_API gt_status gt_zero_grad(gt_zero *zero, int param, gt_tensor *out);
/* The same; of a parameter with sets_gradient *unset says that *out holds nothing yet and is to be
 * written whole instead of added to, which saves clearing it. */
GT_API gt_status gt_zero_grad_unset(gt_zero *zero, int param, gt_tensor *out, bool *unset);
/* This microbatch is done with the unit's gradients. last: of the step. Stage 0 and 1 reduce only
 * then; 2 and 3 reduce-scatter each time and add to the shard. Gradients are summed over the ranks,
 * not averaged. Runs under later work. A rank that did not use the unit calls it too. Collective.
 */
GT_API gt_status gt_zero_reduce(gt_zero *zero, int unit, bool last);
/* Waits for all reductions; units whose last reduction of the step was not asked for are reduced
 * now (gradients of those not used count as zero). At stage 3 also compares the order of gathers
 * since the last one. Collective. Errors: GT_ERR_MISMATCH on all ranks, naming rank and unit where
 * the orders part; GT_ERR_STATE for a unit that is still gathered. */
GT_API gt_status gt_zero_finish(gt_zero *zero);
/* acc f64[1] += squared norm of this rank's distinct gradient elements, times norm_weight: an
 * all-reduce SUM of it over every rank gives the global squared norm. */
GT_API gt_status gt_zero_norm(gt_zero *zero, gt_tensor *acc);
/* One optimizer step on this rank's state with gradients * grad_scale (1/loss scale, clipping,
 * averaging in one factor), then parameters back to all ranks, under later work. `step` counts
 * applied updates from 1. The step's gradients are forgotten. Collective. Errors: GT_ERR_MISMATCH
 * when lr, grad_scale or step is not the same on all ranks. */
GT_API gt_status gt_zero_update(gt_zero *zero, double lr, double grad_scale, int64_t step);
/* Forgets this step's gradients: a step that is skipped. After gt_zero_finish; not collective, but
 * every rank must. */
GT_API gt_status gt_zero_discard(gt_zero *zero);
/* After a non-finite norm, before gt_zero_discard: the name of the first parameter whose gradient
 * is not finite in this rank's part, "" if none here. Waits. Not collective. */
GT_API gt_status gt_zero_find_nonfinite(gt_zero *zero, char *name, size_t size);

/* Bytes this rank holds for model states, by the formula of docs/zero.md (optimizer: 0 where it is
 * offloaded), and those of the buffers made so far for gathered parameters and for gradients under
 * way (GT_MEM_COMM): complete after the first step. */
typedef struct gt_zero_bytes {
    int64_t params, grads, optimizer, gather_buffers;
} gt_zero_bytes;
GT_API void gt_zero_formula(const gt_zero *zero, gt_zero_bytes *out);

#ifdef __cplusplus
}
#endif
#endif
