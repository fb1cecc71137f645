/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

gt_status gti_world_create(gti_world **out, gt_context *ctx, gti_transport *transport,
                           double timeout_s)
{
    gti_world *w = calloc(1, sizeof *w);
    double *left = calloc((size_t)transport->size, sizeof *left);
    if (w == NULL || left == NULL) {
        free(w);
        free(left);
        return GT_FAIL(GT_ERR_MEMORY, "no memory for a world of %d ranks", transport->size);
    }
    w->ctx = ctx;
    w->transport = transport;
    w->rank = transport->rank;
    w->size = transport->size;
    w->timeout_s = timeout_s;
    w->left = left;
    w->submitted_end = &w->submitted;
    w->transfers_end = &w->transfers;
    pthread_mutex_init(&w->lock, NULL);
    gti_cond_init(&w->changed);
    transport->ops->bind(transport, gti_world_arrived, w);
    *out = w;
    return GT_OK;
}

static void stop_thread(gti_world *w)
{
    if (!w->has_thread) {
        return;
    }
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
}

void gti_world_release(gti_world *w)
{
    stop_thread(w);
    gti_notice notice = {.kind = GTI_NOTICE_LEFT, .rank = w->rank};
    w->transport->ops->notify(w->transport, &notice);
    w->transport->ops->destroy(w->transport, w->broken != GT_OK);
    while (w->works != NULL) {
        gt_work *work = w->works;
        w->works = work->chain;
        gt_event_destroy(&work->event);
        free(work);
    }
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w->left);
    free(w);
}

gt_status gti_world_check(gti_world *w)
{
    gt_status st = GT_OK;
    if (w->transport->ops->enter != NULL) {
        GT_TRY(w->transport->ops->enter(w->transport));
    }
    pthread_mutex_lock(&w->lock);
    if (w->active == 0 && !w->driven) { /* nobody has looked lately */
        gti_world_look(w);
    }
    if (w->broken != GT_OK) {
        st = gti_fail_text(w->broken, w->broken_text);
    }
    pthread_mutex_unlock(&w->lock);
    return st;
}

void gti_world_break(gti_world *w, gt_status status, const char *text, bool tell)
{
    bool first = false;
    pthread_mutex_lock(&w->lock);
    if (w->broken == GT_OK) {
        first = true;
        w->broken = status;
        snprintf(w->broken_text, sizeof w->broken_text, "%s", text);
    }
    pthread_mutex_unlock(&w->lock);
    if (first && tell) {
        gti_notice notice = {.kind = GTI_NOTICE_FAILURE, .rank = w->rank, .status = status};
        snprintf(notice.text, sizeof notice.text, "%s", w->broken_text);
        w->transport->ops->notify(w->transport, &notice);
    }
}

void gti_world_take_notices(gti_world *w)
{
    gti_notice notice;
    while (w->transport->ops->poll(w->transport, &notice)) {
        if (notice.kind == GTI_NOTICE_LEFT) {
            w->left[notice.rank] = w->created ? gti_now() : 0;
        } else if (notice.status == GT_ERR_MISMATCH) {
            gti_world_break(w, GT_ERR_MISMATCH, notice.text, false); /* the same on all ranks */
        } else {
            char text[GTI_ERROR_MAX];
            snprintf(text, sizeof text, "rank %d: %.980s", notice.rank, notice.text);
            gti_world_break(w, GT_ERR_PEER, text, false);
        }
    }
}

/* Receives of all communicators first: they may hold memory that their senders lent and must have
 * back before their own giving up ends. Ranks that lent to each other would wait forever. */
void gti_world_give_up(gti_world *w)
{
    for (gt_comm *c = w->comms; c != NULL; c = c->next) {
        gti_collective_give_up_receives(c);
    }
    for (gt_comm *c = w->comms; c != NULL; c = c->next) {
        gti_collective_give_up(c);
    }
    gti_transfers_give_up(w);
}

void gti_world_created(gti_world *w)
{
    gti_world_drive(w);
    gti_world_take_notices(w);
    w->created = true;
    gti_world_let_go(w);
}
