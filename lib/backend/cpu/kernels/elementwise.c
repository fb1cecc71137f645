/* SPDX-License-Identifier: Apache-2.0
 * fill, copy, cast, axpby, reduce: one pass each, at memory speed. */
#include "backend/cpu/kernels/combine.h"
#include "backend/cpu/kernels/range.h"

static size_t numel(const gt_tensor *t)
{
    return (size_t)gt_tensor_numel(t);
}

/* ---- fill -------------------------------------------------------------------------------------
 */
struct pattern {
    void *y;
    size_t size;
    uint64_t bits;
};

static uint64_t bits_of(gt_dtype dtype, double value)
{
    union {
        float f32;
        double f64;
        uint16_t u16;
        int32_t i32;
        int64_t i64;
        uint8_t u8;
        uint64_t bits;
    } u = {.bits = 0};
    switch (dtype) {
    case GT_F32:
        u.f32 = (float)value;
        break;
    case GT_F64:
        u.f64 = value;
        break;
    case GT_F16:
        u.u16 = gti_f32_to_f16((float)value);
        break;
    case GT_BF16:
        u.u16 = gti_f32_to_bf16((float)value);
        break;
    case GT_I32:
        u.i32 = (int32_t)value;
        break;
    case GT_I64:
        u.i64 = (int64_t)value;
        break;
    case GT_U8:
    case GT_DTYPE_COUNT:
        u.u8 = (uint8_t)value;
        break;
    }
    return u.bits;
}

#define FILL(type)                                                                                 \
    do {                                                                                           \
        type *y = (type *)p->y + first;                                                            \
        type value = (type)p->bits;                                                                \
        for (size_t i = 0; i < count; i++) {                                                       \
            y[i] = value;                                                                          \
        }                                                                                          \
    } while (0)

static void fill_range(const void *args, size_t first, size_t count)
{
    const struct pattern *p = args;
    if (p->bits == 0) {
        memset((char *)p->y + first * p->size, 0, count * p->size);
    } else if (p->size == 8) {
        FILL(uint64_t);
    } else if (p->size == 4) {
        FILL(uint32_t);
    } else if (p->size == 2) {
        FILL(uint16_t);
    } else {
        memset((char *)p->y + first, (int)(p->bits & 0xff), count);
    }
}

gt_status GTI_KERNEL(fill)
{
    const struct gti_fill_args *a = raw;
    struct pattern p = {a->y.data, gt_dtype_size(a->y.dtype), bits_of(a->y.dtype, a->value)};
    gti_for_ranges(device, numel(&a->y), fill_range, &p);
    return GT_OK;
}

/* ---- copy and cast ----------------------------------------------------------------------------
 */
static void copy_range(const void *args, size_t first, size_t count)
{
    const struct gti_copy_args *a = args;
    size_t size = gt_dtype_size(a->y.dtype);
    memcpy((char *)a->y.data + first * size, (const char *)a->x.data + first * size, count * size);
}

gt_status GTI_KERNEL(copy)
{
    const struct gti_copy_args *a = raw;
    if (a->y.data != a->x.data) {
        gti_for_ranges(device, numel(&a->y), copy_range, a);
    }
    return GT_OK;
}

static void cast_f64_range(const void *args, size_t first, size_t count)
{
    const struct gti_cast_args *a = args;
    if (a->y.dtype == GT_F64) {
        double *y = a->y.data;
        const float *x = a->x.data;
        for (size_t i = first; i < first + count; i++) {
            y[i] = (double)x[i];
        }
    } else {
        float *y = a->y.data;
        const double *x = a->x.data;
        for (size_t i = first; i < first + count; i++) {
            y[i] = (float)x[i];
        }
    }
}

static void cast_range(const void *args, size_t first, size_t count)
{
    const struct gti_cast_args *a = args;
    if (a->y.dtype == GT_F32) {
        gti_load_f32((float *)a->y.data + first, a->x.data, a->x.dtype, first, count);
        return;
    }
    float buffer[GTI_CHUNK];
    GTI_FOR_CHUNKS(i, c, first, count)
    {
        const float *x = gti_chunk_in(buffer, a->x.data, a->x.dtype, i, c);
        gti_store_f32(a->y.data, x, a->y.dtype, i, c);
    }
}

gt_status GTI_KERNEL(cast)
{
    const struct gti_cast_args *a = raw;
    if (a->y.dtype == a->x.dtype) {
        if (a->y.data != a->x.data) {
            struct gti_copy_args copy = {a->y, a->x};
            gti_for_ranges(device, numel(&a->y), copy_range, &copy);
        }
    } else if (a->y.dtype == GT_F64 || a->x.dtype == GT_F64) {
        gti_for_ranges(device, numel(&a->y), cast_f64_range, a);
    } else {
        gti_for_ranges(device, numel(&a->y), cast_range, a);
    }
    return GT_OK;
}

/* ---- axpby ------------------------------------------------------------------------------------
 */
static void axpby_range(const void *args, size_t first, size_t count)
{
    const struct gti_axpby_args *a = args;
    float in[GTI_CHUNK], out[GTI_CHUNK];
    const float alpha = a->alpha, beta = a->beta;
    GTI_FOR_CHUNKS(i, c, first, count)
    {
        const float *x = gti_chunk_in(in, a->x.data, a->x.dtype, i, c);
        float *y = a->y.dtype == GT_F32 ? (float *)a->y.data + i : out;
        if (beta == 0.0f) {
#pragma omp simd
            for (size_t k = 0; k < c; k++) {
                y[k] = alpha * x[k];
            }
        } else {
            if (y == out) {
                gti_load_f32(out, a->y.data, a->y.dtype, i, c);
            }
#pragma omp simd
            for (size_t k = 0; k < c; k++) {
                y[k] = alpha * x[k] + beta * y[k];
            }
        }
        if (y == out) {
            gti_store_f32(a->y.data, out, a->y.dtype, i, c);
        }
    }
}

gt_status GTI_KERNEL(axpby)
{
    const struct gti_axpby_args *a = raw;
    gti_for_ranges(device, numel(&a->y), axpby_range, a);
    return GT_OK;
}

/* ---- reduce -----------------------------------------------------------------------------------
 */
static void reduce_range(const void *args, size_t first, size_t count)
{
    const struct gti_reduce_args *a = args;
    const gti_combine_table *combine = &GTI_JOIN(gti_cpu_combine, GTI_ISA);
    size_t size = gt_dtype_size(a->out.dtype), b_size = gt_dtype_size(a->b.dtype);
    bool narrow = size == 2;
    float buffer[GTI_CHUNK];
    GTI_FOR_CHUNKS(i, c, first, count)
    {
        char *out = (char *)a->out.data + i * size;
        const char *x = (const char *)a->a.data + i * size;
        void *acc = narrow ? (void *)buffer : (void *)out;
        if (narrow || acc != x) {
            combine->widen(acc, x, a->a.dtype, c);
        }
        combine->reduce(acc, (const char *)a->b.data + i * b_size, a->b.dtype, c, a->kind);
        if (narrow) {
            combine->narrow(out, acc, a->out.dtype, c);
        }
    }
}

gt_status GTI_KERNEL(reduce)
{
    const struct gti_reduce_args *a = raw;
    gti_for_ranges(device, numel(&a->out), reduce_range, a);
    return GT_OK;
}
