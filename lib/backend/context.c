/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/context.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/params.h"

_Static_assert(offsetof(struct gt_context, logger) == 0, "gti_log() finds the logger there");

static const gti_backend *const backends[] = {&gti_backend_cpu, &gti_backend_guarded};

void gt_context_params_init(gt_context_params *params, size_t size)
{
    gti_params_init(params, size);
}

/* "name" or "name:index". */
static gt_status find_backend(const gti_backend **backend, int *index, const char *device)
{
    size_t length = strcspn(device, ":");
    long number = 0;
    bool ok = true;
    if (device[length] == ':') {
        char *end;
        number = strtol(device + length + 1, &end, 10);
        ok = end != device + length + 1 && *end == '\0' && number >= 0 && number <= INT_MAX;
    }
    for (size_t i = 0; ok && i < sizeof backends / sizeof backends[0]; i++) {
        const char *name = backends[i]->name;
        if (strlen(name) == length && memcmp(name, device, length) == 0) {
            *backend = backends[i];
            *index = (int)number;
            return GT_OK;
        }
    }
    if (ok && length == 4 && memcmp(device, "cuda", 4) == 0) {
        return GT_FAIL(GT_ERR_UNSUPPORTED, "device \"%s\": this build has no cuda backend", device);
    }
    return GT_FAIL(GT_ERR_ARGUMENT, "device is \"%s\", want cpu, guarded or cuda:N", device);
}

static gt_status create_streams(gt_context *ctx)
{
    for (int i = 0; i < GT_STREAM_COUNT; i++) {
        ctx->streams[i].ctx = ctx;
        GT_TRY(ctx->backend->stream_create(ctx->device, &ctx->streams[i].native));
    }
    return GT_OK;
}

static void destroy_streams(gt_context *ctx)
{
    for (int i = GT_STREAM_COUNT - 1; i >= 0; i--) {
        if (ctx->streams[i].native != NULL) {
            ctx->backend->stream_destroy(ctx->device, ctx->streams[i].native);
        }
    }
}

static void set_logger(gti_logger *logger, const gt_context_params *params)
{
    logger->write = params->log;
    logger->user = params->log_user;
    logger->level =
        params->log_level == 0 && !params->log_level_set ? GT_LOG_INFO : params->log_level;
}

gt_status gt_context_create(gt_context **out, const gt_context_params *params)
{
    if (out == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "out is NULL");
    }
    gt_context_params p;
    GT_TRY(GTI_PARAMS_COPY(&p, params, gt_context_params));
    if (p.threads < 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "threads is %d, want at least 0", p.threads);
    }
    const gti_backend *backend;
    int index;
    GT_TRY(find_backend(&backend, &index, p.device != NULL ? p.device : "cpu"));
    gt_context *ctx = calloc(1, sizeof *ctx);
    if (ctx == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "out of host memory for a context");
    }
    set_logger(&ctx->logger, &p);
    ctx->backend = backend;
    ctx->id = (gt_device){.type = backend->type, .index = index};
    ctx->seed = p.seed;
    gt_status st = backend->create(&ctx->device, index, p.threads);
    if (st != GT_OK) {
        goto err_free;
    }
    ctx->threads = backend->threads(ctx->device);
    st = create_streams(ctx);
    if (st != GT_OK) {
        goto err_destroy_device;
    }
    gti_memory_init(&ctx->memory);
    *out = ctx;
    return GT_OK;

err_destroy_device:
    destroy_streams(ctx);
    backend->destroy(ctx->device);
err_free:
    free(ctx);
    return st;
}

void gt_context_destroy(gt_context **ctx)
{
    if (ctx == NULL || *ctx == NULL) {
        return;
    }
    gt_context *c = *ctx;
    if (gt_context_synchronize(c) != GT_OK) {
        gti_log(c, GT_LOG_ERROR, "error nobody asked for: %s", gt_last_error());
    }
    gti_memory_close(c);
    destroy_streams(c);
    c->backend->destroy(c->device);
    free(c);
    *ctx = NULL;
}

gt_device gt_context_device(const gt_context *ctx)
{
    return ctx->id;
}

uint64_t gt_context_seed(const gt_context *ctx)
{
    return ctx->seed;
}

int gt_context_threads(const gt_context *ctx)
{
    return ctx->threads;
}

size_t gti_context_memory(const gt_context *ctx)
{
    return ctx->backend->memory(ctx->device);
}

void gt_context_set_rank(gt_context *ctx, int rank, int size)
{
    ctx->logger.rank = rank;
    ctx->logger.size = size;
}
