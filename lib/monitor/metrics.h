/* SPDX-License-Identifier: Apache-2.0
 * metrics.jsonl: one JSON object per line. */
#ifndef GTI_MONITOR_METRICS_H
#define GTI_MONITOR_METRICS_H

#include <stdio.h>

#include <geektrain/step.h>

typedef struct gti_metrics {
    FILE *file; /* NULL: none */
    char path[GT_PATH_MAX];
} gti_metrics;

gt_status gti_metrics_open(gti_metrics *m, const char *directory, bool append);
gt_status gti_metrics_step(gti_metrics *m, int64_t step, const gt_step_result *r);
gt_status gti_metrics_evaluation(gti_metrics *m, int64_t step, double loss, int64_t tokens);
void gti_metrics_close(gti_metrics *m);

#endif
