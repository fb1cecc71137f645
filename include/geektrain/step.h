/* SPDX-License-Identifier: Apache-2.0
 *
 * What one optimizer step reports.
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
    gt_step_outcome outcome;
    double loss;             /* mean over the valid tokens of the global batch; same on all ranks  */
    int64_t tokens;          /* valid tokens of the global batch                                   */
    double gradient_norm;    /* global, before clipping                                            */
    double clip_factor;
    double loss_scale;       /* used by this step (1 without a scaler)                             */
    gt_scaler_event scaler_event;
    double learning_rate;    /* used by this step                                                  */
    int64_t applied, skipped; /* counters so far                                                   */
    char offender[GT_OFFENDER_MAX];     /* first non-finite parameter, "" if none               */
    int offender_rank;
    double seconds;          /* whole step                                                         */
    double compute_s, exposed_comm_s, optimizer_s, data_s;
    double comm_busy_s;
} gt_step_result;

#ifdef __cplusplus
}
#endif
#endif
