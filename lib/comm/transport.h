/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract of a transport: tagged non-blocking messages between the ranks of one world, and
 * notices of failure outside of them. Everything else (algorithms, order, checks, time limits) is
 * built above it, once.
 *
 * One transport object belongs to one rank. Except where said otherwise its functions are called by
 * one thread at a time (whoever drives the engine, see engine.c).
 */
#ifndef GTI_COMM_TRANSPORT_H
#define GTI_COMM_TRANSPORT_H

#include <geektrain/comm.h>
#include "core/fail.h"

/* Messages match by (peer, key), in order for equal keys. */
typedef enum gti_channel {
    GTI_CHANNEL_FIRST = 0, /* headers, and the first half of a collective  */
    GTI_CHANNEL_SECOND,    /* its second half                              */
    GTI_CHANNEL_P2P,       /* gt_send, gt_recv                             */
    GTI_CHANNEL_CONTROL    /* a transport's own                            */
} gti_channel;

#define GTI_COMM_ID_BITS 11
#define GTI_TAG_BITS 18
#define GTI_COMM_IDS (1 << GTI_COMM_ID_BITS)
#define GTI_TAGS (1 << GTI_TAG_BITS)

/* Channel, communicator and tag in one non-negative 31-bit number. */
static inline int gti_key(gti_channel channel, int comm_id, int tag)
{
    return ((int)channel << (GTI_COMM_ID_BITS + GTI_TAG_BITS)) | (comm_id << GTI_TAG_BITS) | tag;
}

#define GTI_MESSAGE_MAX ((size_t)1 << 26) /* bytes of one message; longer ones are cut above */

/* A message under way. It must stay in place until test says done or give_up returns. */
typedef struct gti_request {
    struct gti_request *next;
    void *buffer;
    size_t bytes;    /* to send, or room to receive                              */
    size_t received; /* what came                                                */
    int peer, key, state;
    bool borrow; /* receiving: the transport may leave the message in memory of its own and set
                    buffer to that; release() gives it back                      */
    void *lent;  /* the transport's; not NULL: to be released                    */
    void *native;
    uint64_t ticket[3]; /* the transport's                                       */
} gti_request;

typedef enum gti_notice_kind {
    GTI_NOTICE_NONE = 0,
    GTI_NOTICE_FAILURE, /* the world is broken                                       */
    GTI_NOTICE_LEFT     /* the rank has destroyed its communicators, its work done   */
} gti_notice_kind;

typedef struct gti_notice {
    int kind, rank;
    gt_status status;
    char text[GTI_ERROR_MAX];
} gti_notice;

typedef struct gti_transport gti_transport;

typedef struct gti_transport_ops {
    const char *name;
    /* isend and irecv may finish the message at once. Peers are world ranks, itself included. */
    gt_status (*isend)(gti_transport *t, gti_request *request);
    gt_status (*irecv)(gti_transport *t, gti_request *request);
    /* GT_ERR_MISMATCH when more came than there was room for. */
    gt_status (*test)(gti_transport *t, gti_request *request, bool *done);
    /* Of a received message whose `lent` is not NULL: its bytes are read no more. */
    void (*release)(gti_transport *t, gti_request *request);
    /* After it returns nobody touches the buffer (as far as the transport can tell). */
    void (*give_up)(gti_transport *t, gti_request *request);
    /* From now on arrived(user) is called when something may have changed for this rank, from any
     * thread; or the transport is `polled` and never calls. */
    void (*bind)(gti_transport *t, void (*arrived)(void *user), void *user);
    /* Tells every other rank, without their help. */
    void (*notify)(gti_transport *t, const gti_notice *notice);
    /* Takes the next notice; false when there is none. */
    bool (*poll)(gti_transport *t, gti_notice *notice);
    /* May the calling thread call now? NULL: always. Any thread. */
    gt_status (*enter)(gti_transport *t);
    /* broken: no call that needs another rank. */
    void (*destroy)(gti_transport *t, bool broken);
} gti_transport_ops;

struct gti_transport {
    const gti_transport_ops *ops;
    int rank, size;
    bool polled;   /* arrivals are only seen by asking */
    bool threaded; /* a thread of ours may drive it    */
};

gt_status gti_local_transport(gti_transport **out, gt_local_world *world, int rank);
gt_status gti_self_transport(gti_transport **out);
/* Waits timeout_s at most for the other ranks. A build without MPI answers GT_ERR_UNSUPPORTED. */
gt_status gti_mpi_transport(gti_transport **out, void *mpi_comm, double timeout_s);
bool gti_mpi_wanted(void); /* a launcher started this process, or MPI is initialised */

#endif
