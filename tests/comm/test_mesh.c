/* SPDX-License-Identifier: Apache-2.0 */
#include <geektrain/mesh.h>

#include "ranks.h"

/* Every rank's axes hold exactly the ranks that share its other coordinates, in order. */
static void check_axis(gt_mesh *mesh, gt_axis axis, const int *want, int size)
{
    gt_comm *c = gt_mesh_comm(mesh, axis);
    TH_EQUAL(gt_comm_size(c), size);
    TH_EQUAL(gt_mesh_size(mesh, axis), size);
    int64_t mine = gt_comm_rank(gt_mesh_comm(mesh, GT_AXIS_WORLD)), all[16] = {0};
    gt_tensor in = gt_tensor_1d(&mine, GT_I64, 1), out = gt_tensor_1d(all, GT_I64, size);
    TH_OK(gt_all_gather(c, &out, &in, NULL, NULL));
    for (int i = 0; i < size; i++) {
        TH_EQUAL(all[i], want[i]);
    }
    TH_EQUAL(want[gt_mesh_index(mesh, axis)], mine);
}

/* pp 2 x dp 2 x cp 1 x tp 2 */
static void mesh_of_eight(gt_comm *world, gt_context *ctx, void *user)
{
    (void)ctx;
    (void)user;
    gt_mesh_params p = GT_MESH_PARAMS_INIT;
    p.pp = 2;
    p.tp = 2;
    gt_mesh *mesh = NULL;
    TH_OK(gt_mesh_create(&mesh, world, &p));
    int r = gt_comm_rank(world), tp = r % 2, dp = r / 2 % 2, pp = r / 4;
    check_axis(mesh, GT_AXIS_TP, (int[]){r - tp, r - tp + 1}, 2);
    check_axis(mesh, GT_AXIS_DP, (int[]){r - 2 * dp, r - 2 * dp + 2}, 2);
    check_axis(mesh, GT_AXIS_SHARD, (int[]){r - 2 * dp, r - 2 * dp + 2}, 2);
    check_axis(mesh, GT_AXIS_PP, (int[]){r - 4 * pp, r - 4 * pp + 4}, 2);
    check_axis(mesh, GT_AXIS_EMBED, (int[]){r - 4 * pp, r - 4 * pp + 4}, 2);
    check_axis(mesh, GT_AXIS_CP, (int[]){r}, 1);
    gt_mesh_destroy(&mesh);
}

/* pp 3 x dp 1 x cp 2 x tp 1: the middle stage has no tied embedding. */
static void mesh_of_six(gt_comm *world, gt_context *ctx, void *user)
{
    (void)ctx;
    (void)user;
    gt_mesh_params p = GT_MESH_PARAMS_INIT;
    p.pp = 3;
    p.cp = 2;
    gt_mesh *mesh = NULL;
    TH_OK(gt_mesh_create(&mesh, world, &p));
    int r = gt_comm_rank(world), cp = r % 2, pp = r / 2;
    check_axis(mesh, GT_AXIS_CP, (int[]){2 * pp, 2 * pp + 1}, 2);
    check_axis(mesh, GT_AXIS_SHARD, (int[]){2 * pp, 2 * pp + 1}, 2);
    check_axis(mesh, GT_AXIS_PP, (int[]){cp, 2 + cp, 4 + cp}, 3);
    if (pp == 1) {
        check_axis(mesh, GT_AXIS_EMBED, (int[]){r}, 1);
    } else {
        check_axis(mesh, GT_AXIS_EMBED, (int[]){cp, 4 + cp}, 2);
    }
    gt_mesh_destroy(&mesh);
}

static void wrong_product(gt_comm *world, gt_context *ctx, void *user)
{
    (void)ctx;
    (void)user;
    gt_mesh_params p = GT_MESH_PARAMS_INIT;
    gt_mesh *mesh = NULL;
    p.pp = 2;
    TH_FAILS(gt_mesh_create(&mesh, world, &p), GT_ERR_CONFIG, "does not divide the 3 ranks");
    p.pp = 1;
    p.dp = 2;
    TH_FAILS(gt_mesh_create(&mesh, world, &p), GT_ERR_CONFIG,
             "pp 1 x dp 2 x cp 1 x tp 1 = 2 ranks, but the world has 3");
    p.dp = -1;
    TH_FAILS(gt_mesh_create(&mesh, world, &p), GT_ERR_CONFIG, "dp is -1");
    /* One rank alone is wrong: all get an error. */
    p.dp = gt_comm_rank(world) == 1 ? 2 : 3;
    gt_status st = gt_comm_rank(world) == 1 ? GT_ERR_CONFIG : GT_ERR_PEER;
    TH_FAILS(gt_mesh_create(&mesh, world, &p), st, "dp 2");
    TH_TRUE(mesh == NULL);
    p.dp = 3;
    TH_OK(gt_mesh_create(&mesh, world, &p));
    gt_mesh_destroy(&mesh);
}

static void split_covers_all(void **state)
{
    (void)state;
    for (int64_t n = 0; n <= 64; n++) {
        for (int parts = 1; parts <= 16; parts++) {
            int64_t at = 0, last = n;
            for (int part = 0; part < parts; part++) {
                int64_t count = gt_split_count(n, parts, part);
                assert_int_equal(gt_split_first(n, parts, part), at);
                assert_true(count <= last && count >= n / parts);
                last = count;
                at += count;
            }
            assert_int_equal(at, n);
        }
    }
}

/* Communicator numbers are reused: many more splits than a world has room for. */
static void many_splits(gt_comm *world, gt_context *ctx, void *user)
{
    (void)ctx;
    (void)user;
    for (int i = 0; i < 2100; i++) {
        gt_comm *c = NULL;
        TH_OK(
            gt_comm_split(&c, world, gt_comm_rank(world) == i % 3 ? -1 : 0, -gt_comm_rank(world)));
        TH_TRUE((c == NULL) == (gt_comm_rank(world) == i % 3));
        gt_comm_destroy(&c);
    }
}

static void mesh_axes(void **state)
{
    (void)state;
    gti_run_ranks(8, mesh_of_eight, "cpu", NULL);
    gti_run_ranks(6, mesh_of_six, "guarded", NULL);
}

static void mesh_wrong_product(void **state)
{
    (void)state;
    gti_run_ranks(3, wrong_product, "cpu", NULL);
}

static void split_many_times(void **state)
{
    (void)state;
    gti_run_ranks(3, many_splits, "cpu", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_covers_all),
        cmocka_unit_test(mesh_axes),
        cmocka_unit_test(mesh_wrong_product),
        cmocka_unit_test(split_many_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
