/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "core/philox.h"

#define FENCE ((size_t)128)
#define FENCE_BYTE 0xa5

struct th_block {
    struct th_block *next;
    gt_tensor raw; /* u8: fence, shift, data, fence */
    size_t bytes, offset;
};
struct th_host_block {
    struct th_host_block *next;
    double values[];
};

const char *const th_devices[] = {"cpu", "guarded", NULL};

static _Thread_local bool on_rank_thread;

/* ---- failing ----------------------------------------------------------------------------------*/
void th_fail(const char *file, int line, const char *format, ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (on_rank_thread) { /* cmocka's longjmp belongs to the main thread */
        fprintf(stderr, "%s:%d: %s\n", file, line, text);
        fflush(NULL);
        _exit(1);
    }
    print_error("%s:%d: %s\n", file, line, text);
    _fail(file, line);
    abort(); /* not reached */
}

void th_expect_ok(gt_status st, const char *call, const char *file, int line)
{
    if (st != GT_OK) {
        th_fail(file, line, "%s: %s: %s", call, gt_status_name(st), gt_last_error());
    }
}

void th_expect_failure(gt_status st, gt_status want, const char *part, const char *call,
                       const char *file, int line)
{
    if (st != want) {
        th_fail(file, line, "%s: got %s (%s), want %s", call, gt_status_name(st),
                st != GT_OK ? gt_last_error() : "", gt_status_name(want));
    }
    if (strstr(gt_last_error(), part) == NULL) {
        th_fail(file, line, "%s: \"%s\" does not hold \"%s\"", call, gt_last_error(), part);
    }
}

void th_expect_equal(int64_t a, int64_t b, const char *a_text, const char *b_text, const char *file,
                     int line)
{
    if (a != b) {
        th_fail(file, line, "%s is %lld, %s is %lld", a_text, (long long)a, b_text, (long long)b);
    }
}

/* ---- contexts and tensors ---------------------------------------------------------------------*/
static void fail_on_warning(void *user, gt_log_level level, const char *message)
{
    if (level <= GT_LOG_WARN) {
        th_fail(__FILE__, __LINE__, "the library warned: %s", message);
    }
}

void th_open(th *h, const char *device)
{
    gt_context_params p = GT_CONTEXT_PARAMS_INIT;
    p.device = device;
    p.seed = 1;
    p.threads = TH_THREAD_SANITIZER ? 1 : 2;
    p.log = fail_on_warning;
    p.log_level = GT_LOG_WARN;
    gt_context *ctx = NULL;
    TH_OK(gt_context_create(&ctx, &p));
    *h = (th){.ctx = ctx, .device_number = h->device_number};
}

void th_close(th *h)
{
    TH_OK(gt_context_synchronize(h->ctx));
    th_check_fences(h);
    while (h->blocks != NULL) {
        struct th_block *block = h->blocks;
        h->blocks = block->next;
        gt_tensor_free(h->ctx, &block->raw);
        free(block);
    }
    while (h->hosts != NULL) {
        struct th_host_block *host = h->hosts;
        h->hosts = host->next;
        free(host);
    }
    gt_context_destroy(&h->ctx);
}

bool th_next_device(th *h)
{
    if (h->ctx != NULL) {
        th_close(h);
    }
    if (th_devices[++h->device_number] == NULL) {
        return false;
    }
    th_open(h, th_devices[h->device_number]);
    return true;
}

static void *checked_malloc(size_t bytes)
{
    void *p = calloc(1, bytes > 0 ? bytes : 1);
    if (p == NULL) {
        th_fail(__FILE__, __LINE__, "out of memory for %zu bytes", bytes);
    }
    return p;
}

gt_tensor th_new(th *h, gt_dtype dtype, int ndim, const int64_t *shape)
{
    gt_tensor t = gt_tensor_make(NULL, dtype, ndim, shape);
    struct th_block *block = checked_malloc(sizeof *block);
    block->bytes = gt_tensor_bytes(&t);
    block->offset = FENCE + h->shift * gt_dtype_size(dtype);
    int64_t total = (int64_t)(block->offset + block->bytes + FENCE);
    TH_OK(gt_tensor_alloc(h->ctx, &block->raw, GT_MEM_OTHER, GT_U8, 1, &total));
    unsigned char *image = checked_malloc((size_t)total);
    memset(image, FENCE_BYTE, (size_t)total);
    memset(image + block->offset, 0xff, block->bytes);
    TH_OK(gt_copy_from_host(h->ctx, &block->raw, image, NULL));
    free(image);
    block->next = h->blocks;
    h->blocks = block;
    t.data = (char *)block->raw.data + block->offset;
    t.device = gt_context_device(h->ctx);
    return t;
}

void th_poison(th *h, gt_tensor *t)
{
    void *image = checked_malloc(gt_tensor_bytes(t));
    memset(image, 0xff, gt_tensor_bytes(t));
    TH_OK(gt_copy_from_host(h->ctx, t, image, NULL));
    free(image);
}

static void check_fence(const unsigned char *fence, size_t bytes, long long first,
                        const char *where)
{
    for (size_t i = 0; i < bytes; i++) {
        if (fence[i] != FENCE_BYTE) {
            th_fail(__FILE__, __LINE__,
                    "byte %lld %s a tensor was overwritten: 0x%02x, want 0x%02x",
                    first + (long long)i, where, fence[i], FENCE_BYTE);
        }
    }
}

void th_check_fences(th *h)
{
    for (struct th_block *block = h->blocks; block != NULL; block = block->next) {
        unsigned char *image = checked_malloc(gt_tensor_bytes(&block->raw));
        TH_OK(gt_copy_to_host(h->ctx, image, &block->raw, NULL));
        check_fence(image, block->offset, -(long long)block->offset, "before");
        check_fence(image + block->offset + block->bytes, FENCE, 0, "after");
        free(image);
    }
}

/* ---- values -----------------------------------------------------------------------------------*/
static void store(void *data, gt_dtype dtype, int64_t i, double value)
{
    switch (dtype) {
    case GT_F32:
        ((float *)data)[i] = (float)value;
        break;
    case GT_F16:
        ((uint16_t *)data)[i] = gt_f32_to_f16((float)value);
        break;
    case GT_BF16:
        ((uint16_t *)data)[i] = gt_f32_to_bf16((float)value);
        break;
    case GT_I32:
        ((int32_t *)data)[i] = (int32_t)value;
        break;
    case GT_I64:
        ((int64_t *)data)[i] = (int64_t)value;
        break;
    case GT_U8:
        ((uint8_t *)data)[i] = (uint8_t)value;
        break;
    case GT_F64:
        ((double *)data)[i] = value;
        break;
    case GT_DTYPE_COUNT:
        break;
    }
}

static double load(const void *data, gt_dtype dtype, int64_t i)
{
    switch (dtype) {
    case GT_F32:
        return (double)((const float *)data)[i];
    case GT_F16:
        return (double)gt_f16_to_f32(((const uint16_t *)data)[i]);
    case GT_BF16:
        return (double)gt_bf16_to_f32(((const uint16_t *)data)[i]);
    case GT_I32:
        return ((const int32_t *)data)[i];
    case GT_I64:
        return (double)((const int64_t *)data)[i];
    case GT_U8:
        return ((const uint8_t *)data)[i];
    case GT_F64:
        return ((const double *)data)[i];
    case GT_DTYPE_COUNT:
        break;
    }
    return NAN;
}

void th_set(th *h, gt_tensor *t, const double *values)
{
    void *image = checked_malloc(gt_tensor_bytes(t));
    for (int64_t i = 0; i < gt_tensor_numel(t); i++) {
        store(image, t->dtype, i, values[i]);
    }
    TH_OK(gt_copy_from_host(h->ctx, t, image, NULL));
    free(image);
}

double *th_host(th *h, int64_t n)
{
    struct th_host_block *host = checked_malloc(sizeof *host + (size_t)n * sizeof(double));
    host->next = h->hosts;
    h->hosts = host;
    return host->values;
}

double *th_get(th *h, const gt_tensor *t)
{
    int64_t n = gt_tensor_numel(t);
    double *values = th_host(h, n);
    void *image = checked_malloc(gt_tensor_bytes(t));
    TH_OK(gt_copy_to_host(h->ctx, image, t, NULL));
    for (int64_t i = 0; i < n; i++) {
        values[i] = load(image, t->dtype, i);
    }
    free(image);
    return values;
}

void th_fill(th *h, gt_tensor *t, double value)
{
    double *values = th_host(h, gt_tensor_numel(t));
    for (int64_t i = 0; i < gt_tensor_numel(t); i++) {
        values[i] = value;
    }
    th_set(h, t, values);
}

void th_iota(th *h, gt_tensor *t)
{
    double *values = th_host(h, gt_tensor_numel(t));
    for (int64_t i = 0; i < gt_tensor_numel(t); i++) {
        values[i] = (double)i;
    }
    th_set(h, t, values);
}

void th_random(th *h, gt_tensor *t, uint64_t seed, double scale)
{
    bool integer = t->dtype == GT_I32 || t->dtype == GT_I64 || t->dtype == GT_U8;
    double *values = th_host(h, gt_tensor_numel(t));
    for (int64_t i = 0; i < gt_tensor_numel(t); i++) {
        values[i] = integer ? floor(scale * (double)gti_philox_uniform(seed, 0, (uint64_t)i))
                            : scale * (double)gti_philox_normal(seed, 0, (uint64_t)i);
    }
    th_set(h, t, values);
}

/* ---- comparing --------------------------------------------------------------------------------*/
th_tolerance th_tolerance_of(gt_dtype dtype)
{
    static const th_tolerance table[GT_DTYPE_COUNT] = {
        [GT_F32] = {2e-5, 2e-5},
        [GT_F16] = {1e-3, 2e-3},
        [GT_BF16] = {8e-3, 1.2e-2},
        [GT_F64] = {1e-12, 1e-12},
    };
    return table[dtype];
}

/* How far beyond what is allowed; <= 1 passes. */
static double excess(double got, double want, th_tolerance tolerance)
{
    if (got == want || (isnan(got) && isnan(want))) {
        return 0;
    }
    double allowed = tolerance.absolute + tolerance.relative * fabs(want);
    double ratio = fabs(got - want) / allowed;
    return isnan(ratio) || isinf(want) ? INFINITY : ratio;
}

void th_compare_values(const char *name, const double *got, const double *want, int64_t n,
                       th_tolerance tolerance)
{
    int64_t worst = -1, count = 0;
    double most = 1;
    for (int64_t i = 0; i < n; i++) {
        double e = excess(got[i], want[i], tolerance);
        count += e > 1;
        if (e > most) {
            most = e;
            worst = i;
        }
    }
    if (worst >= 0) {
        th_fail(__FILE__, __LINE__,
                "%s: %lld of %lld elements differ; worst at %lld: got %.9g, want %.9g, difference "
                "%.3g, allowed %.3g",
                name, (long long)count, (long long)n, (long long)worst, got[worst], want[worst],
                fabs(got[worst] - want[worst]),
                tolerance.absolute + tolerance.relative * fabs(want[worst]));
    }
}

void th_compare(th *h, const char *name, const gt_tensor *got, const double *want, double factor)
{
    th_tolerance tolerance = th_tolerance_of(got->dtype);
    tolerance.absolute *= factor;
    tolerance.relative *= factor;
    th_compare_values(name, th_get(h, got), want, gt_tensor_numel(got), tolerance);
}

/* ---- threads ----------------------------------------------------------------------------------*/
typedef struct thread_start {
    th_thread_fn body;
    void *user;
    int rank, size;
} thread_start;

static void *run_thread(void *raw)
{
    thread_start *s = raw;
    on_rank_thread = true;
    s->body(s->rank, s->size, s->user);
    return NULL;
}

void th_threads(int size, th_thread_fn body, void *user)
{
    pthread_t *threads = checked_malloc((size_t)size * sizeof *threads);
    thread_start *starts = checked_malloc((size_t)size * sizeof *starts);
    for (int i = 0; i < size; i++) {
        starts[i] = (thread_start){.body = body, .user = user, .rank = i, .size = size};
        if (pthread_create(&threads[i], NULL, run_thread, &starts[i]) != 0) {
            th_fail(__FILE__, __LINE__, "thread %d cannot be created", i);
        }
    }
    for (int i = 0; i < size; i++) {
        pthread_join(threads[i], NULL);
    }
    free(starts);
    free(threads);
}
