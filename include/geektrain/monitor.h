/* SPDX-License-Identifier: Apache-2.0
 *
 * What a person and a program see of a run: a progress line, and metrics.jsonl in the run
 * directory. Used on one rank; all calls are local.
 */
#ifndef GEEKTRAIN_MONITOR_H
#define GEEKTRAIN_MONITOR_H

#include <geektrain/step.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gt_monitor gt_monitor;

typedef struct gt_monitor_params {
    size_t struct_size;
    const char *run_dir; /* NULL or "": no files. Made with its parents when missing             */
    const gt_config *config; /* written to run_dir/config.json; may be NULL */
    int64_t first_step;  /* steps done before (a resumed run); metrics.jsonl is then appended to */
    int64_t total_steps; /* 0: unknown                                                           */
    double flops_per_step; /* gt_trainer_step_flops(); 0: unknown */
    double peak_flops; /* of the whole world, for the share in percent; steps that are faster raise
                          it; 0: unknown */
    int64_t print_interval; /* steps between lines when not interactive; 0: 10 */
    void *stream;    /* FILE * of the progress line; NULL: stderr                            */
    int interactive; /* redraw in place: 0 on a terminal unless TERM=dumb, 1 yes, -1 no      */
    int width;       /* columns; 0: the terminal's, else COLUMNS, else 80                    */
    int color;       /* 0: on a terminal without NO_COLOR, 1 yes, -1 no                      */
} gt_monitor_params;
#define GT_MONITOR_PARAMS_INIT GT_PARAMS_INIT(gt_monitor_params)
GT_API void gt_monitor_params_init(gt_monitor_params *params, size_t size);

/* Errors: GT_ERR_IO naming the directory or file that cannot be written. params may be NULL. */
GT_API gt_status gt_monitor_create(gt_monitor **out, const gt_monitor_params *params);
/* Ends the progress line, closes the files. */
GT_API void gt_monitor_destroy(gt_monitor **monitor);
/* One step done: draws, and appends one JSON object to metrics.jsonl, which is flushed. */
GT_API gt_status gt_monitor_step(gt_monitor *monitor, const gt_step_result *result);
/* A validation loss: a line above the progress line, and a JSON object. */
GT_API gt_status gt_monitor_evaluation(gt_monitor *monitor, double loss, int64_t tokens);
/* Prints a line above the progress line. */
GT_API void gt_monitor_message(gt_monitor *monitor, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Makes a directory and its missing parents. Errors: GT_ERR_IO. */
GT_API gt_status gt_make_directory(const char *path);
/* FLOP per second of this context's gemm between operands of dtype: the best of as many products of
 * up to [2048, 2048] as fit into about 0.3 s. Ranks that share a machine should call it at the same
 * time, as they train at the same time; their peaks add up. Takes up to 48 MiB while it runs.
 * Errors: GT_ERR_UNSUPPORTED, GT_ERR_MEMORY. */
GT_API gt_status gt_peak_flops(gt_context *ctx, gt_dtype dtype, double *flops);

#ifdef __cplusplus
}
#endif
#endif
