/* SPDX-License-Identifier: Apache-2.0
 *
 * Do all ranks call the same? And has one been waited for too long?
 */
#include <stdio.h>

#include "comm/world.h"

const char *const gti_comm_op_names[GTI_COMM_OP_COUNT] = {
    [GTI_COMM_CREATE] = "comm_create",
    [GTI_COMM_BARRIER] = "barrier",
    [GTI_COMM_ALL_REDUCE] = "all_reduce",
    [GTI_COMM_REDUCE_SCATTER] = "reduce_scatter",
    [GTI_COMM_REDUCE_SCATTER_ADD] = "reduce_scatter_add",
    [GTI_COMM_ALL_GATHER] = "all_gather",
    [GTI_COMM_BROADCAST] = "broadcast",
    [GTI_COMM_ALL_TO_ALL] = "all_to_all",
    [GTI_COMM_SEND] = "send",
    [GTI_COMM_RECV] = "recv",
};

void gti_header_text(const gti_header *h, char *text, size_t size)
{
    static const char *const reductions[] = {" sum", " max", " min"};
    if (h->magic != GTI_HEADER_MAGIC || h->op >= GTI_COMM_OP_COUNT || h->reduce > GT_MIN) {
        snprintf(text, size, "something else");
        return;
    }
    bool reduces = h->op >= GTI_COMM_ALL_REDUCE && h->op <= GTI_COMM_REDUCE_SCATTER_ADD;
    char extra[32] = "";
    if (h->op == GTI_COMM_BROADCAST) {
        snprintf(extra, sizeof extra, " from %d", (int)h->root);
    } else if (h->op >= GTI_COMM_SEND) {
        snprintf(extra, sizeof extra, " tag %d", (int)h->tag);
    } else if (h->op == GTI_COMM_CREATE) {
        snprintf(text, size, "%s with checking %s", gti_comm_op_names[h->op],
                 h->count ? "on" : "off");
        return;
    }
    snprintf(text, size, "%s%s %s[%lld]%s (#%llu)", gti_comm_op_names[h->op],
             reduces ? reductions[h->reduce] : "", gt_dtype_name((gt_dtype)h->dtype),
             (long long)h->count, extra, (unsigned long long)h->sequence);
}

static bool equal(const gti_header *a, const gti_header *b)
{
    return a->magic == b->magic && a->op == b->op && a->dtype == b->dtype &&
           a->reduce == b->reduce && a->root == b->root && a->count == b->count &&
           a->sequence == b->sequence;
}

gt_status gti_headers_compare(const gt_comm *c, const gti_header *const *headers)
{
    for (int r = 1; r < c->size; r++) {
        if (!equal(headers[0], headers[r])) {
            char a[128], b[128];
            gti_header_text(headers[0], a, sizeof a);
            gti_header_text(headers[r], b, sizeof b);
            return GT_FAIL(GT_ERR_MISMATCH, "communicator %d: rank 0 calls %s, rank %d calls %s",
                           c->id, a, r, b);
        }
    }
    return GT_OK;
}

/* ---- time limits -------------------------------------------------------------------------------
 */
static void expire(gti_world *w, const gt_work *work, const char *ranks, bool left)
{
    char call[128], text[GTI_ERROR_MAX];
    gti_header_text(&work->header, call, sizeof call);
    if (left) {
        snprintf(text, sizeof text,
                 "communicator %d: rank %d calls %s, but rank %s has left the world",
                 work->comm->id, work->comm->rank, call, ranks);
        gti_world_break(w, GT_ERR_MISMATCH, text, true);
        return;
    }
    snprintf(text, sizeof text, "communicator %d: rank %d waited %g s in %s for rank %s",
             work->comm->id, work->comm->rank, w->timeout_s, call, ranks);
    gti_world_break(w, GT_ERR_TIMEOUT, text, true);
}

void gti_check_deadlines(gti_world *w)
{
    double now = gti_now();
    char ranks[256];
    for (gt_comm *c = w->comms; c != NULL; c = c->next) {
        if (c->head != NULL && c->plan.phase != GTI_PLAN_IDLE) {
            bool left = gti_collective_waits_for(c, ranks, sizeof ranks);
            if (left || now > c->head->deadline) {
                expire(w, c->head, ranks, left);
                return;
            }
        }
    }
    for (gt_work *work = w->transfers; work != NULL; work = work->next) {
        double when = w->left[work->peer];
        bool left = work->started && when > 0 && now - when > 1.0;
        if (left || (work->started && now > work->deadline)) {
            snprintf(ranks, sizeof ranks, "%d", (int)work->header.root);
            expire(w, work, ranks, left);
            return;
        }
    }
}
