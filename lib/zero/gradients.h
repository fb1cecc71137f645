/* SPDX-License-Identifier: Apache-2.0
 * What the files of lib/zero call of each other beyond state.h. */
#ifndef GTI_ZERO_GRADIENTS_H
#define GTI_ZERO_GRADIENTS_H

#include "zero/state.h"

/* Starts the reduction of the unit whose partial sums are under way. */
gt_status gti_zero_flush_deferred(gt_zero *zero);
/* All ranks gathered the same units in the same order since the last call; else an error naming
 * rank and unit. */
gt_status gti_zero_check_order(gt_zero *zero);

#endif
