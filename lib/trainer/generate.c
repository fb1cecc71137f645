/* SPDX-License-Identifier: Apache-2.0
 * Generation: one forward pass per token, in any layout. */
#include "trainer/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/philox.h"
#include "core/tensor.h"

/* Inverse transform sampling from softmax(logits / temperature); greedy at 0. u in (0, 1). */
static int32_t sample(const float *logits, int64_t vocab, float temperature, double u)
{
    int64_t best = 0;
    for (int64_t i = 1; i < vocab; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    if (temperature <= 0.0f) {
        return (int32_t)best;
    }
    double sum = 0;
    for (int64_t i = 0; i < vocab; i++) {
        sum += exp((double)(logits[i] - logits[best]) / (double)temperature);
    }
    double target = u * sum;
    for (int64_t i = 0; i < vocab; i++) {
        target -= exp((double)(logits[i] - logits[best]) / (double)temperature);
        if (target <= 0) {
            return (int32_t)i;
        }
    }
    return (int32_t)best;
}

/* World rank of the last stage, first data and tensor rank, of context rank `cp`. */
static int logits_rank(const gt_trainer *t, int cp)
{
    int last = gt_schedule_stage_rank(t->schedule, gt_schedule_stages(t->schedule) - 1);
    return (last * gt_mesh_size(t->mesh, GT_AXIS_DP) * gt_mesh_size(t->mesh, GT_AXIS_CP) + cp) *
           gt_mesh_size(t->mesh, GT_AXIS_TP);
}

static int owner_of(const gt_trainer *t, int64_t position)
{
    int cp = gt_mesh_size(t->mesh, GT_AXIS_CP);
    if (cp == 1) {
        return 0;
    }
    int piece = (int)(position / (t->layout[LAYOUT_TRAIN].seq / (2 * cp)));
    return piece < cp ? piece : 2 * cp - 1 - piece;
}

/* The window's tokens as the first sample; the rest of the batch is zeros. */
static gt_status upload_window(gt_trainer *t, const int32_t *window, int64_t length)
{
    const gt_layout *l = &t->layout[LAYOUT_GENERATE];
    int64_t n = l->batch * l->seq_local;
    for (int64_t i = 0; i < n; i++) {
        int64_t position = t->host_positions[i % l->seq_local];
        bool real = i < l->seq_local && position < length;
        t->host_tokens[i] = real ? window[position] : 0;
        t->host_rows[i] = position;
    }
    gt_tensor tokens, rows;
    GT_TRY(gt_tensor_slice(&tokens, &t->tokens, 0, n));
    GT_TRY(gt_tensor_slice(&rows, &t->rows, 0, n));
    GT_TRY(gt_copy_from_host(t->ctx, &tokens, t->host_tokens, NULL));
    return gt_copy_from_host(t->ctx, &rows, t->host_rows, NULL);
}

static gt_status next_token(gt_trainer *t, const int32_t *window, int64_t length, float temperature,
                            double u, int32_t *out)
{
    GT_TRY(upload_window(t, window, length));
    t->mode = LAYOUT_GENERATE;
    t->training = false;
    t->generate_row = gti_batch_local(t, length - 1);
    gti_stage_reset(t);
    int64_t rows = t->layout[LAYOUT_GENERATE].batch;
    GT_TRY(gt_pipeline_forward(t->pipeline, 1, &rows));
    int root = logits_rank(t, owner_of(t, length - 1));
    int32_t token = 0;
    if (gt_comm_rank(t->world) == root) {
        int64_t vocab = gt_tensor_numel(&t->logits);
        float *logits = malloc((size_t)vocab * sizeof(float));
        if (logits == NULL) {
            return GT_FAIL(GT_ERR_MEMORY, "no host memory for %lld logits", (long long)vocab);
        }
        gt_status st = gt_copy_to_host(t->ctx, logits, &t->logits, NULL);
        token = st == GT_OK ? sample(logits, vocab, temperature, u) : 0;
        free(logits);
        GT_TRY(st);
    }
    gt_tensor shared = gt_tensor_1d(&token, GT_I32, 1);
    GT_TRY(gt_broadcast(t->world, &shared, root, NULL, NULL));
    *out = token;
    return GT_OK;
}

static gt_status generate(gt_trainer *t, int32_t *text, int64_t length, int64_t count,
                          float temperature, uint64_t seed)
{
    int64_t seq = t->layout[LAYOUT_TRAIN].seq;
    for (int64_t i = 0; i < count; i++) {
        int64_t have = length + i, first = have > seq ? have - seq : 0;
        double u = (double)gti_philox_uniform(seed, 0, (uint64_t)i);
        GT_TRY(next_token(t, text + first, have - first, temperature, u, &text[have]));
    }
    return GT_OK;
}

static gt_status check_prompt(const gt_trainer *t, const int32_t *prompt, int64_t length,
                              int64_t count, const int32_t *out)
{
    GT_TRY(gti_trainer_usable(t));
    if (prompt == NULL || length < 1) {
        return GT_FAIL(GT_ERR_ARGUMENT,
                       "generation needs a prompt of at least one token, it has %lld",
                       prompt ? (long long)length : 0LL);
    }
    if (count < 0 || length > GTI_NUMEL_MAX || count > GTI_NUMEL_MAX) {
        return GT_FAIL(GT_ERR_ARGUMENT, "generation of %lld tokens after %lld, wanted 0 to 2^52",
                       (long long)count, (long long)length);
    }
    if (out == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "generation has no room (NULL) for its %lld tokens",
                       (long long)count);
    }
    for (int64_t i = 0; i < length; i++) {
        if (prompt[i] < 0 || prompt[i] >= t->config.model.vocab) {
            return GT_FAIL(GT_ERR_ARGUMENT, "prompt token %lld is %d, the vocabulary has %lld",
                           (long long)i, prompt[i], (long long)t->config.model.vocab);
        }
    }
    return GT_OK;
}

gt_status gt_trainer_generate(gt_trainer *t, const int32_t *prompt, int64_t length, int64_t count,
                              float temperature, uint64_t seed, int32_t *out)
{
    if (t == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the trainer is NULL");
    }
    GT_TRY(gt_comm_agree(t->world, check_prompt(t, prompt, length, count, out)));
    const double request[] = {(double)count, (double)temperature, (double)seed};
    GT_TRY(gt_comm_check_equal(t->world, "what is to be generated", request, sizeof(request)));
    GT_TRY(gt_comm_check_equal(t->world, "the prompt", prompt, (size_t)length * sizeof(*prompt)));
    int32_t *text = malloc((size_t)(length + count) * sizeof(int32_t));
    gt_status st = text ? GT_OK
                        : GT_FAIL(GT_ERR_MEMORY, "no host memory for %lld tokens",
                                  (long long)(length + count));
    st = gt_comm_agree(t->world, st);
    if (st != GT_OK) {
        free(text);
        return st;
    }
    memcpy(text, prompt, (size_t)length * sizeof(int32_t));
    st = generate(t, text, length, count, temperature, seed);
    if (st == GT_OK) {
        memcpy(out, text + length, (size_t)count * sizeof(int32_t));
    } else {
        st = gti_trainer_fail(t, st);
    }
    free(text);
    return st;
}
