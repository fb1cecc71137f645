/* SPDX-License-Identifier: Apache-2.0
 * Keys that stand for more than one field, or whose meaning depends on another key. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "config/param_names.h"
#include "config/reading.h"

/* ---- parameters' dtype: fp16.enabled, bf16.enabled --------------------------------------------
 */
static void read_half(gti_reading *r, const gti_key *key, const char *path, json_object *value)
{
    bool on;
    if (!gti_read_bool(r, path, value, &on)) {
        return;
    }
    if (key->min < 0) { /* bf16_optimizer_states */
        r->config.optimizer.moments_dtype = on ? GT_BF16 : r->config.optimizer.moments_dtype;
    } else if ((int)key->min == GT_F16) {
        r->fp16 = on;
    } else {
        r->bf16 = on;
    }
}

static json_object *write_half(const gt_config *c, const gti_key *key)
{
    return json_object_new_boolean((int)key->min == (int)c->dtype);
}

/* "dtype": both switches at once. */
static void read_param_dtype(gti_reading *r, const gti_key *key, const char *path,
                             json_object *value)
{
    static const char *const names[] = {"f32", "fp32", "f16", "fp16", "bf16", NULL};
    int choice;
    if (gti_read_choice(r, path, value, names, &choice)) {
        r->param_dtype = choice < 2 ? GT_F32 : choice < 4 ? GT_F16 : GT_BF16;
    }
}

static void settle_dtype(gti_reading *r)
{
    gt_config *c = &r->config;
    gt_dtype before = c->dtype;
    if (r->param_dtype >= 0) {
        if ((r->fp16 == 1 && r->param_dtype != GT_F16) ||
            (r->bf16 == 1 && r->param_dtype != GT_BF16)) {
            gti_problem(r, GTI_PROBLEM_VALUE, "dtype", "is %s, but %s.enabled is true",
                        gt_dtype_name((gt_dtype)r->param_dtype), r->fp16 == 1 ? "fp16" : "bf16");
        }
        r->fp16 = r->param_dtype == GT_F16;
        r->bf16 = r->param_dtype == GT_BF16;
    }
    if (r->fp16 == 1 && r->bf16 == 1) {
        gti_problem(r, GTI_PROBLEM_VALUE, "fp16.enabled", "and bf16.enabled are both true");
        return;
    }
    if (r->fp16 == 1) {
        c->dtype = GT_F16;
    } else if (r->bf16 == 1) {
        c->dtype = GT_BF16;
    } else if ((r->fp16 == 0 && before == GT_F16) || (r->bf16 == 0 && before == GT_BF16)) {
        c->dtype = GT_F32;
    }
    c->scaler.enabled = c->dtype == GT_F16;
    if (!r->communication_given && c->communication_dtype == before) {
        c->communication_dtype = c->dtype;
    }
}

/* ---- optimizer --------------------------------------------------------------------------------
 */
static const char *const optimizers[] = {"AdamW", "Adam", "SGD", "Lion", "Lamb", NULL};

static void read_optimizer(gti_reading *r, const gti_key *key, const char *path, json_object *value)
{
    int type;
    if (gti_read_choice(r, path, value, optimizers, &type)) {
        r->config.optimizer.type = (gt_optimizer_type)type;
        r->optimizer_adam = type == GT_ADAM;
    }
}

static json_object *write_optimizer(const gt_config *c, const gti_key *key)
{
    return json_object_new_string(optimizers[c->optimizer.type]);
}

static void read_adam_w_mode(gti_reading *r, const gti_key *key, const char *path,
                             json_object *value)
{
    bool on;
    if (gti_read_bool(r, path, value, &on)) {
        r->adam_w_mode = on;
    }
}

static json_object *write_adam_w_mode(const gt_config *c, const gti_key *key)
{
    return c->optimizer.type == GT_ADAM ? json_object_new_boolean(false) : NULL;
}

static void read_betas(gti_reading *r, const gti_key *key, const char *path, json_object *value)
{
    double beta[2];
    if (json_object_get_type(value) != json_type_array || json_object_array_length(value) != 2) {
        char got[80];
        gti_problem(r, GTI_PROBLEM_VALUE, path, "is %s, wanted a list of two numbers",
                    gti_describe(value, got, sizeof got));
        return;
    }
    if (gti_read_number(r, key, path, json_object_array_get_idx(value, 0), &beta[0]) &&
        gti_read_number(r, key, path, json_object_array_get_idx(value, 1), &beta[1])) {
        r->config.optimizer.beta1 = beta[0];
        r->config.optimizer.beta2 = beta[1];
        r->betas_given = true;
    }
}

static json_object *write_betas(const gt_config *c, const gti_key *key)
{
    json_object *list = json_object_new_array_ext(2);
    json_object_array_add(list, gti_write_number(c->optimizer.beta1, false));
    json_object_array_add(list, gti_write_number(c->optimizer.beta2, false));
    return list;
}

/* DeepSpeed: "Adam" decays decoupled unless adam_w_mode is false; Lion's betas are its own. */
static void settle_optimizer(gti_reading *r)
{
    gt_optimizer_config *o = &r->config.optimizer;
    if (r->optimizer_adam == 1 || (r->optimizer_adam < 0 && o->type <= GT_ADAM)) {
        if (r->adam_w_mode >= 0) {
            o->type = r->adam_w_mode ? GT_ADAMW : GT_ADAM;
        } else if (r->optimizer_adam == 1) {
            o->type = GT_ADAMW;
        }
    }
    if (r->optimizer_adam == 0 && o->type == GT_LION && !r->betas_given) {
        o->beta2 = 0.99;
    }
    if (o->min_coeff > o->max_coeff) {
        gti_problem(r, GTI_PROBLEM_VALUE, "optimizer.params.min_coeff",
                    "%g is above optimizer.params.max_coeff %g", o->min_coeff, o->max_coeff);
    }
    if (o->moments_dtype == GT_F16) {
        gti_problem(r, GTI_PROBLEM_VALUE, "optimizer.params.moments_dtype",
                    "is f16, wanted f32 or bf16");
    }
}

/* ---- parameter groups -------------------------------------------------------------------------
 */
static const struct {
    const char *name;
    unsigned given;
    size_t offset;
} group_values[] = {
    {"lr", GT_GROUP_LR, offsetof(gt_param_group, lr)},
    {"lr_scale", GT_GROUP_LR_SCALE, offsetof(gt_param_group, lr_scale)},
    {"weight_decay", GT_GROUP_WEIGHT_DECAY, offsetof(gt_param_group, weight_decay)},
    {"decay_scale", GT_GROUP_DECAY_SCALE, offsetof(gt_param_group, decay_scale)},
};
enum { GROUP_VALUES = sizeof group_values / sizeof group_values[0] };

static void read_group(gti_reading *r, const char *path, json_object *group, int index)
{
    static const gti_key number = {.path = "group", .min = 0, .max = 1e30};
    gt_param_group *g = &r->config.optimizer.group[index];
    *g = (gt_param_group){.given = 0};
    json_object_object_foreach(group, name, value)
    {
        char where[160];
        int k = 0;
        snprintf(where, sizeof where, "%s[%d].%s", path, index, name);
        while (k < GROUP_VALUES && strcmp(name, group_values[k].name) != 0) {
            k++;
        }
        if (strcmp(name, "pattern") == 0) {
            gti_read_string(r, where, value, g->pattern, sizeof g->pattern);
        } else if (k == GROUP_VALUES) {
            gti_problem(r, GTI_PROBLEM_UNKNOWN, where,
                        "is not known: pattern, lr, lr_scale, weight_decay, decay_scale are");
        } else if (gti_read_number(r, &number, where, value,
                                   (double *)(void *)((char *)g + group_values[k].offset))) {
            g->given |= group_values[k].given;
        }
    }
}

static void read_groups(gti_reading *r, const gti_key *key, const char *path, json_object *value)
{
    size_t n = json_object_get_type(value) == json_type_array ? json_object_array_length(value)
                                                              : GT_MAX_GROUPS + 1;
    if (n > GT_MAX_GROUPS) {
        char got[80];
        gti_problem(r, GTI_PROBLEM_VALUE, path, "is %s, wanted a list of at most %d groups",
                    gti_describe(value, got, sizeof got), GT_MAX_GROUPS);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        json_object *group = json_object_array_get_idx(value, i);
        if (json_object_get_type(group) != json_type_object) {
            gti_problem(r, GTI_PROBLEM_VALUE, path, "[%zu] is not {pattern, ...}", i);
            return;
        }
        read_group(r, path, group, (int)i);
    }
    r->config.optimizer.groups = (int)n;
}

static json_object *write_groups(const gt_config *c, const gti_key *key)
{
    if (c->optimizer.groups == 0) {
        return NULL;
    }
    json_object *list = json_object_new_array();
    for (int i = 0; i < c->optimizer.groups; i++) {
        const gt_param_group *g = &c->optimizer.group[i];
        json_object *group = json_object_new_object();
        json_object_object_add(group, "pattern", json_object_new_string(g->pattern));
        for (int k = 0; k < GROUP_VALUES; k++) {
            if (g->given & group_values[k].given) {
                const char *at = (const char *)g + group_values[k].offset;
                json_object_object_add(group, group_values[k].name,
                                       gti_write_number(*(const double *)(const void *)at, false));
            }
        }
        json_object_array_add(list, group);
    }
    return list;
}

static void settle_groups(gti_reading *r)
{
    if (r->is_file && gti_config_check_groups(&r->config.optimizer) != GT_OK) {
        gti_problem(r, GTI_PROBLEM_VALUE, "", "%s", gt_last_error());
    }
}

/* ---- frozen parameters ------------------------------------------------------------------------
 */
static void read_frozen(gti_reading *r, const gti_key *key, const char *path, json_object *value)
{
    size_t n = json_object_get_type(value) == json_type_array ? json_object_array_length(value)
                                                              : GT_MAX_FROZEN + 1;
    if (n > GT_MAX_FROZEN) {
        char got[80];
        gti_problem(r, GTI_PROBLEM_VALUE, path, "is %s, wanted a list of at most %d names",
                    gti_describe(value, got, sizeof got), GT_MAX_FROZEN);
        return;
    }
    char patterns[GT_MAX_FROZEN][GT_PATTERN_MAX];
    memset(patterns, 0, sizeof patterns);
    for (size_t i = 0; i < n; i++) {
        char where[160];
        snprintf(where, sizeof where, "%s[%zu]", path, i);
        if (!gti_read_string(r, where, json_object_array_get_idx(value, i), patterns[i],
                             GT_PATTERN_MAX)) {
            return;
        }
        if (patterns[i][0] == '\0') {
            gti_problem(r, GTI_PROBLEM_VALUE, where, "is empty, wanted a pattern of names");
        }
    }
    memcpy(r->config.frozen, patterns, sizeof patterns);
    r->config.frozen_count = (int)n;
}

static json_object *write_frozen(const gt_config *c, const gti_key *key)
{
    if (c->frozen_count == 0) {
        return NULL;
    }
    json_object *list = json_object_new_array();
    for (int i = 0; i < c->frozen_count; i++) {
        json_object_array_add(list, json_object_new_string(c->frozen[i]));
    }
    return list;
}

/* ---- offload ----------------------------------------------------------------------------------
 */
static const char *const devices[] = {"none", "cpu", "nvme", NULL};

static void read_offload(gti_reading *r, const gti_key *key, const char *path, json_object *value)
{
    int device;
    if (gti_read_choice(r, path, value, devices, &device)) {
        r->config.zero.offload_optimizer = (gt_offload)device;
    }
}

static json_object *write_offload(const gt_config *c, const gti_key *key)
{
    return json_object_new_string(devices[c->zero.offload_optimizer]);
}

static void read_cpu_offload(gti_reading *r, const gti_key *key, const char *path,
                             json_object *value)
{
    bool on;
    if (gti_read_bool(r, path, value, &on)) {
        r->cpu_offload = on;
    }
}

/* offload_param.device, or the older boolean; whether it matters depends on the stage. */
static void read_offload_param(gti_reading *r, const gti_key *key, const char *path,
                               json_object *value)
{
    int device = 0;
    bool on = false;
    if (json_object_get_type(value) == json_type_boolean) {
        gti_read_bool(r, path, value, &on);
    } else if (gti_read_choice(r, path, value, devices, &device)) {
        on = device > 0;
    }
    if (on) {
        snprintf(r->offload_param_path, sizeof r->offload_param_path, "%s", path);
    }
}

static void settle_offload(gti_reading *r)
{
    if (r->cpu_offload == 1 && r->config.zero.offload_optimizer == GT_OFFLOAD_NONE) {
        r->config.zero.offload_optimizer = GT_OFFLOAD_CPU;
    }
    if (r->offload_param_path[0] != '\0' && r->config.zero.stage == 3) {
        gti_problem(r, GTI_PROBLEM_UNSUPPORTED, r->offload_param_path,
                    "asks to move parameters off the device, which is not supported");
    }
}

/* ---- warm-up, mesh ----------------------------------------------------------------------------
 */
static const char *const warmups[] = {"linear", "log", NULL};

static void read_warmup(gti_reading *r, const gti_key *key, const char *path, json_object *value)
{
    int choice;
    if (gti_read_choice(r, path, value, warmups, &choice)) {
        r->config.scheduler.warmup_log = choice == 1;
    }
}

static json_object *write_warmup(const gt_config *c, const gti_key *key)
{
    return json_object_new_string(warmups[c->scheduler.warmup_log]);
}

static void read_parallel(gti_reading *r, const gti_key *key, const char *path, json_object *value)
{
    const gti_key integer = {.path = key->path,
                             .type = &gti_type_int,
                             .offset = key->offset,
                             .size = key->size,
                             .min = key->min,
                             .max = key->max};
    int *field = (int *)(void *)((char *)&r->config + key->offset), before = *field;
    gti_type_int.read(r, &integer, path, value);
    if (*field == 0) {
        *field = before;
    }
}

static void read_checkpoint_interval(gti_reading *r, const gti_key *key, const char *path,
                                     json_object *value)
{
    double interval;
    if (gti_read_number(r, key, path, value, &interval) && interval > 0) {
        r->config.model.recompute = true;
    }
}

static void read_pipe_partition(gti_reading *r, const gti_key *key, const char *path,
                                json_object *value)
{
    static const char *const theirs[] = {"best", "parameters", "uniform", NULL};
    static const char *const ours[] = {"cost", "parameters", "uniform"};
    int choice;
    if (gti_read_choice(r, path, value, theirs, &choice)) {
        strcpy(r->config.mesh.partition, ours[choice]);
    }
}

void gti_settle(gti_reading *r)
{
    settle_dtype(r);
    settle_optimizer(r);
    settle_groups(r);
    settle_offload(r);
}

const gti_value_type gti_type_half = {"true or false", read_half, write_half};
const gti_value_type gti_type_param_dtype = {"name", read_param_dtype, NULL};
const gti_value_type gti_type_optimizer = {"name", read_optimizer, write_optimizer};
const gti_value_type gti_type_adam_w_mode = {"true or false", read_adam_w_mode, write_adam_w_mode};
const gti_value_type gti_type_betas = {"list of two", read_betas, write_betas};
const gti_value_type gti_type_groups = {"list", read_groups, write_groups};
const gti_value_type gti_type_frozen = {"list of names", read_frozen, write_frozen};
const gti_value_type gti_type_offload = {"name", read_offload, write_offload};
const gti_value_type gti_type_cpu_offload = {"true or false", read_cpu_offload, NULL};
const gti_value_type gti_type_offload_param = {"name", read_offload_param, NULL};
const gti_value_type gti_type_warmup = {"name", read_warmup, write_warmup};
const gti_value_type gti_type_parallel = {"integer", read_parallel, NULL};
const gti_value_type gti_type_checkpoint_interval = {"integer", read_checkpoint_interval, NULL};
const gti_value_type gti_type_pipe_partition = {"name", read_pipe_partition, NULL};
