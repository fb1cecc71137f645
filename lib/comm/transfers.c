/* SPDX-License-Identifier: Apache-2.0
 *
 * Point to point: a header, then the data as a flow. Both sides post both at once; the header says
 * whether they meant the same.
 */
#include <stdio.h>

#include "comm/world.h"

static bool is_send(const gt_work *work)
{
    return work->header.op == GTI_COMM_SEND;
}

/* Messages of one (peer, tag) keep their order: a transfer begins when those before it have posted
 * everything. */
static bool may_begin(const gti_world *w, const gt_work *work)
{
    for (const gt_work *before = w->transfers; before != work; before = before->next) {
        bool same = before->comm == work->comm && before->peer == work->peer &&
                    before->header.tag == work->header.tag && before->header.op == work->header.op;
        if (same && (!before->started || before->flow.posted < before->flow.total)) {
            return false;
        }
    }
    return true;
}

static gt_status begin(gti_world *w, gt_work *work)
{
    gti_transport *t = w->transport;
    bool send = is_send(work);
    int key = gti_key(GTI_CHANNEL_P2P, work->comm->id, work->header.tag);
    size_t bytes = (size_t)work->header.count * gt_dtype_size((gt_dtype)work->header.dtype);
    gti_flow_set(&work->flow, send, work->peer, key, send ? work->in : work->out, bytes,
                 GTI_DIRECT_CHUNK);
    work->header_request = (gti_request){.buffer = send ? &work->header : &work->peer_header,
                                         .bytes = sizeof(gti_header),
                                         .peer = work->peer,
                                         .key = key};
    gti_request *request = &work->header_request;
    GT_TRY(send ? t->ops->isend(t, request) : t->ops->irecv(t, request));
    work->header_done = false;
    work->started = true;
    gti_work_running(work);
    return GT_OK;
}

static gt_status check_header(const gt_work *work)
{
    const gti_header *mine = &work->header, *theirs = &work->peer_header;
    if (theirs->magic == GTI_HEADER_MAGIC && theirs->dtype == mine->dtype &&
        theirs->count == mine->count) {
        return GT_OK;
    }
    char a[128], b[128];
    gti_header_text(theirs, a, sizeof a);
    gti_header_text(mine, b, sizeof b);
    return GT_FAIL(GT_ERR_MISMATCH, "communicator %d: rank %d calls %s, rank %d calls %s",
                   work->comm->id, mine->root, a, work->comm->rank, b);
}

static gt_status step(gti_world *w, gt_work *work, bool *moved, bool *finished)
{
    if (!work->started) {
        if (!gti_work_ready(work, moved) || !may_begin(w, work)) {
            return GT_OK;
        }
        GT_TRY(begin(w, work));
        *moved = true;
    }
    if (!work->header_done) {
        GT_TRY(w->transport->ops->test(w->transport, &work->header_request, &work->header_done));
        if (work->header_done) {
            *moved = true;
            if (!is_send(work)) {
                GT_TRY(check_header(work));
            }
        }
    }
    gt_status st = gti_flow_progress(&work->flow, w->transport, moved);
    if (st != GT_OK && !work->header_done && !is_send(work)) {
        /* The header came first, though it was not looked at yet; it says what is wrong. */
        GT_TRY(w->transport->ops->test(w->transport, &work->header_request, &work->header_done));
        GT_TRY(work->header_done ? check_header(work) : st);
    }
    GT_TRY(st);
    *finished = work->header_done && work->flow.done == work->flow.total;
    return GT_OK;
}

/* Takes the work at *at off the list. */
static void finish(gti_world *w, gt_work **at, gt_status status)
{
    gt_work *work = *at;
    *at = work->next;
    if (*at == NULL) {
        w->transfers_end = at;
    }
    if (status == GT_OK && is_send(work)) {
        work->bytes_sent = work->flow.bytes;
    }
    gti_work_done(work, status);
}

void gti_transfers_progress(gti_world *w, bool *moved)
{
    gt_work **at = &w->transfers;
    while (*at != NULL) {
        bool finished = false;
        gt_status st = step(w, *at, moved, &finished);
        if (st != GT_OK) {
            gti_world_break(w, st, gt_last_error(), true);
            return;
        }
        if (finished) {
            *moved = true;
            finish(w, at, GT_OK);
        } else {
            at = &(*at)->next;
        }
    }
}

void gti_transfers_give_up(gti_world *w)
{
    while (w->transfers != NULL) {
        gt_work *work = w->transfers;
        if (work->started) {
            if (!work->header_done) {
                w->transport->ops->give_up(w->transport, &work->header_request);
            }
            gti_flow_give_up(&work->flow, w->transport);
        }
        finish(w, &w->transfers, GT_ERR_PEER);
    }
}
