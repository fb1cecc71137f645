/* SPDX-License-Identifier: Apache-2.0
 *
 * The test device. Its memory is mapped twice: the address handed out may not be touched by anybody
 * (PROT_NONE), the other serves the cpu's operations; so code that looks into device memory on the
 * host dies at once. Each stream is a thread with a queue that takes its time now and then; so a
 * missing event shows as wrong numbers, and an error in the data arrives late, as on a GPU.
 */
#ifndef GTI_BACKEND_GUARDED_H
#define GTI_BACKEND_GUARDED_H

#include <pthread.h>

#include "backend/backend.h"
#include "core/cond.h"

/* ---- memory (map.c) ---------------------------------------------------------------------------*/
typedef struct gti_guarded_map {
    pthread_rwlock_t lock;
    void *ranges; /* tsearch(3) tree */
} gti_guarded_map;

void gti_guarded_map_init(gti_guarded_map *map);
void gti_guarded_map_close(gti_guarded_map *map); /* unmaps what is left */
gt_status gti_guarded_map_alloc(gti_guarded_map *map, void **out, size_t bytes);
void gti_guarded_map_free(gti_guarded_map *map, void *pointer);
/* The usable address of a pointer into (not only to the begin of) an allocation, and how many bytes
 * follow there; NULL if it is none of ours. */
void *gti_guarded_map_find(gti_guarded_map *map, const void *pointer, size_t *left);

/* ---- events (event.c) -------------------------------------------------------------------------
 * One record of an event. Held by the event, by the queue entry that completes it and by those that
 * wait for it; the last one frees it. */
typedef struct gti_guarded_ticket {
    bool done;
    int holders;
} gti_guarded_ticket;

typedef struct gti_guarded_event {
    gti_guarded_ticket *last; /* NULL: never recorded */
} gti_guarded_event;

/* All tickets of a device share one lock: it is a test device. */
typedef struct gti_guarded_board {
    pthread_mutex_t lock;
    pthread_cond_t changed;
} gti_guarded_board;

void gti_guarded_board_init(gti_guarded_board *board);
void gti_guarded_board_close(gti_guarded_board *board);
/* A new ticket becomes the event's last one; the caller holds it too. NULL: out of memory. */
gti_guarded_ticket *gti_guarded_record(gti_guarded_board *board, gti_guarded_event *event);
/* The event's last ticket, held by the caller; NULL if never recorded. */
gti_guarded_ticket *gti_guarded_hold(gti_guarded_board *board, gti_guarded_event *event);
bool gti_guarded_is_done(gti_guarded_board *board, gti_guarded_event *event);
/* These give the caller's hold up. */
void gti_guarded_complete(gti_guarded_board *board, gti_guarded_ticket *ticket);
void gti_guarded_await(gti_guarded_board *board, gti_guarded_ticket *ticket);
void gti_guarded_drop(gti_guarded_board *board, gti_guarded_ticket *ticket);

/* ---- streams (queue.c) ------------------------------------------------------------------------*/
/* Something to be done on a stream. run() owns the task and frees it. */
typedef struct gti_guarded_task {
    struct gti_guarded_task *next;
    void (*run)(struct gti_guarded_task *task, gti_device *device);
    bool slow; /* may be delayed */
} gti_guarded_task;

typedef struct gti_guarded_queue gti_guarded_queue;
gt_status gti_guarded_queue_create(gti_guarded_queue **out, gti_device *device, uint64_t seed,
                                   uint32_t delay_us);
void gti_guarded_queue_destroy(gti_guarded_queue *queue); /* runs what is left */
void gti_guarded_queue_push(gti_guarded_queue *queue, gti_guarded_task *task);
void gti_guarded_queue_drain(gti_guarded_queue *queue); /* returns when it is empty and idle */

#endif
