/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators and collectives.
 *
 * A communicator is a group of ranks over one transport:
 *   self    a world of one; needs nothing
 *   local   ranks are threads of one process, each with a context of its own (tests, sanitizers,
 *           one machine without MPI)
 *   mpi     OpenMPI; takes a communicator of yours, or initialises MPI when nobody has (and then
 *           finalises it)
 * Every call below is collective over the communicator unless it says otherwise: all ranks call it,
 * in the same order. Reductions of f16 and bf16 accumulate in f32, and every reduction sums in rank
 * order (((r0 + r1) + r2) + ...), so the same layout gives the same bits on every transport.
 * Tensors may be the context's device memory or plain host memory; counts may exceed INT_MAX.
 *
 * Asynchrony: an operation starts after what is enqueued on `stream` at the time of the call. With
 * `work` NULL the call waits; otherwise it returns at once and the buffers stay in use until
 * gt_work_wait(). A communication thread per world moves data meanwhile; it sleeps when idle.
 *
 * Errors: GT_ERR_MISMATCH when ranks call different operations, dtypes or counts (checking on: the
 * sentence names the ranks and both calls), GT_ERR_PEER when another rank failed (gt_comm_fail, or
 * it died), GT_ERR_TIMEOUT after params.timeout_s. After any of these, and when a rank lacks memory
 * for its part, the world is broken: every later call on every communicator of it returns the same
 * error at once (on the rank that failed its own, elsewhere GT_ERR_PEER); nobody hangs. A call that
 * refuses its arguments begins nothing and breaks nothing.
 *
 * MPI: where nobody has initialised it we do, with MPI_THREAD_MULTIPLE, and finalise it at exit.
 * Initialised by the program at a lower level, data moves only while a call waits or tests, and
 * below MPI_THREAD_SERIALIZED only the main thread may call. Finalise it after gt_comm_destroy(). A
 * program whose world broke may leave MPI unfinalised, so that the launcher ends the job.
 */
#ifndef GEEKTRAIN_COMM_H
#define GEEKTRAIN_COMM_H

#include <geektrain/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gt_comm gt_comm;
typedef struct gt_work gt_work;
typedef struct gt_local_world gt_local_world;

typedef enum gt_reduce_op { GT_SUM = 0, GT_MAX, GT_MIN } gt_reduce_op;

typedef struct gt_comm_params {
    size_t struct_size;
    const char *transport; /* "self", "local", "mpi", "auto" (default: local when local_world is
                              given; mpi when mpi_comm is, when started by a launcher, or MPI
                              is initialised; else self)                                   */
    gt_local_world *local_world; /* local: the world shared by the threads                       */
    int local_rank;              /* local: this thread's rank                                    */
    void *mpi_comm;              /* mpi: pointer to your MPI_Comm, which is duplicated; NULL =
                                    MPI_COMM_WORLD                                               */
    double timeout_s;            /* of one operation, from its start to its end; 0: 600          */
    int check;                   /* compare every collective's (op, dtype, count) across ranks:
                                    0 default (on unless built with b_ndebug), 1 on, -1 off.
                                    All ranks must choose alike                                  */
} gt_comm_params;
#define GT_COMM_PARAMS_INIT GT_PARAMS_INIT(gt_comm_params)
GT_API void gt_comm_params_init(gt_comm_params *params, size_t size);

/* Not collective. A world of `size` ranks for threads of this process. Destroy it after the
 * communicators. */
GT_API gt_status gt_local_world_create(gt_local_world **out, int size);
GT_API void gt_local_world_destroy(gt_local_world **world);

/* The world. The communicator keeps a borrowed pointer to ctx, which must outlive it; log lines of
 * the context get this rank's prefix. params may be NULL. Errors: GT_ERR_ARGUMENT (unknown
 * transport), GT_ERR_UNSUPPORTED (built without MPI), GT_ERR_MISMATCH (checking here and not
 * there), GT_ERR_COMM. */
GT_API gt_status gt_comm_create(gt_comm **out, gt_context *ctx, const gt_comm_params *params);
/* Ranks of equal color form a new communicator, ordered by key then old rank. color < 0: this rank
 * joins none and gets NULL. Ledger, timeout and check are inherited. An error on one rank is an
 * error on all of the parent. */
GT_API gt_status gt_comm_split(gt_comm **out, gt_comm *parent, int color, int key);
/* Not collective, but every rank should; children before their parent, handles waited for before.
 * Waits for what is under way. NULL is fine. */
GT_API void gt_comm_destroy(gt_comm **comm);

GT_API int gt_comm_rank(const gt_comm *comm);
GT_API int gt_comm_size(const gt_comm *comm);
GT_API const char *gt_comm_transport(const gt_comm *comm);
GT_API gt_context *gt_comm_context(const gt_comm *comm);

/* inout = reduction over ranks. f32, f64, f16, bf16, i32, i64 (u8: MAX/MIN only). */
GT_API gt_status gt_all_reduce(gt_comm *comm, gt_tensor *inout, gt_reduce_op op, gt_stream *stream,
                               gt_work **work);
/* in has P*n elements; out[n] = reduction of everybody's slice number `rank`. out may be exactly
 * that slice of in (in place). */
GT_API gt_status gt_reduce_scatter(gt_comm *comm, gt_tensor *out, const gt_tensor *in,
                                   gt_reduce_op op, gt_stream *stream, gt_work **work);
/* As gt_reduce_scatter, but the sum is formed in f32 and *added* to out, an f32 tensor of n
 * elements: gradient shards accumulate without a second pass. */
GT_API gt_status gt_reduce_scatter_add(gt_comm *comm, gt_tensor *out, const gt_tensor *in,
                                       gt_stream *stream, gt_work **work);
/* out has P*n elements, rank r's `in` (n) lands in slice r; in may be exactly its slice of out. */
GT_API gt_status gt_all_gather(gt_comm *comm, gt_tensor *out, const gt_tensor *in,
                               gt_stream *stream, gt_work **work);
GT_API gt_status gt_broadcast(gt_comm *comm, gt_tensor *inout, int root, gt_stream *stream,
                              gt_work **work);
/* Slice r of in goes to rank r, whose slice `rank` of out it becomes; no overlap. */
GT_API gt_status gt_all_to_all(gt_comm *comm, gt_tensor *out, const gt_tensor *in,
                               gt_stream *stream, gt_work **work);
/* Point to point, matched by (peer, tag), in order per pair and tag; not collective. Any number may
 * be in flight beside collectives. Dtype and count are checked against the sender's. tag is below
 * 2^18. */
GT_API gt_status gt_send(gt_comm *comm, const gt_tensor *t, int peer, int tag, gt_stream *stream,
                         gt_work **work);
GT_API gt_status gt_recv(gt_comm *comm, gt_tensor *t, int peer, int tag, gt_stream *stream,
                         gt_work **work);
GT_API gt_status gt_barrier(gt_comm *comm);

/* Orders `stream` after the operation (on the cpu: waits on the host), frees the handle, sets it to
 * NULL, returns late errors. *work NULL is GT_OK. Not collective. */
GT_API gt_status gt_work_wait(gt_work **work, gt_stream *stream);
/* *done without waiting. */
GT_API gt_status gt_work_test(gt_work *work, bool *done);

/* Error agreement: every rank passes its status (its gt_last_error() goes with it); returns GT_OK
 * on all if all passed GT_OK, else on every rank an error. A failing rank keeps its own code and
 * sentence; the others get GT_ERR_PEER "rank 2: <its sentence>", of the lowest rank that failed by
 * itself. One that passes GT_ERR_PEER, having been told by a smaller group, is among the others.
 * Where yet another rank failed with another sentence, " (rank 5 failed too)" is added. Does not
 * break the world. */
GT_API gt_status gt_comm_agree(gt_comm *comm, gt_status mine);
/* This rank cannot go on inside a collective phase: breaks the world, so that every pending and
 * later call on all ranks returns GT_ERR_PEER with this rank's sentence. Not collective; returns
 * `mine`. */
GT_API gt_status gt_comm_fail(gt_comm *comm, gt_status mine);

/* All ranks must pass the same bytes (their hashes are compared): GT_ERR_MISMATCH on all ranks
 * naming `what` and the first rank that differs from rank 0. Used for configurations, files,
 * shapes. */
GT_API gt_status gt_comm_check_equal(gt_comm *comm, const char *what, const void *bytes,
                                     size_t size);

typedef struct gt_comm_stats {
    uint64_t operations; /* collectives and transfers finished                      */
    uint64_t bytes_sent; /* payload bytes this rank sent                            */
    double busy_s;       /* time in which at least one operation was in flight      */
    double exposed_s;    /* time callers were blocked in waits                      */
} gt_comm_stats;
/* Of the whole world this communicator belongs to, on this rank. Not collective. */
GT_API void gt_comm_get_stats(const gt_comm *comm, gt_comm_stats *out);
GT_API void gt_comm_reset_stats(gt_comm *comm);

/* The last operations of this communicator on this rank, newest first: copies at most `max`
 * entries, returns how many. Not collective. */
typedef struct gt_ledger_entry {
    const char *operation;
    gt_dtype dtype;
    int64_t count;
    uint64_t sequence;
    int state; /* 0 queued, 1 running, 2 done, 3 failed */
    size_t bytes_sent;
} gt_ledger_entry;
GT_API int gt_comm_ledger(const gt_comm *comm, gt_ledger_entry *out, int max);

#ifdef __cplusplus
}
#endif
#endif
