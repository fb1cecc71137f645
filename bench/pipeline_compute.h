/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_PIPELINE_COMPUTE_H
#define BENCH_PIPELINE_COMPUTE_H

#include "bench.h"

/* Every schedule on 2 ranks x 1 thread whose stages are matrix products: rows "compute NAME ...".
 * Ranks are threads of this process. */
void bench_pipeline_compute(bench *b);

#endif
