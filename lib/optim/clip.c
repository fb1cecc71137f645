/* SPDX-License-Identifier: Apache-2.0
 * Clipping by global norm, as a factor that the optimizer's pass multiplies in. */
#include <geektrain/optim.h>

#include <math.h>

#include "core/fail.h"

gt_status gt_clip_check(double max_norm)
{
    if (isnan(max_norm) || max_norm < 0) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "gradient_clipping is %g, wanted a norm above 0, or 0 for no clipping",
                       max_norm);
    }
    return GT_OK;
}

double gt_clip_factor(double norm, double max_norm)
{
    if (!(max_norm > 0) || isinf(max_norm)) {
        return 1.0;
    }
    if (!isfinite(norm)) {
        return 0.0;
    }
    return fmin(1.0, max_norm / (norm + 1e-6));
}
