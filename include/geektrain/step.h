/* SPDX-License-Identifier: Apache-2.0
 *
 * What one optimizer step reports: the same on all ranks, but for the times.
 * docs/mixed-precision.md has the rules of skipped steps.
 */
#ifndef GEEKTRAIN_STEP_H
#define GEEKTRAIN_STEP_H

#include <geektrain/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GT_OFFENDER_MAX 192 /* two parameter names */

typedef enum gt_step_outcome {
    GT_STEP_APPLIED = 0,
    GT_STEP_SKIPPED_OVERFLOW,  /* non-finite gradients under a loss scale: the scaler reacts      */
    GT_STEP_SKIPPED_NONFINITE, /* non-finite gradients without a loss scale                       */
    GT_STEP_SKIPPED_NO_TOKENS  /* every target of the global batch was ignored                    */
} gt_step_outcome;
GT_API const char *gt_step_outcome_name(gt_step_outcome outcome);

typedef struct gt_step_result {
    size_t struct_size;
    gt_step_outcome outcome;
    double loss;          /* mean over the valid tokens of the global batch; same on all ranks  */
    int64_t tokens;       /* valid tokens of the global batch                                   */
    double gradient_norm; /* global, unscaled, before clipping; each distinct element once      */
    double clip_factor;   /* by which clipping multiplied the gradients: 1 = not clipped        */
    double loss_scale;    /* used by this step (1 without a scaler)                             */
    gt_scaler_event scaler_event; /* what the loss scaler did after it */
    double learning_rate; /* of this update; of a skipped step: what it would have been         */
    int64_t applied, skipped;       /* steps so far, this one included       */
    char offender[GT_OFFENDER_MAX]; /* first parameter with a non-finite gradient, "" if none  */
    int offender_rank; /* lowest world rank that has it; -1 if none                          */
    /* Seconds of this rank: the whole step, and its parts. */
    double seconds;
    double compute_s;      /* the rest                                                           */
    double exposed_comm_s; /* blocked in waits for communication                                 */
    double optimizer_s;
    double data_s;      /* taking the batch over to the device                                */
    double comm_busy_s; /* at least one operation was in flight, under compute or not         */
} gt_step_result;
#define GT_STEP_RESULT_INIT GT_PARAMS_INIT(gt_step_result)
GT_API void gt_step_result_init(gt_step_result *result, size_t size);

#ifdef __cplusplus
}
#endif
#endif
