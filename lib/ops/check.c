/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *device_name(gt_device_type type)
{
    static const char *const names[] = {"cpu", "guarded", "cuda"};
    return (unsigned)type < sizeof names / sizeof names[0] ? names[type] : "unknown";
}

static void dtypes_text(char *text, size_t size, unsigned dtypes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int d = 0; d < GT_DTYPE_COUNT && used < size; d++) {
        if (dtypes & GTI_ONLY(d)) {
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? " or " : "",
                                     gt_dtype_name((gt_dtype)d));
        }
    }
}

char *gti_shape_text(char text[GTI_SHAPE_TEXT], const gt_tensor *t)
{
    int used = snprintf(text, GTI_SHAPE_TEXT, "[");
    for (int i = 0; i < t->ndim && i < GT_MAX_DIMS; i++) {
        used += snprintf(text + used, (size_t)(GTI_SHAPE_TEXT - used), "%s%" PRId64, i ? "," : "",
                         t->shape[i]);
    }
    snprintf(text + used, (size_t)(GTI_SHAPE_TEXT - used), "]");
    return text;
}

gt_status gti_check_tensor(const gt_context *ctx, const char *name, const gt_tensor *t,
                           unsigned dtypes)
{
    if (ctx == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the context is NULL");
    }
    if (t == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s is NULL, wanted a tensor", name);
    }
    if (t->ndim < 0 || t->ndim > GT_MAX_DIMS) {
        return GT_FAIL(GT_ERR_SHAPE, "%s has %d dimensions, wanted 0 to %d", name, t->ndim,
                       GT_MAX_DIMS);
    }
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 0) {
            return GT_FAIL(GT_ERR_SHAPE, "%s has %" PRId64 " elements along axis %d", name,
                           t->shape[i], i);
        }
    }
    if ((unsigned)t->dtype >= GT_DTYPE_COUNT || !(dtypes & GTI_ONLY(t->dtype))) {
        char wanted[96];
        dtypes_text(wanted, sizeof wanted, dtypes);
        return GT_FAIL(GT_ERR_DTYPE, "%s is %s, wanted %s", name, gt_dtype_name(t->dtype), wanted);
    }
    if (t->data == NULL && gt_tensor_numel(t) != 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s has no data, wanted %" PRId64 " elements", name,
                       gt_tensor_numel(t));
    }
    gt_device device = gt_context_device(ctx);
    if (t->device.type != device.type || t->device.index != device.index) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s lies on device %s:%d, the context's is %s:%d", name,
                       device_name(t->device.type), t->device.index, device_name(device.type),
                       device.index);
    }
    return GT_OK;
}

gt_status gti_check_optional(const gt_context *ctx, const char *name, const gt_tensor *t,
                             unsigned dtypes)
{
    return gti_present(t) ? gti_check_tensor(ctx, name, t, dtypes) : GT_OK;
}

gt_status gti_check_numel(const char *name, const gt_tensor *t, const char *letters, int64_t n)
{
    int64_t got = gt_tensor_numel(t);
    if (got != n) {
        return GT_FAIL(GT_ERR_SHAPE, "%s has %" PRId64 " elements, wanted %s=%" PRId64, name, got,
                       letters, n);
    }
    return GT_OK;
}

void gti_rows_columns(const gt_tensor *t, int64_t *rows, int64_t *columns)
{
    int64_t n = 1;
    for (int i = 0; i + 1 < t->ndim; i++) {
        n *= t->shape[i];
    }
    *rows = n;
    *columns = t->ndim > 0 ? t->shape[t->ndim - 1] : 1;
}

gt_status gti_check_matrix(const char *name, const gt_tensor *t, const char *letters, int64_t rows,
                           int64_t columns)
{
    int64_t n, c;
    gti_rows_columns(t, &n, &c);
    if (n != rows || c != columns) {
        return GT_FAIL(GT_ERR_SHAPE,
                       "%s is [%" PRId64 ",%" PRId64 "], wanted %s=[%" PRId64 ",%" PRId64 "]", name,
                       n, c, letters, rows, columns);
    }
    return GT_OK;
}

gt_status gti_check_same_shape(const char *name, const gt_tensor *t, const char *other_name,
                               const gt_tensor *other)
{
    bool same = t->ndim == other->ndim;
    for (int i = 0; same && i < t->ndim; i++) {
        same = t->shape[i] == other->shape[i];
    }
    if (!same) {
        char got[GTI_SHAPE_TEXT], wanted[GTI_SHAPE_TEXT];
        return GT_FAIL(GT_ERR_SHAPE, "%s is %s, wanted the shape of %s, %s", name,
                       gti_shape_text(got, t), other_name, gti_shape_text(wanted, other));
    }
    return GT_OK;
}

gt_status gti_take_params(const char *type, void *into, size_t size, const void *params)
{
    if (params == NULL) {
        return GT_OK;
    }
    size_t given;
    memcpy(&given, params, sizeof given);
    if (given < sizeof(size_t) || given > 65536) {
        return GT_FAIL(GT_ERR_ARGUMENT,
                       "%s.struct_size is %zu, wanted sizeof(%s) (begin with its _PARAMS_INIT)",
                       type, given, type);
    }
    memcpy(into, params, given < size ? given : size);
    memcpy(into, &size, sizeof size);
    return GT_OK;
}

void gti_default_params(void *params, size_t size, const void *defaults, size_t defaults_size)
{
    if (params == NULL || size < sizeof(size_t)) {
        return;
    }
    memset(params, 0, size);
    memcpy(params, defaults, size < defaults_size ? size : defaults_size);
    memcpy(params, &size, sizeof size);
}
