/* SPDX-License-Identifier: Apache-2.0
 * What a context, a stream and an event are made of. */
#ifndef GTI_BACKEND_CONTEXT_H
#define GTI_BACKEND_CONTEXT_H

#include "backend/backend.h"
#include "backend/memory.h"
#include "core/log.h"

struct gt_stream {
    gt_context *ctx;
    void *native;
};

struct gt_event {
    gt_context *ctx;
    void *native;
};

struct gt_context {
    gti_logger logger; /* first: lib/core/log.c relies on it */
    const gti_backend *backend;
    gti_device *device;
    gt_device id;
    uint64_t seed;
    int threads;
    gt_stream streams[GT_STREAM_COUNT];
    gti_memory memory;
};

static inline gt_stream *gti_stream_or_compute(gt_context *ctx, gt_stream *stream)
{
    return stream != NULL ? stream : &ctx->streams[GT_STREAM_COMPUTE];
}

#endif
