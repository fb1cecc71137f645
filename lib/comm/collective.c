/* SPDX-License-Identifier: Apache-2.0
 *
 * A communicator's collectives, one after the other: the hello (who calls what), then the flows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/world.h"
#include "core/tensor.h"
#include "backend/backend.h"

#define SMALL_MAX ((size_t)16 << 10)
#define SMALL_TOTAL ((size_t)128 << 10) /* bytes of all ranks' small messages */
#define RING_TOTAL ((size_t)4 << 20)
#define RING_CHUNK_MIN ((size_t)16 << 10)

static size_t clamp(size_t x, size_t low, size_t high)
{
    return x < low ? low : x > high ? high : x;
}

gt_status gti_comm_new(gt_comm **out, gti_world *w, int id, int rank, int size, const int *ranks,
                       bool check)
{
    gt_comm *c = calloc(1, sizeof *c);
    int *copy = calloc((size_t)size, sizeof *copy);
    gti_lane *lanes = calloc((size_t)size, sizeof *lanes);
    const void **inputs = calloc((size_t)size, sizeof *inputs);
    if (c == NULL || copy == NULL || lanes == NULL || inputs == NULL) {
        free(c);
        free(copy);
        free(lanes);
        free(inputs);
        return GT_FAIL(GT_ERR_MEMORY, "no memory for a communicator of %d ranks", size);
    }
    memcpy(copy, ranks, (size_t)size * sizeof *copy);
    size_t peers = size > 1 ? (size_t)size - 1 : 1;
    *c = (gt_comm){.world = w, .id = id, .rank = rank, .size = size, .ranks = copy, .check = check};
    c->tail = &c->head;
    c->plan.lanes = lanes;
    c->plan.inputs = inputs;
    c->small_max = clamp(SMALL_TOTAL / peers, 512, SMALL_MAX) & ~(size_t)63;
    c->hello_bytes = sizeof(gti_header) + c->small_max;
    c->hello_bytes = (c->hello_bytes + 63) & ~(size_t)63;
    c->ring_chunk = clamp(RING_TOTAL / (GTI_FLOW_WINDOW * peers), RING_CHUNK_MIN, GTI_CHUNK_MAX);
    c->ring_chunk &= ~(size_t)63;
    gti_world_drive(w);
    c->next = w->comms;
    w->comms = c;
    w->users++;
    w->ids[id / 8] = (unsigned char)(w->ids[id / 8] | (1u << (id % 8)));
    gti_world_let_go(w);
    *out = c;
    return GT_OK;
}

void gti_comm_free(gt_comm *c)
{
    gti_world *w = c->world;
    gti_world_wait_idle(w, c);
    gti_world_drive(w);
    for (gt_comm **at = &w->comms; *at != NULL; at = &(*at)->next) {
        if (*at == c) {
            *at = c->next;
            break;
        }
    }
    w->ids[c->id / 8] = (unsigned char)(w->ids[c->id / 8] & ~(1u << (c->id % 8)));
    bool last = --w->users == 0;
    gti_world_let_go(w);
    if (c->hello != NULL) {
        gt_free(w->ctx, c->hello);
    }
    if (c->ring != NULL) {
        gt_free(w->ctx, c->ring);
    }
    free(c->plan.lanes);
    free(c->plan.inputs);
    free(c->ranks);
    free(c);
    if (last) {
        gti_world_release(w);
    }
}

static gt_status reserve(gt_context *ctx, void **device, unsigned char **host, size_t bytes)
{
    if (*device != NULL) {
        return GT_OK;
    }
    void *p = NULL;
    GT_TRY(gt_alloc(ctx, &p, bytes, GT_MEM_COMM));
    gt_tensor t = gt_tensor_1d(p, GT_U8, (int64_t)bytes);
    t.device = gt_context_device(ctx);
    *host = gti_host_address(ctx, &t);
    if (*host == NULL) {
        gt_free(ctx, p);
        return GT_FAIL(GT_ERR_UNSUPPORTED, "the host cannot reach this device's memory");
    }
    *device = p;
    return GT_OK;
}

gt_status gti_plan_reserve(gt_comm *c, gti_comm_op op, size_t bytes)
{
    size_t peers = (size_t)c->size - 1;
    GT_TRY(reserve(c->world->ctx, &c->hello, &c->hello_host, c->hello_bytes * (size_t)c->size));
    bool reduces = op == GTI_COMM_REDUCE_SCATTER || op == GTI_COMM_REDUCE_SCATTER_ADD ||
                   (op == GTI_COMM_ALL_REDUCE && bytes > c->small_max);
    if (!reduces) {
        return GT_OK;
    }
    return reserve(c->world->ctx, &c->ring, &c->ring_host, peers * GTI_FLOW_WINDOW * c->ring_chunk);
}

/* ---- hello -------------------------------------------------------------------------------------
 */
static bool needs_hello(const gt_comm *c, const gt_work *work)
{
    return c->check || c->plan.small || work->header.op == GTI_COMM_BARRIER ||
           work->header.op == GTI_COMM_CREATE;
}

/* Slot r of the hello buffer is what rank r says; ours is what we send. */
static gt_status start_hello(gt_comm *c, const gt_work *work)
{
    gti_transport *t = c->world->transport;
    unsigned char *mine = c->hello_host + (size_t)c->rank * c->hello_bytes;
    size_t bytes = sizeof(gti_header);
    memcpy(mine, &work->header, sizeof(gti_header));
    if (c->plan.small && work->header.count > 0) {
        size_t data = (size_t)work->header.count * gt_dtype_size((gt_dtype)work->header.dtype);
        memcpy(mine + bytes, work->out, data);
        bytes += data;
    }
    c->plan.phase = GTI_PLAN_HELLO;
    for (int p = 0; p < c->size; p++) {
        c->plan.lanes[p].hello_sent = c->plan.lanes[p].hello_received = true;
    }
    int key = gti_key(GTI_CHANNEL_FIRST, c->id, 0);
    for (int i = 1; i < c->size; i++) {
        int p = (c->rank + i) % c->size;
        gti_lane *lane = &c->plan.lanes[p];
        lane->hello_send =
            (gti_request){.buffer = mine, .bytes = bytes, .peer = c->ranks[p], .key = key};
        GT_TRY(t->ops->isend(t, &lane->hello_send));
        lane->hello_sent = false;
        lane->hello_recv = (gti_request){.buffer = c->hello_host + (size_t)p * c->hello_bytes,
                                         .bytes = c->hello_bytes,
                                         .peer = c->ranks[p],
                                         .key = key};
        GT_TRY(t->ops->irecv(t, &lane->hello_recv));
        lane->hello_received = false;
    }
    return GT_OK;
}

static gt_status test_hello(gt_comm *c, bool *moved, bool *all)
{
    gti_transport *t = c->world->transport;
    *all = true;
    for (int p = 0; p < c->size; p++) {
        gti_lane *lane = &c->plan.lanes[p];
        if (!lane->hello_sent) {
            GT_TRY(t->ops->test(t, &lane->hello_send, &lane->hello_sent));
            *moved = *moved || lane->hello_sent;
        }
        if (!lane->hello_received) {
            GT_TRY(t->ops->test(t, &lane->hello_recv, &lane->hello_received));
            *moved = *moved || lane->hello_received;
        }
        *all = *all && lane->hello_sent && lane->hello_received;
    }
    return GT_OK;
}

static gt_status compare_hello(const gt_comm *c)
{
    for (int p = 0; p < c->size; p++) {
        c->plan.inputs[p] = c->hello_host + (size_t)p * c->hello_bytes;
    }
    return gti_headers_compare(c, (const gti_header *const *)c->plan.inputs);
}

/* ---- progress ----------------------------------------------------------------------------------
 */
static gt_status start(gt_comm *c, gt_work *work, bool *moved)
{
    if (!gti_work_ready(work, moved)) {
        return GT_OK;
    }
    gti_work_running(work);
    c->plan.small = gti_plan_is_small(c, work);
    *moved = true;
    if (needs_hello(c, work)) {
        return start_hello(c, work);
    }
    gti_plan_start(c, work);
    c->plan.phase = GTI_PLAN_RUN;
    return GT_OK;
}

static gt_status step(gt_comm *c, gt_work *work, bool *moved, bool *finished)
{
    if (c->plan.phase == GTI_PLAN_IDLE) {
        GT_TRY(start(c, work, moved));
    }
    if (c->plan.phase == GTI_PLAN_HELLO) {
        bool all = false;
        GT_TRY(test_hello(c, moved, &all));
        if (!all) {
            return GT_OK;
        }
        GT_TRY(compare_hello(c));
        if (c->plan.small) {
            gti_plan_small(c, work);
            *finished = true;
            return GT_OK;
        }
        gti_plan_start(c, work);
        c->plan.phase = GTI_PLAN_RUN;
    }
    if (c->plan.phase == GTI_PLAN_RUN) {
        return gti_plan_step(c, work, moved, finished);
    }
    return GT_OK;
}

static void pop(gt_comm *c, gt_status status)
{
    gt_work *work = c->head;
    c->head = work->next;
    if (c->head == NULL) {
        c->tail = &c->head;
    }
    c->plan.phase = GTI_PLAN_IDLE;
    gti_work_done(work, status);
}

void gti_collective_progress(gt_comm *c, bool *moved)
{
    while (c->head != NULL) {
        bool finished = false;
        gt_status st = step(c, c->head, moved, &finished);
        if (st != GT_OK) {
            gti_world_break(c->world, st, gt_last_error(), true);
            return;
        }
        if (!finished) {
            return;
        }
        *moved = true;
        pop(c, GT_OK);
    }
}

void gti_collective_give_up_receives(gt_comm *c)
{
    for (int p = 0; p < c->size && c->plan.phase == GTI_PLAN_RUN; p++) {
        gti_flow_give_up(&c->plan.lanes[p].first_recv, c->world->transport);
        gti_flow_give_up(&c->plan.lanes[p].second_recv, c->world->transport);
    }
}

void gti_collective_give_up(gt_comm *c)
{
    gti_transport *t = c->world->transport;
    for (int p = 0; p < c->size && c->plan.phase != GTI_PLAN_IDLE; p++) {
        gti_lane *lane = &c->plan.lanes[p];
        if (c->plan.phase == GTI_PLAN_HELLO) {
            if (!lane->hello_sent) {
                t->ops->give_up(t, &lane->hello_send);
            }
            if (!lane->hello_received) {
                t->ops->give_up(t, &lane->hello_recv);
            }
            continue;
        }
        gti_flow_give_up(&lane->first_send, t);
        gti_flow_give_up(&lane->second_send, t);
    }
    while (c->head != NULL) {
        pop(c, GT_ERR_PEER);
    }
}

static bool lane_waits(const gti_plan *plan, const gti_lane *lane)
{
    if (plan->phase == GTI_PLAN_HELLO) {
        return !lane->hello_received || !lane->hello_sent;
    }
    return lane->first_send.done < lane->first_send.total ||
           lane->first_recv.done < lane->first_recv.total ||
           lane->second_send.done < lane->second_send.total ||
           lane->second_recv.done < lane->second_recv.total;
}

bool gti_collective_waits_for(const gt_comm *c, char *text, size_t size)
{
    bool left = false;
    size_t length = 0;
    text[0] = '\0';
    for (int p = 0; p < c->size; p++) {
        if (p == c->rank || !lane_waits(&c->plan, &c->plan.lanes[p])) {
            continue;
        }
        double when = c->world->left[c->ranks[p]];
        left = left || (when > 0 && gti_now() - when > 1.0);
        if (length < size) {
            int n = snprintf(text + length, size - length, "%s%d", length ? ", " : "", p);
            length += n > 0 ? (size_t)n : 0;
        }
    }
    return left;
}
