/* SPDX-License-Identifier: Apache-2.0
 * The parameter table: declared, looked up, read. */
#include "params/table.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/params.h"

void gt_param_init(gt_param *param, size_t size)
{
    const gt_param defaults = GT_PARAM_INIT;
    gti_params_defaults(param, size, &defaults, sizeof(defaults));
}

void gt_params_params_init(gt_params_params *params, size_t size)
{
    gti_params_init(params, size);
}

void gt_unit_params_init(gt_unit_params *params, size_t size)
{
    gti_params_init(params, size);
}

void gt_param_info_init(gt_param_info *info, size_t size)
{
    gti_params_init(info, size);
}

void gt_state_info_init(gt_state_info *info, size_t size)
{
    gti_params_init(info, size);
}

static const char *row_name(const void *table, int index)
{
    return ((const gt_params *)table)->param[index].decl.name;
}

gt_status gt_params_create(gt_params **out, const gt_params_params *params)
{
    gt_params_params p;
    if (out == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_params_create: out is NULL");
    }
    GT_TRY(GTI_PARAMS_COPY(&p, params, gt_params_params));
    int size = p.tp_size == 0 ? 1 : p.tp_size;
    if (size < 1 || p.tp_rank < 0 || p.tp_rank >= size) {
        return GT_FAIL(GT_ERR_ARGUMENT, "tensor-parallel rank %d of %d, wanted 0 to size - 1",
                       p.tp_rank, p.tp_size);
    }
    gt_params *table = calloc(1, sizeof(*table));
    if (table == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for a parameter table");
    }
    table->tp_size = size;
    table->tp_rank = p.tp_rank;
    table->sequence_parallel = p.sequence_parallel && size > 1;
    table->names.name_of = row_name;
    *out = table;
    return GT_OK;
}

void gt_params_destroy(gt_params **table)
{
    if (table == NULL || *table == NULL) {
        return;
    }
    gt_params *t = *table;
    for (int i = 0; i < t->count; i++) {
        free((char *)t->param[i].decl.name);
        free((char *)t->param[i].decl.tied_to);
    }
    for (int i = 0; i < t->unit_count; i++) {
        free(t->unit[i].param);
    }
    gti_names_free(&t->names);
    free(t->param);
    free(t->unit);
    free(t);
    *table = NULL;
}

/* Makes room for one more element of `size` bytes. */
static gt_status grow(void **array, int count, int *room, size_t size, const char *what)
{
    if (count < *room) {
        return GT_OK;
    }
    int wanted = *room == 0 ? 8 : *room > INT_MAX / 2 ? INT_MAX : 2 * *room;
    void *grown = count < wanted ? realloc(*array, (size_t)wanted * size) : NULL;
    if (grown == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for %d %s", wanted, what);
    }
    *array = grown;
    *room = wanted;
    return GT_OK;
}

static gt_status check_open(const gt_params *table, const char *name)
{
    if (table == NULL || name == NULL || name[0] == '\0') {
        return GT_FAIL(GT_ERR_ARGUMENT, "a parameter table takes a table and a name, got %s",
                       table == NULL ? "no table" : "no name");
    }
    if (table->taken) {
        return GT_FAIL(GT_ERR_STATE, "%s is added to a parameter table that a gt_zero has taken",
                       name);
    }
    if (strlen(name) >= 2 * GT_PARAM_NAME_MAX) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the name %.40s... has %zu characters, want at most %d",
                       name, strlen(name), 2 * GT_PARAM_NAME_MAX - 1);
    }
    return GT_OK;
}

gt_status gt_params_add_unit(gt_params *table, const char *name, const gt_unit_params *params,
                             int *unit)
{
    gt_unit_params p;
    GT_TRY(check_open(table, name));
    GT_TRY(GTI_PARAMS_COPY(&p, params, gt_unit_params));
    GT_TRY(grow((void **)&table->unit, table->unit_count, &table->unit_room, sizeof(*table->unit),
                "units"));
    struct gti_unit *u = &table->unit[table->unit_count];
    *u = (struct gti_unit){.tie = p.tie, .copy = p.copy};
    snprintf(u->name, sizeof(u->name), "%s", name);
    if (unit != NULL) {
        *unit = table->unit_count;
    }
    table->unit_count++;
    return GT_OK;
}

static gt_status check_scale(const char *name, const char *what, float scale)
{
    if (!isfinite(scale) || scale < 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s of parameter %s is %g, want a finite number from 0 on",
                       what, name, (double)scale);
    }
    return GT_OK;
}

static gt_status fill_row(const gt_params *table, struct gti_param *row, const gt_param *decl)
{
    GT_TRY(check_scale(decl->name, "lr_scale", decl->lr_scale));
    GT_TRY(check_scale(decl->name, "decay_scale", decl->decay_scale));
    *row = (struct gti_param){
        .decl = *decl, .unit = GT_ELSEWHERE, .offset = -1, .frozen = decl->frozen};
    row->lr_scale = decl->lr_scale == 0 ? 1.0f : decl->lr_scale;
    row->decay_scale = decl->no_decay ? 0.0f : decl->decay_scale == 0 ? 1.0f : decl->decay_scale;
    row->partial =
        decl->tp_axis == GT_REPLICATED && decl->sequence_partial && table->sequence_parallel;
    row->pieces = gti_param_pieces(decl, table->tp_size, table->tp_rank, row->piece);
    row->numel = gti_param_numel(decl);
    gti_param_local_shape(decl, table->tp_size, table->tp_rank, row->local_shape);
    row->local_numel = gti_param_local_numel(decl, table->tp_size, table->tp_rank);
    row->decl.name = strdup(decl->name);
    row->decl.tied_to = decl->tied_to ? strdup(decl->tied_to) : NULL;
    if (row->decl.name == NULL || (decl->tied_to != NULL && row->decl.tied_to == NULL)) {
        free((char *)row->decl.name);
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for the name of parameter %s", decl->name);
    }
    return GT_OK;
}

gt_status gt_params_add(gt_params *table, int unit, const gt_param *param, int *index)
{
    gt_param decl;
    if (param == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_params_add needs a parameter");
    }
    GT_TRY(GTI_PARAMS_COPY(&decl, param, gt_param));
    GT_TRY(check_open(table, decl.name));
    GT_TRY(gti_param_check(&decl));
    if (unit < GT_ELSEWHERE || unit >= table->unit_count) {
        return GT_FAIL(GT_ERR_ARGUMENT, "parameter %s is added to unit %d, there are %d", decl.name,
                       unit, table->unit_count);
    }
    if (gti_names_find(&table->names, table, decl.name) >= 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "two parameters are named %s", decl.name);
    }
    GT_TRY(grow((void **)&table->param, table->count, &table->room, sizeof(*table->param),
                "parameters"));
    struct gti_param *row = &table->param[table->count];
    GT_TRY(fill_row(table, row, &decl));
    gt_status st = gti_names_add(&table->names, table);
    if (st != GT_OK) {
        free((char *)row->decl.name);
        free((char *)row->decl.tied_to);
        return st;
    }
    int made = table->count++;
    if (index != NULL) {
        *index = made;
    }
    return unit == GT_ELSEWHERE ? GT_OK : gti_params_assign(table, made, unit);
}

gt_status gti_params_assign(gt_params *table, int param, int unit)
{
    struct gti_unit *u = &table->unit[unit];
    GT_TRY(grow((void **)&u->param, u->count, &u->room, sizeof(*u->param), "parameters"));
    u->param[u->count++] = param;
    table->param[param].unit = unit;
    table->param[param].copy = u->copy;
    return GT_OK;
}

void gti_params_set(gt_params *table, int param, float lr_scale, float decay_scale, bool frozen)
{
    table->param[param].lr_scale = lr_scale;
    table->param[param].decay_scale = decay_scale;
    table->param[param].frozen = frozen;
}

/* ---- reading ----------------------------------------------------------------------------------
 */

const struct gti_param *gti_params_row(const gt_params *table, int param)
{
    return table != NULL && param >= 0 && param < table->count ? &table->param[param] : NULL;
}

int gt_params_count(const gt_params *table)
{
    return table ? table->count : 0;
}

int gt_params_units(const gt_params *table)
{
    return table ? table->unit_count : 0;
}

const char *gt_params_unit_name(const gt_params *table, int unit)
{
    return table != NULL && unit >= 0 && unit < table->unit_count ? table->unit[unit].name : NULL;
}

int gt_params_find(const gt_params *table, const char *name)
{
    return table != NULL && name != NULL ? gti_names_find(&table->names, table, name) : -1;
}

static gt_status no_param(const gt_params *table, int param)
{
    return GT_FAIL(GT_ERR_ARGUMENT, "parameter %d of a table of %d", param, gt_params_count(table));
}

gt_status gt_params_get(const gt_params *table, int param, gt_param_info *out)
{
    const struct gti_param *p = gti_params_row(table, param);
    if (p == NULL || out == NULL) {
        return out ? no_param(table, param)
                   : GT_FAIL(GT_ERR_ARGUMENT, "gt_params_get: out is NULL");
    }
    gt_param_info info = {.struct_size = sizeof(info),
                          .name = p->decl.name,
                          .ndim = p->decl.ndim,
                          .numel = p->numel,
                          .local_numel = p->local_numel,
                          .tp_axis = p->decl.tp_axis,
                          .unit = p->unit,
                          .offset = p->offset,
                          .lr_scale = p->lr_scale,
                          .decay_scale = p->decay_scale,
                          .frozen = p->frozen,
                          .partial = p->partial,
                          .copy = p->copy,
                          .states = p->states > 0 ? p->states : 1};
    for (int i = 0; i < p->decl.ndim; i++) {
        info.shape[i] = p->decl.shape[i];
        info.local_shape[i] = p->local_shape[i];
    }
    return gti_params_give(out, &info, sizeof(info), "gt_param_info");
}

void gti_param_clear_states(struct gti_param *p)
{
    p->states = 0;
}

gt_status gti_param_add_state(struct gti_param *p, const char *name, gt_dtype dtype, bool vector,
                              int64_t length)
{
    if (p->states == GT_MAX_STATES) {
        return GT_FAIL(GT_ERR_UNSUPPORTED, "parameter %s has more than %d states", p->decl.name,
                       GT_MAX_STATES);
    }
    if (name == NULL || strlen(name) >= GT_PARAM_NAME_MAX || length < 0 ||
        gt_dtype_size(dtype) == 0) {
        return GT_FAIL(GT_ERR_ARGUMENT,
                       "a state of parameter %s has %s, wanted a name of 1 to %d characters, a "
                       "dtype and a length from 0 on",
                       p->decl.name, name == NULL ? "no name" : "a bad name, dtype or length",
                       GT_PARAM_NAME_MAX - 1);
    }
    struct gti_state *s = &p->state[p->states++];
    *s = (struct gti_state){.dtype = dtype, .vector = vector, .length = length};
    snprintf(s->name, sizeof(s->name), "%s", name);
    return GT_OK;
}

int gt_params_find_state(const gt_params *table, int param, const char *name)
{
    const struct gti_param *p = gti_params_row(table, param);
    for (int k = 0; p != NULL && name != NULL && k < p->states; k++) {
        if (strcmp(p->state[k].name, name) == 0) {
            return k;
        }
    }
    return -1;
}

gt_status gt_params_state(const gt_params *table, int param, int state, gt_state_info *out)
{
    const struct gti_param *p = gti_params_row(table, param);
    if (p == NULL || out == NULL) {
        return out ? no_param(table, param)
                   : GT_FAIL(GT_ERR_ARGUMENT, "gt_params_state: out is NULL");
    }
    if (state < 0 || state >= p->states) {
        return GT_FAIL(GT_ERR_ARGUMENT, "state %d of parameter %s, which has %d", state,
                       p->decl.name, p->states);
    }
    const struct gti_state *s = &p->state[state];
    gt_state_info info = {.struct_size = sizeof(info),
                          .name = s->name,
                          .dtype = s->dtype,
                          .vector = s->vector,
                          .ndim = s->vector ? 1 : p->decl.ndim};
    for (int i = 0; i < info.ndim; i++) {
        info.shape[i] = s->vector ? s->length : p->decl.shape[i];
    }
    return gti_params_give(out, &info, sizeof(info), "gt_state_info");
}
