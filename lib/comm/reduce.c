/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/world.h"
#include "backend/host_reduce.h"

#define BLOCK 4096 /* elements: 16 KiB of f32 stay in the first-level cache */

/* acc = inputs in rank order; when acc is rank 0's or 1's input itself, it need not be copied (the
 * first sum commutes). */
static void combine(void *acc, const void *const *inputs, int ranks, int me, bool in_place,
                    gt_dtype dtype, size_t offset, size_t n, gti_reduce_kind kind)
{
    size_t at = offset * gt_dtype_size(dtype);
    int first = in_place ? me : 0;
    if (!in_place) {
        gti_host_widen(acc, (const char *)inputs[0] + at, dtype, n);
    }
    for (int r = 0; r < ranks; r++) {
        if (r != first) {
            gti_host_reduce(acc, (const char *)inputs[r] + at, dtype, n, kind);
        }
    }
}

void gti_reduce_ranks(void *out, const void *const *inputs, int ranks, int me, gt_dtype dtype,
                      size_t n, gt_reduce_op op, bool add)
{
    union {
        float f[BLOCK];
        double d[BLOCK];
    } acc;
    gti_reduce_kind kind = (gti_reduce_kind)op;
    bool same = gti_host_acc_dtype(dtype) == dtype && !add;
    bool mine = out == inputs[me];
    bool direct = same && (!mine || me <= 1);
    size_t out_size = add ? sizeof(float) : gt_dtype_size(dtype);
    for (size_t offset = 0; offset < n; offset += BLOCK) {
        size_t count = n - offset < BLOCK ? n - offset : BLOCK;
        char *to = (char *)out + offset * out_size;
        if (direct) {
            combine(to, inputs, ranks, me, mine, dtype, offset, count, kind);
            continue;
        }
        combine(&acc, inputs, ranks, me, false, dtype, offset, count, kind);
        if (add) {
            gti_host_reduce(to, acc.f, GT_F32, count, GTI_REDUCE_SUM);
        } else {
            gti_host_narrow(to, &acc, dtype, count);
        }
    }
}
