/* SPDX-License-Identifier: Apache-2.0 */
#include "gelu_stages.h"

#include "core/fail.h"

static gt_tensor top(const gt_tensor *t, int64_t rows)
{
    gt_tensor v = *t;
    v.shape[0] = rows;
    return v;
}

void gs_stage_open(gs_stage *st, th *h, int number, int inputs, bool last, int64_t rows)
{
    *st = (gs_stage){.number = number, .inputs = inputs, .last = last};
    st->w = th_new(h, GT_F32, TH_SHAPE(GS_WIDTH, GS_WIDTH));
    st->dw = th_new(h, GT_F32, TH_SHAPE(GS_WIDTH, GS_WIDTH));
    th_random(h, &st->w, 100 + (uint64_t)number, 0.8);
    th_fill(h, &st->dw, 0);
    for (int m = 0; m < GS_MICROBATCHES; m++) {
        st->x[m] = th_new(h, GT_F32, TH_SHAPE(rows, GS_WIDTH));
        st->u[m] = th_new(h, GT_F32, TH_SHAPE(rows, GS_WIDTH));
        st->du[m] = th_new(h, GT_F32, TH_SHAPE(rows, GS_WIDTH));
        if (last) {
            st->y[m] = th_new(h, GT_F32, TH_SHAPE(rows, GS_WIDTH));
        }
        if (!inputs) {
            th_random(h, &st->x[m], (uint64_t)(1000 * number + m), 1);
        }
    }
}

gt_status gs_forward(gt_context *ctx, gs_stage *st, int m, int64_t rows, const gt_tensor *in,
                     gt_tensor *out)
{
    gt_tensor x = top(&st->x[m], rows), u = top(&st->u[m], rows), y = top(&st->y[m], rows);
    gt_status s = GT_OK;
    for (int i = 0; i < st->inputs && s == GT_OK; i++) {
        TH_EQUAL(in[i].shape[0], rows);
        s = i ? gt_axpby(ctx, &x, &in[i], 1, 1, NULL) : gt_copy(ctx, &x, &in[i], NULL);
    }
    if (s == GT_OK) {
        s = gt_linear_forward(ctx, &u, &x, &st->w, NULL, NULL);
    }
    return s != GT_OK ? s : gt_gelu_forward(ctx, st->last ? &y : out, &u, NULL);
}

gt_status gs_backward(gt_context *ctx, gs_stage *st, int m, int64_t rows, const gt_tensor *in,
                      const gt_tensor *dout, gt_tensor *din, unsigned parts)
{
    gt_tensor x = top(&st->x[m], rows), u = top(&st->u[m], rows), y = top(&st->y[m], rows);
    gt_tensor du = top(&st->du[m], rows);
    gt_status s = GT_OK;
    if (parts & GT_BACKWARD_INPUT) {
        s = gt_gelu_backward(ctx, &du, st->last ? &y : dout, &u, NULL);
        for (int i = 0; i < st->inputs && s == GT_OK; i++) {
            s = gt_gemm(ctx, &din[i], &du, &st->w, NULL, NULL);
        }
    }
    if (s == GT_OK && (parts & GT_BACKWARD_WEIGHT)) {
        /* With one input, from the executor's buffer: it must still hold it. */
        s = gt_linear_backward(ctx, NULL, &st->dw, NULL, &du, st->inputs == 1 ? in : &x, &st->w,
                               NULL);
    }
    return s;
}

static gt_status forward(void *user, int m, int chunk, const gt_tensor *in, gt_tensor *out)
{
    gs_rank *r = user;
    r->calls++;
    return gs_forward(r->ctx, &r->stages[chunk], m, r->rows[m], in, out);
}

static gt_status backward(void *user, int m, int chunk, const gt_tensor *in, const gt_tensor *dout,
                          gt_tensor *din, unsigned parts)
{
    gs_rank *r = user;
    r->calls++;
    if (m == r->fail_backward) {
        return GT_FAIL(GT_ERR_DEVICE, "stage %d broke", r->stages[chunk].number);
    }
    if (!(parts & GT_BACKWARD_INPUT)) {
        TH_TRUE(!dout[0].data && !din[0].data);
    }
    return gs_backward(r->ctx, &r->stages[chunk], m, r->rows[m], in, dout, din, parts);
}

static gt_status reduce(void *user, int chunk, bool last)
{
    gs_rank *r = user;
    TH_TRUE(!r->last_reduced && chunk < r->chunks);
    r->reduces++;
    r->last_reduced = last;
    return GT_OK;
}

void gs_rank_open(gs_rank *r, gt_context *ctx, const gt_schedule *s, int rank, int64_t rows)
{
    *r = (gs_rank){.ctx = ctx, .schedule = s, .rank = rank, .full = rows, .fail_backward = -1};
    r->chunks = gt_schedule_chunks(s);
    for (int m = 0; m < GS_MICROBATCHES; m++) {
        r->rows[m] = rows;
    }
    for (int c = 0; c < r->chunks; c++) {
        int stage = gt_schedule_stage(s, rank, c), previous[GT_MAX_PORTS];
        gs_stage_open(&r->stages[c], gti_rank_harness(), stage,
                      gt_schedule_previous(s, stage, previous), gt_schedule_next(s, stage) < 0,
                      rows);
    }
}

static gt_bundle bundle(int ports, int64_t rows)
{
    gt_bundle b = {.ports = ports};
    for (int i = 0; i < ports; i++) {
        b.shape[i] = (gt_shape){GT_F32, 2, {rows, GS_WIDTH}};
    }
    return b;
}

gt_pipeline_params gs_params(gs_rank *r, gt_bundle *in, gt_bundle *out)
{
    gt_pipeline_params p = GT_PIPELINE_PARAMS_INIT;
    for (int c = 0; c < r->chunks; c++) {
        in[c] = bundle(r->stages[c].inputs, r->full);
        out[c] = bundle(!r->stages[c].last, r->full);
    }
    p.user = r;
    p.forward = forward;
    p.backward = backward;
    p.reduce = reduce;
    p.inputs = in;
    p.outputs = out;
    p.rows = r->full;
    return p;
}

/* All stages of the schedule on this rank, with the tensors between them. */
typedef struct whole {
    int n;
    gs_stage *stages;
    gt_tensor *out, *dout; /* [n] of one microbatch */
} whole;

static void whole_step(const gs_rank *r, whole *a, int m, int64_t rows, bool trained)
{
    gt_tensor in[GT_MAX_PORTS], din[GT_MAX_PORTS];
    int previous[GT_MAX_PORTS];
    for (int s = 0; s < a->n; s++) {
        int count = gt_schedule_previous(r->schedule, s, previous);
        for (int i = 0; i < count; i++) {
            in[i] = top(&a->out[previous[i]], rows);
        }
        gt_tensor y = top(&a->out[s], rows);
        TH_OK(gs_forward(r->ctx, &a->stages[s], m, rows, in, &y));
    }
    for (int s = a->n - 1; s >= 0 && trained; s--) {
        int count = gt_schedule_previous(r->schedule, s, previous);
        for (int i = 0; i < count; i++) {
            in[i] = top(&a->out[previous[i]], rows);
            din[i] = top(&a->dout[previous[i]], rows);
        }
        gt_tensor dy = top(&a->dout[s], rows);
        TH_OK(gs_backward(r->ctx, &a->stages[s], m, rows, in, &dy, din, GT_BACKWARD_BOTH));
    }
}

void gs_check(gs_rank *r, int m, const int64_t *rows, bool trained)
{
    th *h = gti_rank_harness();
    whole a = {.n = gt_schedule_stages(r->schedule)};
    a.stages = calloc((size_t)a.n, sizeof(*a.stages));
    a.out = calloc((size_t)a.n, sizeof(*a.out));
    a.dout = calloc((size_t)a.n, sizeof(*a.dout));
    for (int s = 0; s < a.n; s++) {
        int previous[GT_MAX_PORTS];
        gs_stage_open(&a.stages[s], h, s, gt_schedule_previous(r->schedule, s, previous),
                      gt_schedule_next(r->schedule, s) < 0, r->full);
        a.out[s] = th_new(h, GT_F32, TH_SHAPE(r->full, GS_WIDTH));
        a.dout[s] = th_new(h, GT_F32, TH_SHAPE(r->full, GS_WIDTH));
    }
    for (int i = 0; i < m; i++) {
        if (rows[i] > 0) {
            whole_step(r, &a, i, rows[i], trained);
        }
    }
    for (int c = 0; c < r->chunks; c++) {
        const gs_stage *want = &a.stages[r->stages[c].number];
        th_compare(h, "dw", &r->stages[c].dw, th_get(h, &want->dw), 0);
        for (int i = 0; i < m; i++) {
            gt_tensor u = top(&r->stages[c].u[i], rows[i]), v = top(&want->u[i], rows[i]);
            if (rows[i] > 0) {
                th_compare(h, "u", &u, th_get(h, &v), 0);
            }
        }
    }
    free(a.stages);
    free(a.out);
    free(a.dout);
}
