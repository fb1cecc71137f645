/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors: small values that view memory, never own it.
 *
 * A gt_tensor is row-major and contiguous: a data pointer, a dtype, a device and a shape. Make one
 * from any pointer of yours in one line, and every operation of the library works on your memory:
 *
 *     float *x = ...;
 *     gt_tensor t = gt_tensor_2d(x, GT_F32, rows, columns);
 */
#ifndef GEEKTRAIN_TENSOR_H
#define GEEKTRAIN_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include <geektrain/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GT_MAX_DIMS 6

typedef enum gt_dtype {
    GT_F32 = 0,
    GT_F16 = 1,  /* IEEE 754 binary16                                       */
    GT_BF16 = 2, /* the upper half of an f32                                */
    GT_I32 = 3,
    GT_I64 = 4,
    GT_U8 = 5,
    GT_F64 = 6, /* only for sums: losses, token counts, squared norms      */
    GT_DTYPE_COUNT = 7
} gt_dtype;

typedef enum gt_device_type {
    GT_DEVICE_CPU = 0,     /* host memory                                                        */
    GT_DEVICE_GUARDED = 1, /* the test device: memory that the host may not touch                */
    GT_DEVICE_CUDA = 2
} gt_device_type;

typedef struct gt_device {
    gt_device_type type;
    int index;
} gt_device;

typedef struct gt_tensor {
    void *data; /* NULL only for an absent or an empty tensor */
    gt_dtype dtype;
    gt_device device;
    int ndim;
    int64_t shape[GT_MAX_DIMS];
} gt_tensor;

/* What a tensor will be, before any memory exists. */
typedef struct gt_shape {
    gt_dtype dtype;
    int ndim;
    int64_t dims[GT_MAX_DIMS];
} gt_shape;

/* Bytes of one element; 0 for a value that is not a dtype. */
GT_API size_t gt_dtype_size(gt_dtype dtype);
/* "f32", "bf16", ...; never NULL. */
GT_API const char *gt_dtype_name(gt_dtype dtype);
/* Reads a dtype's name: f32/fp32/float32, f16/fp16/float16, bf16/bfloat16, i32, i64, u8, f64. */
GT_API gt_status gt_dtype_parse(gt_dtype *out, const char *name);

/* Views of host memory. For the memory of another device set .device, or use gt_tensor_alloc(). */
GT_API gt_tensor gt_tensor_make(void *data, gt_dtype dtype, int ndim, const int64_t *shape);
GT_API gt_tensor gt_tensor_1d(void *data, gt_dtype dtype, int64_t n);
GT_API gt_tensor gt_tensor_2d(void *data, gt_dtype dtype, int64_t rows, int64_t columns);

/* Number of elements (1 for ndim 0) and bytes. */
GT_API int64_t gt_tensor_numel(const gt_tensor *t);
GT_API size_t gt_tensor_bytes(const gt_tensor *t);

/* The same memory under another shape of as many elements. Errors: GT_ERR_SHAPE. */
GT_API gt_status gt_tensor_reshape(gt_tensor *out, const gt_tensor *t, int ndim,
                                   const int64_t *shape);
/* Elements [first, first + count) of t seen flat, as a 1-d view. Errors: GT_ERR_SHAPE. */
GT_API gt_status gt_tensor_slice(gt_tensor *out, const gt_tensor *t, int64_t first, int64_t count);

/* Conversions of single values; to 16 bits they round to nearest, ties to even, as the hardware
 * does; NaN stays NaN, overflow becomes infinity. */
GT_API uint16_t gt_f32_to_bf16(float value);
GT_API float gt_bf16_to_f32(uint16_t bits);
GT_API uint16_t gt_f32_to_f16(float value);
GT_API float gt_f16_to_f32(uint16_t bits);

#ifdef __cplusplus
}
#endif
#endif
