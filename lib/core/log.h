/* SPDX-License-Identifier: Apache-2.0
 * One line per event, once, where it is first seen. */
#ifndef GTI_CORE_LOG_H
#define GTI_CORE_LOG_H

#include <geektrain/context.h>

typedef struct gti_logger {
    gt_log_fn write; /* NULL: stderr */
    void *user;
    gt_log_level level;
    int rank, size; /* size 0: no prefix */
} gti_logger;

/* ctx NULL logs to stderr at GT_LOG_INFO. The caller's errno and error sentence stay as they are.
 * Every gt_context starts with its gti_logger, which is all that this folder knows of it. */
void gti_log(const gt_context *ctx, gt_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
