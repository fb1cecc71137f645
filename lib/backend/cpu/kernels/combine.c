/* SPDX-License-Identifier: Apache-2.0
 * Elementwise combination of two buffers. One pass; bytes moved: both inputs and the result. */
#include "backend/cpu/kernels/combine.h"

#include <string.h>

#include "backend/cpu/kernels/convert.h"
#include "backend/cpu/kernels/kernel.h"

/* A NaN on either side wins: the comparison is false when a is NaN. */
#define PICK_MAX(a, b) ((((b) > (a)) | ((b) != (b))) ? (b) : (a))
#define PICK_MIN(a, b) ((((b) < (a)) | ((b) != (b))) ? (b) : (a))
#define PICK_SUM(a, b) ((a) + (b))
/* Unsigned, since signed overflow is undefined. */
#define PICK_SUM_I32(a, b) ((int32_t)((uint32_t)(a) + (uint32_t)(b)))
#define PICK_SUM_I64(a, b) ((int64_t)((uint64_t)(a) + (uint64_t)(b)))
#define PICK_SUM_U8(a, b) ((uint8_t)((a) + (b)))
#define PICK_MAX_INT(a, b) ((b) > (a) ? (b) : (a))
#define PICK_MIN_INT(a, b) ((b) < (a) ? (b) : (a))

#define COMBINE_LOOP(expression)                                                                   \
    _Pragma("omp simd") for (size_t i = 0; i < n; i++)                                             \
    {                                                                                              \
        acc[i] = expression(acc[i], x[i]);                                                         \
    }

#define DEFINE_COMBINE(name, type, sum, max, min)                                                  \
    static void name(type *restrict acc, const type *restrict x, size_t n, gti_reduce_kind kind)   \
    {                                                                                              \
        if (kind == GTI_REDUCE_SUM) {                                                              \
            COMBINE_LOOP(sum)                                                                      \
        } else if (kind == GTI_REDUCE_MAX) {                                                       \
            COMBINE_LOOP(max)                                                                      \
        } else {                                                                                   \
            COMBINE_LOOP(min)                                                                      \
        }                                                                                          \
    }

DEFINE_COMBINE(combine_f32, float, PICK_SUM, PICK_MAX, PICK_MIN)
DEFINE_COMBINE(combine_f64, double, PICK_SUM, PICK_MAX, PICK_MIN)
DEFINE_COMBINE(combine_i32, int32_t, PICK_SUM_I32, PICK_MAX_INT, PICK_MIN_INT)
DEFINE_COMBINE(combine_i64, int64_t, PICK_SUM_I64, PICK_MAX_INT, PICK_MIN_INT)
DEFINE_COMBINE(combine_u8, uint8_t, PICK_SUM_U8, PICK_MAX_INT, PICK_MIN_INT)

static void combine_16bit(float *acc, const void *x, gt_dtype dtype, size_t n, gti_reduce_kind kind)
{
    float buffer[GTI_CHUNK];
    for (size_t i = 0; i < n; i += GTI_CHUNK) {
        size_t count = n - i < GTI_CHUNK ? n - i : GTI_CHUNK;
        gti_load_f32(buffer, x, dtype, i, count);
        combine_f32(acc + i, buffer, count, kind);
    }
}

static void reduce(void *acc, const void *x, gt_dtype dtype, size_t n, gti_reduce_kind kind)
{
    switch (dtype) {
    case GT_F32:
        combine_f32(acc, x, n, kind);
        break;
    case GT_F16:
    case GT_BF16:
        combine_16bit(acc, x, dtype, n, kind);
        break;
    case GT_F64:
        combine_f64(acc, x, n, kind);
        break;
    case GT_I32:
        combine_i32(acc, x, n, kind);
        break;
    case GT_I64:
        combine_i64(acc, x, n, kind);
        break;
    case GT_U8:
        combine_u8(acc, x, n, kind);
        break;
    case GT_DTYPE_COUNT:
        break;
    }
}

static void widen(void *acc, const void *x, gt_dtype dtype, size_t n)
{
    if (dtype == GT_F16 || dtype == GT_BF16) {
        gti_load_f32(acc, x, dtype, 0, n);
    } else if (acc != x && n > 0) {
        memcpy(acc, x, n * gt_dtype_size(dtype));
    }
}

static void narrow(void *y, const void *acc, gt_dtype dtype, size_t n)
{
    if (dtype == GT_F16 || dtype == GT_BF16) {
        gti_store_f32(y, acc, dtype, 0, n);
    } else if (y != acc && n > 0) {
        memcpy(y, acc, n * gt_dtype_size(dtype));
    }
}

const gti_combine_table GTI_JOIN(gti_cpu_combine, GTI_ISA) = {
    .widen = widen,
    .reduce = reduce,
    .narrow = narrow,
};
