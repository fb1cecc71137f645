/* SPDX-License-Identifier: Apache-2.0 */
#include "params/param_layout.h"

#include <math.h>
#include <string.h>

#include <geektrain/mesh.h>

#include "core/fail.h"
#include "core/tensor.h"

static int64_t unit_of(const gt_param *param)
{
    return param->tp_unit > 0 ? param->tp_unit : 1;
}

static int section_count(const gt_param *param)
{
    return param->sections > 1 ? param->sections : 1;
}

static int64_t section_length(const gt_param *param, int i)
{
    return param->sections > 1 ? param->section[i] : param->shape[param->tp_axis];
}

static gt_status check_sections(const gt_param *param)
{
    int64_t sum = 0;
    if (param->sections < 0 || param->sections > GT_MAX_SECTIONS) {
        return GT_FAIL(GT_ERR_ARGUMENT, "parameter %s has %d sections, want 0..%d", param->name,
                       param->sections, GT_MAX_SECTIONS);
    }
    if (param->tp_unit < 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "parameter %s has tp_unit %lld, want 0 or more",
                       param->name, (long long)param->tp_unit);
    }
    for (int i = 0; i < section_count(param); i++) {
        int64_t length = section_length(param, i);
        if (length < 0 || length % unit_of(param) != 0) {
            return GT_FAIL(GT_ERR_SHAPE,
                           "section %d of parameter %s has length %lld, want a "
                           "multiple of the unit %lld",
                           i, param->name, (long long)length, (long long)unit_of(param));
        }
        sum += length;
    }
    if (sum != param->shape[param->tp_axis]) {
        return GT_FAIL(GT_ERR_SHAPE,
                       "the sections of parameter %s add up to %lld, want shape[%d] "
                       "= %lld",
                       param->name, (long long)sum, param->tp_axis,
                       (long long)param->shape[param->tp_axis]);
    }
    return GT_OK;
}

gt_status gti_param_check(const gt_param *param)
{
    if (param == NULL || param->name == NULL || param->name[0] == '\0') {
        return GT_FAIL(GT_ERR_ARGUMENT, "a parameter was declared without a name");
    }
    if (strlen(param->name) >= 2 * GT_PARAM_NAME_MAX) {
        return GT_FAIL(GT_ERR_ARGUMENT,
                       "parameter name %.40s... has %zu characters, want at most %d", param->name,
                       strlen(param->name), 2 * GT_PARAM_NAME_MAX - 1);
    }
    if ((unsigned)param->init > GT_INIT_UNIFORM || !isfinite(param->mean) ||
        !isfinite(param->std)) {
        return GT_FAIL(GT_ERR_ARGUMENT,
                       "parameter %s has initial values of kind %d, mean %g, std %g; want a kind "
                       "of gt_init_kind and finite numbers",
                       param->name, (int)param->init, (double)param->mean, (double)param->std);
    }
    if (param->ndim < 0 || param->ndim > 4) {
        return GT_FAIL(GT_ERR_SHAPE, "parameter %s has %d dimensions, want 0..4", param->name,
                       param->ndim);
    }
    int64_t numel = 1;
    for (int i = 0; i < param->ndim; i++) {
        if (param->shape[i] < 0) {
            return GT_FAIL(GT_ERR_SHAPE, "parameter %s has shape[%d] = %lld, want 0 or more",
                           param->name, i, (long long)param->shape[i]);
        }
        if (__builtin_mul_overflow(numel, param->shape[i], &numel) || numel > GTI_NUMEL_MAX) {
            return GT_FAIL(GT_ERR_SHAPE,
                           "parameter %s has more than 2^52 elements, shape[%d] is %lld",
                           param->name, i, (long long)param->shape[i]);
        }
    }
    if (param->tp_axis == GT_REPLICATED) {
        return GT_OK;
    }
    if (param->tp_axis < 0 || param->tp_axis >= param->ndim) {
        return GT_FAIL(GT_ERR_ARGUMENT, "parameter %s is cut along axis %d, but has %d dimensions",
                       param->name, param->tp_axis, param->ndim);
    }
    return check_sections(param);
}

/* Where unit r*units/tp is shared: the ranks r with that quotient, which are consecutive. */
static void shared_piece(gti_param_piece *piece, int64_t units, int tp, int rank)
{
    int64_t mine = (int64_t)rank * units / tp;
    int first = (int)((mine * tp + units - 1) / units);
    int end = (int)(((mine + 1) * tp + units - 1) / units);
    piece->replica_first = first;
    piece->replicas = end - first;
    piece->replica = rank - first;
    piece->global_first = mine;
    piece->count = 1;
}

int gti_param_pieces(const gt_param *param, int tp, int rank, gti_param_piece out[GT_MAX_SECTIONS])
{
    if (param->tp_axis == GT_REPLICATED) {
        int64_t n = param->ndim > 0 ? param->shape[0] : 1;
        out[0] = (gti_param_piece){.count = n, .replicas = tp, .replica = rank};
        return 1;
    }
    int64_t unit = unit_of(param), global = 0, local = 0;
    int count = section_count(param);
    for (int i = 0; i < count; i++) {
        int64_t length = section_length(param, i), units = length / unit;
        gti_param_piece p = {.replicas = 1, .replica_first = rank};
        if (param->tp_share && units > 0 && units < tp) {
            shared_piece(&p, units, tp, rank);
        } else {
            p.global_first = gt_split_first(units, tp, rank);
            p.count = gt_split_count(units, tp, rank);
        }
        p.global_first = global + p.global_first * unit;
        p.count *= unit;
        p.local_first = local;
        local += p.count;
        global += length;
        out[i] = p;
    }
    return count;
}

void gti_param_local_shape(const gt_param *param, int tp, int rank, int64_t shape[4])
{
    for (int i = 0; i < 4; i++) {
        shape[i] = i < param->ndim ? param->shape[i] : 0;
    }
    if (param->tp_axis == GT_REPLICATED) {
        return;
    }
    gti_param_piece pieces[GT_MAX_SECTIONS];
    int n = gti_param_pieces(param, tp, rank, pieces);
    shape[param->tp_axis] = pieces[n - 1].local_first + pieces[n - 1].count;
}

static int64_t product(const int64_t *shape, int first, int end)
{
    int64_t n = 1;
    for (int i = first; i < end; i++) {
        n *= shape[i];
    }
    return n;
}

int64_t gti_param_local_numel(const gt_param *param, int tp, int rank)
{
    int64_t shape[4];
    gti_param_local_shape(param, tp, rank, shape);
    return product(shape, 0, param->ndim);
}

int64_t gti_param_numel(const gt_param *param)
{
    return product(param->shape, 0, param->ndim);
}

int64_t gti_param_inner(const gt_param *param)
{
    int axis = param->tp_axis == GT_REPLICATED ? 0 : param->tp_axis;
    return product(param->shape, axis + 1, param->ndim);
}

int64_t gti_param_outer(const gt_param *param)
{
    return param->tp_axis == GT_REPLICATED ? 1 : product(param->shape, 0, param->tp_axis);
}

bool gti_param_has_replicas(const gt_param *param, int tp)
{
    if (param->tp_axis == GT_REPLICATED || !param->tp_share) {
        return false;
    }
    for (int i = 0; i < section_count(param); i++) {
        int64_t units = section_length(param, i) / unit_of(param);
        if (units > 0 && units < tp) {
            return true;
        }
    }
    return false;
}
