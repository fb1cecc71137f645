/* SPDX-License-Identifier: Apache-2.0
 * Batches by position. One thread reads the batch after the one handed out. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/cond.h"
#include "core/fail.h"
#include "core/params.h"
#include "data/shuffle.h"
#include <geektrain/data.h>

#define POSITION_MAX (INT64_MAX / 2) /* so that adding a batch to it does not overflow */

typedef struct buffer {
    int32_t *tokens, *targets, *window; /* window: one sample and its next token */
    int64_t position;                   /* of the global batch in it; -1: none   */
    gt_status status;
    char error[GTI_ERROR_MAX];
} buffer;

struct gt_loader {
    gt_tokens *tokens;
    gt_loader_params p;
    int64_t samples;  /* per epoch                 */
    int64_t position; /* of the next batch         */
    pid_t process;    /* that has the reader: fork() copies the memory, not the thread */
    buffer buffers[2];
    int shown; /* buffer that the caller has */
    /* The reader fills buffers[1 - shown] while `wanted` holds; both under the lock. */
    pthread_t reader;
    bool running, stop, wanted;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

void gt_loader_params_init(gt_loader_params *params, size_t size)
{
    gti_params_init(params, size);
}

static gt_status fill(const gt_loader *l, buffer *b)
{
    const gt_loader_params *p = &l->p;
    int64_t mine = p->batch / p->size;
    for (int64_t k = 0; k < mine; k++) {
        int64_t global = b->position + p->rank * mine + k;
        int64_t epoch = global / l->samples, sample = global % l->samples;
        if (p->shuffle) {
            sample = gti_shuffle(p->seed, epoch, l->samples, sample);
        }
        GT_TRY(gt_tokens_read(l->tokens, p->first + sample * p->seq, p->seq + 1, b->window));
        memcpy(b->tokens + k * p->seq, b->window, (size_t)p->seq * sizeof(int32_t));
        memcpy(b->targets + k * p->seq, b->window + 1, (size_t)p->seq * sizeof(int32_t));
    }
    return GT_OK;
}

static void fill_and_note(const gt_loader *l, buffer *b)
{
    b->status = fill(l, b);
    if (b->status != GT_OK) {
        snprintf(b->error, sizeof b->error, "%s", gt_last_error());
    }
}

static void *read_ahead(void *argument)
{
    gt_loader *l = argument;
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        if (!l->wanted) {
            gti_cond_wait(&l->changed, &l->lock);
            continue;
        }
        buffer *b = &l->buffers[1 - l->shown];
        pthread_mutex_unlock(&l->lock);
        fill_and_note(l, b);
        pthread_mutex_lock(&l->lock);
        l->wanted = false;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Waits until the reader rests, so that the caller may touch both buffers. Holds the lock after. */
static void rest(gt_loader *l)
{
    pthread_mutex_lock(&l->lock);
    while (l->wanted) {
        gti_cond_wait(&l->changed, &l->lock);
    }
}

static gt_status check(const gt_loader_params *p, const gt_tokens *tokens)
{
    int64_t total = gt_tokens_count(tokens);
    if (p->seq < 1 || p->batch < 1 || p->size < 1 || p->rank < 0 || p->rank >= p->size ||
        p->batch % p->size != 0) {
        return GT_FAIL(GT_ERR_ARGUMENT,
                       "loader of batch %lld x seq %lld for rank %d of %d; wanted positive numbers "
                       "and a batch that the ranks divide",
                       (long long)p->batch, (long long)p->seq, p->rank, p->size);
    }
    if (p->first < 0 || p->count < 0 || p->first > total || p->count > total - p->first) {
        return GT_FAIL(GT_ERR_ARGUMENT, "loader over tokens %lld + %lld of %lld",
                       (long long)p->first, (long long)p->count, (long long)total);
    }
    int64_t count = p->count > 0 ? p->count : total - p->first;
    if (p->seq >= count) {
        return GT_FAIL(GT_ERR_FORMAT, "%lld tokens are too few for one sample of seq %lld + 1",
                       (long long)count, (long long)p->seq);
    }
    if (p->batch > POSITION_MAX / 2 || p->batch / p->size > INT64_MAX / 16 / p->seq) {
        return GT_FAIL(GT_ERR_ARGUMENT, "batch %lld x seq %lld overflows", (long long)p->batch,
                       (long long)p->seq);
    }
    return GT_OK;
}

static gt_status allocate(gt_loader *l)
{
    size_t mine = (size_t)(l->p.batch / l->p.size), seq = (size_t)l->p.seq;
    for (int i = 0; i < 2; i++) {
        buffer *b = &l->buffers[i];
        b->position = -1;
        b->tokens = malloc(mine * seq * sizeof(int32_t));
        b->targets = malloc(mine * seq * sizeof(int32_t));
        b->window = malloc((seq + 1) * sizeof(int32_t));
        if (b->tokens == NULL || b->targets == NULL || b->window == NULL) {
            return GT_FAIL(GT_ERR_MEMORY, "no memory for batches of %zu x %zu tokens", mine, seq);
        }
    }
    if (!l->p.no_prefetch) {
        if (pthread_create(&l->reader, NULL, read_ahead, l) != 0) {
            return GT_FAIL(GT_ERR_MEMORY, "cannot start the thread that reads batches ahead");
        }
        l->running = true;
    }
    return GT_OK;
}

gt_status gt_loader_create(gt_loader **out, gt_tokens *tokens, const gt_loader_params *params)
{
    if (out == NULL || tokens == NULL || params == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_loader_create: out, tokens or params is NULL");
    }
    gt_loader_params p;
    GT_TRY(GTI_PARAMS_COPY(&p, params, gt_loader_params));
    GT_TRY(check(&p, tokens));
    gt_loader *l = calloc(1, sizeof *l);
    if (l == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no memory for a loader");
    }
    l->process = getpid();
    l->tokens = tokens;
    l->p = p;
    l->samples = ((p.count > 0 ? p.count : gt_tokens_count(tokens) - p.first) - 1) / p.seq;
    pthread_mutex_init(&l->lock, NULL);
    gti_cond_init(&l->changed);
    gt_status st = allocate(l);
    if (st != GT_OK) {
        gt_loader_destroy(&l);
        return st;
    }
    *out = l;
    return GT_OK;
}

void gt_loader_destroy(gt_loader **loader)
{
    if (loader == NULL || *loader == NULL) {
        return;
    }
    gt_loader *l = *loader;
    bool own = l->process == getpid(); /* else its lock and its thread are the parent's */
    if (l->running && own) {
        pthread_mutex_lock(&l->lock);
        l->stop = true;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->reader, NULL);
    }
    if (own) {
        pthread_mutex_destroy(&l->lock);
        pthread_cond_destroy(&l->changed);
    }
    for (int i = 0; i < 2; i++) {
        free(l->buffers[i].tokens);
        free(l->buffers[i].targets);
        free(l->buffers[i].window);
    }
    free(l);
    *loader = NULL;
}

static gt_status usable(const gt_loader *l)
{
    if (l == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the loader is NULL");
    }
    if (l->process != getpid()) {
        return GT_FAIL(GT_ERR_STATE,
                       "the loader belongs to process %lld, which forked this one; "
                       "create one here",
                       (long long)l->process);
    }
    return GT_OK;
}

gt_status gt_loader_next(gt_loader *l, gt_batch *out)
{
    GT_TRY(usable(l));
    if (out == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_loader_next: out is NULL");
    }
    if (l->position > POSITION_MAX) {
        return GT_FAIL(GT_ERR_STATE, "sample %lld is beyond the last number, %lld",
                       (long long)l->position, (long long)POSITION_MAX);
    }
    rest(l);
    buffer *b = &l->buffers[1 - l->shown];
    if (b->position != l->position) {
        b->position = l->position;
        fill_and_note(l, b);
    }
    gt_status st = b->status;
    if (st != GT_OK) {
        gti_fail_text(st, b->error);
        b->position = -1;
    } else {
        int64_t mine = l->p.batch / l->p.size;
        l->shown = 1 - l->shown;
        *out = (gt_batch){.samples = mine,
                          .seq = l->p.seq,
                          .tokens = b->tokens,
                          .targets = b->targets,
                          .first_sample = l->position + l->p.rank * mine};
        l->position += l->p.batch;
        if (l->running) {
            l->buffers[1 - l->shown].position = l->position;
            l->wanted = true;
            pthread_cond_broadcast(&l->changed);
        }
    }
    pthread_mutex_unlock(&l->lock);
    return st;
}

int64_t gt_loader_position(const gt_loader *loader)
{
    return loader != NULL ? loader->position : 0;
}

gt_status gt_loader_seek(gt_loader *l, int64_t position)
{
    GT_TRY(usable(l));
    if (position < 0 || position > POSITION_MAX) {
        return GT_FAIL(GT_ERR_ARGUMENT, "position %lld, wanted a sample's number, 0 to %lld",
                       (long long)position, (long long)POSITION_MAX);
    }
    l->position = position; /* a batch read ahead for another position is found not to fit */
    return GT_OK;
}

int64_t gt_loader_samples(const gt_loader *loader)
{
    return loader != NULL ? loader->samples : 0;
}
