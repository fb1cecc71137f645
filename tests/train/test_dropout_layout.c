/* SPDX-License-Identifier: Apache-2.0
 * Dropout over two data ranks times two tensor ranks: what is replicated has equal masks in a
 * tensor group, what is cut has the one-rank mask's pieces, and replicas do not drift apart. */
#include <stdio.h>

#include "block_runner.h"
#include "ranks.h"

enum { ROWS = 10, COLUMNS = 100, PIECE = COLUMNS / 2, T = 8, V = 19 };

static double masks[4][ROWS * COLUMNS], pieces[4][ROWS * PIECE];

static void mask(th *h, double *out, int64_t columns, int64_t first, int data_rank)
{
    gt_tensor x = th_new(h, GT_F32, TH_SHAPE(ROWS, columns)),
              rows = th_new(h, GT_I64, TH_SHAPE(ROWS));
    double *row = th_host(h, ROWS);
    for (int i = 0; i < ROWS; i++) {
        row[i] = data_rank * ROWS + i;
    }
    th_set(h, &rows, row);
    th_fill(h, &x, 1.0);
    gt_dropout_params p = GT_DROPOUT_PARAMS_INIT;
    p.p = 0.5f;
    p.seed = 3;
    p.site = 17;
    p.columns = COLUMNS;
    p.first_column = first;
    TH_OK(gt_dropout(h->ctx, &x, &x, &rows, &p, NULL));
    memcpy(out, th_get(h, &x), sizeof(double) * (size_t)(ROWS * columns));
}

static void mask_rank(gt_comm *world, gt_context *ctx, void *user)
{
    (void)ctx;
    (void)user;
    int rank = gt_comm_rank(world), data = rank / 2, tensor = rank % 2;
    mask(gti_rank_harness(), masks[rank], COLUMNS, 0, data);
    mask(gti_rank_harness(), pieces[rank], PIECE, tensor * PIECE, data);
}

static void masks_follow_the_layout(void **state)
{
    (void)state;
    gti_run_ranks(4, mask_rank, "cpu", NULL);
    assert_memory_equal(masks[0], masks[1], sizeof(masks[0]));
    assert_memory_equal(masks[2], masks[3], sizeof(masks[0]));
    assert_memory_not_equal(masks[0], masks[2], sizeof(masks[0]));
    for (int a = 0; a < 4; a++) {
        for (int b = 0; b < a; b++) {
            assert_memory_not_equal(pieces[a], pieces[b], sizeof(pieces[0]));
        }
        int kept = 0;
        for (int i = 0; i < ROWS * PIECE; i++) {
            double whole = masks[a][i / PIECE * COLUMNS + a % 2 * PIECE + i % PIECE];
            assert_true(pieces[a][i] == whole);
            assert_true(whole == 0.0 || whole == 2.0);
            kept += whole != 0.0;
        }
        assert_in_range(kept, 200, 300);
    }
}

/* ---- fifty steps ------------------------------------------------------------------------------*/

typedef struct drift {
    bool sequence_parallel;
    double *params[4]; /* of each rank, whole where this rank has it */
    int64_t norm, total;
} drift;

static void sgd(br *r, gt_comm *data, gt_comm *tensor)
{
    for (int i = 0; i < r->count; i++) {
        for (int j = 0; j < r->blocks[i].list.count; j++) {
            br_block *b = &r->blocks[i];
            const gt_param *p = &b->list.params[j];
            if (p->tied_to != NULL) {
                continue;
            }
            if (r->layout.sequence_parallel && p->sequence_partial) {
                TH_OK(gt_all_reduce(tensor, &b->grads[j], GT_SUM, NULL, NULL));
            }
            TH_OK(gt_all_reduce(data, &b->grads[j], GT_SUM, NULL, NULL));
            TH_OK(gt_axpby(r->h->ctx, &b->params[j], &b->grads[j], -0.02f, 1.0f, NULL));
        }
    }
}

static void drift_rank(gt_comm *world, gt_context *ctx, void *user)
{
    (void)ctx;
    drift *d = user;
    int rank = gt_comm_rank(world);
    gt_model_config c = {
        .layers = 1, .width = 8, .heads = 2, .ffn = 12, .vocab = V, .seq = T, .dropout = 0.5f};
    snprintf(c.type, sizeof(c.type), "gpt2");
    int32_t tokens[T], targets[T];
    br_options o = {.dtype = GT_F32, .seed = 5, .sequence_parallel = d->sequence_parallel};
    br_batch b = {.batch = 1, .seq = T, .tokens = tokens, .targets = targets, .grad_scale = 0.06f};
    b.ignore_index = -100;
    gt_comm *data;
    gt_model *model;
    br r;
    for (int i = 0; i < T; i++) {
        tokens[i] = (i * 3 + rank / 2) % V;
        targets[i] = (i * 5 + 1) % V;
    }
    TH_OK(gt_comm_split(&o.tp, world, rank / 2, rank));
    TH_OK(gt_comm_split(&data, world, rank % 2, rank));
    TH_OK(gt_model_create(&model));
    TH_OK(gt_model_add_gpt(model, &c));
    br_open(&r, gti_rank_harness(), model, &b, &o);
    for (int step = 0; step < 50; step++) {
        br_run(&r, &b);
        sgd(&r, data, o.tp);
    }
    d->total = br_total(&r);
    d->norm = br_offset(&r, 1, 0);
    d->params[rank] = calloc((size_t)d->total, sizeof(double));
    br_get_params(&r, d->params[rank]);
    br_close(&r);
    gt_model_destroy(&model);
    gt_comm_destroy(&data);
    gt_comm_destroy(&o.tp);
}

static void replicas_do_not_drift(void **state)
{
    (void)state;
    for (int cut = 0; cut < 2; cut++) {
        drift d = {.sequence_parallel = cut};
        gti_run_ranks(4, drift_rank, "cpu", &d);
        for (int rank = 1; rank < 4; rank++) { /* weight and bias of the first norm */
            assert_memory_equal(d.params[0] + d.norm, d.params[rank] + d.norm, 16 * sizeof(double));
        }
        assert_true(d.params[0][d.norm] != 1.0);
        assert_memory_equal(d.params[0], d.params[2], (size_t)d.total * sizeof(double));
        for (int rank = 0; rank < 4; rank++) {
            free(d.params[rank]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_follow_the_layout),
        cmocka_unit_test(replicas_do_not_drift),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
