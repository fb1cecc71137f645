/* SPDX-License-Identifier: Apache-2.0 */
#include <geektrain/status.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/fail.h"

static _Thread_local char last_error[GTI_ERROR_MAX];

gt_status gti_fail(gt_status status, const char *format, ...)
{
    /* Formatted aside first: an argument may be gt_last_error() itself. */
    char text[GTI_ERROR_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(last_error, text, sizeof text);
    return status;
}

gt_status gt_set_error(gt_status status, const char *format, ...)
{
    char text[GTI_ERROR_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return gti_fail_text(status, text);
}

gt_status gti_fail_in(gt_status status, const char *format, ...)
{
    char place[GTI_ERROR_MAX], cause[GTI_ERROR_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(place, sizeof place, format, args);
    va_end(args);
    gti_error_copy(cause);
    return gti_fail(status, "%s: %s", place, cause);
}

gt_status gti_fail_text(gt_status status, const char *text)
{
    size_t length = strnlen(text, GTI_ERROR_MAX - 1);
    memmove(last_error, text, length);
    last_error[length] = '\0';
    return status;
}

void gti_error_copy(char text[GTI_ERROR_MAX])
{
    memcpy(text, last_error, GTI_ERROR_MAX);
}

const char *gt_last_error(void)
{
    return last_error;
}

const char *gt_status_name(gt_status status)
{
#define NAME(code)                                                                                 \
    case code:                                                                                     \
        return #code
    switch (status) {
        NAME(GT_OK);
        NAME(GT_ERR_ARGUMENT);
        NAME(GT_ERR_SHAPE);
        NAME(GT_ERR_DTYPE);
        NAME(GT_ERR_MEMORY);
        NAME(GT_ERR_UNSUPPORTED);
        NAME(GT_ERR_IO);
        NAME(GT_ERR_FORMAT);
        NAME(GT_ERR_CONFIG);
        NAME(GT_ERR_COMM);
        NAME(GT_ERR_MISMATCH);
        NAME(GT_ERR_PEER);
        NAME(GT_ERR_TIMEOUT);
        NAME(GT_ERR_STATE);
        NAME(GT_ERR_DEVICE);
        NAME(GT_ERR_INTERNAL);
    }
#undef NAME
    return "not a gt_status";
}
