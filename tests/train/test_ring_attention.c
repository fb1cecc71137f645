/* SPDX-License-Identifier: Apache-2.0
 * Attention with the sequence spread over ranks: outputs, softmax denominators and gradients as on
 * one rank, for any number of ranks and any deal of the tokens. */
#include <stdio.h>

#include "block_runner.h"
#include "nn/attention.h"
#include "ranks.h"

typedef struct ring_case {
    gt_dtype dtype;
    int64_t b, t, heads, kv_heads, d;
    bool scattered;     /* tokens dealt one by one instead of in 2*cp pieces */
    bool documents;     /* packed, with borders of their own in each sample  */
    double *qkv, *dout; /* [b,t,row], [b,t,heads*d] */
    double *out, *dqkv; /* what one rank computes   */
} ring_case;

static gti_heads heads_of(const ring_case *c, int cp)
{
    return (gti_heads){.b = c->b,
                       .t = c->t / cp,
                       .heads = c->heads,
                       .kv_heads = c->kv_heads,
                       .d = c->d,
                       .dtype = c->dtype,
                       .cp = cp};
}

static void deal(const ring_case *c, int cp, int rank, int64_t *positions)
{
    if (!c->scattered) {
        br_local_positions(c->t, cp, rank, positions);
        return;
    }
    for (int64_t i = 0; i < c->t / cp; i++) {
        positions[i] = i * cp + rank;
    }
}

static int64_t start_of(const ring_case *c, int64_t sample, int64_t position)
{
    const int64_t length = 3 + 4 * sample, shifted = position + sample;
    const int64_t start = shifted / length * length - sample;
    return c->documents && start > 0 ? start : 0;
}

/* Where each of this rank's tokens' documents begin. */
static gt_tensor starts_of(th *h, const ring_case *c, int64_t local, const int64_t *positions)
{
    gt_tensor t = th_new(h, GT_I64, TH_SHAPE(c->b, local));
    double *x = th_host(h, c->b * local);
    for (int64_t i = 0; i < c->b * local; i++) {
        x[i] = (double)start_of(c, i / local, positions[i % local]);
    }
    th_set(h, &t, x);
    return t;
}

/* The rows of this rank's tokens, in order. */
static double *pick(th *h, const ring_case *c, const double *whole, int64_t row, int cp,
                    const int64_t *positions)
{
    int64_t local = c->t / cp;
    double *part = th_host(h, c->b * local * row);
    for (int64_t i = 0; i < c->b * local; i++) {
        memcpy(part + i * row, whole + (i / local * c->t + positions[i % local]) * row,
               sizeof(double) * (size_t)row);
    }
    return part;
}

/* The first token of a document attends to itself alone: its output is its value. */
static void check_first_tokens(th *h, const ring_case *c, const gti_heads *heads,
                               const gt_tensor *out)
{
    const double *got = th_get(h, out);
    const int64_t row = gti_heads_row(heads), width = c->heads * c->d;
    for (int64_t i = 0; i < c->b * c->t * width; i++) {
        const int64_t token = i / width, head = i % width / c->d, group = c->heads / c->kv_heads;
        const int64_t at = (c->heads + c->kv_heads + head / group) * c->d + i % c->d;
        if (c->documents && start_of(c, token / c->t, token % c->t) == token % c->t) {
            const double want = c->qkv[token * row + at];
            th_compare_values("first token", &got[i], &want, 1, th_tolerance_of(c->dtype));
        }
    }
}

static void ring_rank(gt_comm *world, gt_context *ctx, void *user)
{
    ring_case *c = user;
    th *h = gti_rank_harness();
    int cp = gt_comm_size(world), rank = gt_comm_rank(world);
    gti_heads heads = heads_of(c, cp);
    int64_t row = gti_heads_row(&heads), width = c->heads * c->d, n = c->b * heads.t, positions[64];
    gt_layout layout = {
        .dtype = c->dtype, .batch = c->b, .seq = c->t, .seq_local = heads.t, .cp_size = cp};
    gt_plan plan;
    gti_plan_init(&plan, &layout, 0, NULL);
    TH_OK(gti_attention_plan(&plan, &heads));
    gt_tensor ring[GTI_RING_COUNT], pos = th_new(h, GT_I64, TH_SHAPE(heads.t));
    for (int i = 0; i < GTI_RING_COUNT; i++) {
        const gt_shape *s = &plan.workspace.shapes[i];
        ring[i] = th_new(h, s->dtype, s->ndim, s->dims);
    }
    deal(c, cp, rank, positions);
    gt_tensor qkv = th_new(h, c->dtype, TH_SHAPE(n, row)),
              dqkv = th_new(h, c->dtype, TH_SHAPE(n, row));
    gt_tensor out = th_new(h, c->dtype, TH_SHAPE(n, width)),
              dout = th_new(h, c->dtype, TH_SHAPE(n, width));
    gt_tensor lse = th_new(h, GT_F32, TH_SHAPE(c->b, c->heads, heads.t));
    double *place = th_host(h, heads.t);
    for (int64_t i = 0; i < heads.t; i++) {
        place[i] = (double)positions[i];
    }
    th_set(h, &pos, place);
    th_set(h, &qkv, pick(h, c, c->qkv, row, cp, positions));
    th_set(h, &dout, pick(h, c, c->dout, width, cp, positions));
    gt_tensor starts = starts_of(h, c, heads.t, positions);
    heads.starts = c->documents ? &starts : NULL;
    gt_step step = {.ctx = ctx, .layout = &layout, .cp = cp > 1 ? world : NULL, .positions = &pos};
    TH_OK(gti_attention_forward(&step, &heads, &out, &lse, &qkv, ring));
    TH_OK(gti_attention_backward(&step, &heads, &dqkv, &dout, &out, &lse, &qkv, ring));
    if (cp == 1) { /* the reference for the others */
        check_first_tokens(h, c, &heads, &out);
        memcpy(c->out, th_get(h, &out), sizeof(double) * (size_t)(n * width));
        memcpy(c->dqkv, th_get(h, &dqkv), sizeof(double) * (size_t)(n * row));
    } else {
        th_compare(h, "out", &out, pick(h, c, c->out, width, cp, positions), 4.0);
        th_compare(h, "dqkv", &dqkv, pick(h, c, c->dqkv, row, cp, positions), 8.0);
    }
    gti_plan_free(&plan);
}

static double *random_values(th *h, gt_dtype dtype, int64_t n, uint64_t seed)
{
    gt_tensor t = th_new(h, dtype, TH_SHAPE(n));
    th_random(h, &t, seed, 0.8);
    return th_get(h, &t);
}

static void ring_matches_one_rank(void **state)
{
    (void)state;
    static const ring_case cases[] = {
        {.dtype = GT_F32, .b = 2, .t = 24, .heads = 4, .kv_heads = 4, .d = 6},
        {.dtype = GT_F32, .b = 1, .t = 24, .heads = 4, .kv_heads = 2, .d = 8},
        {.dtype = GT_F32, .b = 2, .t = 12, .heads = 3, .kv_heads = 1, .d = 5, .scattered = true},
        {.dtype = GT_BF16, .b = 1, .t = 48, .heads = 2, .kv_heads = 1, .d = 16},
        {.dtype = GT_F32, .b = 2, .t = 48, .heads = 4, .kv_heads = 2, .d = 6, .documents = true},
        {.dtype = GT_F32,
         .b = 3,
         .t = 36,
         .heads = 2,
         .kv_heads = 1,
         .d = 5,
         .scattered = true,
         .documents = true},
        {.dtype = GT_BF16, .b = 1, .t = 48, .heads = 2, .kv_heads = 1, .d = 16, .documents = true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ring_case c = cases[i];
        int64_t row = (c.heads + 2 * c.kv_heads) * c.d, width = c.heads * c.d, n = c.b * c.t;
        th h = {0};
        th_open(&h, "cpu");
        c.qkv = random_values(&h, c.dtype, n * row, 1);
        c.dout = random_values(&h, c.dtype, n * width, 2);
        c.out = th_host(&h, n * width);
        c.dqkv = th_host(&h, n * row);
        for (int cp = 1; cp <= 4; cp++) {
            gti_run_ranks(cp, ring_rank, cp == 2 ? "guarded" : "cpu", &c);
        }
        th_close(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ring_matches_one_rank)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
