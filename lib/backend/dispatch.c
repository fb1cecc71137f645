/* SPDX-License-Identifier: Apache-2.0
 * From an operation and its arguments to the backend that runs it. */
#include "backend/context.h"
#include "core/fail.h"
#include "core/tensor.h"

const int gti_op_tensors[GTI_OP_COUNT] = {
#define TENSORS(name, tensors) [GTI_OP_##name] = tensors,
    GTI_OPS(TENSORS)
#undef TENSORS
};

const char *const gti_op_names[GTI_OP_COUNT] = {
#define NAME(name, tensors) [GTI_OP_##name] = #name,
    GTI_OPS(NAME)
#undef NAME
};

gt_status gti_dispatch(gt_context *ctx, gt_stream *stream, gti_op op, const void *args, size_t size,
                       int tensors)
{
    const gti_backend *backend = ctx->backend;
    if (backend->ops(ctx->device)[op] == NULL) {
        return GT_FAIL(GT_ERR_UNSUPPORTED, "the %s device has no %s", backend->name,
                       gti_op_names[op]);
    }
    if (stream != NULL && stream->ctx != ctx) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s: the stream belongs to another context",
                       gti_op_names[op]);
    }
    const gt_tensor *t = args;
    for (int i = 0; i < tensors; i++) {
        if (t[i].data != NULL && t[i].device.type != ctx->id.type) {
            char text[GTI_TENSOR_TEXT];
            return GT_FAIL(GT_ERR_ARGUMENT, "%s: tensor %d is %s, the context's device is %s",
                           gti_op_names[op], i, gti_tensor_text(text, &t[i]), backend->name);
        }
    }
    return backend->submit(ctx->device, gti_stream_or_compute(ctx, stream)->native, op, args, size,
                           tensors);
}

void *gti_host_address(gt_context *ctx, const gt_tensor *t)
{
    if (t->data == NULL || t->device.type == GT_DEVICE_CPU || gt_tensor_numel(t) == 0) {
        return t->data;
    }
    return ctx->backend->host_address(ctx->device, t->data);
}
