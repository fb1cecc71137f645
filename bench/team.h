/* SPDX-License-Identifier: Apache-2.0
 *
 * A training run on several ranks that takes one step whenever it is asked to: ranks are threads of
 * this process over the local transport, each with its share of the cores.
 */
#ifndef BENCH_TEAM_H
#define BENCH_TEAM_H

#include <geektrain/geektrain.h>

typedef struct team team;

/* GPT-2 124M: 12 layers, width 768, 12 heads, 50257 tokens; B = 4 samples of T = 256. */
void team_gpt2(gt_config *config);

/* Resolves the configuration to `ranks` and makes a trainer on each, with `threads` compute
 * threads. */
team *team_create(int ranks, int threads, const gt_config *config);
void team_step(void *team); /* one step; a bench_fn */
void team_destroy(team *t);

double team_flops(const team *t); /* of one step */
/* Of rank r's last step; memory as it is now. */
const gt_step_result *team_result(const team *t, int r);
void team_memory(const team *t, int r, gt_memory_stats *out);
void team_state_bytes(const team *t, int r, gt_zero_bytes *out);
void team_reset_peaks(team *t);
int64_t team_parameters(const team *t);

#endif
