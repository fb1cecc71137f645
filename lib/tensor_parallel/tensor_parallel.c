/* SPDX-License-Identifier: Apache-2.0
 * Column- and row-parallel linear layers. */
#include "tensor_parallel/tp_primitives.h"

#include <string.h>

#include "ops/check.h"
#include "ops/linear.h"

/* One product in flight: out[n,W] = this rank's rows of the sum over ranks of a op(b). */
typedef struct row_sum {
    gti_works works;
    gt_tensor parts, accum;
    gt_work *reduce;
} row_sum;

typedef struct product {
    const gt_tensor *a, *b, *bias, *residual;
    bool trans_b;
} product;

void gt_tp_init(gt_tp *tp, size_t size)
{
    gt_tp defaults = GT_TP_INIT;
    if (tp != NULL && size <= sizeof(defaults)) {
        defaults.struct_size = size;
        memcpy(tp, &defaults, size);
    }
}

size_t gti_tp_scratch(int size, gt_dtype dtype, int64_t n, int64_t width)
{
    size_t elements = (size_t)(n * width), slack = (size_t)(size + 8) * 64;
    size_t sums = dtype == GT_F32 ? 0 : (elements / (size_t)size + (size_t)width) * sizeof(float);
    return size == 1 ? 0 : 3 * elements * gt_dtype_size(dtype) + sums + slack;
}

size_t gt_tp_scratch_bytes(const gt_tp *tp, gt_dtype dtype, int64_t n, int64_t width)
{
    return gti_tp_scratch(gti_tp_size(tp), dtype, n, width);
}

static gt_status gemm(const gt_tp *tp, gt_tensor *c, const product *p, gt_stream *stream)
{
    gt_gemm_params params = GT_GEMM_PARAMS_INIT;
    params.trans_b = p->trans_b;
    params.bias = p->bias;
    if (p->residual != NULL) {
        GT_TRY(gt_copy(tp->ctx, c, p->residual, stream));
        params.accumulate = true;
    }
    return gt_gemm(tp->ctx, c, p->a, p->b, &params, stream);
}

/* c = rows [first, first + count) of the product, the residual's being r_first.. of its own. */
static gt_status gemm_rows(const gt_tp *tp, gt_tensor *c, const product *p, int64_t first,
                           int64_t count, int64_t r_first, gt_stream *stream)
{
    product q = *p;
    gt_tensor a = gti_tp_rows(p->a, first, count), residual;
    q.a = &a;
    if (p->residual != NULL) {
        residual = gti_tp_rows(p->residual, r_first, count);
        q.residual = &residual;
    }
    return gemm(tp, c, &q, stream);
}

/* ---- sums over ranks of cut rows --------------------------------------------------------------*/

/* The rows for others first, each sent while the next is computed, our own last. */
static gt_status row_sum_pieces(const gt_tp *tp, row_sum *s, const gt_tensor *whole,
                                const product *p, int64_t n, gt_stream *stream)
{
    int size = gti_tp_size(tp), me = gti_tp_rank(tp);
    product plain = *p;
    plain.bias = NULL;
    plain.residual = NULL;
    GT_TRY(gti_tp_reduce_begin(tp, &s->works, &s->parts, stream));
    for (int i = 1; i < size; i++) {
        int peer = (me + i) % size;
        gt_tensor piece = gti_tp_rows(whole, peer * n, n);
        GT_TRY(gemm_rows(tp, &piece, &plain, peer * n, n, 0, stream));
        GT_TRY(gti_tp_reduce_send(tp, &s->works, peer, &piece, stream));
    }
    gt_tensor mine = gti_tp_rows(&s->parts, me * n, n);
    return gemm_rows(tp, &mine, p, me * n, n, 0, stream);
}

/* Starts out = sum over ranks; bias and residual are added to a rank's own rows. */
static gt_status row_sum_begin(const gt_tp *tp, row_sum *s, gt_tensor *out, const product *p,
                               size_t *offset, gt_stream *stream)
{
    int64_t n, width;
    int size = gti_tp_size(tp);
    gti_rows_columns(out, &n, &width);
    gt_tensor whole;
    GT_TRY(gti_tp_take(tp, offset, out->dtype, n * size, width, &whole));
    if (gti_tp_pieces(tp)) {
        GT_TRY(gti_tp_take(tp, offset, out->dtype, n * size, width, &s->parts));
        if (out->dtype != GT_F32 && size > 2) {
            GT_TRY(gti_tp_take(tp, offset, GT_F32, n, width, &s->accum));
        }
        return row_sum_pieces(tp, s, &whole, p, n, stream);
    }
    product plain = *p;
    plain.residual = NULL;
    plain.bias = gti_tp_rank(tp) == 0 ? p->bias : NULL;
    GT_TRY(gemm(tp, &whole, &plain, stream));
    GT_TRY(gt_reduce_scatter(tp->comm, out, &whole, GT_SUM, stream, NULL));
    return p->residual == NULL ? GT_OK : gt_axpby(tp->ctx, out, p->residual, 1.0f, 1.0f, stream);
}

static gt_status row_sum_finish(const gt_tp *tp, row_sum *s, gt_tensor *out, gt_status status,
                                gt_stream *stream)
{
    GT_TRY(gti_works_finish(tp, &s->works, status, stream));
    return s->parts.data == NULL ? GT_OK : gti_tp_reduce_sum(tp, out, &s->parts, &s->accum, stream);
}

/* ---- shapes -----------------------------------------------------------------------------------*/

static gt_status check_linear(const gt_tp *tp, const char *in_name, const gt_tensor *in,
                              bool in_cut, const char *out_name, const gt_tensor *out, bool out_cut,
                              const gt_tensor *w)
{
    GT_TRY(gti_check_tensor(tp->ctx, in_name, in, GTI_FLOATS));
    GT_TRY(gti_check_tensor(tp->ctx, out_name, out, GTI_ONLY(in->dtype)));
    GT_TRY(gti_check_tensor(tp->ctx, "w", w, GTI_ONLY(in->dtype)));
    int64_t rows_in, rows_out, i, o, size = gti_tp_size(tp);
    gti_rows_columns(in, &rows_in, &i);
    gti_rows_columns(out, &rows_out, &o);
    if (w->ndim != 2 || w->shape[0] != o || w->shape[1] != i) {
        char text[GTI_SHAPE_TEXT];
        return GT_FAIL(GT_ERR_SHAPE, "w is %s, wanted [O,I]=[%lld,%lld] (columns of %s and %s)",
                       gti_shape_text(text, w), (long long)o, (long long)i, out_name, in_name);
    }
    int64_t whole_in = in_cut ? rows_in * size : rows_in;
    int64_t whole_out = out_cut ? rows_out * size : rows_out;
    if (whole_in != whole_out) {
        return GT_FAIL(GT_ERR_SHAPE,
                       "%s has %lld rows%s and %s %lld%s: over %lld ranks these are %lld and %lld "
                       "rows",
                       in_name, (long long)rows_in, in_cut ? " (a share)" : "", out_name,
                       (long long)rows_out, out_cut ? " (a share)" : "", (long long)size,
                       (long long)whole_in, (long long)whole_out);
    }
    return GT_OK;
}

/* ---- column-parallel --------------------------------------------------------------------------*/

static gt_status column_rows(const gt_tp *tp, gt_tensor *y, const gt_tensor *x, const gt_tensor *w,
                             const gt_tp_column_params *p, int64_t first, int64_t count,
                             gt_stream *stream)
{
    gt_gemm_params params = GT_GEMM_PARAMS_INIT;
    params.trans_b = true;
    params.bias = p->bias;
    params.gelu = p->gelu;
    gt_tensor c = gti_tp_rows(y, first, count), a = gti_tp_rows(x, first, count), pre;
    if (gt_tensor_numel(&c) == 0) {
        return GT_OK;
    }
    if (gti_present(p->pre_gelu)) {
        pre = gti_tp_rows(p->pre_gelu, first, count);
        params.pre_gelu = &pre;
    }
    return gt_gemm(tp->ctx, &c, &a, w, &params, stream);
}

/* Our own rows first, then each peer's as they arrive. */
static gt_status column_pieces(const gt_tp *tp, gti_works *works, gt_tensor *y, gt_tensor *whole,
                               const gt_tensor *x, const gt_tensor *w, const gt_tp_column_params *p,
                               gt_stream *stream)
{
    int size = gti_tp_size(tp), me = gti_tp_rank(tp);
    int64_t n = whole->shape[0] / size;
    GT_TRY(gti_tp_gather_begin(tp, works, whole, x, stream));
    for (int i = 0; i < size; i++) {
        int from = (me + i) % size;
        GT_TRY(gti_tp_gather_wait(works, from, stream));
        GT_TRY(column_rows(tp, y, whole, w, p, from * n, n, stream));
    }
    return GT_OK;
}

gt_status gti_tp_column_forward(const gt_tp *tp, gt_tensor *y, const gt_tensor *x,
                                const gt_tensor *w, const gt_tp_column_params *params,
                                gt_stream *stream)
{
    gt_tp_column_params p = GT_TP_COLUMN_PARAMS_INIT;
    GT_TRY(gti_take_params("gt_tp_column_params", &p, sizeof(p), params));
    bool cut = gti_tp_cut(tp) && !p.gathered;
    GT_TRY(check_linear(tp, "x", x, cut, "y", y, false, w));
    int64_t n, columns, whole_rows, width;
    gti_rows_columns(x, &n, &width);
    gti_rows_columns(y, &whole_rows, &columns);
    if (!cut) {
        return column_rows(tp, y, x, w, &p, 0, whole_rows, stream);
    }
    gt_tensor whole;
    size_t offset = 0;
    GT_TRY(gti_tp_take(tp, &offset, x->dtype, whole_rows, width, &whole));
    if (!gti_tp_pieces(tp)) {
        GT_TRY(gt_all_gather(tp->comm, &whole, x, stream, NULL));
        return column_rows(tp, y, &whole, w, &p, 0, whole_rows, stream);
    }
    gti_works works = {.count = 0};
    gt_status st = column_pieces(tp, &works, y, &whole, x, w, &p, stream);
    return gti_works_finish(tp, &works, st, stream);
}

static gt_status weight_gradient(const gt_tp *tp, gt_tensor *dw, gt_tensor *dbias,
                                 const gt_tensor *dy, const gt_tensor *x, const gt_tensor *w,
                                 gt_stream *stream)
{
    if ((dw == NULL && dbias == NULL) || gt_tensor_numel(dy) == 0) {
        return dw == NULL || !tp->dw_unset ? GT_OK : gt_fill(tp->ctx, dw, 0.0, stream);
    }
    if (dw == NULL || gt_tensor_numel(w) == 0) {
        return dbias == NULL ? GT_OK : gt_bias_grad(tp->ctx, dbias, dy, stream);
    }
    return gti_linear_backward(tp->ctx, NULL, dw, tp->dw_unset, dbias, dy, x, w, stream);
}

static const gt_tensor *wanted(const gt_tensor *t)
{
    return gti_present(t) ? t : NULL;
}

/* Rows cut: x is gathered again while dx is computed, dx is reduced while dw is. */
static gt_status column_backward_cut(const gt_tp *tp, row_sum *s, gt_tensor *dx, gt_tensor *dw,
                                     gt_tensor *dbias, const gt_tensor *dy, const gt_tensor *x,
                                     const gt_tensor *w, gt_stream *stream)
{
    size_t offset = 0;
    int64_t n, width;
    gt_tensor whole = {0};
    gti_rows_columns(x, &n, &width);
    if (dw != NULL) {
        GT_TRY(gti_tp_take(tp, &offset, x->dtype, n * gti_tp_size(tp), width, &whole));
        GT_TRY(gt_all_gather(tp->comm, &whole, x, stream, tp->no_overlap ? NULL : &s->reduce));
    }
    if (dx != NULL) {
        product p = {.a = dy, .b = w};
        GT_TRY(row_sum_begin(tp, s, dx, &p, &offset, stream));
    }
    GT_TRY(gt_work_wait(&s->reduce, stream));
    return weight_gradient(tp, dw, dbias, dy, &whole, w, stream);
}

static gt_status column_backward_whole(const gt_tp *tp, row_sum *s, gt_tensor *dx, gt_tensor *dw,
                                       gt_tensor *dbias, const gt_tensor *dy, const gt_tensor *x,
                                       const gt_tensor *w, gt_stream *stream)
{
    if (dx != NULL) {
        product p = {.a = dy, .b = w};
        GT_TRY(gemm(tp, dx, &p, stream));
        if (gti_tp_size(tp) > 1) {
            GT_TRY(gt_all_reduce(tp->comm, dx, GT_SUM, stream,
                                 tp->no_overlap ? NULL : &s->works.work[0]));
            s->works.count = 1;
        }
    }
    return weight_gradient(tp, dw, dbias, dy, x, w, stream);
}

gt_status gti_tp_column_backward(const gt_tp *tp, gt_tensor *dx, gt_tensor *dw, gt_tensor *dbias,
                                 const gt_tensor *dy, const gt_tensor *x, const gt_tensor *w,
                                 gt_stream *stream)
{
    bool cut = gti_tp_cut(tp);
    dx = (gt_tensor *)wanted(dx);
    dw = (gt_tensor *)wanted(dw);
    dbias = (gt_tensor *)wanted(dbias);
    GT_TRY(check_linear(tp, "x", x, cut, "dy", dy, false, w));
    row_sum s = {.reduce = NULL};
    gt_status st = cut ? column_backward_cut(tp, &s, dx, dw, dbias, dy, x, w, stream)
                       : column_backward_whole(tp, &s, dx, dw, dbias, dy, x, w, stream);
    if (s.reduce != NULL) { /* something failed before it was waited for */
        s.works.work[s.works.count++] = s.reduce;
    }
    if (!cut || dx == NULL) {
        return gti_works_finish(tp, &s.works, st, stream);
    }
    return row_sum_finish(tp, &s, dx, st, stream);
}

/* ---- row-parallel -----------------------------------------------------------------------------*/

static int row_chunks(const gt_tp *tp, int64_t rows)
{
    if (tp->no_overlap || rows < 2) {
        return 1;
    }
    int64_t want = tp->chunks > 0 ? tp->chunks : rows / 128;
    int64_t most = tp->chunks > 0 ? GTI_TP_PEERS : 4;
    want = want > most ? most : want;
    want = want > rows ? rows : want;
    return want < 1 ? 1 : (int)want;
}

/* All-reduced in chunks of rows, each while the next is computed. */
static gt_status row_whole(const gt_tp *tp, gti_works *works, gt_tensor *y, const product *p,
                           gt_stream *stream)
{
    int64_t rows, columns;
    gti_rows_columns(y, &rows, &columns);
    int chunks = row_chunks(tp, rows);
    for (int i = 0; i < chunks; i++) {
        int64_t first = gt_split_first(rows, chunks, i), n = gt_split_count(rows, chunks, i);
        gt_tensor c = gti_tp_rows(y, first, n);
        GT_TRY(gemm_rows(tp, &c, p, first, n, first, stream));
        GT_TRY(
            gt_all_reduce(tp->comm, &c, GT_SUM, stream, tp->no_overlap ? NULL : &works->work[i]));
        works->count = i + 1;
    }
    return GT_OK;
}

gt_status gti_tp_row_forward(const gt_tp *tp, gt_tensor *y, const gt_tensor *x, const gt_tensor *w,
                             const gt_tensor *bias, const gt_tensor *residual, gt_stream *stream)
{
    GT_TRY(check_linear(tp, "x", x, false, "y", y, gti_tp_cut(tp), w));
    product p = {
        .a = x, .b = w, .trans_b = true, .bias = wanted(bias), .residual = wanted(residual)};
    if (gti_tp_size(tp) == 1) {
        return gemm(tp, y, &p, stream);
    }
    row_sum s = {.reduce = NULL};
    if (gti_tp_cut(tp)) {
        size_t offset = 0;
        gt_status st = row_sum_begin(tp, &s, y, &p, &offset, stream);
        return row_sum_finish(tp, &s, y, st, stream);
    }
    if (gti_tp_rank(tp) != 0) { /* added once */
        p.bias = NULL;
        p.residual = NULL;
    }
    gt_status st = row_whole(tp, &s.works, y, &p, stream);
    return gti_works_finish(tp, &s.works, st, stream);
}

static gt_status input_rows(const gt_tp *tp, gt_tensor *dx, const gt_tensor *dy, const gt_tensor *w,
                            int64_t first, int64_t count, gt_stream *stream)
{
    if (dx == NULL || gt_tensor_numel(dx) == 0) {
        return GT_OK;
    }
    gt_tensor c = gti_tp_rows(dx, first, count), a = gti_tp_rows(dy, first, count);
    gt_gemm_params params = GT_GEMM_PARAMS_INIT;
    return gt_gemm(tp->ctx, &c, &a, w, &params, stream);
}

static gt_status row_backward_cut(const gt_tp *tp, gti_works *works, gt_tensor *dx, gt_tensor *dw,
                                  const gt_tensor *dy, const gt_tensor *x, const gt_tensor *w,
                                  gt_stream *stream)
{
    int size = gti_tp_size(tp), me = gti_tp_rank(tp);
    int64_t n, width;
    size_t offset = 0;
    gt_tensor whole;
    gti_rows_columns(dy, &n, &width);
    GT_TRY(gti_tp_take(tp, &offset, dy->dtype, n * size, width, &whole));
    if (gti_tp_pieces(tp)) {
        GT_TRY(gti_tp_gather_begin(tp, works, &whole, dy, stream));
        for (int i = 0; i < size; i++) {
            int from = (me + i) % size;
            GT_TRY(gti_tp_gather_wait(works, from, stream));
            GT_TRY(input_rows(tp, dx, &whole, w, from * n, n, stream));
        }
    } else {
        GT_TRY(gt_all_gather(tp->comm, &whole, dy, stream, NULL));
        GT_TRY(input_rows(tp, dx, &whole, w, 0, n * size, stream));
    }
    return weight_gradient(tp, dw, NULL, &whole, x, w, stream);
}

gt_status gti_tp_row_backward(const gt_tp *tp, gt_tensor *dx, gt_tensor *dw, gt_tensor *dbias,
                              const gt_tensor *dy, const gt_tensor *x, const gt_tensor *w,
                              gt_stream *stream)
{
    bool cut = gti_tp_cut(tp);
    dx = (gt_tensor *)wanted(dx);
    dw = (gt_tensor *)wanted(dw);
    dbias = (gt_tensor *)wanted(dbias);
    GT_TRY(check_linear(tp, "x", x, false, "dy", dy, cut, w));
    int64_t rows, columns;
    gti_rows_columns(dy, &rows, &columns);
    if (!cut) {
        GT_TRY(input_rows(tp, dx, dy, w, 0, rows, stream));
        return weight_gradient(tp, dw, dbias, dy, x, w, stream);
    }
    gti_works works = {.count = 0};
    gt_status st = GT_OK;
    if (dx != NULL || dw != NULL) {
        st = row_backward_cut(tp, &works, dx, dw, dy, x, w, stream);
    }
    GT_TRY(gti_works_finish(tp, &works, st, stream));
    return dbias == NULL ? GT_OK : gt_bias_grad(tp->ctx, dbias, dy, stream);
}
