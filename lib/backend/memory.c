/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/memory.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "backend/context.h"
#include "core/fail.h"
#include "core/tensor.h"

typedef struct allocation {
    void *pointer;
    size_t bytes;
    gt_memory_tag tag;
} allocation;

static int compare_pointers(const void *a, const void *b)
{
    const char *x = ((const allocation *)a)->pointer;
    const char *y = ((const allocation *)b)->pointer;
    return (x > y) - (x < y);
}

const char *gt_memory_tag_name(gt_memory_tag tag)
{
    static const char *const names[GT_MEM_TAG_COUNT] = {
        [GT_MEM_PARAMS] = "params",       [GT_MEM_GRADS] = "grads",
        [GT_MEM_OPTIMIZER] = "optimizer", [GT_MEM_ACTIVATIONS] = "activations",
        [GT_MEM_COMM] = "comm",           [GT_MEM_WORKSPACE] = "workspace",
        [GT_MEM_OTHER] = "other",
    };
    return (unsigned)tag < GT_MEM_TAG_COUNT ? names[tag] : "not a tag";
}

void gti_memory_init(gti_memory *memory)
{
    pthread_mutex_init(&memory->lock, NULL);
}

void gti_memory_close(gt_context *ctx)
{
    gti_memory *memory = &ctx->memory;
    for (int tag = 0; tag < GT_MEM_TAG_COUNT; tag++) {
        if (memory->stats.live[tag] > 0) {
            gti_log(ctx, GT_LOG_WARN, "context destroyed with %zu bytes of %s not freed",
                    memory->stats.live[tag], gt_memory_tag_name((gt_memory_tag)tag));
        }
    }
    while (memory->allocations != NULL) {
        allocation *root = *(allocation **)memory->allocations;
        ctx->backend->free(ctx->device, root->pointer);
        tdelete(root, &memory->allocations, compare_pointers);
        free(root);
    }
    pthread_mutex_destroy(&memory->lock);
}

/* Why an allocation may not be had, or NULL. */
static const char *refusal(gti_memory *memory, size_t bytes)
{
    if (memory->fail_at > 0 && --memory->fail_at == 0) {
        return "failure injected";
    }
    if (memory->limit > 0 &&
        (bytes > memory->limit || memory->stats.live_total > memory->limit - bytes)) {
        return "over the memory limit";
    }
    return NULL;
}

static void count_up(gt_memory_stats *stats, const allocation *a)
{
    stats->allocations++;
    stats->live[a->tag] += a->bytes;
    stats->live_total += a->bytes;
    if (stats->live[a->tag] > stats->peak[a->tag]) {
        stats->peak[a->tag] = stats->live[a->tag];
    }
    if (stats->live_total > stats->peak_total) {
        stats->peak_total = stats->live_total;
    }
}

/* With the lock held: NULL and an entry in the tree, or why not. */
static const char *allocate_locked(gt_context *ctx, allocation *entry)
{
    gti_memory *memory = &ctx->memory;
    const char *why = refusal(memory, entry->bytes);
    if (why != NULL) {
        return why;
    }
    if (ctx->backend->alloc(ctx->device, &entry->pointer, entry->bytes) != GT_OK) {
        return "out of memory";
    }
    if (tsearch(entry, &memory->allocations, compare_pointers) == NULL) {
        ctx->backend->free(ctx->device, entry->pointer);
        return "out of host memory";
    }
    count_up(&memory->stats, entry);
    return NULL;
}

gt_status gt_alloc(gt_context *ctx, void **out, size_t bytes, gt_memory_tag tag)
{
    if (ctx == NULL || out == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s is NULL", ctx == NULL ? "ctx" : "out");
    }
    if ((unsigned)tag >= GT_MEM_TAG_COUNT) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%d is not a memory tag", (int)tag);
    }
    allocation *entry = malloc(sizeof *entry);
    if (entry == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "out of host memory for %zu bytes of %s", bytes,
                       gt_memory_tag_name(tag));
    }
    *entry = (allocation){.bytes = bytes, .tag = tag};
    pthread_mutex_lock(&ctx->memory.lock);
    const char *why = allocate_locked(ctx, entry);
    size_t live = ctx->memory.stats.live_total;
    pthread_mutex_unlock(&ctx->memory.lock);
    if (why != NULL) {
        free(entry);
        return GT_FAIL(GT_ERR_MEMORY, "%zu bytes of %s: %s; %zu bytes are live", bytes,
                       gt_memory_tag_name(tag), why, live);
    }
    *out = entry->pointer;
    return GT_OK;
}

void gt_free(gt_context *ctx, void *pointer)
{
    if (ctx == NULL || pointer == NULL) {
        return;
    }
    gti_memory *memory = &ctx->memory;
    allocation key = {.pointer = pointer}, *entry = NULL;
    pthread_mutex_lock(&memory->lock);
    void *node = tfind(&key, &memory->allocations, compare_pointers);
    if (node != NULL) {
        entry = *(allocation **)node;
        tdelete(entry, &memory->allocations, compare_pointers);
        memory->stats.live[entry->tag] -= entry->bytes;
        memory->stats.live_total -= entry->bytes;
    }
    pthread_mutex_unlock(&memory->lock);
    if (entry == NULL) {
        gti_log(ctx, GT_LOG_ERROR, "gt_free of %p, which this context did not allocate", pointer);
        return;
    }
    ctx->backend->free(ctx->device, pointer);
    free(entry);
}

gt_status gt_tensor_alloc(gt_context *ctx, gt_tensor *out, gt_memory_tag tag, gt_dtype dtype,
                          int ndim, const int64_t *shape)
{
    if (ctx == NULL || out == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s is NULL", ctx == NULL ? "ctx" : "out");
    }
    int64_t numel;
    size_t bytes;
    GT_TRY(gti_shape_bytes(dtype, ndim, shape, &numel, &bytes));
    void *data;
    GT_TRY(gt_alloc(ctx, &data, bytes, tag));
    *out = gt_tensor_make(data, dtype, ndim, shape);
    out->device = ctx->id;
    return GT_OK;
}

void gt_tensor_free(gt_context *ctx, gt_tensor *t)
{
    if (t != NULL) {
        gt_free(ctx, t->data);
        memset(t, 0, sizeof *t);
    }
}

void gt_memory_get_stats(const gt_context *ctx, gt_memory_stats *out)
{
    gti_memory *memory = (gti_memory *)&ctx->memory; /* only its lock changes */
    pthread_mutex_lock(&memory->lock);
    *out = memory->stats;
    pthread_mutex_unlock(&memory->lock);
}

void gt_memory_reset_peak(gt_context *ctx)
{
    gt_memory_stats *stats = &ctx->memory.stats;
    pthread_mutex_lock(&ctx->memory.lock);
    memcpy(stats->peak, stats->live, sizeof stats->peak);
    stats->peak_total = stats->live_total;
    pthread_mutex_unlock(&ctx->memory.lock);
}

void gt_memory_fail_at(gt_context *ctx, uint64_t nth)
{
    pthread_mutex_lock(&ctx->memory.lock);
    ctx->memory.fail_at = nth;
    pthread_mutex_unlock(&ctx->memory.lock);
}

void gt_memory_set_limit(gt_context *ctx, size_t bytes)
{
    pthread_mutex_lock(&ctx->memory.lock);
    ctx->memory.limit = bytes;
    pthread_mutex_unlock(&ctx->memory.lock);
}
