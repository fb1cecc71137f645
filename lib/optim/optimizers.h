/* SPDX-License-Identifier: Apache-2.0
 * The built-in optimizers: each is a file with one table. */
#ifndef GTI_OPTIM_OPTIMIZERS_H
#define GTI_OPTIM_OPTIMIZERS_H

#include <geektrain/optimizer.h>

extern const gt_optimizer gti_optimizer_adamw, gti_optimizer_adam, gti_optimizer_sgd,
    gti_optimizer_lion, gti_optimizer_lamb;

/* What AdamW, Adam and LAMB pass to their operations. */
gt_adamw_params gti_adamw_params(const gt_optimizer_call *call);
int gti_two_moments(const gt_optimizer_config *config, void *user,
                    gt_optimizer_state out[GT_OPTIMIZER_STATES]);

#endif
