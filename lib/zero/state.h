/* SPDX-License-Identifier: Apache-2.0
 *
 * What a gt_zero is made of.
 *
 * Terms: P ranks share a unit's flat bucket of `padded` = P * `shard` elements; the first `real`
 * hold tensors, each beginning at a multiple of GTI_ZERO_ALIGN; gaps and tail are padding, which no
 * norm, check or update reads. `state` is the range that this rank's optimizer owns: its shard, or
 * the whole bucket at stage 0.
 */
#ifndef GTI_ZERO_STATE_H
#define GTI_ZERO_STATE_H

#include <geektrain/zero.h>
#include <geektrain/params.h>

#define GTI_ZERO_ALIGN 16 /* elements: 64 bytes of f32, 32 of bf16 */
#define GTI_MAX_STATES 3

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

struct zero_tensor {
    char name[2 * GT_PARAM_NAME_MAX];
    int64_t numel, offset;
    int64_t counted; /* leading elements that the norm counts */
    float lr_scale, decay_scale;
    bool frozen, partial;
    bool sets_gradient; /* cleared when asked for, not with its unit */
    bool unset;         /* and has not been yet                      */
    double norm_weight;
};

struct zero_unit {
    char name[GT_PARAM_NAME_MAX];
    int count;
    struct zero_tensor *tensors;
    int64_t real, shard, padded;
    int64_t partial; /* elements [0, partial) hold the partial tensors */
    bool persistent; /* full parameters always present                 */
    gt_comm *tie;

    /* Parameters. full: whole bucket, always there or NULL; near: what gathers start from at stage
     * 3, the shard or (hpz) the node's piece of the bucket; own: this rank's state range, inside
     * one of them. master is `own` itself when parameters are f32. */
    gt_tensor full, near, own, master;
    gt_tensor moment[2]; /* m, v; data NULL where the optimizer has none */

    /* Gradients. grad_full: stages 0, 1; grad: the reduced gradient of the state range. */
    gt_tensor grad_full, grad;
    bool grad_open;    /* handed out since the last reduce (2, 3) or step (0, 1) */
    bool grad_summed;  /* grad holds this step's sum so far                      */
    bool reduced_last; /* the step's last reduce was asked for                   */
    struct zero_buffer
        *grad_buffer; /* transient full gradient, or its copy in the communication dtype */
    gt_work *reduce_work;
    gt_work *partial_work;
    bool partial_pending;

    /* Gathering at stage 3. */
    int users;
    bool prefetched; /* a prefetch holds the buffer until gathered */
    struct zero_buffer *buffer;
    gt_work *gather_work; /* also the publication after a step */
};

struct gt_zero {
    gt_context *ctx;
    gt_comm *comm; /* over which state is sharded; ours when nodes are used (hpz), else borrowed */
    gt_comm *node; /* over which parameters are gathered at stage 3: comm, or a part of it (hpz) */
    gt_comm *across; /* hpz: ranks of equal place in their nodes; else NULL */
    gt_zero_params params;
    char offload_path[GT_PATH_MAX];
    int stage; /* in effect: 0 when there is nobody to share with */
    int size, rank;
    struct zero_unit *units;
    int count, room;
    bool allocated, owns_comms;
    struct zero_pool gather_pool, grad_pool;
    int deferred; /* unit whose dp reduction waits for its partial sums, or -1 */

    uint64_t order_hash; /* of the units gathered since the last finish */
    int *order;
    int order_count, order_room;

    void *offload; /* host or mapped memory of the optimizer states */
    size_t offload_bytes, offload_used;
    gt_tensor staging[GTI_MAX_STATES]; /* device copies when the device cannot reach `offload` */

    gt_tensor lamb_update, lamb_norms; /* workspace of LAMB */
    double *lamb_host;                 /* the norms, on the host */
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
gt_status gti_zero_unit_check(const gt_zero *zero, int unit, int tensor);
/* First element of this rank's state range in the bucket, and its length. */
int64_t gti_zero_state_first(const gt_zero *zero, const struct zero_unit *u);
int64_t gti_zero_state_count(const gt_zero *zero, const struct zero_unit *u);

/* A tensor's piece inside the range [first, first+count) of its bucket: offset into the range,
 * offset into the tensor, length (0: none). */
struct zero_piece {
    int64_t in_range, in_tensor, count;
};
struct zero_piece gti_zero_piece(const struct zero_tensor *t, int64_t first, int64_t count);

/* offload.c */
gt_status gti_zero_offload_open(gt_zero *zero, size_t bytes);
void gti_zero_offload_close(gt_zero *zero);
gt_status gti_zero_state_alloc(gt_zero *zero, gt_tensor *out, gt_dtype dtype, int64_t count);
/* Around one unit's update: makes the states reachable by the device, and brings them back. */
gt_status gti_zero_offload_begin(gt_zero *zero, struct zero_unit *u,
                                 gt_tensor states[GTI_MAX_STATES]);
gt_status gti_zero_offload_end(gt_zero *zero, struct zero_unit *u,
                               gt_tensor states[GTI_MAX_STATES]);

#endif
