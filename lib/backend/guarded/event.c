/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "backend/guarded/guarded.h"

void gti_guarded_board_init(gti_guarded_board *board)
{
    pthread_mutex_init(&board->lock, NULL);
    gti_cond_init(&board->changed);
}

void gti_guarded_board_close(gti_guarded_board *board)
{
    pthread_cond_destroy(&board->changed);
    pthread_mutex_destroy(&board->lock);
}

static void drop_locked(gti_guarded_ticket *ticket)
{
    if (ticket != NULL && --ticket->holders == 0) {
        free(ticket);
    }
}

gti_guarded_ticket *gti_guarded_record(gti_guarded_board *board, gti_guarded_event *event)
{
    gti_guarded_ticket *ticket = calloc(1, sizeof *ticket);
    if (ticket == NULL) {
        return NULL;
    }
    ticket->holders = 2;
    pthread_mutex_lock(&board->lock);
    drop_locked(event->last);
    event->last = ticket;
    pthread_mutex_unlock(&board->lock);
    return ticket;
}

gti_guarded_ticket *gti_guarded_hold(gti_guarded_board *board, gti_guarded_event *event)
{
    pthread_mutex_lock(&board->lock);
    gti_guarded_ticket *ticket = event->last;
    if (ticket != NULL) {
        ticket->holders++;
    }
    pthread_mutex_unlock(&board->lock);
    return ticket;
}

bool gti_guarded_is_done(gti_guarded_board *board, gti_guarded_event *event)
{
    pthread_mutex_lock(&board->lock);
    bool done = event->last == NULL || event->last->done;
    pthread_mutex_unlock(&board->lock);
    return done;
}

void gti_guarded_complete(gti_guarded_board *board, gti_guarded_ticket *ticket)
{
    pthread_mutex_lock(&board->lock);
    ticket->done = true;
    drop_locked(ticket);
    pthread_cond_broadcast(&board->changed);
    pthread_mutex_unlock(&board->lock);
}

void gti_guarded_await(gti_guarded_board *board, gti_guarded_ticket *ticket)
{
    pthread_mutex_lock(&board->lock);
    while (!ticket->done) {
        gti_cond_wait(&board->changed, &board->lock);
    }
    drop_locked(ticket);
    pthread_mutex_unlock(&board->lock);
}

void gti_guarded_drop(gti_guarded_board *board, gti_guarded_ticket *ticket)
{
    pthread_mutex_lock(&board->lock);
    drop_locked(ticket);
    pthread_mutex_unlock(&board->lock);
}
