/* SPDX-License-Identifier: Apache-2.0
 *
 * The parameter table inside. A unit's parameters lie in one or two flat *buckets*, one of what is
 * trained and one of what is frozen. P ranks share a bucket of `padded` = P * `shard` elements; the
 * first `real` hold tensors, each beginning at a multiple of GTI_BUCKET_ALIGN; gaps and tail are
 * padding, which no norm, check or update reads.
 */
#ifndef GTI_PARAMS_TABLE_H
#define GTI_PARAMS_TABLE_H

#include <geektrain/params.h>

#include "core/names.h"
#include "params/param_layout.h"

#define GTI_BUCKET_ALIGN 16 /* elements: 64 bytes of f32, 32 of bf16 */

enum { GTI_TRAINED = 0, GTI_FROZEN, GTI_BUCKETS };

struct gti_state {
    char name[GT_PARAM_NAME_MAX];
    gt_dtype dtype;
    bool vector;
    int64_t length; /* of a vector */
};

struct gti_param {
    gt_param decl; /* strings are ours; name is the full one */
    int unit;
    bool copy;    /* as the unit's                              */
    bool frozen;  /* now                                        */
    bool partial; /* its gradient is summed over tp             */
    float lr_scale, decay_scale;
    int pieces; /* how this tensor-parallel rank's part is cut */
    gti_param_piece piece[GT_MAX_SECTIONS];
    int64_t numel, local_shape[4], local_numel;
    int64_t offset; /* in its bucket; -1: not laid out yet */
    int states;
    struct gti_state state[GT_MAX_STATES];
};

struct gti_bucket {
    int64_t real, shard, padded;
    int64_t partial; /* elements [0, partial) hold the partial tensors */
};

struct gti_unit {
    char name[2 * GT_PARAM_NAME_MAX];
    gt_comm *tie;
    bool copy;
    int *param, count, room; /* numbers of its parameters */
    struct gti_bucket bucket[GTI_BUCKETS];
};

struct gt_params {
    int tp_size, tp_rank;
    bool sequence_parallel;
    struct gti_param *param;
    int count, room;
    gti_names names;
    struct gti_unit *unit;
    int unit_count, unit_room;
    bool taken;                 /* by a gt_zero                          */
    int shard_size, shard_rank; /* of the ranks that share the buckets */
};

/* NULL: no such parameter. */
const struct gti_param *gti_params_row(const gt_params *table, int param);
static inline int gti_param_bucket(const struct gti_param *p)
{
    return p->frozen ? GTI_FROZEN : GTI_TRAINED;
}

/* For a table whose rows are made before it is known where they lie: the unit, and what a
 * configuration says of the parameter. */
gt_status gti_params_assign(gt_params *table, int param, int unit);
void gti_params_set(gt_params *table, int param, float lr_scale, float decay_scale, bool frozen);

/* buckets.c */
/* Places every unit's parameters in its buckets, over `size` ranks. */
void gti_params_lay_out(gt_params *table, int size, int rank);
void gti_params_lay_out_unit(gt_params *table, int unit);
/* Elements [*first, + *count) of the local tensor that lie in [from, from + length) of its bucket.
 */
void gti_param_range(const struct gti_param *p, int64_t from, int64_t length, int64_t *first,
                     int64_t *count);
/* Of those that this rank's shard of the bucket holds, whatever ZeRO keeps besides: the range that
 * it answers for when something is counted or saved. */
void gti_param_shard(const gt_params *table, const struct gti_param *p, int64_t *first,
                     int64_t *count);

/* slabs.c */
/* The longest run of local elements from `at` on, ending before `end`, that is in one piece of the
 * cut and gapless there; piece_at: its place in the piece, seen as a tensor of its own. */
struct gti_run {
    int64_t first, count, piece_at;
    int piece;
};
struct gti_run gti_param_run(const struct gti_param *p, int64_t at, int64_t end);
/* Whether this tensor-parallel rank answers for the piece: the first of those that hold it. */
bool gti_param_counts(const gt_params *table, const struct gti_param *p, int piece);
int gti_param_slabs(const struct gti_param *p, int64_t first, int64_t count, bool owned_only,
                    const gt_params *table, gt_slab out[GT_MAX_SLABS]);
/* Copies the elements of a slab between the whole tensor and the local range that begins at local
 * element `first`. */
void gti_slab_copy(const struct gti_param *p, const gt_slab *slab, float *whole, float *range,
                   int64_t first, bool to_whole);

/* States are only kept here; lib/zero/storage.c, which knows the optimizer, names them. */
void gti_param_clear_states(struct gti_param *p);
gt_status gti_param_add_state(struct gti_param *p, const char *name, gt_dtype dtype, bool vector,
                              int64_t length);

#endif
