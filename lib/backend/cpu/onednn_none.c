/* SPDX-License-Identifier: Apache-2.0
 * A build without oneDNN. */
#include "backend/cpu/onednn.h"
#include "core/fail.h"

bool gti_onednn_usable(void)
{
    return false;
}

bool gti_onednn_preferred(void)
{
    return false;
}

gt_status gti_onednn_gemm(const struct gti_gemm_args *g)
{
    (void)g;
    return GT_FAIL(GT_ERR_UNSUPPORTED, "this build has no oneDNN");
}
