/* SPDX-License-Identifier: Apache-2.0
 *
 * Every collective as flows of chunks between pairs of ranks.
 *
 *   all_gather, all_to_all   each pair exchanges its slices directly
 *   reduce_scatter   each rank receives the peers' versions of its slice, chunk by chunk, and sums
 *                    a chunk as soon as all versions of it are there
 *   all_reduce       reduce_scatter, each summed chunk sent on at once to everybody; up to
 *                    small_max bytes: everything to everybody, summed by each rank
 *   broadcast        the root sends to each; long ones: a part to each, which passes it on
 *
 * Each byte is sent the least number of times: 2 (P-1)/P of the data per rank for all_reduce,
 * (P-1)/P for the others. The sum's order does not depend on the cut, so it is free.
 */
#include <string.h>

#include "comm/world.h"

#define RELAY_MIN ((size_t)64 << 10) /* bytes from which a broadcast is passed on in parts */

/* The cut of n elements into P slices: as even as multiples of 16 elements allow. */
static size_t slice_first(size_t n, int ranks, int rank)
{
    size_t each = (n + (size_t)ranks - 1) / (size_t)ranks;
    each = (each + 15) / 16 * 16;
    size_t first = each * (size_t)rank;
    return first < n ? first : n;
}

static size_t slice_count(size_t n, int ranks, int rank)
{
    return slice_first(n, ranks, rank + 1) - slice_first(n, ranks, rank);
}

static void set_first(gt_comm *c, bool send, int peer, const void *base, size_t bytes, size_t chunk)
{
    gti_lane *lane = &c->plan.lanes[peer];
    gti_flow_set(send ? &lane->first_send : &lane->first_recv, send, c->ranks[peer],
                 gti_key(GTI_CHANNEL_FIRST, c->id, 0), base, bytes, chunk);
}

static void set_second(gt_comm *c, bool send, int peer, const void *base, size_t bytes,
                       size_t chunk)
{
    gti_lane *lane = &c->plan.lanes[peer];
    gti_flow_set(send ? &lane->second_send : &lane->second_recv, send, c->ranks[peer],
                 gti_key(GTI_CHANNEL_SECOND, c->id, 0), base, bytes, chunk);
}

/* The peers' versions of this rank's slice come into the ring; it is reduced into out. */
static void start_reducing(gt_comm *c, const unsigned char *mine, unsigned char *out, size_t bytes)
{
    size_t slot = 0;
    for (int p = 0; p < c->size; p++) {
        if (p == c->rank) {
            continue;
        }
        set_first(c, false, p, c->ring_host + slot * GTI_FLOW_WINDOW * c->ring_chunk, bytes,
                  c->ring_chunk);
        c->plan.lanes[p].first_recv.ring = true;
        slot++;
    }
    c->plan.mine = (unsigned char *)mine;
    c->plan.out = out;
    c->plan.reductions = (bytes + c->ring_chunk - 1) / c->ring_chunk;
}

static void start_all_reduce(gt_comm *c, const gt_work *work)
{
    size_t n = (size_t)work->header.count, size = gt_dtype_size((gt_dtype)work->header.dtype);
    unsigned char *mine = work->out + slice_first(n, c->size, c->rank) * size;
    size_t bytes = slice_count(n, c->size, c->rank) * size;
    start_reducing(c, mine, mine, bytes);
    for (int p = 0; p < c->size; p++) {
        if (p != c->rank) {
            unsigned char *theirs = work->out + slice_first(n, c->size, p) * size;
            size_t theirs_bytes = slice_count(n, c->size, p) * size;
            set_first(c, true, p, theirs, theirs_bytes, c->ring_chunk);
            set_second(c, true, p, mine, bytes, c->ring_chunk);
            set_second(c, false, p, theirs, theirs_bytes, c->ring_chunk);
        }
    }
}

static void start_reduce_scatter(gt_comm *c, const gt_work *work)
{
    size_t bytes = (size_t)work->header.count * gt_dtype_size((gt_dtype)work->header.dtype);
    start_reducing(c, work->in + bytes * (size_t)c->rank, work->out, bytes);
    for (int p = 0; p < c->size; p++) {
        if (p != c->rank) {
            set_first(c, true, p, work->in + bytes * (size_t)p, bytes, c->ring_chunk);
        }
    }
}

/* all_gather and all_to_all: what goes to peer p starts at `stride` * p of in. */
static void start_exchange(gt_comm *c, const gt_work *work, bool same)
{
    size_t bytes = (size_t)work->header.count * gt_dtype_size((gt_dtype)work->header.dtype);
    size_t stride = same ? 0 : bytes;
    for (int p = 0; p < c->size; p++) {
        const unsigned char *in = work->in + stride * (size_t)p;
        unsigned char *out = work->out + bytes * (size_t)p;
        if (p != c->rank) {
            set_first(c, true, p, in, bytes, GTI_DIRECT_CHUNK);
            set_first(c, false, p, out, bytes, GTI_DIRECT_CHUNK);
        } else if (in != out && bytes > 0) {
            memcpy(out, in, bytes);
        }
    }
}

static void start_relay(gt_comm *c, const gt_work *work, size_t bytes)
{
    int root = work->header.root, parts = c->size - 1;
    int mine = c->rank < root ? c->rank : c->rank - 1;
    size_t chunk = c->ring_chunk;
    for (int p = 0; p < c->size; p++) {
        int theirs = p < root ? p : p - 1;
        unsigned char *part = work->out + slice_first(bytes, parts, theirs);
        size_t part_bytes = slice_count(bytes, parts, theirs);
        if (p == c->rank) {
            continue;
        }
        if (c->rank == root) {
            set_first(c, true, p, part, part_bytes, chunk);
        } else if (p == root) {
            set_first(c, false, p, work->out + slice_first(bytes, parts, mine),
                      slice_count(bytes, parts, mine), chunk);
        } else {
            set_second(c, true, p, work->out + slice_first(bytes, parts, mine),
                       slice_count(bytes, parts, mine), chunk);
            set_second(c, false, p, part, part_bytes, chunk);
        }
    }
    c->plan.relay = c->rank == root ? -1 : root;
}

static void start_broadcast(gt_comm *c, const gt_work *work)
{
    size_t bytes = (size_t)work->header.count * gt_dtype_size((gt_dtype)work->header.dtype);
    int root = work->header.root;
    if (c->size > 2 && bytes >= RELAY_MIN) {
        start_relay(c, work, bytes);
    } else if (c->rank != root) {
        set_first(c, false, root, work->out, bytes, GTI_DIRECT_CHUNK);
    } else {
        for (int p = 0; p < c->size; p++) {
            if (p != root) {
                set_first(c, true, p, work->out, bytes, GTI_DIRECT_CHUNK);
            }
        }
    }
}

void gti_plan_start(gt_comm *c, const gt_work *work)
{
    c->plan.reduced = c->plan.reductions = 0;
    c->plan.relay = -1;
    for (int p = 0; p < c->size; p++) {
        set_first(c, true, p, NULL, 0, 1);
        set_first(c, false, p, NULL, 0, 1);
        set_second(c, true, p, NULL, 0, 1);
        set_second(c, false, p, NULL, 0, 1);
    }
    switch (work->header.op) {
    case GTI_COMM_ALL_REDUCE:
        start_all_reduce(c, work);
        break;
    case GTI_COMM_REDUCE_SCATTER:
    case GTI_COMM_REDUCE_SCATTER_ADD:
        start_reduce_scatter(c, work);
        break;
    case GTI_COMM_ALL_GATHER:
        start_exchange(c, work, true);
        break;
    case GTI_COMM_ALL_TO_ALL:
        start_exchange(c, work, false);
        break;
    case GTI_COMM_BROADCAST:
        start_broadcast(c, work);
        break;
    default:
        break; /* barriers are over with the hello */
    }
}

/* Chunk `reduced` of this rank's slice, if every peer's version of it has come. */
static bool reduce_chunk(gt_comm *c, const gt_work *work)
{
    gti_plan *plan = &c->plan;
    if (plan->reduced == plan->reductions) {
        return false;
    }
    size_t bytes = 0, at = plan->reduced * c->ring_chunk;
    for (int p = 0; p < c->size; p++) {
        gti_flow *flow = &plan->lanes[p].first_recv;
        if (p == c->rank) {
            plan->inputs[p] = plan->mine + at;
        } else if (flow->done <= plan->reduced) {
            return false;
        } else {
            plan->inputs[p] = gti_flow_at(flow, plan->reduced);
            bytes = gti_flow_chunk_bytes(flow, plan->reduced);
        }
    }
    gt_dtype dtype = (gt_dtype)work->header.dtype;
    bool add = work->header.op == GTI_COMM_REDUCE_SCATTER_ADD;
    size_t size = gt_dtype_size(dtype);
    gti_reduce_ranks(plan->out + at / size * (add ? sizeof(float) : size), plan->inputs, c->size,
                     c->rank, dtype, bytes / size, (gt_reduce_op)work->header.reduce, add);
    for (int p = 0; p < c->size; p++) {
        if (p != c->rank) {
            gti_flow_release(&plan->lanes[p].first_recv, c->world->transport);
        }
    }
    plan->reduced++;
    return true;
}

/* How far each flow may go: nothing is overwritten that somebody still has to read. */
static void open_flows(gt_comm *c, int peer)
{
    gti_plan *plan = &c->plan;
    gti_lane *lane = &plan->lanes[peer];
    if (plan->reductions > 0) {
        lane->first_recv.limit = plan->reduced + GTI_FLOW_WINDOW;
    }
    if (plan->relay >= 0) {
        lane->second_send.limit = plan->lanes[plan->relay].first_recv.done;
        return;
    }
    lane->second_send.limit = plan->reduced;
    lane->second_recv.limit = lane->first_send.done;
}

gt_status gti_plan_step(gt_comm *c, gt_work *work, bool *moved, bool *finished)
{
    gti_transport *t = c->world->transport;
    bool all = true;
    for (int i = 1; i < c->size; i++) {
        int p = (c->rank + i) % c->size; /* not everybody at rank 0 first */
        gti_lane *lane = &c->plan.lanes[p];
        open_flows(c, p);
        GT_TRY(gti_flow_progress(&lane->first_send, t, moved));
        GT_TRY(gti_flow_progress(&lane->first_recv, t, moved));
        GT_TRY(gti_flow_progress(&lane->second_send, t, moved));
        GT_TRY(gti_flow_progress(&lane->second_recv, t, moved));
        all = all && lane->first_send.done == lane->first_send.total &&
              lane->first_recv.done == lane->first_recv.total &&
              lane->second_send.done == lane->second_send.total &&
              lane->second_recv.done == lane->second_recv.total;
    }
    while (reduce_chunk(c, work)) {
        *moved = true;
        all = false; /* what it opens comes with the next step */
    }
    all = all && c->plan.reduced == c->plan.reductions;
    for (int p = 0; all && p < c->size; p++) {
        work->bytes_sent += c->plan.lanes[p].first_send.bytes + c->plan.lanes[p].second_send.bytes;
    }
    *finished = all;
    return GT_OK;
}

bool gti_plan_is_small(const gt_comm *c, const gt_work *work)
{
    size_t bytes = (size_t)work->header.count * gt_dtype_size((gt_dtype)work->header.dtype);
    return work->header.op == GTI_COMM_ALL_REDUCE && bytes <= c->small_max;
}

/* The hellos are there, and every rank's data with them. */
void gti_plan_small(gt_comm *c, gt_work *work)
{
    for (int p = 0; p < c->size; p++) {
        c->plan.inputs[p] = c->hello_host + (size_t)p * c->hello_bytes + sizeof(gti_header);
    }
    size_t n = (size_t)work->header.count;
    gt_dtype dtype = (gt_dtype)work->header.dtype;
    if (n > 0) {
        gti_reduce_ranks(work->out, c->plan.inputs, c->size, c->rank, dtype, n,
                         (gt_reduce_op)work->header.reduce, false);
    }
    work->bytes_sent += n * gt_dtype_size(dtype) * (size_t)(c->size - 1);
}
