/* SPDX-License-Identifier: Apache-2.0
 * A stream: a thread that runs tasks in order, now and then late. */
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "backend/guarded/guarded.h"
#include "core/fail.h"
#include "core/philox.h"

struct gti_guarded_queue {
    gti_device *device;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    gti_guarded_task *first, **end;
    bool busy, stop;
    uint64_t seed, ran; /* of the delays */
    uint32_t delay_us;
};

/* Half of the tasks run at once, the others up to delay_us later. */
static void delay(gti_guarded_queue *q)
{
    uint32_t bits = gti_philox_u32(q->seed, 0, q->ran++);
    if (q->delay_us == 0 || (bits & 1) != 0) {
        return;
    }
    struct timespec pause = {.tv_nsec = (long)((bits >> 1) % (q->delay_us * 1000u))};
    nanosleep(&pause, NULL);
}

static void *run_queue(void *raw)
{
    gti_guarded_queue *q = raw;
    prctl(PR_SET_TIMERSLACK, 1L); /* nanoseconds; the default would make every delay 50 us longer */
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (q->first == NULL && !q->stop) {
            gti_cond_wait(&q->work, &q->lock);
        }
        gti_guarded_task *task = q->first;
        if (task == NULL) {
            break;
        }
        q->first = task->next;
        if (q->first == NULL) {
            q->end = &q->first;
        }
        q->busy = true;
        pthread_mutex_unlock(&q->lock);
        if (task->slow) {
            delay(q);
        }
        task->run(task, q->device);
        pthread_mutex_lock(&q->lock);
        q->busy = false;
        if (q->first == NULL) {
            pthread_cond_broadcast(&q->idle);
        }
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

gt_status gti_guarded_queue_create(gti_guarded_queue **out, gti_device *device, uint64_t seed,
                                   uint32_t delay_us)
{
    gti_guarded_queue *q = calloc(1, sizeof *q);
    if (q == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "out of host memory for a stream");
    }
    q->device = device;
    q->end = &q->first;
    q->seed = seed;
    q->delay_us = delay_us;
    pthread_mutex_init(&q->lock, NULL);
    gti_cond_init(&q->work);
    gti_cond_init(&q->idle);
    int error = pthread_create(&q->thread, NULL, run_queue, q);
    if (error != 0) {
        pthread_cond_destroy(&q->idle);
        pthread_cond_destroy(&q->work);
        pthread_mutex_destroy(&q->lock);
        free(q);
        return GT_FAIL(GT_ERR_DEVICE, "a stream's thread cannot start: %s", strerror(error));
    }
    *out = q;
    return GT_OK;
}

void gti_guarded_queue_destroy(gti_guarded_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    pthread_cond_destroy(&q->idle);
    pthread_cond_destroy(&q->work);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

void gti_guarded_queue_push(gti_guarded_queue *q, gti_guarded_task *task)
{
    task->next = NULL;
    pthread_mutex_lock(&q->lock);
    *q->end = task;
    q->end = &task->next;
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
}

void gti_guarded_queue_drain(gti_guarded_queue *q)
{
    pthread_mutex_lock(&q->lock);
    while (q->first != NULL || q->busy) {
        gti_cond_wait(&q->idle, &q->lock);
    }
    pthread_mutex_unlock(&q->lock);
}
