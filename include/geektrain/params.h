/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters: what is declared of each, and the table that says everything about them.
 *
 * One row per parameter: its name and global shape, how tensor parallelism cuts it, the unit and
 * the flat range where ZeRO keeps it, its states (weight, master, what the optimizer adds), and
 * which part of each state this rank owns. Over all ranks the owned parts cover every element of
 * every state exactly once, in any layout: what is saved, exported or counted by the global norm is
 * that.
 *
 * A trainer makes its table from what the blocks declare (gt_trainer_params). A program of its own
 * makes one for gt_zero_create:
 *
 *     gt_params_create(&table, NULL);
 *     gt_params_add_unit(table, "layer.0", NULL, &unit);
 *     gt_params_add(table, unit, &weight, &w);          w, b: their numbers in every later call
 *     gt_params_add(table, unit, &bias, &b);
 *
 * All of it is host memory and arithmetic; nothing here is collective. Every rank declares the same
 * parameters in the same order.
 */
#ifndef GEEKTRAIN_PARAMS_H
#define GEEKTRAIN_PARAMS_H

#include <geektrain/comm.h>
#include <geektrain/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GT_PARAM_NAME_MAX 96 /* within a block; block and parameter together: twice that */
#define GT_MAX_SECTIONS 4
#define GT_MAX_STATES 8 /* of one parameter, its weight and master included */

/* ---- declaration ----------------------------------------------------------------------------- */
typedef struct gt_param {
    size_t struct_size;
    const char *name; /* of a block's parameter: within the block, "attn.qkv.weight"; the engine
                         prefixes the block's name. Copied */
    int ndim; /* 0 to 4                                                                    */
    int64_t shape[4]; /* global */
    int tp_axis;      /* axis cut over the tensor-parallel ranks, or GT_REPLICATED (0 is an axis;
                         GT_PARAM_INIT sets GT_REPLICATED)      */
    int64_t tp_unit;  /* that axis is cut in whole multiples of it (head size); 0 = 1 */
    int sections;     /* 0 or 1: the axis is cut as one piece. More: it is a stack of so many parts,
                         each cut on its own (q, k and v of a packed qkv; gate and up)              */
    int64_t section[GT_MAX_SECTIONS]; /* their lengths; they add up to shape[tp_axis] */
    bool tp_share; /* a section with fewer units than ranks (key/value heads) is not cut to
                      nothing: rank r holds unit r*units/tp; ranks that share a unit are
                      replicas, whose gradients are summed                                       */
    gt_init_kind init;
    float mean, std; /* initial values: constant mean / normal(mean, std) / uniform in [mean - std,
                        mean + std)                                                               */
    bool no_decay; /* weight decay does not apply. Norms and biases should set it                */
    bool frozen;   /* not trained: no gradient, no master, no optimizer state, no reduction. A
                      trainer freezes by configuration and at run time too (gt_trainer_freeze)    */
    bool sets_gradient; /* backward (of a loss block: forward) looks at step->unset and there writes
                           the gradient instead of adding to it: it need not be cleared        */
    bool sequence_partial; /* replicated over tp, but under sequence parallelism each tp rank sees
                          only its rows: its gradient is summed over tp once (norms, biases) */
    const char *tied_to;   /* full name of the parameter of an earlier block ("embed.tokens") whose
                            memory this is: as many elements, the same tp_axis. On several pipeline
                            stages only if those are the first and the last. Copied   */
    float lr_scale, decay_scale; /* multiply learning rate and weight decay; 0 = 1 (see no_decay) */
} gt_param;
#define GT_REPLICATED (-1)
#ifdef __cplusplus
#define GT_PARAM_INIT gt_params_by(gt_param_init)
#else
#define GT_PARAM_INIT                                                                              \
    {                                                                                              \
        .struct_size = sizeof(gt_param), .tp_axis = GT_REPLICATED                                  \
    }
#endif
GT_API void gt_param_init(gt_param *param, size_t size);

/* What a block's declare() fills. */
typedef struct gt_param_list gt_param_list;
/* Declares a parameter (*param is copied); its index is the number of declarations before it.
 * Errors: GT_ERR_ARGUMENT, GT_ERR_SHAPE (sections that do not add up). The engine gives the tensor
 * as step->params[index], cut for this rank: each section of axis tp_axis has
 * gt_split_count(section/unit, tp, tp_rank)*unit elements, beginning at gt_split_first(...)*unit;
 * the local tensor stacks the rank's pieces. */
GT_API gt_status gt_param_add(gt_param_list *list, const gt_param *param);

/* ---- the table ------------------------------------------------------------------------------- */
typedef struct gt_params gt_params;

/* This rank's place in tensor parallelism. */
typedef struct gt_params_params {
    size_t struct_size;
    int tp_size, tp_rank;   /* 0, 0: not cut                                                      */
    bool sequence_parallel; /* sequence_partial parameters have partial gradients                 */
} gt_params_params;
#define GT_PARAMS_PARAMS_INIT GT_PARAMS_INIT(gt_params_params)
GT_API void gt_params_params_init(gt_params_params *params, size_t size);
/* params may be NULL. Errors: GT_ERR_ARGUMENT (a rank outside the size), GT_ERR_MEMORY. */
GT_API gt_status gt_params_create(gt_params **out, const gt_params_params *params);
/* After everything that was made from it. */
GT_API void gt_params_destroy(gt_params **table);

/* A unit: parameters that are gathered and reduced together (a layer, usually). */
typedef struct gt_unit_params {
    size_t struct_size;
    gt_comm *tie; /* gradients are summed over it as well: ranks that hold copies of a tied
                     parameter (pipeline stages). Borrowed; NULL: none */
    bool copy;    /* of a tied parameter that another rank of `tie` owns                          */
} gt_unit_params;
#define GT_UNIT_PARAMS_INIT GT_PARAMS_INIT(gt_unit_params)
GT_API void gt_unit_params_init(gt_unit_params *params, size_t size);
/* *unit is its number, from 0; params may be NULL. Errors: GT_ERR_STATE once gt_zero_create has
 * taken the table. */
GT_API gt_status gt_params_add_unit(gt_params *table, const char *name,
                                    const gt_unit_params *params, int *unit);
/* Adds a parameter by its full name, unique in the table, to a unit, or to none (GT_ELSEWHERE: on
 * another rank); *index (may be NULL) is its number, from 0. Errors: as gt_param_add, GT_ERR_STATE
 * once gt_zero_create has taken the table. */
GT_API gt_status gt_params_add(gt_params *table, int unit, const gt_param *param, int *index);
#define GT_ELSEWHERE (-1)

typedef struct gt_param_info {
    size_t struct_size;
    const char *name; /* borrowed: as long as the table                                           */
    int ndim;
    int64_t shape[4], local_shape[4]; /* global; of this tensor-parallel rank. Unused ones are 0 */
    int64_t numel, local_numel;
    int tp_axis;
    int unit;       /* GT_ELSEWHERE: not on this rank                                */
    int64_t offset; /* first element in the unit's flat bucket; -1 before ZeRO has it */
    float lr_scale, decay_scale; /* what the optimizer multiplies by; decay 0 where no_decay */
    bool frozen;
    bool partial; /* its gradient is summed over the tensor-parallel ranks                        */
    bool copy;    /* tied; the owner is on another pipeline stage                                 */
    int states;   /* 1: the weight alone                                                          */
} gt_param_info;
#define GT_PARAM_INFO_INIT GT_PARAMS_INIT(gt_param_info)
GT_API void gt_param_info_init(gt_param_info *info, size_t size);

GT_API int gt_params_count(const gt_params *table); /* 0 for NULL */
GT_API int gt_params_units(const gt_params *table);
/* Borrowed; NULL: there is none of that number. */
GT_API const char *gt_params_unit_name(const gt_params *table, int unit);
/* -1: none of that name. */
GT_API int gt_params_find(const gt_params *table, const char *name);
/* *out must be initialised with GT_PARAM_INFO_INIT. Errors: GT_ERR_ARGUMENT. */
GT_API gt_status gt_params_get(const gt_params *table, int param, gt_param_info *out);

/* State number k of a parameter: 0 is "weight", in the dtype of the model; 1 "master" (f32) where
 * the weight is of 16 bits; then the optimizer's ("m", "v", ...). An element-wise state has the
 * parameter's shape and is sharded with it; a vector is whole on each rank that has the parameter.
 */
typedef struct gt_state_info {
    size_t struct_size;
    const char *name;
    gt_dtype dtype;
    bool vector;
    int ndim;
    int64_t shape[4];
} gt_state_info;
#define GT_STATE_INFO_INIT GT_PARAMS_INIT(gt_state_info)
GT_API void gt_state_info_init(gt_state_info *info, size_t size);
GT_API gt_status gt_params_state(const gt_params *table, int param, int state, gt_state_info *out);
/* -1: it has none of that name. */
GT_API int gt_params_find_state(const gt_params *table, int param, const char *name);

/* A box of a tensor: elements [global, global + count) of the whole one are elements [local, local
 * + count) of this rank's; axis by axis. */
typedef struct gt_slab {
    int ndim;
    int64_t global[4], local[4], count[4];
} gt_slab;
#define GT_MAX_SLABS (7 * GT_MAX_SECTIONS)
/* The boxes of a state that this rank owns, once the table is with a gt_zero; returns how many (0:
 * nothing, or no such parameter or state). */
GT_API int gt_params_owned(const gt_params *table, int param, int state, gt_slab out[GT_MAX_SLABS]);
/* Where elements [first, first + count) of this rank's flattened tensor lie; returns how many
 * boxes, 0 when the range is not the tensor's. */
GT_API int gt_params_slabs(const gt_params *table, int param, int64_t first, int64_t count,
                           gt_slab out[GT_MAX_SLABS]);

#ifdef __cplusplus
}
#endif
#endif
