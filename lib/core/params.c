/* SPDX-License-Identifier: Apache-2.0 */
#include "core/params.h"

#include <string.h>

#include "core/fail.h"

void gti_params_init(void *params, size_t size)
{
    if (params == NULL || size < sizeof(size_t)) {
        return;
    }
    memset(params, 0, size);
    memcpy(params, &size, sizeof size);
}

gt_status gti_params_copy(void *dst, size_t size, const void *src, const char *type)
{
    size_t given = size;
    if (src != NULL) {
        memcpy(&given, src, sizeof given);
        if (given < sizeof given) {
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
