/* SPDX-License-Identifier: Apache-2.0 */
#include "config/param_names.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/fail.h"

static double scale_of(unsigned given, unsigned absolute, double value, double base, double scale)
{
    if ((given & absolute) == 0) {
        return scale;
    }
    return value > 0 ? value / base : 0;
}

void gti_config_group_scales(const gt_config *config, const char *name, bool no_decay,
                             float *lr_scale, float *decay_scale)
{
    const gt_optimizer_config *o = &config->optimizer;
    *lr_scale = 1;
    *decay_scale = no_decay ? 0 : 1;
    for (int i = 0; i < o->groups; i++) {
        const gt_param_group *g = &o->group[i];
        if (fnmatch(g->pattern, name, 0) != 0) {
            continue;
        }
        if (g->given & (GT_GROUP_LR | GT_GROUP_LR_SCALE)) {
            *lr_scale = (float)scale_of(g->given, GT_GROUP_LR, g->lr, o->lr, g->lr_scale);
        }
        if (g->given & (GT_GROUP_WEIGHT_DECAY | GT_GROUP_DECAY_SCALE)) {
            *decay_scale = (float)scale_of(g->given, GT_GROUP_WEIGHT_DECAY, g->weight_decay,
                                           o->weight_decay, g->decay_scale);
        }
    }
}

bool gti_config_is_frozen(const gt_config *config, const char *name)
{
    for (int i = 0; i < config->frozen_count; i++) {
        if (fnmatch(config->frozen[i], name, 0) == 0) {
            return true;
        }
    }
    return false;
}

static gt_status check_value(int index, const char *name, double value, double base)
{
    if (!(value >= 0 && value <= 1e30)) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "optimizer.params.groups[%d].%s is %g, wanted a number from 0 to 1e30",
                       index, name, value);
    }
    if (value > 0 && !(base > 0)) {
        return GT_FAIL(
            GT_ERR_CONFIG,
            "optimizer.params.groups[%d].%s is %g, but optimizer.params.%s is 0: a group "
            "scales it, give it a value",
            index, name, value, name);
    }
    return GT_OK;
}

static gt_status check_group(const gt_optimizer_config *o, int i)
{
    const gt_param_group *g = &o->group[i];
    unsigned lr = g->given & (GT_GROUP_LR | GT_GROUP_LR_SCALE);
    unsigned decay = g->given & (GT_GROUP_WEIGHT_DECAY | GT_GROUP_DECAY_SCALE);
    if (memchr(g->pattern, 0, sizeof g->pattern) == NULL || g->pattern[0] == '\0') {
        return GT_FAIL(GT_ERR_CONFIG, "optimizer.params.groups[%d] has no pattern", i);
    }
    if (lr == 0 && decay == 0) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "optimizer.params.groups[%d] changes nothing: wanted lr or lr_scale, "
                       "weight_decay or decay_scale",
                       i);
    }
    if ((lr & (lr - 1)) != 0 || (decay & (decay - 1)) != 0) {
        return GT_FAIL(GT_ERR_CONFIG, "optimizer.params.groups[%d] has both %s, wanted one of them",
                       i,
                       (lr & (lr - 1)) != 0 ? "lr and lr_scale" : "weight_decay and decay_scale");
    }
    if (lr != 0) {
        bool absolute = lr == GT_GROUP_LR;
        GT_TRY(check_value(i, absolute ? "lr" : "lr_scale", absolute ? g->lr : g->lr_scale,
                           absolute ? o->lr : 1));
    }
    if (decay != 0) {
        bool absolute = decay == GT_GROUP_WEIGHT_DECAY;
        GT_TRY(check_value(i, absolute ? "weight_decay" : "decay_scale",
                           absolute ? g->weight_decay : g->decay_scale,
                           absolute ? o->weight_decay : 1));
    }
    return GT_OK;
}

gt_status gti_config_check_groups(const gt_optimizer_config *optimizer)
{
    if (optimizer->groups < 0 || optimizer->groups > GT_MAX_GROUPS) {
        return GT_FAIL(GT_ERR_CONFIG, "the optimizer has %d groups, wanted 0 to %d",
                       optimizer->groups, GT_MAX_GROUPS);
    }
    for (int i = 0; i < optimizer->groups; i++) {
        GT_TRY(check_group(optimizer, i));
    }
    return GT_OK;
}

/* ---- patterns without a match -----------------------------------------------------------------
 */
enum { NAME_BYTES = 256, NEAR = 3 };

/* Edits that make the name match the pattern, where * takes anything. */
static int distance(const char *pattern, const char *name)
{
    int row[NAME_BYTES + 1];
    size_t m = strnlen(name, NAME_BYTES);
    for (size_t j = 0; j <= m; j++) {
        row[j] = (int)j;
    }
    for (const char *p = pattern; *p != '\0'; p++) {
        int diagonal = row[0];
        row[0] += *p != '*';
        for (size_t j = 1; j <= m; j++) {
            int above = row[j], best = *p == '*' ? above : above + 1;
            int left = *p == '*' ? row[j - 1] : row[j - 1] + 1;
            int both = diagonal + (*p != '*' && *p != '?' && *p != name[j - 1]);
            best = left < best ? left : best;
            row[j] = both < best ? both : best;
            diagonal = above;
        }
    }
    return row[m];
}

typedef struct near_name {
    const char *name;
    int distance;
} near_name;

static void keep_nearest(near_name near[NEAR], const char *name, int d)
{
    for (int k = 0; k < NEAR; k++) {
        if (near[k].name == NULL || d < near[k].distance) {
            memmove(&near[k + 1], &near[k], (size_t)(NEAR - 1 - k) * sizeof near[0]);
            near[k] = (near_name){name, d};
            return;
        }
    }
}

/* ": did you mean a, b", or nothing when no name is near. */
static void suggest(const char *pattern, const char *(*name_of)(const void *list, int index),
                    const void *list, int count, char *out, size_t size)
{
    near_name near[NEAR] = {{0}};
    for (int i = 0; i < count; i++) {
        const char *name = name_of(list, i);
        keep_nearest(near, name, distance(pattern, name));
    }
    size_t used = 0;
    int limit = 1 + (int)strlen(pattern) / 3;
    for (int k = 0; k < NEAR && near[k].name != NULL && used < size; k++) {
        if (near[k].distance <= limit) {
            used += (size_t)snprintf(out + used, size - used, "%s%.120s",
                                     used > 0 ? ", " : "; near: ", near[k].name);
        }
    }
}

static gt_status match_one(const char *key, int index, const char *pattern,
                           const char *(*name_of)(const void *list, int index), const void *list,
                           int count)
{
    char near[NEAR * 130] = "";
    for (int i = 0; i < count; i++) {
        if (fnmatch(pattern, name_of(list, i), 0) == 0) {
            return GT_OK;
        }
    }
    suggest(pattern, name_of, list, count, near, sizeof near);
    return GT_FAIL(GT_ERR_CONFIG, "%s[%d]: \"%s\" matches none of the %d parameters%s", key, index,
                   pattern, count, near);
}

gt_status gti_config_unmatched_pattern(const gt_config *config,
                                       const char *(*name_of)(const void *list, int index),
                                       const void *list, int count)
{
    for (int i = 0; i < config->optimizer.groups; i++) {
        GT_TRY(match_one("optimizer.params.groups", i, config->optimizer.group[i].pattern, name_of,
                         list, count));
    }
    for (int i = 0; i < config->frozen_count; i++) {
        GT_TRY(match_one("frozen", i, config->frozen[i], name_of, list, count));
    }
    return GT_OK;
}
