/* SPDX-License-Identifier: Apache-2.0 */
#include "ops_table.h"

#include <math.h>

#include <geektrain/ops.h>

#include "backend/cpu/reference/reference.h"

/* ---- specs: V table rows, T positions; p[0] first token of the shard, p[1] vocabulary - V
 * ---------*/
static gt_embedding_params params_of(const op_case *c)
{
    gt_embedding_params p = GT_EMBEDDING_PARAMS_INIT;
    p.first = (int64_t)c->p[0];
    p.vocab = c->v + (int64_t)c->p[1];
    p.seq = c->t;
    return p;
}

static void make_indices(double *ids, double *rows, const op_case *c)
{
    int64_t vocab = c->v + (int64_t)c->p[1];
    for (int64_t n = 0; n < c->n; n++) {
        ids[n] = (double)(n % 4 == 1 ? vocab - 1 : n * n % vocab); /* with repetitions */
        if (rows != NULL) {
            rows[n] = (double)(n * 5 + 3);
        }
    }
}

enum { EF_Y, EF_TABLE, EF_POSITIONS, EF_IDS, EF_ROWS };

static void prepare_fwd(double **v, const op_case *c)
{
    make_indices(v[EF_IDS], v[EF_ROWS], c);
}

static gt_status run_fwd(gt_context *ctx, gt_tensor *t, const op_case *c)
{
    gt_embedding_params p = params_of(c);
    return gt_embedding_forward(ctx, &t[EF_Y], &t[EF_TABLE], &t[EF_POSITIONS], &t[EF_IDS],
                                &t[EF_ROWS], &p, NULL);
}

static void oracle_fwd(double **v, const op_case *c)
{
    gti_ref_embedding_fwd(v[EF_Y], v[EF_TABLE], v[EF_POSITIONS], v[EF_IDS], v[EF_ROWS], c->n, c->c,
                          (int64_t)c->p[0], c->v, c->t);
}

static const op_spec fwd = {
    .name = "embedding_forward",
    .slots = 5,
    .slot = {{"y", OP_OUT, OP_ACT, 'N', 'C'},
             {"table", OP_IN, OP_ACT, 'V', 'C'},
             {"positions", OP_IN, OP_ACT, 'T', 'C'},
             {"ids", OP_IN, OP_I32, 'N', '1'},
             {"rows", OP_IN, OP_I64, 'N', '1'}},
    .p = {3, 7},
    .factor = 0.5,
    .prepare = prepare_fwd,
    .run = run_fwd,
    .oracle = oracle_fwd,
};

enum { EB_DTABLE, EB_DPOSITIONS, EB_DY, EB_IDS, EB_ROWS };

static void prepare_bwd(double **v, const op_case *c)
{
    make_indices(v[EB_IDS], v[EB_ROWS], c);
}

static gt_status run_bwd(gt_context *ctx, gt_tensor *t, const op_case *c)
{
    gt_embedding_params p = params_of(c);
    return gt_embedding_backward(ctx, &t[EB_DTABLE], &t[EB_DPOSITIONS], &t[EB_DY], &t[EB_IDS],
                                 &t[EB_ROWS], &p, NULL);
}

static void oracle_bwd(double **v, const op_case *c)
{
    gti_ref_embedding_bwd(v[EB_DTABLE], v[EB_DPOSITIONS], v[EB_DY], v[EB_IDS], v[EB_ROWS], c->n,
                          c->c, (int64_t)c->p[0], c->v, c->t);
}

/* The gradient slots stand for the tables, which are added linearly. */
static double objective(double **v, const op_case *c)
{
    double y[64], sum = 0;
    gti_ref_embedding_fwd(y, v[EB_DTABLE], v[EB_DPOSITIONS], v[EB_IDS], v[EB_ROWS], c->n, c->c,
                          (int64_t)c->p[0], c->v, c->t);
    for (int64_t i = 0; i < c->n * c->c; i++) {
        sum += y[i] * v[EB_DY][i];
    }
    return sum;
}

static const op_spec bwd = {
    .name = "embedding_backward",
    .slots = 5,
    .slot = {{"dtable", OP_ADD, OP_GRAD, 'V', 'C'},
             {"dpositions", OP_ADD, OP_GRAD, 'T', 'C'},
             {"dy", OP_IN, OP_ACT, 'N', 'C'},
             {"ids", OP_IN, OP_I32, 'N', '1'},
             {"rows", OP_IN, OP_I64, 'N', '1'}},
    .p = {3, 7},
    .prepare = prepare_bwd,
    .run = run_bwd,
    .oracle = oracle_bwd,
    .objective = objective,
    .gradient = {{EB_DTABLE, EB_DTABLE}, {EB_DPOSITIONS, EB_DPOSITIONS}},
    .gradients = 2,
};

static void all_over_sizes(void **state)
{
    op_check(*(const op_spec **)state);
}

/* ---- special cases
 * ------------------------------------------------------------------------------*/
static void shards_and_absent_tensors(void **state)
{
    op_case c = op_case_of(&fwd, 9, 5, GT_F32);
    c.absent = 1u << EF_POSITIONS | 1u << EF_ROWS;
    op_check_case(&fwd, &c);
    c.p[0] = 0;
    c.p[1] = 0; /* the whole vocabulary */
    op_check_case(&fwd, &c);
    c.v = 0; /* an empty shard */
    c.p[1] = 11;
    op_check_case(&fwd, &c);
    for (unsigned slot = EB_DTABLE; slot <= EB_DPOSITIONS; slot++) {
        c = op_case_of(&bwd, 9, 5, GT_BF16);
        c.absent = 1u << slot;
        op_check_case(&bwd, &c);
    }
    c = op_case_of(&bwd, 700, 300, GT_F32); /* threads, several tiles of columns */
    op_check_case(&bwd, &c);
}

/* One token 1000 times in bf16: the sum is formed in f32 and does not stop at 256. */
static void repeated_tokens_do_not_stagnate(void **state)
{
    TH_ON_DEVICES(h)
    {
        gt_tensor dy = th_new(&h, GT_BF16, TH_SHAPE(1000, 3));
        gt_tensor dtable = th_new(&h, GT_BF16, TH_SHAPE(2, 3));
        gt_tensor ids = th_new(&h, GT_I32, TH_SHAPE(1000));
        gt_embedding_params p = GT_EMBEDDING_PARAMS_INIT;
        th_fill(&h, &dy, 1);
        th_fill(&h, &dtable, 0);
        th_fill(&h, &ids, 1);
        TH_OK(gt_embedding_backward(h.ctx, &dtable, NULL, &dy, &ids, NULL, &p, NULL));
        th_compare(&h, "dtable", &dtable, (const double[]){0, 0, 0, 1000, 1000, 1000}, 0);
    }
}

/* On an asynchronous device the error comes with the wait. */
static gt_status finish(th *h, gt_status st)
{
    return st != GT_OK ? st : gt_context_synchronize(h->ctx);
}

static void bad_ids_are_named(void **state)
{
    const double bad[][3] = {{0, 4, 1}, {0, 1, -1}};
    TH_ON_DEVICES(h)
    {
        for (int i = 0; i < 2; i++) {
            gt_tensor table = th_new(&h, GT_F32, TH_SHAPE(4, 2));
            gt_tensor positions = th_new(&h, GT_F32, TH_SHAPE(2, 2));
            gt_tensor y = th_new(&h, GT_F32, TH_SHAPE(3, 2));
            gt_tensor ids = th_new(&h, GT_I32, TH_SHAPE(3));
            gt_tensor rows = th_new(&h, GT_I64, TH_SHAPE(3));
            gt_embedding_params p = GT_EMBEDDING_PARAMS_INIT;
            th_fill(&h, &table, 1);
            th_fill(&h, &positions, 1);
            th_set(&h, &ids, bad[i]);
            TH_FAILS(
                finish(&h, gt_embedding_forward(h.ctx, &y, &table, NULL, &ids, NULL, &p, NULL)),
                GT_ERR_ARGUMENT, i == 0 ? "ids[1] is 4" : "ids[2] is -1");
            TH_FAILS(
                finish(&h, gt_embedding_backward(h.ctx, &table, NULL, &y, &ids, NULL, &p, NULL)),
                GT_ERR_ARGUMENT, i == 0 ? "ids[1] is 4" : "ids[2] is -1");
            const double ones[] = {1, 1, 1, 1, 1, 1, 1, 1};
            th_compare(&h, "table", &table, ones, 0); /* nothing was written */
            th_fill(&h, &ids, 0);
            th_iota(&h, &rows);
            p.seq = 3;
            TH_FAILS(finish(&h, gt_embedding_forward(h.ctx, &y, &table, &positions, &ids, &rows, &p,
                                                     NULL)),
                     GT_ERR_ARGUMENT, "position 2");
        }
    }
}

static void bad_arguments_are_named(void **state)
{
    TH_ON_DEVICES(h)
    {
        gt_tensor table = th_new(&h, GT_F32, TH_SHAPE(4, 2));
        gt_tensor y = th_new(&h, GT_F32, TH_SHAPE(3, 2)), wide = th_new(&h, GT_F32, TH_SHAPE(3, 5));
        gt_tensor ids = th_new(&h, GT_I32, TH_SHAPE(3)), few = th_new(&h, GT_I32, TH_SHAPE(2));
        gt_embedding_params p = GT_EMBEDDING_PARAMS_INIT;
#define FWD(y, positions, ids)                                                                     \
    gt_embedding_forward(h.ctx, y, &table, positions, ids, NULL, &p, NULL)
        TH_FAILS(FWD(&wide, NULL, &ids), GT_ERR_SHAPE, "table is [4,2], wanted [rows,C] with C=5");
        TH_FAILS(FWD(&y, NULL, &few), GT_ERR_SHAPE, "ids has 2");
        TH_FAILS(FWD(&y, &table, &ids), GT_ERR_ARGUMENT, "rows is NULL");
        p.vocab = 5;
        p.first = 2;
        TH_FAILS(FWD(&y, NULL, &ids), GT_ERR_SHAPE, "table holds tokens [2, 6)");
    }
}

#define OVER_SIZES(op)                                                                             \
    {                                                                                              \
#op "_over_sizes", all_over_sizes, NULL, NULL, (void *)(uintptr_t)&op                      \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        OVER_SIZES(fwd),
        OVER_SIZES(bwd),
        cmocka_unit_test(shards_and_absent_tensors),
        cmocka_unit_test(repeated_tokens_do_not_stagnate),
        cmocka_unit_test(bad_ids_are_named),
        cmocka_unit_test(bad_arguments_are_named),
    };
    return cmocka_run_group_tests_name("ops_embedding", tests, NULL, NULL);
}
