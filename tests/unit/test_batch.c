/* SPDX-License-Identifier: Apache-2.0
 * gt_config_resolve: batch arithmetic, mesh, relations between keys. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>

#include <geektrain/config.h>

static void two_batch_sizes_give_the_third(void **state)
{
    static const struct {
        int64_t train, micro, accum;
        int world;
        int64_t want_train, want_micro, want_accum; /* 0: refused */
        const char *says;
    } rows[] = {
        {256, 8, 0, 8, 256, 8, 4, NULL},
        {256, 8, 0, 3, 0, 0, 0,
         "train_batch_size 256 is not micro 8 x accumulation 10 x data ranks 3 = 240"},
        {256, 16, 0, 8, 256, 16, 2, NULL},
        {256, 16, 0, 16, 256, 16, 1, NULL},
        {256, 16, 0, 32, 0, 0, 0,
         "train_batch_size 256 is not micro 16 x accumulation 1 x data ranks 32 = 512"},
        {65536, 64, 0, 64, 65536, 64, 16, NULL},
        {32, 1, 0, 32, 32, 1, 1, NULL},
        {32, 1, 0, 1, 32, 1, 32, NULL},
        {0, 8, 3, 2, 48, 8, 3, NULL},
        {16, 0, 1, 4, 16, 4, 1, NULL},
        {64, 0, 0, 4, 64, 16, 1, NULL},
        {0, 5, 0, 3, 15, 5, 1, NULL},
        {20000, 20, 100, 10, 20000, 20, 100, NULL},
        {20000, 20, 100, 8, 0, 0, 0, "= 16000"},
        {1504, 188, 2, 4, 1504, 188, 2, NULL},
        {32, 2, 8, 2, 32, 2, 8, NULL},
        {1, 1, 0, 1, 1, 1, 1, NULL},
        {1, 0, 0, 2, 0, 0, 0,
         "train_batch_size 1 cannot be split over accumulation 1 x data ranks 2 = 2"},
        {10, 0, 4, 2, 0, 0, 0, "cannot be split over accumulation 4 x data ranks 2 = 8"},
        {0, 0, 0, 1, 0, 0, 0, "give train_batch_size or train_micro_batch_size_per_gpu"},
        {0, 0, 4, 1, 0, 0, 0, "give train_batch_size or train_micro_batch_size_per_gpu"},
        {0, 1000000000000000000, 1000, 1, 0, 0, 0, "overflows"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        gt_config c;
        gt_config_init(&c);
        c.train_batch = rows[i].train;
        c.micro_batch = rows[i].micro;
        c.grad_accum = rows[i].accum;
        gt_config before = c;
        gt_status st = gt_config_resolve(&c, rows[i].world);
        if (rows[i].want_train == 0) {
            assert_int_equal(st, GT_ERR_CONFIG);
            if (strstr(gt_last_error(), rows[i].says) == NULL) {
                fail_msg("row %zu says: %s", i, gt_last_error());
            }
            assert_memory_equal(&c, &before, sizeof c);
            continue;
        }
        if (st != GT_OK) {
            fail_msg("row %zu: %s", i, gt_last_error());
        }
        assert_int_equal(c.train_batch, rows[i].want_train);
        assert_int_equal(c.micro_batch, rows[i].want_micro);
        assert_int_equal(c.grad_accum, rows[i].want_accum);
        before = c;
        assert_int_equal(gt_config_resolve(&c, rows[i].world), GT_OK);
        assert_memory_equal(&c, &before, sizeof c); /* twice changes nothing */
    }
}

static void refuse_mesh(int pp, int dp, int cp, int tp, int world, const char *says)
{
    gt_config c;
    gt_config_init(&c);
    c.micro_batch = 1;
    c.mesh = (gt_mesh_config){.pp = pp, .dp = dp, .cp = cp, .tp = tp, .chunks = 1};
    assert_int_equal(gt_config_resolve(&c, world), GT_ERR_CONFIG);
    if (strstr(gt_last_error(), says) == NULL) {
        fail_msg("says: %s", gt_last_error());
    }
}

static void mesh_must_multiply_out(void **state)
{
    gt_config c;
    gt_config_init(&c);
    c.train_batch = 12;
    c.mesh.pp = 2;
    c.mesh.cp = 2;
    assert_int_equal(gt_config_resolve(&c, 12), GT_OK);
    assert_int_equal(c.mesh.dp, 3); /* context ranks share a batch */
    assert_int_equal(c.micro_batch, 4);
    refuse_mesh(2, 3, 1, 2, 8, "mesh pp 2 x dp 3 x cp 1 x tp 2 = 12 ranks, but the world has 8");
    refuse_mesh(3, 0, 1, 1, 8, "mesh pp 3 x cp 1 x tp 1 = 3 does not divide the world of 8 ranks");
    refuse_mesh(1, 0, 1, 16, 8, "= 16 does not divide the world of 8");
    refuse_mesh(2, 1, 1, 1, 8, "= 2 ranks, but the world has 8");
    refuse_mesh(-1, 0, 1, 1, 8, "mesh.pp is -1");
    refuse_mesh(2000000000, 2000000000, 2000000000, 2000000000, 8, "but the world has 8");
}

static void refuse(const gt_config *config, const char *says)
{
    gt_config c = *config;
    assert_int_equal(gt_config_resolve(&c, 4), GT_ERR_CONFIG);
    if (strstr(gt_last_error(), says) == NULL) {
        fail_msg("says: %s, wanted: %s", gt_last_error(), says);
    }
}

static void values_are_checked_against_each_other(void **state)
{
    gt_config good, c;
    gt_config_init(&good);
    good.micro_batch = 1;
    good.model.layers = 2;
    c = good;
    assert_int_equal(gt_config_resolve(&c, 4), GT_OK);
    c = good;
    c.model.heads = 7;
    refuse(&c, "model.heads 7 does not divide model.width 256");
    c = good;
    c.model.kv_heads = 3;
    refuse(&c, "model.kv_heads 3 does not divide model.heads 8");
    c = good;
    c.model.heads = 2;
    c.mesh.tp = 4;
    refuse(&c, "mesh.tp 4 does not divide model.heads 2");
    c = good;
    c.model.kv_heads = 2;
    c.mesh.tp = 4;
    assert_int_equal(gt_config_resolve(&c, 4), GT_OK); /* two ranks share a key/value head */
    c.model.heads = 12;
    c.model.width = 240;
    c.model.kv_heads = 3;
    refuse(&c, "mesh.tp 4 and model.kv_heads 3: one must divide the other");
    c = good;
    c.optimizer.lr = NAN;
    refuse(&c, "optimizer.params.lr is nan, wanted at least 0");
    c = good;
    c.zero.stage = 4;
    refuse(&c, "zero_optimization.stage is 4");
    c = good;
    c.dtype = GT_F16;
    refuse(&c, "loss scaler is off but parameters are f16");
    c = good;
    c.optimizer.master_remainder = true;
    refuse(&c, "master_remainder needs bf16");
    c.dtype = GT_BF16;
    assert_int_equal(gt_config_resolve(&c, 4), GT_OK);
    c.optimizer.type = GT_LION;
    refuse(&c, "master_remainder works with Adam and AdamW");
    c = good;
    c.zero.hpz_partition_size = 3;
    refuse(&c, "zero_hpz_partition_size 3 does not divide dp 4 x cp 1 = 4");
    c = good;
    c.zero.offload_optimizer = GT_OFFLOAD_FILE;
    refuse(&c, "nvme_path is not given");
    c = good;
    c.scheduler.type = GT_LR_WARMUP_COSINE;
    refuse(&c, "total_num_steps");
    c.train.steps = 77;
    assert_int_equal(gt_config_resolve(&c, 4), GT_OK);
    assert_int_equal(c.scheduler.total_steps, 77);
    assert_int_equal(gt_config_resolve(&c, 0), GT_ERR_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_batch_sizes_give_the_third),
        cmocka_unit_test(mesh_must_multiply_out),
        cmocka_unit_test(values_are_checked_against_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
