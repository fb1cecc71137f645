/* SPDX-License-Identifier: Apache-2.0 */
#include "ops_table.h"

#include <math.h>
#include <stdio.h>

#include <geektrain/geektrain.h>

#include "core/philox.h"

static int64_t dim(const op_case *c, char letter)
{
    switch (letter) {
    case 'N':
        return c->n;
    case 'C':
        return c->c;
    case 'D':
        return 2 * c->c;
    case 'V':
        return c->v;
    case 'T':
        return c->t;
    default:
        return letter - '0';
    }
}

int64_t op_numel(const op_spec *op, int slot, const op_case *c)
{
    return dim(c, op->slot[slot].rows) * dim(c, op->slot[slot].columns);
}

static gt_dtype dtype_of(const op_spec *op, int slot, const op_case *c)
{
    switch (op->slot[slot].type) {
    case OP_ACT:
        return c->dtype;
    case OP_GRAD:
        return c->grad_f32 ? GT_F32 : c->dtype;
    case OP_F32:
        return GT_F32;
    case OP_F64:
        return GT_F64;
    case OP_I32:
        return GT_I32;
    default:
        return GT_I64;
    }
}

op_case op_case_of(const op_spec *op, int64_t n, int64_t c, gt_dtype dtype)
{
    op_case k = {.n = n, .c = c, .v = 11, .t = 6, .dtype = dtype, .absent = op->absent};
    k.factor = op->factor;
    memcpy(k.p, op->p, sizeof k.p);
    return k;
}

static double rounded(gt_dtype dtype, double value)
{
    switch (dtype) {
    case GT_F32:
        return (double)(float)value;
    case GT_BF16:
        return (double)gt_bf16_to_f32(gt_f32_to_bf16((float)value));
    case GT_F16:
        return (double)gt_f16_to_f32(gt_f32_to_f16((float)value));
    default:
        return value;
    }
}

static bool is_absent(const op_case *c, int slot)
{
    return (c->absent >> slot & 1u) != 0;
}

/* Input values, exactly as the tensors will hold them. */
static void make_values(th *h, const op_spec *op, const op_case *c, double **v)
{
    for (int pass = 0; pass < 2; pass++) {
        for (int s = 0; s < op->slots; s++) {
            int64_t count = op_numel(op, s, c);
            if (pass == 0) {
                v[s] = is_absent(c, s) ? NULL : th_host(h, count);
            }
            for (int64_t i = 0; v[s] != NULL && i < count; i++) {
                double draw =
                    pass == 0 ? (double)gti_philox_normal(7, (uint64_t)s, (uint64_t)i) : v[s][i];
                bool exact = c->dtype == GT_F64; /* the gradient check runs on the oracle alone */
                v[s][i] = exact ? draw : rounded(dtype_of(op, s, c), draw);
            }
        }
        if (pass == 0 && op->prepare != NULL) {
            op->prepare(v, c);
        }
    }
}

static void describe(char text[200], const op_spec *op, const op_case *c, const char *slot)
{
    snprintf(text, 200, "%s.%s n=%lld c=%lld v=%lld %s%s absent=%x %s", op->name, slot,
             (long long)c->n, (long long)c->c, (long long)c->v, gt_dtype_name(c->dtype),
             c->grad_f32 ? "/f32" : "", c->absent, c->label != NULL ? c->label : "");
}

/* f64 results are sums of f32 values. */
static void compare(th *h, const char *name, const gt_tensor *got, const double *want,
                    double factor)
{
    th_tolerance tolerance = th_tolerance_of(got->dtype == GT_F64 ? GT_F32 : got->dtype);
    tolerance.absolute *= factor;
    tolerance.relative *= factor;
    th_compare_values(name, th_get(h, got), want, gt_tensor_numel(got), tolerance);
}

/* Runs a case; the raw results of output slots stay in out[], if wanted. */
static void run_case(th *h, const op_spec *op, const op_case *c, double **out)
{
    double *v[OP_SLOTS], *before[OP_SLOTS];
    gt_tensor t[OP_SLOTS];
    char text[200];
    memset(t, 0, sizeof t);
    make_values(h, op, c, v);
    bool aliased = c->alias_out != c->alias_in;
    for (int s = 0; s < op->slots; s++) {
        if (v[s] == NULL) {
            continue;
        }
        const op_slot *slot = &op->slot[s];
        int64_t count = op_numel(op, s, c);
        before[s] = th_host(h, count);
        memcpy(before[s], v[s], (size_t)count * sizeof(double));
        t[s] = th_new(h, dtype_of(op, s, c), TH_SHAPE(dim(c, slot->rows), dim(c, slot->columns)));
        if (slot->role != OP_OUT) {
            th_set(h, &t[s], v[s]);
        }
    }
    if (aliased) {
        t[c->alias_out].data = t[c->alias_in].data;
    }
    describe(text, op, c, "");
    gt_status st = op->run(h->ctx, t, c);
    if (st != GT_OK) {
        th_fail(__FILE__, __LINE__, "%s: %s", text, gt_last_error());
    }
    TH_OK(gt_context_synchronize(h->ctx));
    op->oracle(v, c);
    for (int s = 0; s < op->slots; s++) {
        if (v[s] == NULL) {
            continue;
        }
        describe(text, op, c, op->slot[s].name);
        if (op->slot[s].role != OP_IN) {
            compare(h, text, &t[s], v[s], c->factor > 0 ? c->factor : 1);
        } else if (!aliased || c->alias_in != s) {
            th_compare(h, text, &t[s], before[s], 0);
        }
        if (out != NULL) {
            out[s] = th_get(h, &t[s]);
        }
    }
}

/* ---- where to run
 * -------------------------------------------------------------------------------*/
static const char *const isas[] = {"avx512", "avx2", "base"};
#define ISAS 3

static bool open_isa(th *h, const char *isa, int threads)
{
    memset(h, 0, sizeof *h);
    setenv("GEEKTRAIN_ISA", isa, 1);
    gt_context_params p = GT_CONTEXT_PARAMS_INIT;
    p.threads = threads;
    gt_status st = gt_context_create(&h->ctx, &p);
    unsetenv("GEEKTRAIN_ISA");
    if (st == GT_ERR_UNSUPPORTED) {
        return false;
    }
    TH_OK(st);
    return true;
}

/* The guarded device, if this build tests on it. */
static bool open_guarded(th *h)
{
    for (int i = 0; th_devices[i] != NULL; i++) {
        if (strcmp(th_devices[i], "guarded") == 0) {
            memset(h, 0, sizeof *h);
            th_open(h, "guarded");
            return true;
        }
    }
    return false;
}

#if defined(__SANITIZE_THREAD__)
#define THREADS 1
#else
#define THREADS 2
#endif

void op_check_case(const op_spec *op, const op_case *c)
{
    th h;
    for (int i = 0; i < 2 * ISAS; i++) {
        if (open_isa(&h, isas[i / 2], THREADS)) {
            h.shift = (size_t)(i % 2);
            run_case(&h, op, c, NULL);
            th_close(&h);
        }
    }
    if (open_guarded(&h)) {
        run_case(&h, op, c, NULL);
        th_close(&h);
    }
}

static const struct {
    int64_t n, c;
} sizes[] = {
    {0, 5},    {1, 1},    {3, 1},    {1, 2},    {2, 3},    {5, 7},     {4, 8},
    {3, 15},   {3, 16},   {2, 17},   {2, 31},   {2, 32},   {2, 33},    {3, 63},
    {3, 65},   {70, 5},   {2, 768},  {3, 1023}, {2, 1025}, {2, 1234},  {2, 1235},
    {1, 2049}, {1, 3420}, {1, 3584}, {1, 4097}, {1, 8193}, {1, 12288}, {611, 37},
};
#define SIZES (int)(sizeof sizes / sizeof sizes[0])

static void check_sizes(th *h, const op_spec *op, int step)
{
    static const gt_dtype dtypes[] = {GT_F32, GT_BF16, GT_F16};
    for (int d = 0; d < 3; d++) {
        for (int i = 0; i < SIZES; i += step) {
            op_case c = op_case_of(op, sizes[i].n, sizes[i].c, dtypes[d]);
            c.grad_f32 = i % 2 == 0;
            run_case(h, op, &c, NULL);
        }
    }
}

/* The bits do not depend on the number of threads. */
static void check_threads(const op_spec *op)
{
    static const int threads[] = {1, 2, 3, 5};
    double *first[OP_SLOTS];
    th h[4];
    op_case c = op_case_of(op, 611, 37, GT_F32);
    for (int i = 0; i < (THREADS == 1 ? 1 : 4); i++) {
        gt_context_params p = GT_CONTEXT_PARAMS_INIT;
        p.threads = threads[i];
        memset(&h[i], 0, sizeof h[i]);
        TH_OK(gt_context_create(&h[i].ctx, &p));
        double *out[OP_SLOTS];
        run_case(&h[i], op, &c, out);
        for (int s = 0; s < op->slots; s++) {
            size_t bytes = (size_t)op_numel(op, s, &c) * sizeof(double);
            if (is_absent(&c, s) || op->slot[s].role == OP_IN) {
                continue;
            }
            if (i == 0) {
                first[s] = out[s];
            } else if (memcmp(first[s], out[s], bytes) != 0) {
                th_fail(__FILE__, __LINE__, "%s.%s: %d threads give other bits than one", op->name,
                        op->slot[s].name, threads[i]);
            }
        }
    }
    for (int i = 0; i < (THREADS == 1 ? 1 : 4); i++) {
        th_close(&h[i]);
    }
}

/* The oracle's gradients against central differences of the objective. */
static void check_gradients(const op_spec *op)
{
    th h;
    th_open(&h, "cpu");
    op_case c = op_case_of(op, 4, 6, GT_F64);
    double *v[OP_SLOTS], *inputs[OP_SLOTS];
    make_values(&h, op, &c, v);
    for (int s = 0; s < op->slots; s++) {
        if (v[s] == NULL) {
            continue;
        }
        size_t bytes = (size_t)op_numel(op, s, &c) * sizeof(double);
        if (op->slot[s].role == OP_ADD) {
            memset(v[s], 0, bytes);
        }
        inputs[s] = th_host(&h, op_numel(op, s, &c));
        memcpy(inputs[s], v[s], bytes);
    }
    op->oracle(v, &c);
    for (int g = 0; g < op->gradients; g++) {
        int out = op->gradient[g].out, in = op->gradient[g].in;
        int64_t count = op_numel(op, in, &c);
        double *numeric = th_host(&h, count);
        for (int64_t i = 0; i < count; i++) {
            double *x = &inputs[in][i], kept = *x, step = 1e-5;
            *x = kept + step;
            double above = op->objective(inputs, &c);
            *x = kept - step;
            numeric[i] = (above - op->objective(inputs, &c)) / (2 * step);
            *x = kept;
        }
        char text[200];
        describe(text, op, &c, op->slot[out].name);
        th_compare_values(text, v[out], numeric, count, (th_tolerance){1e-8, 1e-7});
    }
    th_close(&h);
}

void op_check(const op_spec *op)
{
    th h;
    for (int i = 0; i < 2 * ISAS; i++) {
        if (open_isa(&h, isas[i / 2], THREADS)) {
            h.shift = (size_t)(i % 2);
            check_sizes(&h, op, 1);
            th_close(&h);
        }
    }
    if (open_guarded(&h)) {
        check_sizes(&h, op, 9);
        th_close(&h);
    }
    check_threads(op);
    if (op->gradients > 0) {
        check_gradients(op);
    }
}
