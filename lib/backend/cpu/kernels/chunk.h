/* SPDX-License-Identifier: Apache-2.0
 *
 * How kernels see rows of any float dtype as f32, a chunk at a time.
 *
 *     for (int64_t i = 0; i < n; i += GTI_CHUNK) {
 *         int64_t m = gti_min(GTI_CHUNK, n - i);
 *         const float *x = gti_chunk_in(xbuf, &a->x, first + i, m);
 *         float *y = gti_chunk_out(ybuf, &a->y, first + i, stream);
 *         ... y[0..m) from x[0..m), with "#pragma omp simd" ...
 *         gti_chunk_done(&a->y, first + i, m, y, stream);
 *     }
 *
 * f32 memory is used in place; 16-bit values pass through the buffers, which stay in the
 * first-level cache. Results too large to be still cached when the next operation reads them
 * (`stream`) bypass the cache: a plain store would first read the line it is about to overwrite.
 */
#ifndef GTI_CPU_CHUNK_H
#define GTI_CPU_CHUNK_H

#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "backend/cpu/kernels/kernel.h"
#include "core/convert.h"

#define GTI_CHUNK 1024 /* elements; a multiple of 64 bytes in every dtype */
/* Below this many elements of work a second thread costs more than it brings. */
#define GTI_SERIAL_ELEMENTS 16384
/* Outputs of at least this many bytes are streamed past the cache. */
#define GTI_STREAM_BYTES (INT64_C(32) << 20)
#define GTI_INLINE static inline __attribute__((always_inline))

static inline int64_t gti_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t gti_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int gti_threads_for(const gti_device *device, int64_t elements)
{
    return elements < GTI_SERIAL_ELEMENTS ? 1 : gti_cpu_threads(device);
}

static inline bool gti_streams(const gt_tensor *out)
{
    return out->data != NULL && (int64_t)gt_tensor_bytes(out) >= GTI_STREAM_BYTES;
}

/* Copies past the cache; the caller's thread ends with gti_stream_fence(). */
static inline void gti_stream_copy(void *dst, const void *src, size_t bytes)
{
#if defined(__x86_64__)
    char *d = dst;
    const char *s = src;
    size_t head = (64 - ((uintptr_t)d & 63)) & 63;
    if (bytes < head + 64) {
        memcpy(d, s, bytes);
        return;
    }
    memcpy(d, s, head);
    size_t i = head;
    for (; i + 64 <= bytes; i += 64) {
#if defined(__AVX512F__)
        _mm512_stream_si512((__m512i *)(d + i), _mm512_loadu_si512((const void *)(s + i)));
#elif defined(__AVX2__)
        for (size_t j = 0; j < 64; j += 32) {
            _mm256_stream_si256((__m256i *)(d + i + j),
                                _mm256_loadu_si256((const __m256i *)(s + i + j)));
        }
#else
        for (size_t j = 0; j < 64; j += 16) {
            _mm_stream_si128((__m128i *)(d + i + j), _mm_loadu_si128((const __m128i *)(s + i + j)));
        }
#endif
    }
    memcpy(d + i, s + i, bytes - i);
#else
    memcpy(dst, src, bytes);
#endif
}

static inline void gti_stream_fence(bool stream)
{
#if defined(__x86_64__)
    if (stream) {
        _mm_sfence();
    }
#else
    (void)stream;
#endif
}

/* n <= GTI_CHUNK elements from `first` on as f32: the tensor's own memory or buf. */
static inline const float *gti_chunk_in(float *buf, const gt_tensor *t, int64_t first, int64_t n)
{
    if (t->dtype == GT_F32) {
        return (const float *)t->data + first;
    }
    const uint16_t *src = (const uint16_t *)t->data + first;
    if (t->dtype == GT_BF16) {
        gti_bf16_to_f32_n(buf, src, (size_t)n);
    } else {
        gti_f16_to_f32_n(buf, src, (size_t)n);
    }
    return buf;
}

/* Where to write n elements; gti_chunk_done() brings them to the tensor. */
static inline float *gti_chunk_out(float *buf, const gt_tensor *t, int64_t first, bool stream)
{
    return t->dtype == GT_F32 && !stream ? (float *)t->data + first : buf;
}

static inline void gti_chunk_done(const gt_tensor *t, int64_t first, int64_t n, const float *values,
                                  bool stream)
{
    if (t->dtype == GT_F32) {
        if (stream) {
            gti_stream_copy((float *)t->data + first, values, (size_t)n * sizeof(float));
        }
        return;
    }
    uint16_t narrow[GTI_CHUNK];
    uint16_t *dst = (uint16_t *)t->data + first;
    uint16_t *to = stream ? narrow : dst;
    if (t->dtype == GT_BF16) {
        gti_f32_to_bf16_n(to, values, (size_t)n);
    } else {
        gti_f32_to_f16_n(to, values, (size_t)n);
    }
    if (stream) {
        gti_stream_copy(dst, narrow, (size_t)n * sizeof(uint16_t));
    }
}

static inline float gti_get(const gt_tensor *t, int64_t i)
{
    float buf[1];
    return *gti_chunk_in(buf, t, i, 1);
}

/* Folds leading dimensions into rows. */
static inline void gti_matrix(const gt_tensor *t, int64_t *rows, int64_t *columns)
{
    *columns = t->ndim > 0 ? t->shape[t->ndim - 1] : 1;
    int64_t n = 1;
    for (int d = 0; d + 1 < t->ndim; d++) {
        n *= t->shape[d];
    }
    *rows = n;
}

#endif
