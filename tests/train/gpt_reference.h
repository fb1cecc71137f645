/* SPDX-License-Identifier: Apache-2.0
 * GPT-2 and Llama in plain loops and double: the loss of a whole model on one microbatch, from all
 * parameters in declaration order. Gradients of it by central differences are what blocks must
 * give. */
#ifndef TESTS_GPT_REFERENCE_H
#define TESTS_GPT_REFERENCE_H

#include <geektrain/config.h>

/* Sum over valid targets of the losses; logits (optional) [batch*seq, vocab]. */
double gpt_reference_loss(const gt_model_config *config, const double *params, int64_t batch,
                          int64_t seq, const int32_t *tokens, const int32_t *targets,
                          int32_t ignore_index, double *logits);

#endif
