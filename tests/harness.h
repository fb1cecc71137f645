/* SPDX-License-Identifier: Apache-2.0
 *
 * What all tests share: fenced and poisoned tensors on any device, comparison with tolerances,
 * ranks as threads.
 *
 *     TH_ON_DEVICES(h) {                                    // once on cpu, once on guarded
 *         gt_tensor x = th_new(&h, GT_BF16, TH_SHAPE(4, 7));   // NaN between fences
 *         gt_tensor y = th_new(&h, GT_BF16, TH_SHAPE(4, 7));
 *         th_random(&h, &x, 1, 1.0);
 *         TH_OK(gt_gelu_forward(h.ctx, &y, &x, NULL));
 *         const double *in = th_get(&h, &x);                 // as rounded to the dtype
 *         double *want = th_host(&h, 28);                    // freed with h
 *         ...
 *         th_compare(&h, "y", &y, want, 1.0);
 *     }                                                      // fences checked, all freed
 *
 * Nothing is returned to be freed: all belongs to the th. A failed check prints both values and
 * fails the cmocka test; on a thread of th_ranks() it ends the program with status 1.
 */
#ifndef TESTS_HARNESS_H
#define TESTS_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <geektrain/context.h>

/* 1 when built with ThreadSanitizer: it does not know OpenMP, and sees deliberate races. */
#if defined(__SANITIZE_THREAD__)
#define TH_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TH_THREAD_SANITIZER 1
#endif
#endif
#ifndef TH_THREAD_SANITIZER
#define TH_THREAD_SANITIZER 0
#endif

typedef struct th {
    gt_context *ctx;
    size_t shift; /* elements by which th_new() moves tensors off their 64-byte alignment */
    struct th_block *blocks;
    struct th_host_block *hosts;
    int device_number; /* of TH_ON_DEVICES */
} th;

/* The devices that tests run on, NULL at the end: "cpu", "guarded". */
extern const char *const th_devices[];

/* A context with seed 1 and two compute threads (one under ThreadSanitizer). */
void th_open(th *h, const char *device);
/* Waits, checks the fences of every tensor, frees everything; fails if the library still holds
 * device memory or warned at destruction. */
void th_close(th *h);

bool th_next_device(th *h);
#define TH_ON_DEVICES(h) for (th h = {.device_number = -1}; th_next_device(&h);)

/* A tensor filled with 0xff bytes (NaN for floats, -1 for integers) between fences. */
#define TH_SHAPE(...)                                                                              \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[])                   \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
gt_tensor th_new(th *h, gt_dtype dtype, int ndim, const int64_t *shape);
void th_poison(th *h, gt_tensor *t);
/* Every fence still holds what th_new() wrote; called by th_close(). */
void th_check_fences(th *h);

/* Uploads values, rounded to the tensor's dtype. */
void th_set(th *h, gt_tensor *t, const double *values);
void th_fill(th *h, gt_tensor *t, double value);
/* Normal values of the given standard deviation; the same for the same seed, whatever the dtype
 * (up to its rounding). Integers: uniform in [0, scale). */
void th_random(th *h, gt_tensor *t, uint64_t seed, double scale);
/* 0, 1, 2, ... */
void th_iota(th *h, gt_tensor *t);
/* Waits for the compute stream and downloads. */
double *th_get(th *h, const gt_tensor *t);
/* Zeroed host memory for n doubles. */
double *th_host(th *h, int64_t n);

/* Per dtype: |got - want| <= factor * (absolute + relative * |want|). */
typedef struct th_tolerance {
    double absolute, relative;
} th_tolerance;
th_tolerance th_tolerance_of(gt_dtype dtype);
/* Fails at the worst element, printing index, both values and what was allowed. NaN equals NaN and
 * an infinity itself. factor 0: exactly equal. */
void th_compare(th *h, const char *name, const gt_tensor *got, const double *want, double factor);
void th_compare_values(const char *name, const double *got, const double *want, int64_t n,
                       th_tolerance tolerance);

/* The call returns GT_OK; prints its sentence otherwise. */
#define TH_OK(call) th_expect_ok((call), #call, __FILE__, __LINE__)
/* The call fails with this status, and its sentence holds `part`. */
#define TH_FAILS(call, status, part)                                                               \
    th_expect_failure((call), (status), (part), #call, __FILE__, __LINE__)
/* An assertion that also works on a rank's thread. */
#define TH_TRUE(condition)                                                                         \
    ((condition) ? (void)0 : th_fail(__FILE__, __LINE__, "%s is false", #condition))
#define TH_EQUAL(a, b) th_expect_equal((int64_t)(a), (int64_t)(b), #a, #b, __FILE__, __LINE__)
void th_expect_ok(gt_status st, const char *call, const char *file, int line);
void th_expect_failure(gt_status st, gt_status want, const char *part, const char *call,
                       const char *file, int line);
void th_expect_equal(int64_t a, int64_t b, const char *a_text, const char *b_text, const char *file,
                     int line);
void th_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4), noreturn));

/* Runs body(rank, size, user) on `size` threads and waits for them. */
typedef void (*th_thread_fn)(int rank, int size, void *user);
void th_threads(int size, th_thread_fn body, void *user);

#endif
