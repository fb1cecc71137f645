/* SPDX-License-Identifier: Apache-2.0
 * What the tests of operations share besides the harness. */
#ifndef TESTS_OPS_TEST_H
#define TESTS_OPS_TEST_H

#include "harness.h"

/* Each program runs once per instruction set (GEEKTRAIN_ISA); where the processor lacks it, main
 * returns OPS_SKIP. */
#define OPS_SKIP 77
static inline bool ops_runs_here(void)
{
    gt_context *ctx = NULL;
    gt_status st = gt_context_create(&ctx, NULL);
    gt_context_destroy(&ctx);
    return st != GT_ERR_UNSUPPORTED;
}

#define OPS_RUN(tests) (ops_runs_here() ? cmocka_run_group_tests((tests), NULL, NULL) : OPS_SKIP)

#endif
