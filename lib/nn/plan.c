/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/plan.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/params.h"
#include "core/tensor.h"
#include "params/param_layout.h"

enum { REGION_ALIGN = 64 };

/* Makes room for one more element of `size` bytes. */
static gt_status grow(void **array, int count, int *room, size_t size)
{
    if (count < *room) {
        return GT_OK;
    }
    int wanted = *room ? 2 * *room : 8;
    void *grown = realloc(*array, (size_t)wanted * size);
    if (grown == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for a list of %d", wanted);
    }
    *array = grown;
    *room = wanted;
    return GT_OK;
}

/* ---- parameters -------------------------------------------------------------------------------
 */

void gti_param_list_init(gt_param_list *list)
{
    *list = (gt_param_list){0};
}

void gti_param_list_free(gt_param_list *list)
{
    for (int i = 0; i < list->count; i++) {
        free((char *)list->params[i].name);
        free((char *)list->params[i].tied_to);
    }
    free(list->params);
    *list = (gt_param_list){0};
}

gt_status gt_param_add(gt_param_list *list, const gt_param *param)
{
    if (list == NULL || param == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_param_add needs a list and a parameter");
    }
    gt_param copy;
    GT_TRY(GTI_PARAMS_COPY(&copy, param, gt_param));
    GT_TRY(gti_param_check(&copy));
    if (strlen(copy.name) >= GT_PARAM_NAME_MAX) {
        return GT_FAIL(GT_ERR_ARGUMENT,
                       "parameter name %.40s... has %zu characters, want at most %d", copy.name,
                       strlen(copy.name), GT_PARAM_NAME_MAX - 1);
    }
    for (int i = 0; i < list->count; i++) {
        if (strcmp(list->params[i].name, copy.name) == 0) {
            return GT_FAIL(GT_ERR_ARGUMENT, "parameter %s is declared twice", copy.name);
        }
    }
    GT_TRY(grow((void **)&list->params, list->count, &list->room, sizeof(gt_param)));
    const char *name = copy.name, *tied_to = copy.tied_to;
    copy.name = strdup(name);
    copy.tied_to = tied_to ? strdup(tied_to) : NULL;
    if (copy.name == NULL || (tied_to != NULL && copy.tied_to == NULL)) {
        free((char *)copy.name);
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for the name of parameter %s", name);
    }
    list->params[list->count++] = copy;
    return GT_OK;
}

/* ---- shapes -----------------------------------------------------------------------------------
 */

int64_t gti_plan_shape_numel(const gt_shape *shape)
{
    int64_t n = 1;
    for (int i = 0; i < shape->ndim; i++) {
        n *= shape->dims[i];
    }
    return n;
}

size_t gti_plan_shape_bytes(const gt_shape *shape)
{
    return (size_t)gti_plan_shape_numel(shape) * gt_dtype_size(shape->dtype);
}

size_t gti_plan_shape_room(const gt_shape *shape)
{
    return (gti_plan_shape_bytes(shape) + REGION_ALIGN - 1) / REGION_ALIGN * REGION_ALIGN;
}

gt_tensor gti_plan_shape_tensor(const gt_shape *shape, void *data, gt_device device)
{
    gt_tensor t = gt_tensor_make(data, shape->dtype, shape->ndim, shape->dims);
    t.device = device;
    return t;
}

void gti_shape_list_place(const gti_shape_list *list, void *base, gt_device device, gt_tensor *out)
{
    char *at = base;
    for (int i = 0; i < list->count; i++) {
        out[i] = gti_plan_shape_tensor(&list->shapes[i], at, device);
        at += gti_plan_shape_room(&list->shapes[i]);
    }
}

static gt_status make_shape(gt_shape *out, const char *what, gt_dtype dtype, int ndim,
                            const int64_t *dims)
{
    if (gt_dtype_size(dtype) == 0 || ndim < 0 || ndim > GT_MAX_DIMS || (ndim > 0 && dims == NULL)) {
        return GT_FAIL(GT_ERR_SHAPE,
                       "%s has dtype %d and %d dimensions, wanted a dtype and 0 to %d", what,
                       (int)dtype, ndim, GT_MAX_DIMS);
    }
    *out = (gt_shape){.dtype = dtype, .ndim = ndim};
    int64_t numel = 1;
    for (int i = 0; i < ndim; i++) {
        if (dims[i] < 0) {
            return GT_FAIL(GT_ERR_SHAPE, "%s has dimension %d of length %lld", what, i,
                           (long long)dims[i]);
        }
        if (__builtin_mul_overflow(numel, dims[i], &numel) || numel > GTI_NUMEL_MAX) {
            return GT_FAIL(GT_ERR_SHAPE, "%s has more than 2^52 elements, dimension %d is %lld",
                           what, i, (long long)dims[i]);
        }
        out->dims[i] = dims[i];
    }
    return GT_OK;
}

static gt_status list_add(gti_shape_list *list, const char *what, gt_dtype dtype, int ndim,
                          const int64_t *dims)
{
    gt_shape shape;
    GT_TRY(make_shape(&shape, what, dtype, ndim, dims));
    GT_TRY(grow((void **)&list->shapes, list->count, &list->room, sizeof(gt_shape)));
    list->shapes[list->count++] = shape;
    list->bytes += gti_plan_shape_room(&shape);
    return GT_OK;
}

/* ---- the plan ---------------------------------------------------------------------------------
 */

void gti_plan_init(gt_plan *plan, const gt_layout *layout, int inputs, const gt_shape *in)
{
    *plan = (gt_plan){.layout = *layout, .inputs = inputs};
    for (int i = 0; i < inputs; i++) {
        plan->in[i] = in[i];
    }
}

void gti_plan_free(gt_plan *plan)
{
    for (int i = 0; i < plan->constant_count; i++) {
        free(plan->constants[i].host);
    }
    free(plan->constants);
    free(plan->saved.shapes);
    free(plan->workspace.shapes);
    *plan = (gt_plan){0};
}

const gt_layout *gt_plan_layout(const gt_plan *plan)
{
    return &plan->layout;
}

int gt_plan_inputs(const gt_plan *plan)
{
    return plan->inputs;
}

const gt_shape *gt_plan_input(const gt_plan *plan, int port)
{
    return port >= 0 && port < plan->inputs ? &plan->in[port] : NULL;
}

gt_status gt_plan_output(gt_plan *plan, gt_dtype dtype, int ndim, const int64_t *dims)
{
    if (plan->outputs == GT_MAX_PORTS) {
        return GT_FAIL(GT_ERR_ARGUMENT, "a block declares more than %d outputs", GT_MAX_PORTS);
    }
    GT_TRY(make_shape(&plan->out[plan->outputs], "an output", dtype, ndim, dims));
    plan->outputs++;
    return GT_OK;
}

gt_status gt_plan_save(gt_plan *plan, gt_dtype dtype, int ndim, const int64_t *dims)
{
    return list_add(&plan->saved, "a saved tensor", dtype, ndim, dims);
}

gt_status gt_plan_workspace(gt_plan *plan, gt_dtype dtype, int ndim, const int64_t *dims)
{
    return list_add(&plan->workspace, "a workspace tensor", dtype, ndim, dims);
}

gt_status gt_plan_constant(gt_plan *plan, gt_dtype dtype, int ndim, const int64_t *dims,
                           const void *host)
{
    gti_constant c;
    GT_TRY(make_shape(&c.shape, "a constant tensor", dtype, ndim, dims));
    GT_TRY(grow((void **)&plan->constants, plan->constant_count, &plan->constant_room,
                sizeof(gti_constant)));
    size_t bytes = gti_plan_shape_bytes(&c.shape);
    c.host = malloc(bytes ? bytes : 1);
    if (c.host == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for a constant of %zu bytes", bytes);
    }
    memcpy(c.host, host, bytes);
    plan->constants[plan->constant_count++] = c;
    return GT_OK;
}

void gt_plan_flops(gt_plan *plan, double forward_flops)
{
    plan->forward_flops += forward_flops;
}

gt_tensor *gt_saved_tensor(gt_saved *saved, int index)
{
    GT_ASSERT(index >= 0 && index < saved->count);
    return &saved->tensors[index];
}
