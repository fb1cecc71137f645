/* SPDX-License-Identifier: Apache-2.0 */
#include <geektrain/tensor.h>

#include <string.h>

#include "core/convert.h"
#include "core/fail.h"

size_t gt_dtype_size(gt_dtype dtype)
{
    switch (dtype) {
    case GT_F32:
    case GT_I32:
        return 4;
    case GT_F16:
    case GT_BF16:
        return 2;
    case GT_I64:
    case GT_F64:
        return 8;
    case GT_U8:
        return 1;
    case GT_DTYPE_COUNT:
        break;
    }
    return 0;
}

const char *gt_dtype_name(gt_dtype dtype)
{
    static const char *const names[GT_DTYPE_COUNT] = {
        [GT_F32] = "f32", [GT_F16] = "f16", [GT_BF16] = "bf16", [GT_I32] = "i32",
        [GT_I64] = "i64", [GT_U8] = "u8",   [GT_F64] = "f64",
    };
    return (unsigned)dtype < GT_DTYPE_COUNT ? names[dtype] : "not a dtype";
}

gt_status gt_dtype_parse(gt_dtype *out, const char *name)
{
    static const struct {
        const char *name;
        gt_dtype dtype;
    } known[] = {
        {"f32", GT_F32},  {"fp32", GT_F32},    {"float32", GT_F32}, {"f16", GT_F16},
        {"fp16", GT_F16}, {"float16", GT_F16}, {"bf16", GT_BF16},   {"bfloat16", GT_BF16},
        {"i32", GT_I32},  {"i64", GT_I64},     {"u8", GT_U8},       {"f64", GT_F64},
    };
    if (out == NULL || name == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s is NULL", out == NULL ? "out" : "the dtype's name");
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(name, known[i].name) == 0) {
            *out = known[i].dtype;
            return GT_OK;
        }
    }
    return GT_FAIL(GT_ERR_DTYPE, "\"%s\" is not a dtype, want f32, f16, bf16, i32, i64, u8 or f64",
                   name);
}

uint16_t gt_f32_to_bf16(float value)
{
    return gti_f32_to_bf16(value);
}

float gt_bf16_to_f32(uint16_t bits)
{
    return gti_bf16_to_f32(bits);
}

uint16_t gt_f32_to_f16(float value)
{
    return gti_f32_to_f16(value);
}

float gt_f16_to_f32(uint16_t bits)
{
    return gti_f16_to_f32(bits);
}
