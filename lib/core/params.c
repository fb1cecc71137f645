/* SPDX-License-Identifier: Apache-2.0 */
#include "core/params.h"

#include <string.h>

#include "core/fail.h"

/* Above it a size is garbage: no struct of ours, in whatever release, is as large. */
#define GTI_STRUCT_MAX ((size_t)1 << 20)

void gti_params_init(void *params, size_t size)
{
    if (params == NULL || size < sizeof(size_t)) {
        return;
    }
    memset(params, 0, size);
    memcpy(params, &size, sizeof size);
}

void gti_params_defaults(void *params, size_t size, const void *defaults, size_t defaults_size)
{
    gti_params_init(params, size);
    if (params != NULL && size >= sizeof(size_t)) {
        memcpy(params, defaults, size < defaults_size ? size : defaults_size);
        memcpy(params, &size, sizeof size);
    }
}

gt_status gti_params_give(void *out, const void *ours, size_t size, const char *type)
{
    size_t given;
    memcpy(&given, out, sizeof given);
    if (given < sizeof given || given > GTI_STRUCT_MAX) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s.struct_size is %zu; initialise it with its _INIT macro",
                       type, given);
    }
    memset(out, 0, given);
    memcpy(out, ours, given < size ? given : size);
    memcpy(out, &given, sizeof given);
    return GT_OK;
}

gt_status gti_params_copy(void *dst, size_t size, const void *src, const char *type)
{
    size_t given = size;
    if (src != NULL) {
        memcpy(&given, src, sizeof given);
        if (given < sizeof given || given > GTI_STRUCT_MAX) {
            return GT_FAIL(GT_ERR_ARGUMENT,
                           "%s.struct_size is %zu; initialise it with its _INIT macro", type,
                           given);
        }
        for (size_t i = size; i < given; i++) {
            if (((const unsigned char *)src)[i] != 0) {
                return GT_FAIL(GT_ERR_ARGUMENT,
                               "%s has %zu bytes and byte %zu is set; this library knows %zu bytes",
                               type, given, i, size);
            }
        }
    }
    memset(dst, 0, size);
    if (src != NULL) {
        memcpy(dst, src, given < size ? given : size);
    }
    memcpy(dst, &size, sizeof size);
    return GT_OK;
}
