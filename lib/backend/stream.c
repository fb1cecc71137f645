/* SPDX-License-Identifier: Apache-2.0
 * Streams, events and copies: the public entries over a backend. */
#include <stdlib.h>

#include "backend/context.h"
#include "core/fail.h"
#include "core/tensor.h"

gt_stream *gt_context_stream(gt_context *ctx, gt_stream_kind kind)
{
    return (unsigned)kind < GT_STREAM_COUNT ? &ctx->streams[kind] : NULL;
}

gt_status gt_stream_synchronize(gt_stream *stream)
{
    if (stream == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "stream is NULL");
    }
    return stream->ctx->backend->stream_synchronize(stream->ctx->device, stream->native);
}

gt_status gt_context_synchronize(gt_context *ctx)
{
    if (ctx == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "ctx is NULL");
    }
    /* All are waited for; the first error is kept. */
    gt_status first = GT_OK;
    char text[GTI_ERROR_MAX];
    for (int i = 0; i < GT_STREAM_COUNT; i++) {
        gt_status st = gt_stream_synchronize(&ctx->streams[i]);
        if (st != GT_OK && first == GT_OK) {
            first = st;
            gti_error_copy(text);
        }
    }
    return first == GT_OK ? GT_OK : gti_fail_text(first, text);
}

gt_status gt_event_create(gt_event **out, gt_context *ctx)
{
    if (out == NULL || ctx == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s is NULL", out == NULL ? "out" : "ctx");
    }
    gt_event *event = calloc(1, sizeof *event);
    if (event == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "out of host memory for an event");
    }
    event->ctx = ctx;
    gt_status st = ctx->backend->event_create(ctx->device, &event->native);
    if (st != GT_OK) {
        free(event);
        return st;
    }
    *out = event;
    return GT_OK;
}

void gt_event_destroy(gt_event **event)
{
    if (event == NULL || *event == NULL) {
        return;
    }
    (*event)->ctx->backend->event_destroy((*event)->ctx->device, (*event)->native);
    free(*event);
    *event = NULL;
}

static gt_status check_event(const gt_event *event, const gt_stream *stream)
{
    if (event == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "event is NULL");
    }
    if (stream != NULL && stream->ctx != event->ctx) {
        return GT_FAIL(GT_ERR_ARGUMENT, "event and stream belong to different contexts");
    }
    return GT_OK;
}

gt_status gt_event_record(gt_event *event, gt_stream *stream)
{
    GT_TRY(check_event(event, stream));
    gt_context *ctx = event->ctx;
    return ctx->backend->event_record(ctx->device, event->native,
                                      gti_stream_or_compute(ctx, stream)->native);
}

gt_status gt_event_wait(gt_event *event, gt_stream *stream)
{
    GT_TRY(check_event(event, stream));
    gt_context *ctx = event->ctx;
    return ctx->backend->event_wait(ctx->device, event->native,
                                    gti_stream_or_compute(ctx, stream)->native);
}

gt_status gt_event_query(gt_event *event, bool *done)
{
    if (done == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "done is NULL");
    }
    GT_TRY(check_event(event, NULL));
    return event->ctx->backend->event_query(event->ctx->device, event->native, done);
}

gt_status gt_event_synchronize(gt_event *event)
{
    GT_TRY(check_event(event, NULL));
    return event->ctx->backend->event_synchronize(event->ctx->device, event->native);
}

static gt_status check_copy(gt_context *ctx, const gt_tensor *t, const void *host,
                            const gt_stream *stream)
{
    if (ctx == NULL || t == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s is NULL", ctx == NULL ? "ctx" : "the tensor");
    }
    if (gt_tensor_bytes(t) > 0 && (host == NULL || t->data == NULL)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s is NULL",
                       host == NULL ? "the host pointer" : "the tensor's data");
    }
    if (t->device.type != ctx->id.type) {
        char text[GTI_TENSOR_TEXT];
        return GT_FAIL(GT_ERR_ARGUMENT, "the tensor is %s, want one on %s",
                       gti_tensor_text(text, t), ctx->backend->name);
    }
    if (stream != NULL && stream->ctx != ctx) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the stream belongs to another context");
    }
    return GT_OK;
}

gt_status gt_copy_to_host(gt_context *ctx, void *host, const gt_tensor *src, gt_stream *stream)
{
    GT_TRY(check_copy(ctx, src, host, stream));
    return ctx->backend->copy_to_host(ctx->device, gti_stream_or_compute(ctx, stream)->native, host,
                                      src->data, gt_tensor_bytes(src));
}

gt_status gt_copy_from_host(gt_context *ctx, gt_tensor *dst, const void *host, gt_stream *stream)
{
    GT_TRY(check_copy(ctx, dst, host, stream));
    return ctx->backend->copy_from_host(ctx->device, gti_stream_or_compute(ctx, stream)->native,
                                        dst->data, host, gt_tensor_bytes(dst));
}
