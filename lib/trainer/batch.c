/* SPDX-License-Identifier: Apache-2.0
 * A step's tokens, targets and row numbers on the device. */
#include "trainer/engine.h"

#include <stdlib.h>

#include "core/fail.h"

/* Under context parallelism rank r of P holds pieces r and 2P-1-r of 2P, so that causal attention
 * costs every rank the same. */
int64_t gti_batch_position(const gt_trainer *t, int64_t local)
{
    const gt_layout *l = &t->layout[LAYOUT_TRAIN];
    if (l->cp_size == 1) {
        return local;
    }
    int64_t piece = l->seq / (2 * l->cp_size);
    return local < piece ? l->cp_rank * piece + local
                         : (2 * l->cp_size - 1 - l->cp_rank) * piece + (local - piece);
}

int64_t gti_batch_local(const gt_trainer *t, int64_t position)
{
    for (int64_t i = 0; i < t->layout[LAYOUT_TRAIN].seq_local; i++) {
        if (gti_batch_position(t, i) == position) {
            return i;
        }
    }
    return -1;
}

gt_status gti_batch_allocate(gt_trainer *t)
{
    const gt_layout *l = &t->layout[LAYOUT_TRAIN];
    int64_t n = t->samples * l->seq_local, three = 3, vocab = t->config.model.vocab;
    t->host_tokens = malloc((size_t)n * sizeof(int32_t));
    t->host_targets = malloc((size_t)n * sizeof(int32_t));
    t->host_rows = malloc((size_t)n * sizeof(int64_t));
    t->host_positions = malloc((size_t)l->seq_local * sizeof(int64_t));
    if (!t->host_tokens || !t->host_targets || !t->host_rows || !t->host_positions) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for %lld tokens", (long long)n);
    }
    GT_TRY(gt_tensor_alloc(t->ctx, &t->tokens, GT_MEM_OTHER, GT_I32, 1, &n));
    GT_TRY(gt_tensor_alloc(t->ctx, &t->targets, GT_MEM_OTHER, GT_I32, 1, &n));
    GT_TRY(gt_tensor_alloc(t->ctx, &t->rows, GT_MEM_OTHER, GT_I64, 1, &n));
    GT_TRY(gt_tensor_alloc(t->ctx, &t->positions, GT_MEM_OTHER, GT_I64, 1, &l->seq_local));
    GT_TRY(gt_tensor_alloc(t->ctx, &t->stats, GT_MEM_OTHER, GT_F64, 1, &three));
    GT_TRY(gt_tensor_slice(&t->loss_stats, &t->stats, 0, 2));
    GT_TRY(gt_tensor_alloc(t->ctx, &t->logits, GT_MEM_OTHER, GT_F32, 1, &vocab));
    for (int64_t i = 0; i < l->seq_local; i++) {
        t->host_positions[i] = gti_batch_position(t, i);
    }
    return gt_copy_from_host(t->ctx, &t->positions, t->host_positions, NULL);
}

void gti_batch_free(gt_trainer *t)
{
    gt_tensor *tensors[] = {&t->tokens,    &t->targets, &t->rows,
                            &t->positions, &t->stats,   &t->logits};
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
        gt_tensor_free(t->ctx, tensors[i]);
    }
    free(t->host_tokens);
    free(t->host_targets);
    free(t->host_rows);
    free(t->host_positions);
}

static gt_status check_batch(const gt_trainer *t, const gt_batch *batch)
{
    const gt_layout *l = &t->layout[LAYOUT_TRAIN];
    if (batch == NULL || batch->samples < 0 || batch->samples > t->samples) {
        return GT_FAIL(GT_ERR_SHAPE, "a batch of %lld samples, this rank takes at most %lld a step",
                       batch ? (long long)batch->samples : -1LL, (long long)t->samples);
    }
    if (batch->samples > 0 && (batch->tokens == NULL || batch->targets == NULL)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "a batch without tokens or targets");
    }
    if (batch->samples > 0 && batch->seq != l->seq) {
        return GT_FAIL(GT_ERR_SHAPE, "samples of %lld tokens, the model's are %lld",
                       (long long)batch->seq, (long long)l->seq);
    }
    if (batch->first_sample < 0 || batch->first_sample > INT64_MAX / l->seq - t->samples) {
        return GT_FAIL(GT_ERR_ARGUMENT,
                       "the batch's first sample is number %lld, wanted 0 to 2^63 / seq",
                       (long long)batch->first_sample);
    }
    return GT_OK;
}

gt_status gti_batch_upload(gt_trainer *t, const gt_batch *batch)
{
    GT_TRY(check_batch(t, batch));
    const gt_layout *l = &t->layout[LAYOUT_TRAIN];
    for (int64_t s = 0; s < t->samples; s++) {
        for (int64_t i = 0; i < l->seq_local; i++) {
            int64_t at = s * l->seq_local + i, position = t->host_positions[i];
            bool real = s < batch->samples;
            t->host_tokens[at] = real ? batch->tokens[s * l->seq + position] : 0;
            t->host_targets[at] = real ? batch->targets[s * l->seq + position] : -100;
            t->host_rows[at] = (batch->first_sample + s) * l->seq + position;
        }
    }
    GT_TRY(gt_copy_from_host(t->ctx, &t->tokens, t->host_tokens, NULL));
    GT_TRY(gt_copy_from_host(t->ctx, &t->targets, t->host_targets, NULL));
    return gt_copy_from_host(t->ctx, &t->rows, t->host_rows, NULL);
}
