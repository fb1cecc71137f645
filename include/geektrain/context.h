/* SPDX-License-Identifier: Apache-2.0
 *
 * Context: one device, its memory, its streams, the seed and the log.
 *
 * All state of the library hangs off a context; the thread-local error sentence is the only
 * exception. One context is used by one thread at a time; several may live in one process.
 */
#ifndef GEEKTRAIN_CONTEXT_H
#define GEEKTRAIN_CONTEXT_H

#include <stdbool.h>
#include <geektrain/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gt_context gt_context;
typedef struct gt_stream gt_stream;
typedef struct gt_event gt_event;

typedef enum gt_log_level { GT_LOG_ERROR = 0, GT_LOG_WARN, GT_LOG_INFO, GT_LOG_DEBUG } gt_log_level;

/* `message` is one line without its newline; it carries the "[rank 2/8]" prefix already. */
typedef void (*gt_log_fn)(void *user, gt_log_level level, const char *message);

typedef struct gt_context_params {
    size_t struct_size;
    const char *device; /* "cpu" (default); "guarded": the cpu's operations on memory that the
                           host cannot touch, with late streams, to test programs; "cuda:N": not
                           in this release                                                    */
    uint64_t seed;      /* for programs of yours: gt_context_seed(); a trainer takes gt_config's */
    int threads;        /* compute threads on the cpu; 0: OMP_NUM_THREADS, else the cores,
                           shared out among the ranks of mpirun on this machine               */
    gt_log_fn log;      /* NULL: one line on stderr                                           */
    void *log_user;
    gt_log_level log_level; /* lines above it are dropped; 0 is replaced by GT_LOG_INFO unless
                               log_level_set                                                  */
    bool log_level_set;
} gt_context_params;
#define GT_CONTEXT_PARAMS_INIT GT_PARAMS_INIT(gt_context_params)

GT_API void gt_context_params_init(gt_context_params *params, size_t size);

/* Errors: GT_ERR_ARGUMENT (unknown device, the sentence lists the known ones),
 * GT_ERR_UNSUPPORTED (a device this build or machine lacks), GT_ERR_MEMORY. params may be NULL. */
GT_API gt_status gt_context_create(gt_context **out, const gt_context_params *params);
/* Waits for the streams, frees everything; NULL is fine; sets *ctx to NULL. Memory still allocated
 * from it is reported by one warning naming tag and bytes. */
GT_API void gt_context_destroy(gt_context **ctx);

GT_API gt_device gt_context_device(const gt_context *ctx);
GT_API uint64_t gt_context_seed(const gt_context *ctx);
GT_API int gt_context_threads(const gt_context *ctx);
/* The prefix of log lines becomes "[rank R/P] ". */
GT_API void gt_context_set_rank(gt_context *ctx, int rank, int size);

/* ---- streams and events -----------------------------------------------------------------------
 * Operations are enqueued on a stream and run in order; events order streams among each other.
 * On the cpu a stream runs at once. NULL for a stream means the compute stream. */
typedef enum gt_stream_kind {
    GT_STREAM_COMPUTE = 0,
    GT_STREAM_COMM,
    GT_STREAM_COPY,
    GT_STREAM_COUNT
} gt_stream_kind;

GT_API gt_stream *gt_context_stream(gt_context *ctx, gt_stream_kind kind);
GT_API gt_status gt_event_create(gt_event **out, gt_context *ctx);
GT_API void gt_event_destroy(gt_event **event);
/* The event completes when everything enqueued on the stream so far has. */
GT_API gt_status gt_event_record(gt_event *event, gt_stream *stream);
/* What is enqueued on the stream from now on starts after the event's last record. */
GT_API gt_status gt_event_wait(gt_event *event, gt_stream *stream);
/* Host-side: *done says whether the event's last record has completed (true if never recorded). */
GT_API gt_status gt_event_query(gt_event *event, bool *done);
/* Waits on the host for the event's last record; may be called from another thread than the
 * context's. */
GT_API gt_status gt_event_synchronize(gt_event *event);
/* Waits on the host for one stream, or for all; late errors of enqueued operations surface here. */
GT_API gt_status gt_stream_synchronize(gt_stream *stream);
GT_API gt_status gt_context_synchronize(gt_context *ctx);

/* ---- memory ---------------------------------------------------------------------------------- */
typedef enum gt_memory_tag {
    GT_MEM_PARAMS = 0,
    GT_MEM_GRADS,
    GT_MEM_OPTIMIZER,
    GT_MEM_ACTIVATIONS,
    GT_MEM_COMM,
    GT_MEM_WORKSPACE,
    GT_MEM_OTHER,
    GT_MEM_TAG_COUNT
} gt_memory_tag;

typedef struct gt_memory_stats {
    size_t live[GT_MEM_TAG_COUNT]; /* bytes asked for and not freed yet, exactly */
    size_t peak[GT_MEM_TAG_COUNT]; /* highest live bytes of this tag since creation or reset */
    size_t live_total, peak_total;
    uint64_t allocations; /* successful calls of gt_alloc since creation */
} gt_memory_stats;

GT_API const char *gt_memory_tag_name(gt_memory_tag tag);
/* Device memory, aligned to 64 bytes at least, not initialised. bytes 0 gives a valid non-NULL
 * pointer that must be freed too. May be called from any thread. Errors: GT_ERR_MEMORY naming
 * bytes, tag and what is live. */
GT_API gt_status gt_alloc(gt_context *ctx, void **out, size_t bytes, gt_memory_tag tag);
GT_API void gt_free(gt_context *ctx, void *pointer); /* NULL is fine */
GT_API gt_status gt_tensor_alloc(gt_context *ctx, gt_tensor *out, gt_memory_tag tag, gt_dtype dtype,
                                 int ndim, const int64_t *shape);
GT_API void gt_tensor_free(gt_context *ctx, gt_tensor *t); /* frees data, clears *t */
GT_API void gt_memory_get_stats(const gt_context *ctx, gt_memory_stats *out);
GT_API void gt_memory_reset_peak(gt_context *ctx);
/* Fault injection: allocation number `nth` from now on (1 = the next one) fails; 0 = off. */
GT_API void gt_memory_fail_at(gt_context *ctx, uint64_t nth);
/* Allocations that would lift live_total over `bytes` fail; 0 = no limit. */
GT_API void gt_memory_set_limit(gt_context *ctx, size_t bytes);

/* Copies between host memory and a tensor. To the host: waits for the stream. From the host: the
 * bytes are taken before the call returns. */
GT_API gt_status gt_copy_to_host(gt_context *ctx, void *host, const gt_tensor *src,
                                 gt_stream *stream);
GT_API gt_status gt_copy_from_host(gt_context *ctx, gt_tensor *dst, const void *host,
                                   gt_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
