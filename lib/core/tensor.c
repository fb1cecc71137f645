/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor.h"

#include <stdio.h>

#include "core/fail.h"

gt_tensor gt_tensor_make(void *data, gt_dtype dtype, int ndim, const int64_t *shape)
{
    gt_tensor t = {.data = data, .dtype = dtype, .ndim = ndim};
    for (int i = 0; i < ndim && i < GT_MAX_DIMS; i++) {
        t.shape[i] = shape[i];
    }
    return t;
}

gt_tensor gt_tensor_1d(void *data, gt_dtype dtype, int64_t n)
{
    return gt_tensor_make(data, dtype, 1, (const int64_t[]){n});
}

gt_tensor gt_tensor_2d(void *data, gt_dtype dtype, int64_t rows, int64_t columns)
{
    return gt_tensor_make(data, dtype, 2, (const int64_t[]){rows, columns});
}

int64_t gt_tensor_numel(const gt_tensor *t)
{
    int64_t numel = 1;
    for (int i = 0; i < t->ndim && i < GT_MAX_DIMS; i++) {
        numel *= t->shape[i];
    }
    return numel;
}

size_t gt_tensor_bytes(const gt_tensor *t)
{
    return (size_t)gt_tensor_numel(t) * gt_dtype_size(t->dtype);
}

gt_status gti_shape_bytes(gt_dtype dtype, int ndim, const int64_t *shape, int64_t *numel,
                          size_t *bytes)
{
    size_t size = gt_dtype_size(dtype);
    if (size == 0) {
        return GT_FAIL(GT_ERR_DTYPE, "%d is not a dtype", (int)dtype);
    }
    if (ndim < 0 || ndim > GT_MAX_DIMS) {
        return GT_FAIL(GT_ERR_SHAPE, "ndim is %d, want 0 to %d", ndim, GT_MAX_DIMS);
    }
    if (ndim > 0 && shape == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "shape is NULL with ndim %d", ndim);
    }
    int64_t count = 1;
    bool empty = false;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0) {
            return GT_FAIL(GT_ERR_SHAPE, "dimension %d is %lld, want at least 0", i,
                           (long long)shape[i]);
        }
        empty = empty || shape[i] == 0;
    }
    for (int i = 0; i < ndim && !empty; i++) {
        if (__builtin_mul_overflow(count, shape[i], &count) || count > INT64_MAX / (int64_t)size) {
            return GT_FAIL(GT_ERR_SHAPE, "dimensions 0 to %d multiply to more than %lld bytes", i,
                           (long long)INT64_MAX);
        }
    }
    count = empty ? 0 : count;
    *numel = count;
    *bytes = (size_t)count * size;
    return GT_OK;
}

gt_status gt_tensor_reshape(gt_tensor *out, const gt_tensor *t, int ndim, const int64_t *shape)
{
    if (out == NULL || t == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s is NULL", out == NULL ? "out" : "t");
    }
    int64_t numel;
    size_t bytes;
    GT_TRY(gti_shape_bytes(t->dtype, ndim, shape, &numel, &bytes));
    if (numel != gt_tensor_numel(t)) {
        char text[GTI_TENSOR_TEXT];
        return GT_FAIL(GT_ERR_SHAPE, "the new shape has %lld elements, want those of %s",
                       (long long)numel, gti_tensor_text(text, t));
    }
    gt_tensor view = gt_tensor_make(t->data, t->dtype, ndim, shape);
    view.device = t->device;
    *out = view;
    return GT_OK;
}

gt_status gt_tensor_slice(gt_tensor *out, const gt_tensor *t, int64_t first, int64_t count)
{
    if (out == NULL || t == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s is NULL", out == NULL ? "out" : "t");
    }
    int64_t numel = gt_tensor_numel(t);
    if (first < 0 || count < 0 || first > numel || count > numel - first) {
        char text[GTI_TENSOR_TEXT];
        return GT_FAIL(GT_ERR_SHAPE, "the slice of %lld elements from %lld on leaves %s",
                       (long long)count, (long long)first, gti_tensor_text(text, t));
    }
    char *data = t->data;
    if (data != NULL) {
        data += (size_t)first * gt_dtype_size(t->dtype);
    }
    gt_tensor view = gt_tensor_1d(data, t->dtype, count);
    view.device = t->device;
    *out = view;
    return GT_OK;
}

const char *gti_device_type_name(gt_device_type type)
{
    switch (type) {
    case GT_DEVICE_CPU:
        return "cpu";
    case GT_DEVICE_GUARDED:
        return "guarded";
    case GT_DEVICE_CUDA:
        return "cuda";
    }
    return "not a device";
}

const char *gti_tensor_text(char text[GTI_TENSOR_TEXT], const gt_tensor *t)
{
    int used = snprintf(text, GTI_TENSOR_TEXT, "%s[", gt_dtype_name(t->dtype));
    for (int i = 0; i < t->ndim && i < GT_MAX_DIMS; i++) {
        used += snprintf(text + used, (size_t)(GTI_TENSOR_TEXT - used), "%s%lld", i > 0 ? "," : "",
                         (long long)t->shape[i]);
    }
    snprintf(text + used, (size_t)(GTI_TENSOR_TEXT - used), "] on %s",
             gti_device_type_name(t->device.type));
    return text;
}
