/* SPDX-License-Identifier: Apache-2.0
 *
 * What every public operation checks before it dispatches. Each helper takes the argument's name as
 * the caller knows it and answers with one sentence: what was got, what was wanted.
 *
 *     GT_TRY(gti_check_tensor(ctx, "x", x, GTI_FLOATS));
 *     gti_rows_columns(x, &n, &c);
 *     GT_TRY(gti_check_tensor(ctx, "gamma", gamma, GTI_ONLY(x->dtype)));
 *     GT_TRY(gti_check_numel("gamma", gamma, "C", c));
 *     if (gti_present(residual)) { ... }
 *     args.residual = gti_optional(residual);
 */
#ifndef GTI_OPS_CHECK_H
#define GTI_OPS_CHECK_H

#include <geektrain/context.h>

#include "core/fail.h"

/* Sets of dtypes. */
#define GTI_ONLY(dtype) (1u << (dtype))
#define GTI_FLOATS (GTI_ONLY(GT_F32) | GTI_ONLY(GT_BF16) | GTI_ONLY(GT_F16))
#define GTI_ANY_DTYPE ((1u << GT_DTYPE_COUNT) - 1u)
/* The dtypes that a gradient of a tensor of this dtype may have. */
#define GTI_GRAD_OF(dtype) (GTI_ONLY(GT_F32) | GTI_ONLY(dtype))

/* An optional tensor is absent when its pointer or its data is NULL. */
static inline bool gti_present(const gt_tensor *t)
{
    return t != NULL && t->data != NULL;
}
static inline gt_tensor gti_optional(const gt_tensor *t)
{
    gt_tensor absent = {0};
    return t != NULL ? *t : absent;
}

/* A required tensor: not NULL, of one of `dtypes`, with a legal shape, on the context's device, and
 * with data unless it is empty. */
gt_status gti_check_tensor(const gt_context *ctx, const char *name, const gt_tensor *t,
                           unsigned dtypes);
/* The same for an optional one: GT_OK when it is absent. */
gt_status gti_check_optional(const gt_context *ctx, const char *name, const gt_tensor *t,
                             unsigned dtypes);
/* t has exactly n elements: "gamma has 12 elements, wanted C=16". letters says what n is: "C". */
gt_status gti_check_numel(const char *name, const gt_tensor *t, const char *letters, int64_t n);
/* Seen as a matrix (leading dimensions folded into rows) t is [rows, columns]:
 * "y is [4,8], wanted [N,C]=[4,16]". */
gt_status gti_check_matrix(const char *name, const gt_tensor *t, const char *letters, int64_t rows,
                           int64_t columns);
/* The same shape as another tensor: "dy is [4,8], wanted the shape of x, [4,16]". */
gt_status gti_check_same_shape(const char *name, const gt_tensor *t, const char *other_name,
                               const gt_tensor *other);

/* Leading dimensions folded: columns is the last dimension, rows the product of the others. A 0-d
 * tensor is [1,1], a 1-d one [1,n]. */
void gti_rows_columns(const gt_tensor *t, int64_t *rows, int64_t *columns);

/* Writes "[4,16]" for error sentences; returns text. */
#define GTI_SHAPE_TEXT 160
char *gti_shape_text(char text[GTI_SHAPE_TEXT], const gt_tensor *t);

/* Copies a caller's params struct over the defaults already in `into` (`size` bytes): fields that
 * an older caller's struct lacks keep their defaults. NULL params: the defaults. The first field of
 * both is size_t struct_size. */
gt_status gti_take_params(const char *type, void *into, size_t size, const void *params);

/* The body of every gt_<x>_params_init: as much of the defaults as the caller's struct (`size`
 * bytes) holds; struct_size becomes size. */
void gti_default_params(void *params, size_t size, const void *defaults, size_t defaults_size);

#endif
