/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters: what a block declares of each.
 */
#ifndef GEEKTRAIN_PARAMS_H
#define GEEKTRAIN_PARAMS_H

#include <geektrain/comm.h>
#include <geektrain/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GT_PARAM_NAME_MAX 96
#define GT_MAX_SECTIONS 4

typedef struct gt_param_list gt_param_list;

typedef struct gt_param {
    const char *name; /* within the block: "attn.qkv.weight"; copied; the engine prefixes the
                         block's name */
    int ndim; /* 1 to 4                                                                    */
    int64_t shape[4]; /* global */
    int tp_axis; /* axis cut over the tensor-parallel ranks, or GT_REPLICATED (0 is an axis)   */
    int64_t tp_unit; /* that axis is cut in whole multiples of it (head size); 0 = 1 */
    int sections;    /* 0 or 1: the axis is cut as one piece. More: axis 0 is a stack of so many
                        parts, each cut on its own (q, k and v of a packed qkv; gate and up)       */
    int64_t section[GT_MAX_SECTIONS]; /* their lengths; they add up to shape[tp_axis] */
    bool tp_share; /* a section with fewer units than ranks (key/value heads) is not cut to
                      nothing: rank r holds unit r*units/tp; ranks that share a unit are
                      replicas, whose gradients the engine sums                                 */
    gt_init_kind init;
    float mean, std; /* initial values: constant mean / normal(mean, std) / uniform in [mean - std,
                        mean + std)                                                               */
    bool no_decay; /* weight decay does not apply. Norms and biases should set it                */
    bool frozen;   /* no gradient, no update                                                    */
    bool sets_gradient; /* backward (of a loss block: forward) looks at step->unset and there writes
                           the gradient instead of adding to it: it need not be cleared        */
    bool sequence_partial; /* replicated over tp, but under sequence parallelism each tp rank sees
                          only its rows: its gradient is summed over tp once (norms, biases) */
    const char *tied_to;   /* full name of the parameter of an earlier block ("embed.tokens") whose
                            memory this is: as many elements, the same tp_axis. On several pipeline
                            stages only if those are the first and the last. Copied   */
} gt_param;
#define GT_REPLICATED (-1)

/* Declares a parameter (*param is copied); its index is the number of declarations before it.
 * Errors: GT_ERR_ARGUMENT, GT_ERR_SHAPE (sections that do not add up). The engine gives the tensor
 * as step->params[index], cut for this rank: each section of axis tp_axis has
 * gt_split_count(section/unit, tp, tp_rank)*unit elements, beginning at gt_split_first(...)*unit;
 * the local tensor stacks the rank's pieces. */
GT_API gt_status gt_param_add(gt_param_list *list, const gt_param *param);

#ifdef __cplusplus
}
#endif
#endif
