/* SPDX-License-Identifier: Apache-2.0
 * Sums of bf16 over many ranks: one rounding in all, whatever the number of ranks. A ring that adds
 * in bf16 rounds once per hop instead; its error is measured beside ours. */
#include <math.h>
#include <stdio.h>

#include "ranks.h"

enum { N = 1001 };

static float value(int rank, int i)
{
    uint32_t x = (uint32_t)(rank * 7919 + i) * 2654435761u;
    return gt_bf16_to_f32(gt_f32_to_bf16((float)(x >> 8) / 8388608.0f - 0.3f));
}

/* In units of half a bf16 step at the sum: 1 is what a single rounding may cost. */
static double error_of(float got, double exact)
{
    if (exact == 0) {
        return got == 0 ? 0 : INFINITY;
    }
    double half_step = ldexp(1.0, ilogb(exact) - 8);
    return fabs((double)got - exact) / half_step;
}

static void sums(gt_comm *world, gt_context *ctx, void *user)
{
    int size = gt_comm_size(world), rank = gt_comm_rank(world);
    uint16_t mine[N];
    for (int i = 0; i < N; i++) {
        mine[i] = gt_f32_to_bf16(value(rank, i));
    }
    gt_tensor t = gt_tensor_1d(mine, GT_BF16, N);
    TH_OK(gt_all_reduce(world, &t, GT_SUM, NULL, NULL));
    double worst = 0, ring_worst = 0;
    for (int i = 0; i < N; i++) {
        double exact = 0;
        float ring = 0;
        for (int r = 0; r < size; r++) {
            exact += (double)value(r, i);
            ring = gt_bf16_to_f32(gt_f32_to_bf16(ring + value(r, i)));
        }
        worst = fmax(worst, error_of(gt_bf16_to_f32(mine[i]), exact));
        ring_worst = fmax(ring_worst, error_of(ring, exact));
    }
    /* f32 sums of 16 values leave a little beyond the half step. */
    TH_TRUE(worst <= 1.001);
    TH_TRUE(size < 8 || ring_worst > 1.5);
    if (rank == 0) {
        printf("# %2d ranks: ours %.2f, added in bf16 %.2f half steps\n", size, worst, ring_worst);
    }
    (void)ctx;
    (void)user;
}

static void one_rounding(void **state)
{
    for (int ranks = 2; ranks <= 16; ranks *= 2) {
        gti_run_ranks(ranks, sums, "cpu", NULL);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_rounding)};
    return cmocka_run_group_tests_name("bf16 sums", tests, NULL, NULL);
}
