/* SPDX-License-Identifier: Apache-2.0
 *
 * What moves the works: one driver at a time, which is the world's thread, or a caller that waits
 * anyway and so saves the switch to the thread. A driver that moves nothing sleeps: on a transport
 * that reports arrivals until one comes, else for a time that grows to 200 microseconds. Without
 * works the thread sleeps until there are some.
 *
 * Where MPI does not let a thread of ours call it there is no thread: works move while a caller
 * waits or submits.
 */
#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "comm/world.h"

#define YIELDS_CALLER 200
#define YIELDS_THREAD 4
#define SLEEP_MIN 10e-6
#define SLEEP_MAX 200e-6
#define SLEEP_ARRIVALS 20e-3 /* arrivals are reported: only time limits need a look */
#define LINGER 20e-3         /* after the last work a polled transport may have bytes to push */

double gti_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void gti_world_arrived(void *world)
{
    gti_world *w = world;
    pthread_mutex_lock(&w->lock);
    w->arrivals++;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

void gti_world_drive(gti_world *w)
{
    pthread_mutex_lock(&w->lock);
    w->helpers++; /* so that the driver tells when it is through */
    while (w->driven) {
        gti_cond_wait(&w->changed, &w->lock);
    }
    w->helpers--;
    w->driven = true;
    pthread_mutex_unlock(&w->lock);
}

void gti_world_let_go(gti_world *w)
{
    pthread_mutex_lock(&w->lock);
    w->driven = false;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* ---- one pass ----------------------------------------------------------------------------------
 */
static bool take_submitted(gti_world *w)
{
    pthread_mutex_lock(&w->lock);
    gt_work *work = w->submitted;
    w->submitted = NULL;
    w->submitted_end = &w->submitted;
    pthread_mutex_unlock(&w->lock);
    bool any = work != NULL;
    while (work != NULL) {
        gt_work *next = work->next;
        work->next = NULL;
        if (work->header.op >= GTI_COMM_SEND) {
            *w->transfers_end = work;
            w->transfers_end = &work->next;
        } else {
            *work->comm->tail = work;
            work->comm->tail = &work->next;
        }
        work = next;
    }
    return any;
}

static bool give_up_if_broken(gti_world *w)
{
    pthread_mutex_lock(&w->lock);
    bool broken = w->broken != GT_OK;
    pthread_mutex_unlock(&w->lock);
    if (!broken) {
        return false;
    }
    gti_world_give_up(w);
    return true;
}

/* By the driver. Says whether anything happened. What has arrived in full is finished before a
 * notice of failure is looked at. */
static bool pass(gti_world *w)
{
    bool moved = take_submitted(w);
    w->awaits_stream = false;
    if (give_up_if_broken(w)) {
        return moved;
    }
    for (gt_comm *c = w->comms; c != NULL; c = c->next) {
        gti_collective_progress(c, &moved);
    }
    gti_transfers_progress(w, &moved);
    if (!moved) {
        gti_world_take_notices(w);
        gti_check_deadlines(w);
    }
    give_up_if_broken(w);
    return moved;
}

/* One pass under the role; the lock is held before and after, not meanwhile. Wakes the callers that
 * wait, `self` of whom (0 or 1) is the one that drives. */
static bool pass_unlocked(gti_world *w, int self)
{
    w->driven = true;
    pthread_mutex_unlock(&w->lock);
    bool moved = pass(w);
    pthread_mutex_lock(&w->lock);
    w->driven = false;
    if (w->helpers > self) {
        pthread_cond_broadcast(&w->changed);
    }
    return moved;
}

void gti_world_look(gti_world *w)
{
    w->driven = true;
    pthread_mutex_unlock(&w->lock);
    gti_world_take_notices(w);
    pthread_mutex_lock(&w->lock);
    w->driven = false;
    if (w->helpers > 0) {
        pthread_cond_broadcast(&w->changed);
    }
}

/* ---- sleeping ----------------------------------------------------------------------------------
 */
/* After `idle` passes in which nothing moved. The lock is held. */
static void back_off(gti_world *w, int idle, int yields)
{
    if (idle < yields) {
        pthread_mutex_unlock(&w->lock);
        sched_yield();
        pthread_mutex_lock(&w->lock);
        return;
    }
    if (!w->transport->polled && !w->awaits_stream) {
        gti_cond_wait_for(&w->changed, &w->lock, SLEEP_ARRIVALS);
        return;
    }
    int doublings = (idle - yields) / 4;
    double seconds = SLEEP_MIN * (double)(1 << (doublings < 5 ? doublings : 5));
    gti_cond_wait_for(&w->changed, &w->lock, seconds < SLEEP_MAX ? seconds : SLEEP_MAX);
}

void *gti_world_thread(void *world)
{
    gti_world *w = world;
    int idle = 0;
    double last = 0;
    prctl(PR_SET_TIMERSLACK, 1000UL);
    prctl(PR_SET_NAME, "geektrain-comm");
    pthread_mutex_lock(&w->lock);
    while (!w->stopping) {
        bool lingers = w->transport->polled && gti_now() - last < LINGER;
        if (w->driven || w->helpers > 0 || (w->active == 0 && !lingers)) {
            gti_cond_wait(&w->changed, &w->lock);
            idle = 0;
            continue;
        }
        if (w->active > 0) {
            last = gti_now();
        }
        uint64_t seen = w->arrivals;
        bool moved = pass_unlocked(w, 0);
        idle = moved ? 0 : idle + 1;
        if (!moved && w->arrivals == seen && w->helpers == 0 && !w->stopping) {
            back_off(w, idle, YIELDS_THREAD);
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* ---- works -------------------------------------------------------------------------------------
 */
static gt_status new_work(gt_work **out, gti_world *w)
{
    gt_work *work = calloc(1, sizeof *work);
    if (work == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no memory for a work handle");
    }
    gt_status st = gt_event_create(&work->event, w->ctx);
    if (st != GT_OK) {
        free(work);
        return st;
    }
    pthread_mutex_lock(&w->lock);
    work->chain = w->works;
    w->works = work;
    pthread_mutex_unlock(&w->lock);
    *out = work;
    return GT_OK;
}

gt_status gti_work_take(gt_work **out, gt_comm *comm, gti_comm_op op)
{
    gti_world *w = comm->world;
    pthread_mutex_lock(&w->lock);
    gt_work *work = w->pool;
    if (work != NULL) {
        w->pool = work->next;
    }
    pthread_mutex_unlock(&w->lock);
    if (work == NULL) {
        GT_TRY(new_work(&work, w));
    }
    *work = (gt_work){.chain = work->chain,
                      .comm = comm,
                      .event = work->event,
                      .header = {.magic = GTI_HEADER_MAGIC, .op = (uint8_t)op}};
    *out = work;
    return GT_OK;
}

void gti_work_give_back(gt_work *work)
{
    gti_world *w = work->comm->world;
    pthread_mutex_lock(&w->lock);
    work->next = w->pool;
    w->pool = work;
    pthread_mutex_unlock(&w->lock);
}

static gt_ledger_entry *ledger_entry(gt_work *work)
{
    return &work->comm->ledger[work->number % GTI_LEDGER_SIZE];
}

/* An older entry may have made room for a newer one. The lock is held. */
static void ledger_state(gt_work *work, int state)
{
    if (work->comm->numbers - work->number <= GTI_LEDGER_SIZE) {
        ledger_entry(work)->state = state;
        ledger_entry(work)->bytes_sent = work->bytes_sent;
    }
}

/* The lock is held. */
static void enqueue(gti_world *w, gt_work *work)
{
    gt_comm *c = work->comm;
    bool transfer = work->header.op >= GTI_COMM_SEND;
    work->number = c->numbers++;
    work->header.sequence = transfer ? c->transfers++ : c->sequence++;
    *ledger_entry(work) = (gt_ledger_entry){.operation = gti_comm_op_names[work->header.op],
                                            .dtype = (gt_dtype)work->header.dtype,
                                            .count = work->header.count,
                                            .sequence = work->header.sequence};
    if (work->on_stream) {
        work->done = true;
        ledger_state(work, 2);
        w->stats.operations++;
        return;
    }
    if (w->active++ == 0) {
        w->busy_since = gti_now();
    }
    c->outstanding++;
    *w->submitted_end = work;
    w->submitted_end = &work->next;
    w->arrivals++;
}

static gt_status start_thread(gti_world *w)
{
    if (w->has_thread || !w->transport->threaded || w->size == 1) {
        return GT_OK;
    }
    if (pthread_create(&w->thread, NULL, gti_world_thread, w) != 0) {
        return GT_FAIL(GT_ERR_MEMORY, "cannot start the communication thread");
    }
    w->has_thread = true;
    return GT_OK;
}

gt_status gti_work_submit(gt_work *work, gt_stream *stream, gt_work **handle)
{
    gti_world *w = work->comm->world;
    gt_status st = gt_event_record(work->event, stream);
    if (st == GT_OK && handle != NULL) {
        st = start_thread(w);
    }
    if (st == GT_OK && !work->on_stream) {
        st = gt_event_query(work->event, &work->ready);
    }
    if (st != GT_OK) {
        gt_comm *comm = work->comm;
        gti_work_give_back(work);
        return comm->size == 1 ? st : gt_comm_fail(comm, st); /* the others wait for this rank */
    }
    pthread_mutex_lock(&w->lock);
    enqueue(w, work);
    if (handle != NULL && w->has_thread) {
        pthread_cond_broadcast(&w->changed);
    } else if (handle != NULL && !w->driven && !work->done) {
        pass_unlocked(w, 0);
    }
    pthread_mutex_unlock(&w->lock);
    if (handle == NULL) {
        return gti_work_finish(work);
    }
    *handle = work;
    return GT_OK;
}

/* Drives the world, or watches its driver, until the condition holds. The lock is held. */
static void help_until(gti_world *w, const bool *done, const int *none)
{
    int idle = 0;
    w->helpers++;
    while (!(done != NULL ? *done : *none == 0)) {
        if (w->driven) {
            gti_cond_wait(&w->changed, &w->lock);
            continue;
        }
        uint64_t seen = w->arrivals;
        bool moved = pass_unlocked(w, 1);
        idle = moved ? 0 : idle + 1;
        bool over = done != NULL ? *done : *none == 0;
        if (!moved && w->arrivals == seen && !over) {
            back_off(w, idle, YIELDS_CALLER);
        }
    }
    w->helpers--;
    if (w->helpers > 0 || w->active > 0) {
        pthread_cond_broadcast(&w->changed);
    }
}

gt_status gti_work_finish(gt_work *work)
{
    gti_world *w = work->comm->world;
    pthread_mutex_lock(&w->lock);
    if (!work->done) {
        double begin = gti_now();
        help_until(w, &work->done, NULL);
        w->stats.exposed_s += gti_now() - begin;
    }
    gt_status st = work->status;
    if (st != GT_OK) {
        st = gti_fail_text(w->broken, w->broken_text);
    }
    pthread_mutex_unlock(&w->lock);
    gti_work_give_back(work);
    return st;
}

void gti_world_wait_idle(gti_world *w, const gt_comm *comm)
{
    pthread_mutex_lock(&w->lock);
    help_until(w, NULL, &comm->outstanding);
    pthread_mutex_unlock(&w->lock);
}

bool gti_work_test(gt_work *work)
{
    gti_world *w = work->comm->world;
    pthread_mutex_lock(&w->lock);
    if (!work->done && !w->has_thread && !w->driven) {
        pass_unlocked(w, 0);
    }
    bool done = work->done;
    pthread_mutex_unlock(&w->lock);
    return done;
}

void gti_work_done(gt_work *work, gt_status status)
{
    gti_world *w = work->comm->world;
    pthread_mutex_lock(&w->lock);
    work->status = status;
    work->done = true;
    work->comm->outstanding--;
    ledger_state(work, status == GT_OK ? 2 : 3);
    w->stats.operations += status == GT_OK;
    w->stats.bytes_sent += work->bytes_sent;
    if (--w->active == 0) {
        w->stats.busy_s += gti_now() - w->busy_since;
    }
    pthread_mutex_unlock(&w->lock);
}

void gti_work_running(gt_work *work)
{
    gti_world *w = work->comm->world;
    pthread_mutex_lock(&w->lock);
    ledger_state(work, 1);
    pthread_mutex_unlock(&w->lock);
    work->deadline = gti_now() + w->timeout_s;
}

bool gti_work_ready(gt_work *work, bool *moved)
{
    gti_world *w = work->comm->world;
    if (work->ready) {
        return true;
    }
    gt_status st = gt_event_query(work->event, &work->ready);
    if (st != GT_OK) {
        gti_world_break(w, st, gt_last_error(), true);
        return false;
    }
    w->awaits_stream = w->awaits_stream || !work->ready;
    *moved = *moved || work->ready;
    return work->ready;
}
