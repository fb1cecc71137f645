/* SPDX-License-Identifier: Apache-2.0 */
#include <geektrain/ops.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "backend/backend.h"
#include "core/params.h"
#include "ops/check.h"

#define MOMENTS (GTI_ONLY(GT_F32) | GTI_ONLY(GT_BF16))

/* The defaults into as much of the caller's struct as it has. */
static void set_defaults(void *params, size_t size, const void *defaults, size_t defaults_size)
{
    gti_params_init(params, size);
    memcpy(params, defaults, size < defaults_size ? size : defaults_size);
    memcpy(params, &size, sizeof(size));
}

void gt_adamw_params_init(gt_adamw_params *params, size_t size)
{
    const gt_adamw_params defaults = GT_ADAMW_PARAMS_INIT;
    set_defaults(params, size, &defaults, sizeof(defaults));
}

void gt_sgd_params_init(gt_sgd_params *params, size_t size)
{
    const gt_sgd_params defaults = GT_SGD_PARAMS_INIT;
    set_defaults(params, size, &defaults, sizeof(defaults));
}

void gt_lion_params_init(gt_lion_params *params, size_t size)
{
    const gt_lion_params defaults = GT_LION_PARAMS_INIT;
    set_defaults(params, size, &defaults, sizeof(defaults));
}

/* A flat tensor of n elements. */
static gt_status check_flat(gt_context *ctx, const char *name, const gt_tensor *t, unsigned dtypes,
                            int64_t n)
{
    GT_TRY(gti_check_tensor(ctx, name, t, dtypes));
    return gti_check_numel(name, t, "numel of grad", n);
}

/* param is optional, of any float dtype, and may be the master itself. */
static gt_status check_param(gt_context *ctx, const gt_tensor *param, const gt_tensor *master,
                             int64_t n)
{
    if (!gti_present(param)) {
        return GT_OK;
    }
    GT_TRY(check_flat(ctx, "param", param, GTI_FLOATS, n));
    if (param->data == master->data && param->dtype != master->dtype) {
        return GT_FAIL(GT_ERR_DTYPE, "param is %s in the memory of master, which is %s",
                       gt_dtype_name(param->dtype), gt_dtype_name(master->dtype));
    }
    return GT_OK;
}

static gt_status check_shard(gt_context *ctx, const gt_tensor *param, const gt_tensor *master,
                             const gt_tensor *grad)
{
    GT_TRY(gti_check_tensor(ctx, "grad", grad, GTI_FLOATS));
    GT_TRY(check_flat(ctx, "master", master, GTI_ONLY(GT_F32), gt_tensor_numel(grad)));
    return check_param(ctx, param, master, gt_tensor_numel(grad));
}

static gt_status check_number(const char *name, float value)
{
    if (!isfinite(value)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s is %g, wanted a finite number", name, (double)value);
    }
    return GT_OK;
}

static gt_status check_beta(const char *name, float beta)
{
    if (!(beta >= 0.0f && beta < 1.0f)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s is %g, wanted 0 <= beta < 1", name, (double)beta);
    }
    return GT_OK;
}

static gt_status check_step(int64_t step)
{
    if (step < 1) {
        return GT_FAIL(GT_ERR_ARGUMENT, "step is %" PRId64 ", wanted 1 for the first update", step);
    }
    return GT_OK;
}

static gt_status take_adamw(gt_adamw_params *p, const gt_adamw_params *params)
{
    GT_TRY(gti_take_params("gt_adamw_params", p, sizeof(*p), params));
    GT_TRY(check_number("lr", p->lr));
    GT_TRY(check_beta("beta1", p->beta1));
    GT_TRY(check_beta("beta2", p->beta2));
    if (!(p->eps >= 0.0f) || isinf(p->eps)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "eps is %g, wanted a finite number from 0 on",
                       (double)p->eps);
    }
    GT_TRY(check_number("weight_decay", p->weight_decay));
    return check_step(p->step);
}

/* The remainder form: a bf16 param with two more bytes per element. */
static gt_status check_remainder(gt_context *ctx, const gt_tensor *param, const gt_tensor *rest,
                                 int64_t n)
{
    GT_TRY(check_flat(ctx, "param", param, GTI_ONLY(GT_BF16), n));
    GT_TRY(gti_check_tensor(ctx, "remainder", rest, GTI_ONLY(GT_U8)));
    return gti_check_numel("remainder", rest, "2*numel of param", 2 * n);
}

/* 1 - beta^t without the running products that drift. */
static double correction(float beta, int64_t step)
{
    return 1.0 - pow((double)beta, (double)step);
}

gt_status gt_adamw(gt_context *ctx, gt_tensor *param, gt_tensor *master, gt_tensor *m, gt_tensor *v,
                   const gt_tensor *grad, const gt_adamw_params *params, gt_stream *stream)
{
    gt_adamw_params p = GT_ADAMW_PARAMS_INIT;
    GT_TRY(take_adamw(&p, params));
    GT_TRY(gti_check_tensor(ctx, "grad", grad, GTI_FLOATS));
    int64_t n = gt_tensor_numel(grad);
    bool remainder = master != NULL && master->dtype == GT_U8;
    if (remainder) {
        GT_TRY(check_remainder(ctx, param, master, n));
    } else {
        GT_TRY(check_shard(ctx, param, master, grad));
    }
    GT_TRY(check_flat(ctx, "m", m, MOMENTS, n));
    GT_TRY(check_flat(ctx, "v", v, MOMENTS, n));
    struct gti_adamw_args args = {
        .param = gti_optional(param),
        .master = *master,
        .m = *m,
        .v = *v,
        .grad = *grad,
        .lr = p.lr,
        .beta1 = p.beta1,
        .beta2 = p.beta2,
        .eps = p.eps,
        .weight_decay = p.weight_decay,
        .grad_scale = p.grad_scale,
        .c1 = correction(p.beta1, p.step),
        .c2 = correction(p.beta2, p.step),
        .step = p.step,
        .l2 = p.l2,
        .master_is_remainder = remainder,
    };
    return n == 0 ? GT_OK : GTI_RUN(ctx, stream, adamw, &args);
}

gt_status gt_sgd(gt_context *ctx, gt_tensor *param, gt_tensor *master, gt_tensor *velocity,
                 const gt_tensor *grad, const gt_sgd_params *params, gt_stream *stream)
{
    gt_sgd_params p = GT_SGD_PARAMS_INIT;
    GT_TRY(gti_take_params("gt_sgd_params", &p, sizeof(p), params));
    GT_TRY(check_number("lr", p.lr));
    GT_TRY(check_number("momentum", p.momentum));
    GT_TRY(check_number("dampening", p.dampening));
    GT_TRY(check_number("weight_decay", p.weight_decay));
    GT_TRY(check_step(p.step));
    GT_TRY(check_shard(ctx, param, master, grad));
    int64_t n = gt_tensor_numel(grad);
    if (p.momentum != 0.0f || gti_present(velocity)) {
        GT_TRY(check_flat(ctx, "velocity", velocity, MOMENTS, n));
    }
    struct gti_sgd_args args = {
        .param = gti_optional(param),
        .master = *master,
        .v = p.momentum != 0.0f ? *velocity : (gt_tensor){0},
        .grad = *grad,
        .lr = p.lr,
        .momentum = p.momentum,
        .dampening = p.dampening,
        .weight_decay = p.weight_decay,
        .grad_scale = p.grad_scale,
        .step = p.step,
        .nesterov = p.nesterov,
        .first = p.step == 1,
    };
    return n == 0 ? GT_OK : GTI_RUN(ctx, stream, sgd, &args);
}

gt_status gt_lion(gt_context *ctx, gt_tensor *param, gt_tensor *master, gt_tensor *m,
                  const gt_tensor *grad, const gt_lion_params *params, gt_stream *stream)
{
    gt_lion_params p = GT_LION_PARAMS_INIT;
    GT_TRY(gti_take_params("gt_lion_params", &p, sizeof(p), params));
    GT_TRY(check_number("lr", p.lr));
    GT_TRY(check_beta("beta1", p.beta1));
    GT_TRY(check_beta("beta2", p.beta2));
    GT_TRY(check_number("weight_decay", p.weight_decay));
    GT_TRY(check_shard(ctx, param, master, grad));
    GT_TRY(check_flat(ctx, "m", m, MOMENTS, gt_tensor_numel(grad)));
    struct gti_lion_args args = {
        .param = gti_optional(param),
        .master = *master,
        .m = *m,
        .grad = *grad,
        .lr = p.lr,
        .beta1 = p.beta1,
        .beta2 = p.beta2,
        .weight_decay = p.weight_decay,
        .grad_scale = p.grad_scale,
    };
    return gt_tensor_numel(grad) == 0 ? GT_OK : GTI_RUN(ctx, stream, lion, &args);
}

gt_status gt_lamb_update(gt_context *ctx, gt_tensor *update, gt_tensor *m, gt_tensor *v,
                         gt_tensor *norms, const gt_tensor *master, const gt_tensor *grad,
                         const gt_adamw_params *params, gt_stream *stream)
{
    gt_adamw_params p = GT_ADAMW_PARAMS_INIT;
    GT_TRY(take_adamw(&p, params));
    GT_TRY(check_shard(ctx, NULL, master, grad));
    int64_t n = gt_tensor_numel(grad);
    GT_TRY(check_flat(ctx, "update", update, GTI_ONLY(GT_F32), n));
    GT_TRY(check_flat(ctx, "m", m, MOMENTS, n));
    GT_TRY(check_flat(ctx, "v", v, MOMENTS, n));
    GT_TRY(gti_check_tensor(ctx, "norms", norms, GTI_ONLY(GT_F64)));
    GT_TRY(gti_check_numel("norms", norms, "numel", 2));
    struct gti_lamb_update_args args = {
        .u = *update,
        .m = *m,
        .v = *v,
        .norms = *norms,
        .master = *master,
        .grad = *grad,
        .beta1 = p.beta1,
        .beta2 = p.beta2,
        .eps = p.eps,
        .weight_decay = p.weight_decay,
        .grad_scale = p.grad_scale,
        .c1 = correction(p.beta1, p.step),
        .c2 = correction(p.beta2, p.step),
        .step = p.step,
    };
    return n == 0 ? GT_OK : GTI_RUN(ctx, stream, lamb_update, &args);
}

double gt_lamb_trust(const double norms[2], double min_coeff, double max_coeff)
{
    if (norms == NULL || !(norms[0] > 0.0) || !(norms[1] > 0.0) || isinf(norms[0]) ||
        isinf(norms[1])) {
        return 1.0;
    }
    return fmax(min_coeff, fmin(max_coeff, sqrt(norms[0]) / sqrt(norms[1])));
}

gt_status gt_lamb_apply(gt_context *ctx, gt_tensor *param, gt_tensor *master,
                        const gt_tensor *update, float lr, float trust, gt_stream *stream)
{
    GT_TRY(gti_check_tensor(ctx, "update", update, GTI_ONLY(GT_F32)));
    int64_t n = gt_tensor_numel(update);
    GT_TRY(gti_check_tensor(ctx, "master", master, GTI_ONLY(GT_F32)));
    GT_TRY(gti_check_numel("master", master, "numel of update", n));
    GT_TRY(check_param(ctx, param, master, n));
    GT_TRY(check_number("lr", lr));
    GT_TRY(check_number("trust", trust));
    struct gti_lamb_apply_args args = {
        .param = gti_optional(param), .master = *master, .u = *update, .lr = lr, .trust = trust};
    return n == 0 ? GT_OK : GTI_RUN(ctx, stream, lamb_apply, &args);
}

gt_status gt_master_split(gt_context *ctx, gt_tensor *param, gt_tensor *remainder,
                          const gt_tensor *x, gt_stream *stream)
{
    GT_TRY(gti_check_tensor(ctx, "x", x, GTI_ONLY(GT_F32)));
    GT_TRY(check_remainder(ctx, param, remainder, gt_tensor_numel(x)));
    struct gti_master_split_args args = {.param = *param, .remainder = *remainder, .x = *x};
    return gt_tensor_numel(x) == 0 ? GT_OK : GTI_RUN(ctx, stream, master_split, &args);
}

gt_status gt_master_join(gt_context *ctx, gt_tensor *x, const gt_tensor *param,
                         const gt_tensor *remainder, gt_stream *stream)
{
    GT_TRY(gti_check_tensor(ctx, "x", x, GTI_ONLY(GT_F32)));
    GT_TRY(check_remainder(ctx, param, remainder, gt_tensor_numel(x)));
    struct gti_master_join_args args = {.x = *x, .param = *param, .remainder = *remainder};
    return gt_tensor_numel(x) == 0 ? GT_OK : GTI_RUN(ctx, stream, master_join, &args);
}
