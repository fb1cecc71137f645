/* SPDX-License-Identifier: Apache-2.0
 * The environment variables of the library; docs/environment.md is their table. */
#ifndef GTI_CORE_ENV_H
#define GTI_CORE_ENV_H

#include <geektrain/status.h>

typedef enum gti_env_name {
    GTI_ENV_ISA = 0,         /* GEEKTRAIN_ISA: base, avx2, avx512, avx512bf16     */
    GTI_ENV_GUARDED_DELAY,   /* GEEKTRAIN_GUARDED_DELAY: microseconds, 0 for none */
    GTI_ENV_NO_COLOR,        /* NO_COLOR: anything: no colours on a terminal       */
    GTI_ENV_TERM,            /* TERM: dumb: a terminal that cannot redraw a line  */
    GTI_ENV_COLUMNS,         /* COLUMNS: of a terminal that does not know them    */
    GTI_ENV_OMP_NUM_THREADS, /* set by the user: not divided among ranks          */
    GTI_ENV_LOCAL_RANKS,     /* OpenMPI: ranks of the job on this machine           */
    GTI_ENV_LAUNCHED_OMPI,   /* set by launchers of MPI programs                  */
    GTI_ENV_LAUNCHED_PMIX,
    GTI_ENV_LAUNCHED_PMI,
    GTI_ENV_COUNT
} gti_env_name;

/* The only place that reads the environment: the value, or NULL when unset or empty. */
const char *gti_env(gti_env_name name);

#endif
