/* SPDX-License-Identifier: Apache-2.0
 * The text of the progress line: pure, so that it can be tested. */
#ifndef GTI_MONITOR_PROGRESS_H
#define GTI_MONITOR_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gti_progress {
    int64_t step, total; /* total 0: unknown              */
    double loss, gradient_norm, learning_rate;
    double tokens_per_s, flops_share; /* 0: unknown       */
    double seconds_left;              /* < 0: unknown     */
    bool color;
} gti_progress;

enum { GTI_PROGRESS_MAX = 512 };

/* At most width - 1 visible characters; a bar and as many figures as fit, in order of weight. */
void gti_progress_line(const gti_progress *p, int width, char out[GTI_PROGRESS_MAX]);
/* The same without a bar, in fixed columns. */
void gti_progress_plain(const gti_progress *p, char out[GTI_PROGRESS_MAX]);
/* "9.87k", "1.23M": four characters and a unit. */
void gti_format_count(double value, char *out, size_t size);
/* "0:05", "12:34", "1:02:03", "3d 04h". */
void gti_format_duration(double seconds, char *out, size_t size);

#endif
