/* SPDX-License-Identifier: Apache-2.0
 *
 * What a gt_zero is made of: storage for the buckets of the parameter table (params/table.h).
 * `state` below is the range of a bucket that this rank's optimizer owns: its shard, or the whole
 * bucket at stage 0.
 */
#ifndef GTI_ZERO_STATE_H
#define GTI_ZERO_STATE_H

#include <geektrain/zero.h>

#include "params/table.h"

/* A buffer that units take turns in; see pool.c. */
struct zero_buffer {
    void *data;
    size_t capacity;
    bool used;
};

struct zero_pool {
    struct zero_buffer **buffers;
    int count, room;
    size_t bytes;
};

/* Host or mapped memory of a bucket's optimizer states. */
struct zero_mapping {
    void *data;
    size_t bytes, used;
};

/* Element-wise states of a bucket as the optimizer reaches them: master first. */
struct zero_states {
    gt_tensor master, state[GT_OPTIMIZER_STATES];
};

struct zero_bucket {
    struct zero_unit *unit;
    const struct gti_bucket *flat;
    bool frozen;
    bool persistent; /* full parameters always present */

    /* Parameters. full: whole bucket, always there or NULL; near: what gathers start from at stage
     * 3, the shard or (hpz) the node's piece of the bucket; own: this rank's state range, inside
     * one of them. The master is `own` itself when parameters are f32. */
    gt_tensor full, near, own;
    struct zero_states states;
    struct zero_mapping offload;

    /* Gradients. grad_full: stages 0, 1; grad: the reduced gradient of the state range. */
    gt_tensor grad_full, grad;
    bool grad_open;    /* handed out since the last reduce (2, 3) or step (0, 1) */
    bool grad_summed;  /* grad holds this step's sum so far                      */
    bool reduced;      /* gt_zero_reduce was called this step                    */
    bool reduced_last; /* the step's last reduce was asked for                   */
    struct zero_buffer
        *grad_buffer; /* transient full gradient, or its copy in the communication dtype */
    gt_work *reduce_work;
    gt_work *partial_work;

    /* Gathering at stage 3. */
    struct zero_buffer *buffer;
    gt_work *gather_work; /* also the publication after a step */
};

struct zero_unit {
    const struct gti_unit *row;
    struct zero_bucket bucket[GTI_BUCKETS];
    int users;
    bool unpublished; /* loaded since the last publication */
};

/* Of one parameter, beyond its row. */
struct zero_param {
    bool sets_gradient; /* cleared when asked for, not with its unit */
    bool unset;         /* and has not been yet                      */
    gt_tensor vector[GT_OPTIMIZER_STATES];
};

enum { ZERO_ORDER_KEPT = 256 }; /* gathers of a step that a report can name */

/* Ranks that hold the same heads, for sections of `units` heads each. */
struct zero_share {
    int64_t units;
    gt_comm *comm;
};

struct gt_zero {
    gt_context *ctx;
    gt_comm *comm; /* over which state is sharded; ours when nodes are used (hpz), else borrowed */
    gt_comm *node; /* over which parameters are gathered at stage 3: comm, or a part of it (hpz) */
    gt_comm *across; /* hpz: ranks of equal place in their nodes; else NULL */
    gt_params *table;
    gt_zero_params params;
    const gt_optimizer *rule;
    gt_optimizer rule_copy; /* of a user's */
    char offload_path[GT_PATH_MAX];
    int stage; /* in effect: 0 when there is nobody to share with */
    int size, rank;
    int elementwise; /* states of the optimizer that are sharded */
    gt_optimizer_state state[GT_OPTIMIZER_STATES];
    struct zero_unit *units;
    int count;
    struct zero_param *param; /* [parameters of the table] */
    bool allocated, owns_comms;
    struct zero_pool gather_pool, grad_pool;
    struct zero_bucket *deferred; /* whose dp reduction waits for its partial sums, or NULL */
    struct zero_share *shares;
    int share_count;
    gt_tensor share_scratch; /* f32 or accum: a strided piece of shared heads, packed */

    uint64_t order_hash; /* of the units gathered since the last finish */
    int order[ZERO_ORDER_KEPT];
    int64_t order_count;

    gt_tensor staging[1 + GT_OPTIMIZER_STATES]; /* when the device cannot reach offloaded states */
    gt_tensor scratch, sums; /* workspace of optimizers that want sums over whole tensors */
    double *host_sums;
};

/* pool.c */
gt_status gti_zero_pool_take(struct gt_zero *zero, struct zero_pool *pool, size_t bytes,
                             struct zero_buffer **out);
/* How many buffers of the class of `bytes` exist and how many of them are free. */
void gti_zero_pool_class(const struct zero_pool *pool, size_t bytes, int *count, int *unused);
void gti_zero_pool_give(struct zero_buffer **buffer);
void gti_zero_pool_destroy(struct gt_zero *zero, struct zero_pool *pool);

/* zero.c */
/* This rank cannot take its part in what the ranks do together: tells those who wait for it. */
gt_status gti_zero_fail(const gt_zero *zero, gt_status mine);
gt_status gti_zero_check_unit(const gt_zero *zero, int unit);
/* *row: the parameter's, which is on this rank. */
gt_status gti_zero_check_param(const gt_zero *zero, int param, const struct gti_param **row);
static inline struct zero_bucket *gti_zero_bucket(gt_zero *zero, const struct gti_param *p)
{
    return &zero->units[p->unit].bucket[gti_param_bucket(p)];
}
/* First element of this rank's state range in the bucket, and its length. */
int64_t gti_zero_state_first(const gt_zero *zero, const struct zero_bucket *b);
int64_t gti_zero_state_count(const gt_zero *zero, const struct zero_bucket *b);
/* A parameter's elements [first, +count) (of its local tensor) that are in the state range; they
 * begin at element `at` of it. */
struct zero_piece {
    int64_t first, count, at;
};
struct zero_piece gti_zero_state_piece(const gt_zero *zero, const struct gti_param *p);
/* The same of this rank's shard, at stage 0 too: what it answers for. `at` is in the state range.
 */
struct zero_piece gti_zero_shard_piece(const gt_zero *zero, const struct gti_param *p);

/* storage.c */
/* The states of every parameter as the optimizer keeps them, into the table. */
gt_status gti_zero_name_states(gt_zero *zero);
gt_status gti_zero_bucket_allocate(gt_zero *zero, struct zero_bucket *b);
void gti_zero_bucket_free(gt_zero *zero, struct zero_bucket *b);
gt_status gti_zero_vectors_allocate(gt_zero *zero, int param);
void gti_zero_vectors_free(gt_zero *zero, int param);
bool gti_zero_separate_master(const gt_zero *zero);

/* offload.c */
gt_status gti_zero_offload_open(gt_zero *zero, struct zero_mapping *m, size_t bytes);
void gti_zero_offload_close(struct zero_mapping *m);
/* A state of a bucket: in its mapping when there is one, else in device memory. */
gt_status gti_zero_state_alloc(gt_zero *zero, struct zero_mapping *m, gt_tensor *out,
                               gt_dtype dtype, int64_t count);
/* Around one bucket's update: makes the states reachable by the device, and brings them back. */
gt_status gti_zero_offload_begin(gt_zero *zero, struct zero_bucket *b, struct zero_states *out);
gt_status gti_zero_offload_end(gt_zero *zero, struct zero_bucket *b, struct zero_states *states);

/* gradients.c */
/* Starts the reduction of the bucket whose partial sums are under way. */
gt_status gti_zero_flush_deferred(gt_zero *zero);

/* gather.c */
/* All ranks gathered the same units in the same order since the last call; else an error naming
 * rank and unit. */
gt_status gti_zero_check_order(gt_zero *zero);
/* A unit that is still gathered is an error that names it. */
gt_status gti_zero_check_released(const gt_zero *zero, const char *call);

/* shared_heads.c */
gt_status gti_zero_make_shares(gt_zero *zero);
void gti_zero_free_shares(gt_zero *zero);
/* Gradients of pieces that several tensor-parallel ranks hold, summed over them. */
gt_status gti_zero_sum_shared(gt_zero *zero, struct zero_bucket *b, gt_tensor *full);

/* update.c */
/* gt_zero_update where all ranks are known to agree on the arguments. */
gt_status gti_zero_update(gt_zero *zero, double lr, double grad_scale, int64_t step);
/* Every rank's new slice to all; waited for when the unit is next gathered. */
gt_status gti_zero_publish_bucket(gt_zero *zero, struct zero_bucket *b);

/* shard_values.c */
/* This rank's elements of a state (its state range's, or of a vector all) from / to `host`, which
 * has room for piece.count floats. */
gt_status gti_zero_read_piece(gt_zero *zero, int param, int state, struct zero_piece piece,
                              float *host);
gt_status gti_zero_write_piece(gt_zero *zero, int param, int state, struct zero_piece piece,
                               const float *host);
gt_status gti_zero_read_grad_piece(gt_zero *zero, int param, struct zero_piece piece, float *host);
gt_status gti_zero_write_grad_piece(gt_zero *zero, int param, struct zero_piece piece,
                                    const float *host);
/* host f32 [n], each element set by one rank and 0 bits on the others: now all have everything. */
gt_status gti_zero_join(gt_comm *comm, float *host, int64_t n);

#endif
