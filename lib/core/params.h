/* SPDX-License-Identifier: Apache-2.0
 * Params structs: the first field is size_t struct_size, zero means default, fields are only
 * appended. That lets a program compiled against an older header, or ctypes, pass what it knows. */
#ifndef GTI_CORE_PARAMS_H
#define GTI_CORE_PARAMS_H

#include <stddef.h>

#include <geektrain/status.h>

/* The body of every gt_x_params_init(): zeroes `size` bytes and sets struct_size. */
void gti_params_init(void *params, size_t size);

/* Copies the caller's params into ours: dst (size bytes) is zeroed first, src NULL leaves it so.
 * Fields that the caller does not know stay 0. GT_ERR_ARGUMENT when struct_size is 0 (the struct
 * was not initialised) or when the caller uses fields that this library does not know. `type` is
 * the struct's name, for the sentence. */
gt_status gti_params_copy(void *dst, size_t size, const void *src, const char *type);

/* The body of every gt_x_params_init() whose defaults are not all zero: as much of them as the
 * caller's struct has. */
void gti_params_defaults(void *params, size_t size, const void *defaults, size_t defaults_size);

/* The other way round: as much of ours as the caller's struct has, whose struct_size stays. Fields
 * that only the caller knows become 0. */
gt_status gti_params_give(void *out, const void *ours, size_t size, const char *type);

/* gt_gemm_params p; GT_TRY(GTI_PARAMS_COPY(&p, params, gt_gemm_params)); */
#define GTI_PARAMS_COPY(dst, src, type) gti_params_copy((dst), sizeof(type), (src), #type)

#endif
