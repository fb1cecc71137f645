/* SPDX-License-Identifier: Apache-2.0
 *
 * What blocks declare and plan, as the engine (and tests) read it. Pure host memory.
 *
 * Use: gti_param_list_init, ops->declare, ..., gti_param_list_free; and gti_plan_init with layout
 * and inputs, ops->plan, gti_plan_check, ..., gti_plan_free.
 */
#ifndef GTI_NN_PLAN_H
#define GTI_NN_PLAN_H

#include <geektrain/block.h>

struct gt_param_list {
    gt_param *params; /* names are owned copies */
    int count, room;
};

typedef struct gti_constant {
    gt_shape shape;
    void *host; /* owned copy */
} gti_constant;

/* A growing list of shapes with the total bytes of their tensors, each starting at a multiple
 * of 64. */
typedef struct gti_shape_list {
    gt_shape *shapes;
    int count, room;
    size_t bytes;
} gti_shape_list;

struct gt_plan {
    gt_layout layout;
    int inputs;
    gt_shape in[GT_MAX_PORTS];
    int outputs;
    gt_shape out[GT_MAX_PORTS];
    gti_shape_list saved, workspace;
    gti_constant *constants;
    int constant_count, constant_room;
    double forward_flops;
};

struct gt_saved {
    gt_tensor *tensors;
    int count;
};

void gti_param_list_init(gt_param_list *list);
void gti_param_list_free(gt_param_list *list);

void gti_plan_init(gt_plan *plan, const gt_layout *layout, int inputs, const gt_shape *in);
void gti_plan_free(gt_plan *plan);

int64_t gti_plan_shape_numel(const gt_shape *shape);
size_t gti_plan_shape_bytes(const gt_shape *shape);
/* Bytes rounded up to the alignment of tensors inside a region. */
size_t gti_plan_shape_room(const gt_shape *shape);
gt_tensor gti_plan_shape_tensor(const gt_shape *shape, void *data, gt_device device);
/* Tensors of a list, one after the other from `base` on. */
void gti_shape_list_place(const gti_shape_list *list, void *base, gt_device device, gt_tensor *out);

#endif
