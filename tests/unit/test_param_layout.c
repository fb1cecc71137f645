/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "params/param_layout.h"

static gt_param qkv(int64_t heads, int64_t kv_heads, int64_t d, int64_t c)
{
    return (gt_param){.struct_size = sizeof(gt_param),
                      .name = "attn.qkv.weight",
                      .ndim = 2,
                      .shape = {(heads + 2 * kv_heads) * d, c},
                      .tp_axis = 0,
                      .tp_unit = d,
                      .sections = 3,
                      .section = {heads * d, kv_heads * d, kv_heads * d},
                      .tp_share = true};
}

/* Every global index is held by exactly `replicas` ranks, which agree on who they are. */
static void check_cover(const gt_param *p, int tp)
{
    enum { LIMIT = 512 };
    int holders[LIMIT] = {0}, owners[LIMIT] = {0}, claimed[LIMIT] = {0};
    assert_true(p->shape[p->tp_axis] <= LIMIT);
    for (int rank = 0; rank < tp; rank++) {
        gti_param_piece piece[GT_MAX_SECTIONS];
        int n = gti_param_pieces(p, tp, rank, piece);
        int64_t local = 0, shape[4];
        for (int i = 0; i < n; i++) {
            assert_int_equal(piece[i].local_first, local);
            assert_int_equal(piece[i].replica_first + piece[i].replica, rank);
            local += piece[i].count;
            for (int64_t j = 0; j < piece[i].count; j++) {
                holders[piece[i].global_first + j]++;
                owners[piece[i].global_first + j] += piece[i].replica == 0;
                claimed[piece[i].global_first + j] = piece[i].replicas;
            }
        }
        gti_param_local_shape(p, tp, rank, shape);
        assert_int_equal(shape[p->tp_axis], local);
    }
    for (int64_t j = 0; j < p->shape[p->tp_axis]; j++) {
        assert_int_equal(owners[j], 1);
        assert_int_equal(holders[j], claimed[j]);
    }
}

static void pieces_cover_the_axis(void **state)
{
    (void)state;
    static const int64_t heads[][2] = {{1, 1}, {4, 4}, {12, 12}, {8, 2}, {6, 1}, {12, 3}};
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        for (int tp = 1; tp <= 9; tp++) {
            gt_param p = qkv(heads[i][0], heads[i][1], 7, 5);
            assert_int_equal(gti_param_check(&p), GT_OK);
            check_cover(&p, tp);
            gt_param plain = {.struct_size = sizeof(gt_param),
                              .name = "w",
                              .ndim = 2,
                              .shape = {heads[i][0], 3},
                              .tp_axis = 0};
            check_cover(&plain, tp);
        }
    }
}

static void qkv_gives_each_rank_its_heads(void **state)
{
    (void)state;
    gt_param p = qkv(8, 2, 4, 16);
    gti_param_piece piece[GT_MAX_SECTIONS];
    assert_int_equal(gti_param_pieces(&p, 2, 1, piece), 3);
    assert_int_equal(piece[0].global_first, 16);
    assert_int_equal(piece[0].count, 16);
    assert_int_equal(piece[1].global_first, 32 + 4);
    assert_int_equal(piece[1].local_first, 16);
    assert_int_equal(piece[2].global_first, 40 + 4);
    assert_int_equal(piece[2].local_first, 20);
    assert_false(gti_param_has_replicas(&p, 2));
    assert_true(gti_param_has_replicas(&p, 4));
    /* four ranks, two key/value heads: ranks 2 and 3 share the second */
    assert_int_equal(gti_param_pieces(&p, 4, 3, piece), 3);
    assert_int_equal(piece[0].replicas, 1);
    assert_int_equal(piece[1].global_first, 36);
    assert_int_equal(piece[1].replicas, 2);
    assert_int_equal(piece[1].replica, 1);
    assert_int_equal(piece[1].replica_first, 2);
    assert_int_equal(gti_param_local_numel(&p, 4, 3), (8 + 4 + 4) * 16);
}

static void plain_cut_is_uneven_and_may_be_empty(void **state)
{
    (void)state;
    gt_param p = {.struct_size = sizeof(p),
                  .name = "embed.tokens",
                  .ndim = 2,
                  .shape = {257, 8},
                  .tp_axis = 0};
    gti_param_piece piece[GT_MAX_SECTIONS];
    gti_param_pieces(&p, 3, 0, piece);
    assert_int_equal(piece[0].count, 86);
    gti_param_pieces(&p, 3, 2, piece);
    assert_int_equal(piece[0].count, 85);
    assert_int_equal(piece[0].global_first, 172);
    p.shape[0] = 2;
    gti_param_pieces(&p, 3, 2, piece);
    assert_int_equal(piece[0].count, 0);
    gt_param down = {
        .struct_size = sizeof(gt_param), .name = "down", .ndim = 2, .shape = {6, 10}, .tp_axis = 1};
    assert_int_equal(gti_param_outer(&down), 6);
    assert_int_equal(gti_param_inner(&down), 1);
    assert_int_equal(gti_param_local_numel(&down, 4, 3), 12);
    gt_param norm = {.struct_size = sizeof(gt_param),
                     .name = "norm",
                     .ndim = 1,
                     .shape = {10},
                     .tp_axis = GT_REPLICATED};
    gti_param_pieces(&norm, 4, 3, piece);
    assert_int_equal(piece[0].count, 10);
    assert_int_equal(piece[0].replicas, 4);
    assert_int_equal(piece[0].replica, 3);
}

static void check_names_what_is_wrong(void **state)
{
    (void)state;
    gt_param p = qkv(4, 4, 8, 32);
    p.section[2] = 24;
    assert_int_equal(gti_param_check(&p), GT_ERR_SHAPE);
    assert_non_null(strstr(gt_last_error(), "add up to 88"));
    p = qkv(4, 4, 8, 32);
    p.tp_unit = 5;
    assert_int_equal(gti_param_check(&p), GT_ERR_SHAPE);
    p = qkv(4, 4, 8, 32);
    p.tp_axis = 2;
    assert_int_equal(gti_param_check(&p), GT_ERR_ARGUMENT);
    p.name = "";
    assert_int_equal(gti_param_check(&p), GT_ERR_ARGUMENT);
    gt_param huge = {.struct_size = sizeof(gt_param),
                     .name = "w",
                     .ndim = 2,
                     .shape = {INT64_C(1) << 40, INT64_C(1) << 40}};
    assert_int_equal(gti_param_check(&huge), GT_ERR_SHAPE);
    assert_non_null(strstr(gt_last_error(), "w has more than 2^52 elements"));
    huge.shape[1] = 0;
    assert_int_equal(gti_param_check(&huge), GT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_cover_the_axis),
        cmocka_unit_test(qkv_gives_each_rank_its_heads),
        cmocka_unit_test(plain_cut_is_uneven_and_may_be_empty),
        cmocka_unit_test(check_names_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
