/* SPDX-License-Identifier: Apache-2.0
 * What a configuration says about parameters by their names. */
#ifndef GTI_CONFIG_PARAM_NAMES_H
#define GTI_CONFIG_PARAM_NAMES_H

#include <geektrain/config.h>

/* Factors of learning rate and weight decay, from the groups in their order: a later one changes
 * what it names and nothing else. What a group says of decay holds also for a parameter that has
 * none otherwise (no_decay: biases, norms). */
void gti_config_group_scales(const gt_config *config, const char *name, bool no_decay,
                             float *lr_scale, float *decay_scale);
bool gti_config_is_frozen(const gt_config *config, const char *name);
/* GT_ERR_CONFIG when a pattern of a group or of `frozen` matches none of the names: the sentence
 * gives the pattern and the names that come near. */
gt_status gti_config_unmatched_pattern(const gt_config *config,
                                       const char *(*name_of)(const void *list, int index),
                                       const void *list, int count);
/* GT_ERR_CONFIG for groups that cannot be applied. */
gt_status gti_config_check_groups(const gt_optimizer_config *optimizer);

#endif
