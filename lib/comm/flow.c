/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/world.h"

void gti_flow_set(gti_flow *flow, bool send, int peer, int key, const void *base, size_t bytes,
                  size_t chunk)
{
    flow->base = (unsigned char *)base;
    flow->bytes = bytes;
    flow->chunk = chunk;
    flow->peer = peer;
    flow->key = key;
    flow->send = send;
    flow->ring = false;
    flow->total = (bytes + chunk - 1) / chunk;
    flow->posted = flow->done = flow->released = 0;
    flow->limit = flow->total;
}

unsigned char *gti_flow_at(const gti_flow *flow, size_t chunk)
{
    if (flow->ring) {
        return flow->requests[chunk % GTI_FLOW_WINDOW].buffer;
    }
    return flow->base + flow->chunk * chunk;
}

size_t gti_flow_chunk_bytes(const gti_flow *flow, size_t chunk)
{
    return chunk + 1 < flow->total ? flow->chunk : flow->bytes - chunk * flow->chunk;
}

static gt_status post(gti_flow *flow, gti_transport *t)
{
    gti_request *request = &flow->requests[flow->posted % GTI_FLOW_WINDOW];
    size_t place = flow->ring ? flow->posted % GTI_FLOW_WINDOW : flow->posted;
    *request = (gti_request){.buffer = flow->base + flow->chunk * place,
                             .borrow = flow->ring,
                             .bytes = gti_flow_chunk_bytes(flow, flow->posted),
                             .peer = flow->peer,
                             .key = flow->key};
    GT_TRY(flow->send ? t->ops->isend(t, request) : t->ops->irecv(t, request));
    flow->posted++;
    return GT_OK;
}

gt_status gti_flow_progress(gti_flow *flow, gti_transport *t, bool *moved)
{
    if (flow->done == flow->total) {
        return GT_OK;
    }
    for (;;) {
        while (flow->posted < flow->total && flow->posted < flow->limit &&
               flow->posted - flow->done < GTI_FLOW_WINDOW) {
            GT_TRY(post(flow, t));
            *moved = true;
        }
        if (flow->done == flow->posted) {
            return GT_OK;
        }
        size_t oldest = flow->done;
        gti_request *request = &flow->requests[oldest % GTI_FLOW_WINDOW];
        bool done = false;
        GT_TRY(t->ops->test(t, request, &done));
        if (!done) {
            return GT_OK;
        }
        size_t wanted = gti_flow_chunk_bytes(flow, oldest);
        if (!flow->send && request->received != wanted) {
            return GT_FAIL(GT_ERR_MISMATCH, "rank %d sent %zu bytes where rank %d expected %zu",
                           flow->peer, request->received, t->rank, wanted);
        }
        flow->done++;
        *moved = true;
    }
}

void gti_flow_release(gti_flow *flow, gti_transport *t)
{
    gti_request *request = &flow->requests[flow->released++ % GTI_FLOW_WINDOW];
    if (request->lent != NULL) {
        t->ops->release(t, request);
    }
}

void gti_flow_give_up(gti_flow *flow, gti_transport *t)
{
    while (flow->ring && flow->released < flow->done) {
        gti_flow_release(flow, t);
    }
    for (; flow->done < flow->posted; flow->done++) {
        t->ops->give_up(t, &flow->requests[flow->done % GTI_FLOW_WINDOW]);
    }
}
