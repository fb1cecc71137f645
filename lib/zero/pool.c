/* SPDX-License-Identifier: Apache-2.0
 *
 * Buffers that units take turns in: gathered parameters, and full gradients on their way to shards.
 *
 * A buffer serves every unit of its size class (its capacity is at least what is asked and at most
 * four times it), so layers of one size rotate through two buffers, and a big embedding has one of
 * its own instead of making all others as big. Buffers are made when first needed and kept: after
 * the first step nothing is allocated. Taking depends only on the order of calls, hence is the same
 * on every rank.
 */
#include "zero/state.h"

#include <stdlib.h>

#include "core/fail.h"

static bool fits(const struct zero_buffer *b, size_t bytes)
{
    return b->capacity >= bytes && b->capacity / 4 <= bytes;
}

void gti_zero_pool_class(const struct zero_pool *pool, size_t bytes, int *count, int *unused)
{
    *count = 0;
    *unused = 0;
    for (int i = 0; i < pool->count; i++) {
        if (fits(pool->buffers[i], bytes)) {
            *count += 1;
            *unused += !pool->buffers[i]->used;
        }
    }
}

static struct zero_buffer *best_free(struct zero_pool *pool, size_t bytes)
{
    struct zero_buffer *best = NULL;
    for (int i = 0; i < pool->count; i++) {
        struct zero_buffer *b = pool->buffers[i];
        if (!b->used && fits(b, bytes) && (best == NULL || b->capacity < best->capacity)) {
            best = b;
        }
    }
    return best;
}

static gt_status add_buffer(struct gt_zero *zero, struct zero_pool *pool, size_t bytes,
                            struct zero_buffer **out)
{
    if (pool->count == pool->room) {
        int room = pool->room ? 2 * pool->room : 8;
        struct zero_buffer **grown =
            realloc(pool->buffers, (size_t)room * sizeof(struct zero_buffer *));
        if (grown == NULL) {
            return GT_FAIL(GT_ERR_MEMORY, "no host memory for a list of %d buffers", room);
        }
        pool->buffers = grown;
        pool->room = room;
    }
    struct zero_buffer *b = calloc(1, sizeof(*b));
    if (b == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for a buffer record");
    }
    gt_status st = gt_alloc(zero->ctx, &b->data, bytes, GT_MEM_COMM);
    if (st != GT_OK) {
        free(b);
        return st;
    }
    b->capacity = bytes;
    pool->buffers[pool->count++] = b;
    pool->bytes += bytes;
    *out = b;
    return GT_OK;
}

gt_status gti_zero_pool_take(struct gt_zero *zero, struct zero_pool *pool, size_t bytes,
                             struct zero_buffer **out)
{
    struct zero_buffer *b = best_free(pool, bytes);
    if (b == NULL) {
        GT_TRY(add_buffer(zero, pool, bytes, &b));
    }
    b->used = true;
    *out = b;
    return GT_OK;
}

void gti_zero_pool_give(struct zero_buffer **buffer)
{
    if (*buffer != NULL) {
        (*buffer)->used = false;
        *buffer = NULL;
    }
}

void gti_zero_pool_destroy(struct gt_zero *zero, struct zero_pool *pool)
{
    for (int i = 0; i < pool->count; i++) {
        gt_free(zero->ctx, pool->buffers[i]->data);
        free(pool->buffers[i]);
    }
    free(pool->buffers);
    *pool = (struct zero_pool){0};
}
