/* SPDX-License-Identifier: Apache-2.0
 * What stands for mpi.c in a build without MPI. */
#include "comm/transport.h"

gt_status gti_mpi_transport(gti_transport **out, void *mpi_comm, double timeout_s)
{
    (void)out;
    (void)mpi_comm;
    (void)timeout_s;
    return GT_FAIL(GT_ERR_UNSUPPORTED, "this build has no mpi transport; there are self and local");
}

bool gti_mpi_wanted(void)
{
    return false;
}
