/* SPDX-License-Identifier: Apache-2.0
 * Where a unit's parameters lie in its flat buckets, and which part of them is a rank's. */
#include "params/table.h"

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Partial tensors come first, so that one all-reduce over a contiguous range serves them. */
static void lay_out_bucket(gt_params *table, struct gti_unit *u, int which)
{
    struct gti_bucket *b = &u->bucket[which];
    int64_t end = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < u->count; i++) {
            struct gti_param *p = &table->param[u->param[i]];
            if (gti_param_bucket(p) == which && p->partial == (pass == 0)) {
                p->offset = end;
                end += round_up(p->local_numel, GTI_BUCKET_ALIGN);
            }
        }
        if (pass == 0) {
            b->partial = which == GTI_FROZEN ? 0 : end;
        }
    }
    int64_t each = end / table->shard_size + (end % table->shard_size != 0);
    b->real = end;
    b->shard = round_up(each, GTI_BUCKET_ALIGN);
    b->padded = b->shard * table->shard_size;
}

void gti_params_lay_out_unit(gt_params *table, int unit)
{
    for (int which = 0; which < GTI_BUCKETS; which++) {
        lay_out_bucket(table, &table->unit[unit], which);
    }
}

void gti_params_lay_out(gt_params *table, int size, int rank)
{
    table->shard_size = size;
    table->shard_rank = rank;
    for (int i = 0; i < table->unit_count; i++) {
        gti_params_lay_out_unit(table, i);
    }
}

void gti_param_range(const struct gti_param *p, int64_t from, int64_t length, int64_t *first,
                     int64_t *count)
{
    int64_t lo = p->offset > from ? p->offset : from;
    int64_t end = p->offset + p->local_numel;
    int64_t hi = end < from + length ? end : from + length;
    *first = hi > lo ? lo - p->offset : 0;
    *count = hi > lo ? hi - lo : 0;
}

void gti_param_shard(const gt_params *table, const struct gti_param *p, int64_t *first,
                     int64_t *count)
{
    *first = *count = 0;
    if (p->unit != GT_ELSEWHERE && p->offset >= 0) {
        int64_t shard = table->unit[p->unit].bucket[gti_param_bucket(p)].shard;
        gti_param_range(p, table->shard_rank * shard, shard, first, count);
    }
}
