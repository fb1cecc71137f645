/* SPDX-License-Identifier: Apache-2.0
 * Which optimizers there are. */
#include "optim/optimizers.h"

#include "core/params.h"

static const gt_optimizer *const optimizers[] = {
    [GT_ADAMW] = &gti_optimizer_adamw, [GT_ADAM] = &gti_optimizer_adam,
    [GT_SGD] = &gti_optimizer_sgd,     [GT_LION] = &gti_optimizer_lion,
    [GT_LAMB] = &gti_optimizer_lamb,
};

void gt_optimizer_init(gt_optimizer *optimizer, size_t size)
{
    gti_params_init(optimizer, size);
}

const gt_optimizer *gt_optimizer_of(const gt_optimizer_config *config)
{
    size_t count = sizeof(optimizers) / sizeof(optimizers[0]);
    return config != NULL && (size_t)config->type < count ? optimizers[config->type] : NULL;
}
