/* SPDX-License-Identifier: Apache-2.0 */
#include "core/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#define LINE_MAX_BYTES 2048

static void write_stderr(const char *prefix, gt_log_level level, const char *text)
{
    static const char *const words[] = {"error: ", "warning: ", "", "debug: "};
    fprintf(stderr, "%s%s%s\n", prefix, words[level], text);
}

void gti_log(const gt_context *ctx, gt_log_level level, const char *format, ...)
{
    static const gti_logger plain = {.level = GT_LOG_INFO};
    const gti_logger *logger = ctx != NULL ? (const gti_logger *)(const void *)ctx : &plain;
    if (level > logger->level) {
        return;
    }
    int saved_errno = errno;
    char prefix[48] = "";
    if (logger->size > 0) {
        snprintf(prefix, sizeof prefix, "[rank %d/%d] ", logger->rank, logger->size);
    }
    char text[LINE_MAX_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (logger->write == NULL) {
        write_stderr(prefix, level, text);
    } else {
        char line[LINE_MAX_BYTES + sizeof prefix];
        snprintf(line, sizeof line, "%s%s", prefix, text);
        logger->write(logger->user, level, line);
    }
    errno = saved_errno;
}
