/* SPDX-License-Identifier: Apache-2.0
 *
 * ZeRO: parameters, gradients and optimizer state sharded over a communicator, as a primitive that
 * works on any training loop (Rajbhandari et al. 2020). The step engine uses nothing else.
 *
 * Parameters are grouped in *units* (a layer, usually): one flat, padded bucket each, with a table
 * parameter -> (offset, length). Stage 0 keeps everything, 1 shards the optimizer state, 2 also the
 * gradients, 3 also the parameters, which are gathered before use into rotating buffers.
 *
 *     for each unit in forward order:   gt_zero_gather; compute with gt_zero_param; gt_zero_release
 *     for each unit in backward order:  gt_zero_gather; add into gt_zero_grad; gt_zero_release;
 *                                       gt_zero_reduce
 *     gt_zero_finish  (waits for the reductions)   gt_zero_norm   gt_zero_update
 */
#ifndef GEEKTRAIN_ZERO_H
#define GEEKTRAIN_ZERO_H

#include <geektrain/comm.h>
#include <geektrain/config.h>
#include <geektrain/ops.h>
#include <geektrain/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- partition arithmetic: pure ----------------------------------------------------------------
 * n elements over `parts`: each part gets ceil(n/parts), the last ones less or nothing. */
GT_API int64_t gt_partition_size(int64_t n, int parts);            /* ceil                    */
GT_API int64_t gt_partition_real(int64_t n, int parts, int part);  /* real elements of a part */

typedef struct gt_zero gt_zero;

typedef struct gt_zero_tensor {
    const char *name;    /* copied                                                      */
    int64_t numel;       /* 0 and 1 are fine                                            */
    float lr_scale, decay_scale; /* multiply lr and weight decay; decay_scale 0: no decay */
    bool frozen;
    double norm_weight;  /* this copy's share in the global norm: 1, or 0 for a replica  */
    int64_t replica_from; /* > 0: elements from here on are replicas, counted on another rank */
    bool partial;        /* its gradient is first summed over params.model_comm           */
} gt_zero_tensor;

typedef struct gt_zero_params {
    size_t struct_size;
    int stage;                  /* 0..3                                                         */
    gt_dtype dtype;             /* of parameters                                                */
    gt_dtype communication_dtype; /* of full gradients and their reduction                      */
    gt_dtype accum_dtype;       /* of gradient shards (stage 2, 3)                              */
    gt_optimizer_config optimizer;
    int64_t persistence_threshold; /* stage 3: units with fewer elements stay gathered          */
    int hpz_partition_size;        /* 0, 1: off                                                 */
    int64_t reduce_bucket_size;    /* stages 0, 1: units smaller than it are reduced together   */
    gt_offload offload_optimizer;
    const char *offload_path;   /* directory of the file; the file is unlinked at once           */
    gt_comm *model_comm;        /* tensor-parallel group, or NULL: partial gradients, LAMB norms */
} gt_zero_params;
#define GT_ZERO_PARAMS_INIT {.struct_size = sizeof(gt_zero_params)}
GT_API void gt_zero_params_init(gt_zero_params *params, size_t size);

/* Collective over comm, borrowed: the group over which state is sharded and gradients summed. */
GT_API gt_status gt_zero_create(gt_zero **out, gt_context *ctx, gt_comm *comm,
                                const gt_zero_params *params);
GT_API void gt_zero_destroy(gt_zero **zero);
/* Adds a unit; *unit is its index. Names and sizes must agree across ranks (checked at allocate).
 * tie: NULL, or a communicator over which the unit's gradients are summed as well (copies of a tied
 * embedding on several pipeline stages). */
GT_API gt_status gt_zero_add_unit(gt_zero *zero, const char *name, int count,
                                  const gt_zero_tensor *tensors, gt_comm *tie, int *unit);
/* Allocates all state, collective. Parameters are zero until gt_zero_init_param or
 * gt_zero_load_param. */
GT_API gt_status gt_zero_allocate(gt_zero *zero);
/* Initial values of elements [first, first + count) of a tensor, computed where they live, without
 * communication; init's offset counts from `first`, its other fields are those of gt_init. Not
 * collective, but every rank must. */
GT_API gt_status gt_zero_init_param(gt_zero *zero, int unit, int tensor, int64_t first,
                                    int64_t count, const gt_init_params *init);
/* Sets / reads the whole fp32 (master) value of one tensor from / to host memory of numel floats;
 * reading is collective. After loading call gt_zero_publish. */
GT_API gt_status gt_zero_load_param(gt_zero *zero, int unit, int tensor, const float *host);
GT_API gt_status gt_zero_read_param(gt_zero *zero, int unit, int tensor, float *host);
/* Reads the whole gradient of the step, summed over ranks, between gt_zero_finish and
 * gt_zero_update. Collective. */
GT_API gt_status gt_zero_read_grad(gt_zero *zero, int unit, int tensor, float *host);
/* Publishes freshly initialised or loaded masters to the working parameters. Collective. */
GT_API gt_status gt_zero_publish(gt_zero *zero);

/* Begins to gather a unit so that a later gt_zero_gather waits less. Collective in program order. */
GT_API gt_status gt_zero_prefetch(gt_zero *zero, int unit);
/* The unit's parameters are ready on the compute stream until gt_zero_release; calls nest. */
GT_API gt_status gt_zero_gather(gt_zero *zero, int unit);
GT_API gt_status gt_zero_release(gt_zero *zero, int unit);
GT_API gt_status gt_zero_param(gt_zero *zero, int unit, int tensor, gt_tensor *out);
/* The full gradient of a tensor (flat), to be added to; zero at its first use after a reduce or a
 * step. data NULL when frozen. Tells the engine that this unit's gradients are in use. */
GT_API gt_status gt_zero_grad(gt_zero *zero, int unit, int tensor, gt_tensor *out);
/* This microbatch is done with the unit's gradients. last: of the step. Stage 0 and 1 reduce only
 * then; 2 and 3 reduce-scatter each time and add to the shard. Runs under later work. */
GT_API gt_status gt_zero_reduce(gt_zero *zero, int unit, bool last);
/* Waits for all reductions; units not reduced this step are (their gradients count as zero). */
GT_API gt_status gt_zero_finish(gt_zero *zero);
/* acc f64[1] += squared norm of this rank's distinct gradient elements, times norm_weight: an
 * all-reduce SUM of it over every rank gives the global squared norm. */
GT_API gt_status gt_zero_norm(gt_zero *zero, gt_tensor *acc);
/* One optimizer step on this rank's state with gradients * grad_scale, then parameters back. `step`
 * counts applied updates from 1. */
GT_API gt_status gt_zero_update(gt_zero *zero, double lr, double grad_scale, int64_t step);
/* Forgets this step's gradients (a skipped step). */
GT_API gt_status gt_zero_discard(gt_zero *zero);
/* After a non-finite norm: the first offending parameter on this rank, "" if none here. */
GT_API gt_status gt_zero_find_nonfinite(gt_zero *zero, char *name, size_t size);

/* Bytes this rank holds for model states, by the formula of docs/zero.md, and the gather buffers. */
typedef struct gt_zero_bytes {
    int64_t params, grads, optimizer, gather_buffers;
} gt_zero_bytes;
GT_API void gt_zero_formula(const gt_zero *zero, gt_zero_bytes *out);

#ifdef __cplusplus
}
#endif
#endif
