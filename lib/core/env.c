/* SPDX-License-Identifier: Apache-2.0 */
#include "core/env.h"

#include <stdlib.h>

static const char *const names[GTI_ENV_COUNT] = {
    [GTI_ENV_ISA] = "GEEKTRAIN_ISA",
    [GTI_ENV_GUARDED_DELAY] = "GEEKTRAIN_GUARDED_DELAY",
    [GTI_ENV_NO_COLOR] = "NO_COLOR",
    [GTI_ENV_TERM] = "TERM",
    [GTI_ENV_COLUMNS] = "COLUMNS",
    [GTI_ENV_OMP_NUM_THREADS] = "OMP_NUM_THREADS",
    [GTI_ENV_LOCAL_RANKS] = "OMPI_COMM_WORLD_LOCAL_SIZE",
    [GTI_ENV_LAUNCHED_OMPI] = "OMPI_COMM_WORLD_SIZE",
    [GTI_ENV_LAUNCHED_PMIX] = "PMIX_RANK",
    [GTI_ENV_LAUNCHED_PMI] = "PMI_RANK",
};

const char *gti_env(gti_env_name name)
{
    const char *value = getenv(names[name]);
    return value != NULL && value[0] != '\0' ? value : NULL;
}
