/* SPDX-License-Identifier: Apache-2.0
 *
 * Transports local and self: ranks are threads of one process. Whoever of sender and receiver comes
 * second copies, straight from the sender's buffer into the receiver's; a receiver that borrows
 * reads the sender's buffer itself, and the message counts as sent when it is released.
 */
#include "comm/transport.h"
#include "core/cond.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define NO_MEMORY "no memory for the local transport"

enum { QUEUED = 1, COPYING, LENT, DONE, TRUNCATED };

typedef struct mailbox {
    gti_request *sends, **sends_end; /* addressed to this rank, nobody has asked for them yet  */
    gti_request *recvs, **recvs_end; /* this rank waits for them                               */
    gti_notice *notices;             /* one slot per sender                                    */
    struct local_transport *owner;   /* NULL while the rank is not there                       */
} mailbox;

struct gt_local_world {
    pthread_mutex_t lock;
    pthread_cond_t copied;
    int size;
    mailbox *boxes;
};

typedef struct local_transport {
    gti_transport base;
    void (*arrived)(void *user);
    void *arrived_user;
    gt_local_world *world;
    gt_local_world *own; /* self: the private world of one */
} local_transport;

/* `peer` of a queued send is the receiver, so its source is kept in `native`. */
static int source_of(const gti_request *send)
{
    return (int)(intptr_t)send->native;
}

static void append(gti_request ***end, gti_request *request)
{
    request->next = NULL;
    **end = request;
    *end = &request->next;
}

static void unlink_request(gti_request **head, gti_request ***end, gti_request *request)
{
    for (gti_request **at = head; *at != NULL; at = &(*at)->next) {
        if (*at == request) {
            *at = request->next;
            if (request->next == NULL) {
                *end = at;
            }
            return;
        }
    }
}

static void call_owner(local_transport *owner)
{
    if (owner != NULL && owner->arrived != NULL) {
        owner->arrived(owner->arrived_user);
    }
}

/* The pair has been taken off the queues; the lock is held, and is released while copying. `other`
 * is the rank that is not calling. The owner is told under the lock, so that it cannot leave
 * meanwhile; its callback takes only the engine's lock, under which nobody takes this one. */
static void deliver(gt_local_world *world, gti_request *send, gti_request *recv, int other)
{
    bool fits = send->bytes <= recv->bytes;
    if (recv->borrow && fits) {
        recv->buffer = send->buffer;
        recv->received = send->bytes;
        recv->lent = send;
        recv->state = DONE;
        send->state = LENT;
        call_owner(world->boxes[other].owner);
        return;
    }
    send->state = recv->state = COPYING;
    pthread_mutex_unlock(&world->lock);
    if (fits && send->bytes > 0) {
        memcpy(recv->buffer, send->buffer, send->bytes);
    }
    pthread_mutex_lock(&world->lock);
    recv->received = send->bytes;
    recv->state = fits ? DONE : TRUNCATED;
    send->state = DONE;
    pthread_cond_broadcast(&world->copied);
    call_owner(world->boxes[other].owner);
}

static gt_status local_isend(gti_transport *t, gti_request *send)
{
    gt_local_world *world = ((local_transport *)t)->world;
    mailbox *box = &world->boxes[send->peer];
    send->native = (void *)(intptr_t)t->rank;
    pthread_mutex_lock(&world->lock);
    gti_request *recv = box->recvs;
    while (recv != NULL && (recv->peer != t->rank || recv->key != send->key)) {
        recv = recv->next;
    }
    if (recv != NULL) {
        unlink_request(&box->recvs, &box->recvs_end, recv);
        deliver(world, send, recv, send->peer);
    } else {
        send->state = QUEUED;
        append(&box->sends_end, send);
    }
    pthread_mutex_unlock(&world->lock);
    return GT_OK;
}

static gt_status local_irecv(gti_transport *t, gti_request *recv)
{
    gt_local_world *world = ((local_transport *)t)->world;
    mailbox *box = &world->boxes[t->rank];
    recv->received = 0;
    pthread_mutex_lock(&world->lock);
    gti_request *send = box->sends;
    while (send != NULL && (source_of(send) != recv->peer || send->key != recv->key)) {
        send = send->next;
    }
    if (send != NULL) {
        unlink_request(&box->sends, &box->sends_end, send);
        deliver(world, send, recv, recv->peer);
    } else {
        recv->state = QUEUED;
        append(&box->recvs_end, recv);
    }
    pthread_mutex_unlock(&world->lock);
    return GT_OK;
}

static gt_status local_test(gti_transport *t, gti_request *request, bool *done)
{
    gt_local_world *world = ((local_transport *)t)->world;
    pthread_mutex_lock(&world->lock);
    int state = request->state;
    pthread_mutex_unlock(&world->lock);
    *done = state >= DONE;
    if (state == TRUNCATED) {
        return GT_FAIL(GT_ERR_MISMATCH, "rank %d sent %zu bytes, rank %d expected at most %zu",
                       request->peer, request->received, t->rank, request->bytes);
    }
    return GT_OK;
}

/* The lock is held. */
static void hand_back(gt_local_world *world, gti_request *recv)
{
    gti_request *send = recv->lent;
    recv->lent = NULL;
    send->state = DONE;
    pthread_cond_broadcast(&world->copied);
    call_owner(world->boxes[recv->peer].owner);
}

static void local_release(gti_transport *t, gti_request *recv)
{
    gt_local_world *world = ((local_transport *)t)->world;
    pthread_mutex_lock(&world->lock);
    hand_back(world, recv);
    pthread_mutex_unlock(&world->lock);
}

static void local_give_up(gti_transport *t, gti_request *request)
{
    gt_local_world *world = ((local_transport *)t)->world;
    pthread_mutex_lock(&world->lock);
    if (request->lent != NULL) {
        hand_back(world, request);
    }
    while (request->state == COPYING || request->state == LENT) {
        gti_cond_wait(&world->copied, &world->lock);
    }
    if (request->state == QUEUED) {
        mailbox *mine = &world->boxes[t->rank], *theirs = &world->boxes[request->peer];
        unlink_request(&mine->recvs, &mine->recvs_end, request);
        unlink_request(&theirs->sends, &theirs->sends_end, request);
    }
    pthread_mutex_unlock(&world->lock);
}

static void local_bind(gti_transport *t, void (*arrived)(void *user), void *user)
{
    local_transport *local = (local_transport *)t;
    pthread_mutex_lock(&local->world->lock);
    local->arrived = arrived;
    local->arrived_user = user;
    pthread_mutex_unlock(&local->world->lock);
}

static void notify(gt_local_world *world, int rank, const gti_notice *notice)
{
    pthread_mutex_lock(&world->lock);
    for (int r = 0; r < world->size; r++) {
        if (r == rank) {
            continue;
        }
        gti_notice *slot = &world->boxes[r].notices[rank];
        if (slot->kind != GTI_NOTICE_FAILURE) {
            *slot = *notice;
        }
        call_owner(world->boxes[r].owner);
    }
    pthread_mutex_unlock(&world->lock);
}

static void local_notify(gti_transport *t, const gti_notice *notice)
{
    notify(((local_transport *)t)->world, t->rank, notice);
}

static bool local_poll(gti_transport *t, gti_notice *notice)
{
    gt_local_world *world = ((local_transport *)t)->world;
    bool found = false;
    pthread_mutex_lock(&world->lock);
    for (int r = 0; r < world->size && !found; r++) {
        gti_notice *slot = &world->boxes[t->rank].notices[r];
        if (slot->kind != GTI_NOTICE_NONE) {
            *notice = *slot;
            slot->kind = GTI_NOTICE_NONE;
            found = true;
        }
    }
    pthread_mutex_unlock(&world->lock);
    return found;
}

static void local_destroy(gti_transport *t, bool broken)
{
    local_transport *local = (local_transport *)t;
    pthread_mutex_lock(&local->world->lock);
    local->world->boxes[t->rank].owner = NULL;
    pthread_mutex_unlock(&local->world->lock);
    gt_local_world_destroy(&local->own);
    free(local);
}

#define LOCAL_OPS                                                                                  \
    .isend = local_isend, .irecv = local_irecv, .test = local_test, .release = local_release,      \
    .give_up = local_give_up, .bind = local_bind, .notify = local_notify, .poll = local_poll,      \
    .destroy = local_destroy
static const gti_transport_ops local_ops = {.name = "local", LOCAL_OPS};
static const gti_transport_ops self_ops = {.name = "self", LOCAL_OPS};

gt_status gti_local_transport(gti_transport **out, gt_local_world *world, int rank)
{
    if (world == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "transport local needs params.local_world");
    }
    if (rank < 0 || rank >= world->size) {
        return GT_FAIL(GT_ERR_ARGUMENT, "local_rank is %d, the world has ranks 0 to %d", rank,
                       world->size - 1);
    }
    local_transport *local = calloc(1, sizeof *local);
    if (local == NULL) { /* the others are about to wait for this rank */
        gti_notice notice = {
            .kind = GTI_NOTICE_FAILURE, .rank = rank, .status = GT_ERR_MEMORY, .text = NO_MEMORY};
        notify(world, rank, &notice);
        return GT_FAIL(GT_ERR_MEMORY, NO_MEMORY);
    }
    local->base =
        (gti_transport){.ops = &local_ops, .rank = rank, .size = world->size, .threaded = true};
    local->world = world;
    pthread_mutex_lock(&world->lock);
    bool taken = world->boxes[rank].owner != NULL;
    if (!taken) {
        world->boxes[rank].owner = local;
    }
    pthread_mutex_unlock(&world->lock);
    if (taken) {
        free(local);
        return GT_FAIL(GT_ERR_STATE, "rank %d of the local world is taken by another communicator",
                       rank);
    }
    *out = &local->base;
    return GT_OK;
}

gt_status gti_self_transport(gti_transport **out)
{
    gt_local_world *world = NULL;
    GT_TRY(gt_local_world_create(&world, 1));
    gti_transport *t = NULL;
    gt_status st = gti_local_transport(&t, world, 0);
    if (st != GT_OK) {
        gt_local_world_destroy(&world);
        return st;
    }
    t->ops = &self_ops;
    ((local_transport *)t)->own = world;
    *out = t;
    return GT_OK;
}

gt_status gt_local_world_create(gt_local_world **out, int size)
{
    if (out == NULL || size < 1) {
        return GT_FAIL(GT_ERR_ARGUMENT, "a local world has at least one rank, got %d", size);
    }
    gt_local_world *world = calloc(1, sizeof *world);
    mailbox *boxes = calloc((size_t)size, sizeof *boxes);
    gti_notice *notices = calloc((size_t)size * (size_t)size, sizeof *notices);
    if (world == NULL || boxes == NULL || notices == NULL) {
        free(world);
        free(boxes);
        free(notices);
        return GT_FAIL(GT_ERR_MEMORY, "no memory for a local world of %d ranks", size);
    }
    pthread_mutex_init(&world->lock, NULL);
    gti_cond_init(&world->copied);
    world->size = size;
    world->boxes = boxes;
    for (int r = 0; r < size; r++) {
        boxes[r].sends_end = &boxes[r].sends;
        boxes[r].recvs_end = &boxes[r].recvs;
        boxes[r].notices = notices + (size_t)r * (size_t)size;
    }
    *out = world;
    return GT_OK;
}

void gt_local_world_destroy(gt_local_world **world)
{
    if (world == NULL || *world == NULL) {
        return;
    }
    pthread_cond_destroy(&(*world)->copied);
    pthread_mutex_destroy(&(*world)->lock);
    free((*world)->boxes[0].notices);
    free((*world)->boxes);
    free(*world);
    *world = NULL;
}
