/* SPDX-License-Identifier: Apache-2.0
 *
 * What a world and its communicators are made of.
 *
 * A world is one rank's end of a transport with everything built on it. Its fields are guarded by
 * `lock`, or belong to whoever holds the role of driving it (`driven`): the world's thread, or a
 * caller that waits and drives it meanwhile.
 */
#ifndef GTI_COMM_WORLD_H
#define GTI_COMM_WORLD_H

#include <pthread.h>

#include "comm/transport.h"
#include "core/cond.h"

typedef enum gti_comm_op {
    GTI_COMM_CREATE = 0,
    GTI_COMM_BARRIER,
    GTI_COMM_ALL_REDUCE,
    GTI_COMM_REDUCE_SCATTER,
    GTI_COMM_REDUCE_SCATTER_ADD,
    GTI_COMM_ALL_GATHER,
    GTI_COMM_BROADCAST,
    GTI_COMM_ALL_TO_ALL,
    GTI_COMM_SEND,
    GTI_COMM_RECV,
    GTI_COMM_OP_COUNT
} gti_comm_op;

extern const char *const gti_comm_op_names[GTI_COMM_OP_COUNT];

/* What a rank calls, as it tells the others. */
typedef struct gti_header {
    uint32_t magic;
    uint8_t op, dtype, reduce, reserved;
    int32_t root, tag;
    int64_t count;
    uint64_t sequence;
} gti_header;

#define GTI_HEADER_MAGIC 0x47544831u

/* ---- flow: a long message as chunks, a few of which are under way ------------------------------
 */
#define GTI_FLOW_WINDOW 4

typedef struct gti_flow {
    unsigned char *base;
    size_t bytes, chunk;
    int peer, key;   /* world rank                                                    */
    bool send, ring; /* ring: the chunks go round in `window` slots instead of a line */
    size_t total;    /* chunks: done <= posted <= min(limit, total)                   */
    size_t posted, done, limit;
    size_t released; /* ring: chunks that have been read */
    gti_request requests[GTI_FLOW_WINDOW];
} gti_flow;

void gti_flow_set(gti_flow *flow, bool send, int peer, int key, const void *base, size_t bytes,
                  size_t chunk);
/* Posts and tests; *moved becomes true when anything happened. */
gt_status gti_flow_progress(gti_flow *flow, gti_transport *t, bool *moved);
void gti_flow_give_up(gti_flow *flow, gti_transport *t);
/* Where chunk number `chunk` is; of a ring: once it has come. */
unsigned char *gti_flow_at(const gti_flow *flow, size_t chunk);
/* Ring: the oldest chunk that has come has been read. */
void gti_flow_release(gti_flow *flow, gti_transport *t);
size_t gti_flow_chunk_bytes(const gti_flow *flow, size_t chunk);

/* ---- work --------------------------------------------------------------------------------------
 */
struct gt_work {
    gt_work *next;  /* in a queue or in the pool     */
    gt_work *chain; /* all works of the world; lock */
    gt_comm *comm;
    gti_header header; /* operation, dtype, count, root or tag, sequence */
    int peer;          /* point to point: world rank                     */
    const unsigned char *in;
    unsigned char *out;
    gt_event *event; /* of the stream at the call; kept while the work is reused */
    uint64_t number; /* in the ledger                                            */
    double deadline;
    size_t bytes_sent;
    bool ready;             /* what precedes it on the stream is done */
    bool started;           /* driver's                               */
    bool on_stream;         /* group of one: runs on the stream, `event` comes after it */
    bool done;              /* lock */
    gt_status status;       /* lock */
    gti_header peer_header; /* point to point */
    gti_request header_request;
    bool header_done;
    gti_flow flow;
};

/* ---- collective under way ----------------------------------------------------------------------
 */
typedef struct gti_lane { /* traffic with one peer */
    gti_flow first_send, first_recv, second_send, second_recv;
    gti_request hello_send, hello_recv;
    bool hello_sent, hello_received;
} gti_lane;

typedef enum gti_plan_phase { GTI_PLAN_IDLE = 0, GTI_PLAN_HELLO, GTI_PLAN_RUN } gti_plan_phase;

typedef struct gti_plan {
    gti_plan_phase phase;
    gti_lane *lanes;     /* [P] */
    const void **inputs; /* [P], of one reduction                    */
    unsigned char *mine; /* reducing: this rank's slice of the input */
    unsigned char *out;
    size_t reduced;    /* chunks                                    */
    size_t reductions; /* chunks to reduce; 0: nothing is reduced   */
    int relay;         /* rank whose first_recv opens second_send, or -1: `reduced` does */
    bool small;        /* the data travels with the hello           */
} gti_plan;

#define GTI_LEDGER_SIZE 64
#define GTI_CHUNK_MAX ((size_t)256 << 10)  /* of what is reduced: stays in the cache */
#define GTI_DIRECT_CHUNK ((size_t)1 << 20) /* of what is only moved */

struct gt_comm {
    gt_comm *next; /* in the world */
    struct gti_world *world;
    int id, rank, size;
    int *ranks; /* world ranks */
    bool check;
    uint64_t sequence, transfers; /* of collectives, of point to point; lock */
    uint64_t numbers;             /* of all works; lock                      */
    gt_ledger_entry ledger[GTI_LEDGER_SIZE];
    gt_work *head, **tail; /* driver's: collectives in order */
    int outstanding;       /* works not done; lock           */
    gti_plan plan;
    size_t small_max;   /* bytes that travel with a hello */
    size_t hello_bytes; /* header + small_max             */
    size_t ring_chunk;
    void *hello, *ring; /* device addresses from gt_alloc, NULL until used */
    unsigned char *hello_host, *ring_host;
};

/* ---- world -------------------------------------------------------------------------------------
 */
typedef struct gti_world {
    gt_context *ctx;
    gti_transport *transport;
    int rank, size;
    double timeout_s;
    bool created;
    int users; /* communicators */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread, stopping, driven;
    bool awaits_stream; /* the last pass found a work whose stream is not there yet */
    int helpers;        /* callers that wait and drive */
    uint64_t arrivals;  /* counts events that may let something move */
    gt_work *submitted, **submitted_end;
    int active;                          /* works not done */
    gt_comm *comms;                      /* driver's */
    gt_work *transfers, **transfers_end; /* driver's: point to point */
    gt_work *works;                      /* all, by chain; lock */
    gt_work *pool;                       /* lock */
    double *left;                        /* driver's [P]: when the rank left, 0 if it has not */
    gt_status broken;                    /* lock */
    char broken_text[GTI_ERROR_MAX];
    gt_comm_stats stats; /* lock */
    double busy_since;
    unsigned char ids[GTI_COMM_IDS / 8]; /* communicator ids in use */
} gti_world;

double gti_now(void);

gt_status gti_world_create(gti_world **out, gt_context *ctx, gti_transport *transport,
                           double timeout_s);
void gti_world_release(gti_world *w); /* by its last communicator */
/* GT_OK, or the error that broke the world. */
gt_status gti_world_check(gti_world *w);
/* Breaks the world, first error wins; `tell` the other ranks. By whoever drives it. */
void gti_world_break(gti_world *w, gt_status status, const char *text, bool tell);
void gti_world_take_notices(gti_world *w);
/* Fails what is pending. By whoever drives it. */
void gti_world_give_up(gti_world *w);
/* As a caller: breaks the world with this thread's error sentence and fails what is pending. */
void gti_world_fail(gti_world *w, gt_status status);
/* Everybody has come: who leaves from now on is missed. */
void gti_world_created(gti_world *w);

/* ---- engine ------------------------------------------------------------------------------------
 */
/* A work from the pool with header and sequence filled in. */
gt_status gti_work_take(gt_work **out, gt_comm *comm, gti_comm_op op);
void gti_work_give_back(gt_work *work);
/* Records the stream, queues the work; then waits for it (handle NULL) or hands it out. */
gt_status gti_work_submit(gt_work *work, gt_stream *stream, gt_work **handle);
gt_status gti_work_finish(gt_work *work); /* waits, gives it back, returns its status */
bool gti_work_test(gt_work *work);
void gti_work_done(gt_work *work, gt_status status); /* by the driver */
void gti_work_running(gt_work *work);
bool gti_work_ready(gt_work *work, bool *moved); /* false: not yet, or the world broke */
/* Takes the role of driving the world, and lets go of it. */
void gti_world_drive(gti_world *w);
void gti_world_let_go(gti_world *w);
/* Takes notices. The lock is held before and after, nobody drives. */
void gti_world_look(gti_world *w);
void gti_world_arrived(void *world);
void gti_world_wait_idle(gti_world *w, const gt_comm *comm);
void *gti_world_thread(void *world);

/* ---- collectives and transfers -----------------------------------------------------------------
 */
gt_status gti_comm_new(gt_comm **out, gti_world *w, int id, int rank, int size, const int *ranks,
                       bool check);
void gti_comm_free(gt_comm *comm);
/* Every rank waits for every other; headers with `count` are compared. */
gt_status gti_comm_hello(gt_comm *comm, gti_comm_op op, int64_t count);
/* Scratch of a first use; on the caller's thread. */
gt_status gti_plan_reserve(gt_comm *comm, gti_comm_op op, size_t bytes);
void gti_collective_progress(gt_comm *comm, bool *moved);
void gti_collective_give_up_receives(gt_comm *comm);
void gti_collective_give_up(gt_comm *comm); /* after its receives */
void gti_transfers_progress(gti_world *w, bool *moved);
void gti_transfers_give_up(gti_world *w);
/* Comma-separated world ranks that the work still waits for; true if one of them left long ago. */
bool gti_collective_waits_for(const gt_comm *comm, char *text, size_t size);
void gti_check_deadlines(gti_world *w);

/* Plan set-up and steps, in algorithms.c. */
void gti_plan_start(gt_comm *comm, const gt_work *work);
gt_status gti_plan_step(gt_comm *comm, gt_work *work, bool *moved, bool *finished);
void gti_plan_small(gt_comm *comm, gt_work *work);
bool gti_plan_is_small(const gt_comm *comm, const gt_work *work);

/* ---- checks ------------------------------------------------------------------------------------
 */
/* "all_reduce sum f32[8] (#3)" */
void gti_header_text(const gti_header *h, char *text, size_t size);
/* GT_ERR_MISMATCH with the same sentence on every rank when headers (stride bytes apart) differ. */
gt_status gti_headers_compare(const gt_comm *comm, const gti_header *const *headers);

/* out = reduction in rank order of P inputs; dtype is that of the inputs and, unless `add`, of out.
 * add: out is f32 and the f32 result is added to it. inputs[me] may be out. */
void gti_reduce_ranks(void *out, const void *const *inputs, int ranks, int me, gt_dtype dtype,
                      size_t n, gt_reduce_op op, bool add);

#endif
