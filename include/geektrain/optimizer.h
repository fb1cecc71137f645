/* SPDX-License-Identifier: Apache-2.0
 *
 * Optimizers: tables of functions over shards and named states. The built-in ones (AdamW, Adam,
 * SGD, Lion, LAMB) are made of the same table as yours: see examples/own_optimizer.c.
 *
 * What one gets is a flat range of one parameter, wherever tensor parallelism and ZeRO have cut it:
 * an element-wise rule (AdamW) needs nothing else. A rule that needs the whole tensor (LAMB's
 * norms, Adafactor's row and column means) says how many sums it wants; `measure` adds this range's
 * part to them, they are summed over all ranks that have parts of the tensor, and `update` gets the
 * totals. That is what keeps the same training run in any layout.
 */
#ifndef GEEKTRAIN_OPTIMIZER_H
#define GEEKTRAIN_OPTIMIZER_H

#include <geektrain/config.h>
#include <geektrain/params.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GT_OPTIMIZER_STATES (GT_MAX_STATES - 2) /* element-wise ones and vectors together */

typedef struct gt_optimizer_state {
    const char *name; /* "m": under it states are read, loaded and saved                         */
    gt_dtype dtype;   /* f32, f16, bf16 */
    int64_t length; /* of a vector; not used of an element-wise state                            */
} gt_optimizer_state;

/* One range of one parameter. Tensors are flat, on the context's device, and have `count` elements;
 * what is said of stream order in ops.h holds. */
typedef struct gt_optimizer_call {
    size_t struct_size;
    gt_context *ctx;
    gt_stream *stream;
    const gt_optimizer_config *config;
    void *user;
    const gt_params *table; /* gt_params_slabs(table, param, first, count, ...) says where in the */
    int param;            /* whole tensor the range lies                                         */
    int64_t first, count; /* elements of this rank's flattened tensor                            */
    gt_tensor weight;     /* to be written, rounded; may be the memory of master                 */
    gt_tensor master;     /* f32, to be updated. With a remainder (takes_remainder): GT_U8 [2n]   */
    gt_tensor grad;       /* a float dtype; the gradient is grad * grad_scale                     */
    gt_tensor state[GT_OPTIMIZER_STATES]; /* in the order of states()                             */
    gt_tensor vector[GT_OPTIMIZER_STATES]; /* in the order of vectors(), whole */
    gt_tensor scratch; /* f32 [count]: what measure leaves there, update finds. Only with sums */
    double lr, weight_decay; /* the parameter's own scales are in them */
    double grad_scale; /* averaging, loss scale and clipping in one factor                   */
    int64_t step;      /* of this update, from 1                                             */
} gt_optimizer_call;

typedef struct gt_optimizer {
    size_t struct_size;
    const char *type;     /* its name in sentences */
    bool takes_remainder; /* a master kept as 16 more bits of a bf16 weight (gt_master_split) */
    /* Errors: GT_ERR_CONFIG naming what does not fit. May be NULL. */
    gt_status (*check)(const gt_optimizer_config *config, void *user);
    /* Fills the element-wise states, which start as 0, and returns how many. May be NULL: none. */
    int (*states)(const gt_optimizer_config *config, void *user,
                  gt_optimizer_state out[GT_OPTIMIZER_STATES]);
    /* Vectors of this parameter, of its own lengths; kept whole, f32, by each rank that has the
     * parameter, starting as 0. `update` must compute the same on all of them. May be NULL. */
    int (*vectors)(const gt_optimizer_config *config, void *user, const gt_param_info *info,
                   gt_optimizer_state out[GT_OPTIMIZER_STATES]);
    /* How many sums over the whole tensor update wants; 0: measure is not called. May be NULL: 0.
     */
    int64_t (*sums)(const gt_optimizer_config *config, void *user, const gt_param_info *info);
    /* sums f64 [n] on the device += this range's part. Called once for every element, in ranges. */
    gt_status (*measure)(const gt_optimizer_call *call, gt_tensor *sums);
    /* sums: the totals, on the host; NULL without. */
    gt_status (*update)(const gt_optimizer_call *call, const double *sums);
} gt_optimizer;
#define GT_OPTIMIZER_INIT GT_PARAMS_INIT(gt_optimizer)
GT_API void gt_optimizer_init(gt_optimizer *optimizer, size_t size);

/* The built-in one that a configuration means. Borrowed; NULL for a type that there is not. */
GT_API const gt_optimizer *gt_optimizer_of(const gt_optimizer_config *config);

#ifdef __cplusplus
}
#endif
#endif
