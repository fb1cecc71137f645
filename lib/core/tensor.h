/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GTI_CORE_TENSOR_H
#define GTI_CORE_TENSOR_H

#include <stdbool.h>

#include <geektrain/tensor.h>

/* "bf16[8,128] on guarded:0" for sentences; returns text. */
#define GTI_TENSOR_TEXT 160
const char *gti_tensor_text(char text[GTI_TENSOR_TEXT], const gt_tensor *t);

const char *gti_device_type_name(gt_device_type type);

/* More elements than any tensor here has: products of lengths up to it fit in 64 bits as bytes. */
#define GTI_NUMEL_MAX (INT64_C(1) << 52)

/* Checks a shape and gives its number of elements and bytes. Errors: GT_ERR_SHAPE (ndim, a negative
 * size, a product beyond int64), GT_ERR_DTYPE. */
gt_status gti_shape_bytes(gt_dtype dtype, int ndim, const int64_t *shape, int64_t *numel,
                          size_t *bytes);

#endif
