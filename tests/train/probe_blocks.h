/* SPDX-License-Identifier: Apache-2.0
 *
 * A model of blocks that compute nothing: the first gives ones, the others hand on what they get,
 * the last counts a loss. Per sample of PROBE_ROWS tokens each keeps PROBE_SAVED bytes and gives
 * PROBE_OUTPUT (the last one nothing), and one of them can be told to fail.
 */
#ifndef TESTS_PROBE_BLOCKS_H
#define TESTS_PROBE_BLOCKS_H

#include <geektrain/block.h>

enum { PROBE_SAVED = 768, PROBE_OUTPUT = 512, PROBE_ROWS = 8 };

/* Where to fail; shared by the blocks of a model. */
typedef struct probe_fault {
    int block, microbatch; /* block -1: nowhere */
    bool backward;
} probe_fault;

/* Appends `blocks` of them, "probe.0" ... Microbatches have PROBE_ROWS tokens. The fault is
 * borrowed; NULL: none. Its error is GT_ERR_DEVICE with the sentence "probe <i> fails". */
gt_status probe_add(gt_model *model, int blocks, const probe_fault *fault);

#endif
