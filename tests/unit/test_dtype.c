/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <math.h>

#include "core/convert.h"

static void sizes_names_and_parsing(void **state)
{
    static const struct {
        gt_dtype dtype;
        size_t size;
        const char *names[4]; /* the first is the dtype's own */
    } rows[] = {
        {GT_F32, 4, {"f32", "fp32", "float32"}},
        {GT_F16, 2, {"f16", "fp16", "float16"}},
        {GT_BF16, 2, {"bf16", "bfloat16"}},
        {GT_I32, 4, {"i32"}},
        {GT_I64, 8, {"i64"}},
        {GT_U8, 1, {"u8"}},
        {GT_F64, 8, {"f64"}},
    };
    assert_int_equal(sizeof rows / sizeof rows[0], GT_DTYPE_COUNT);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(gt_dtype_size(rows[i].dtype), rows[i].size);
        assert_string_equal(gt_dtype_name(rows[i].dtype), rows[i].names[0]);
        for (int k = 0; rows[i].names[k] != NULL; k++) {
            gt_dtype got = GT_DTYPE_COUNT;
            TH_OK(gt_dtype_parse(&got, rows[i].names[k]));
            assert_int_equal(got, rows[i].dtype);
        }
    }
    gt_dtype kept = GT_U8;
    TH_FAILS(gt_dtype_parse(&kept, "f8"), GT_ERR_DTYPE, "\"f8\" is not a dtype, want f32");
    TH_FAILS(gt_dtype_parse(&kept, ""), GT_ERR_DTYPE, "not a dtype");
    TH_FAILS(gt_dtype_parse(&kept, NULL), GT_ERR_ARGUMENT, "name is NULL");
    assert_int_equal(kept, GT_U8);
    assert_int_equal(gt_dtype_size((gt_dtype)77), 0);
    assert_string_equal(gt_dtype_name((gt_dtype)77), "not a dtype");
}

/* A 16-bit float read by its definition, in double. */
static double decode(uint16_t bits, int exponent_bits)
{
    int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    int mantissa = bits & ((1 << mantissa_bits) - 1);
    double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) {
        return mantissa != 0 ? (double)NAN : sign * (double)INFINITY;
    }
    if (exponent == 0) {
        return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    }
    return sign * ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

typedef struct format {
    const char *name;
    int exponent_bits;
    float (*to_f32)(uint16_t);
    uint16_t (*from_f32)(float);
} format;
static const format formats[] = {
    {"f16", 5, gt_f16_to_f32, gt_f32_to_f16},
    {"bf16", 8, gt_bf16_to_f32, gt_f32_to_bf16},
};

/* Every pattern means what its definition says and comes back as itself. */
static void all_patterns_both_ways(void **state)
{
    for (int f = 0; f < 2; f++) {
        for (uint32_t bits = 0; bits < 65536; bits++) {
            double want = decode((uint16_t)bits, formats[f].exponent_bits);
            float got = formats[f].to_f32((uint16_t)bits);
            uint16_t back = formats[f].from_f32(got);
            if (isnan(want)) {
                TH_TRUE(isnan(got) && isnan(decode(back, formats[f].exponent_bits)));
                TH_EQUAL(back & 0x8000, bits & 0x8000);
                continue;
            }
            TH_TRUE((double)got == want && !signbit(got) == !signbit(want));
            TH_EQUAL(back, bits);
        }
    }
}

/* Between every two neighbours: the midpoint goes to the even one, its f32 neighbours to the
 * nearer. */
static void rounding_of_all_ties(void **state)
{
    for (int f = 0; f < 2; f++) {
        const format *fmt = &formats[f];
        uint32_t infinity = fmt->exponent_bits == 5 ? 0x7c00 : 0x7f80;
        for (uint32_t low = 0; low < infinity; low++) {
            double a = decode((uint16_t)low, fmt->exponent_bits);
            double b = low + 1 < infinity ? decode((uint16_t)(low + 1), fmt->exponent_bits)
                                          : 2 * a - decode((uint16_t)(low - 1), fmt->exponent_bits);
            float middle = (float)((a + b) / 2);
            TH_TRUE((double)middle == (a + b) / 2);
            TH_EQUAL(fmt->from_f32(middle), low + (low & 1));
            TH_EQUAL(fmt->from_f32(-middle), (low + (low & 1)) | 0x8000);
            TH_EQUAL(fmt->from_f32(nextafterf(middle, 0.0f)), low);
            TH_EQUAL(fmt->from_f32(nextafterf(middle, INFINITY)), low + 1);
        }
    }
}

static void overflow_and_specials(void **state)
{
    TH_EQUAL(gt_f32_to_f16(65504.0f), 0x7bff);
    TH_EQUAL(gt_f32_to_f16(65519.996f), 0x7bff);
    TH_EQUAL(gt_f32_to_f16(65520.0f), 0x7c00);
    TH_EQUAL(gt_f32_to_f16(-1e30f), 0xfc00);
    TH_EQUAL(gt_f32_to_f16(-INFINITY), 0xfc00);
    TH_EQUAL(gt_f32_to_f16(0x1p-149f), 0);
    TH_EQUAL(gt_f32_to_f16(-0.0f), 0x8000);
    TH_EQUAL(gt_f32_to_bf16(3.4028235e38f), 0x7f80);
    TH_EQUAL(gt_f32_to_bf16(INFINITY), 0x7f80);
    TH_EQUAL(gt_f32_to_bf16(0x1p-149f), 0);
    /* A NaN whose set bits all lie in the half that is dropped, and one that would carry over. */
    TH_EQUAL(gt_f32_to_bf16(gti_bits_f32(0x7f800001)), 0x7fc0);
    TH_EQUAL(gt_f32_to_bf16(gti_bits_f32(0xffffffff)), 0xffff);
    TH_EQUAL(gt_f32_to_f16(gti_bits_f32(0x7f800001)), 0x7e00);
    TH_EQUAL(gt_f32_to_f16(gti_bits_f32(0xffffffff)), 0xffff);
}

/* The array forms give the bits of the scalar ones, for every length of tail. */
static void arrays_equal_scalars(void **state)
{
    enum { N = 65536 + 37 };
    uint16_t *half = malloc(N * sizeof *half), *back = malloc(N * sizeof *back);
    float *wide = malloc(N * sizeof *wide);
    assert_true(half != NULL && back != NULL && wide != NULL);
    for (uint32_t i = 0; i < N; i++) {
        half[i] = (uint16_t)(i * 40503u);
    }
    for (size_t n = N - 37; n <= N; n++) {
        gti_f16_to_f32_n(wide, half, n);
        gti_f32_to_f16_n(back, wide, n);
        for (size_t i = n - 40; i < n; i++) {
            TH_EQUAL(gti_f32_bits(wide[i]), gti_f32_bits(gti_f16_to_f32(half[i])));
            TH_EQUAL(back[i], gti_f32_to_f16(wide[i]));
        }
    }
    gti_bf16_to_f32_n(wide, half, N);
    gti_f32_to_bf16_n(back, wide, N);
    for (size_t i = 0; i < N; i++) {
        TH_EQUAL(gti_f32_bits(wide[i]), (uint32_t)half[i] << 16);
        TH_EQUAL(back[i], gti_f32_to_bf16(wide[i]));
    }
    free(half);
    free(back);
    free(wide);
}

int main(void)
{
#if defined(__AVX512F__) /* this file is built three times: see meson.build */
    if (!__builtin_cpu_supports("avx512f")) {
        return 77;
    }
#elif defined(__F16C__)
    if (!__builtin_cpu_supports("avx2")) { /* whoever has it has f16c; clang 14 cannot ask */
        return 77;
    }
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_names_and_parsing), cmocka_unit_test(all_patterns_both_ways),
        cmocka_unit_test(rounding_of_all_ties),    cmocka_unit_test(overflow_and_specials),
        cmocka_unit_test(arrays_equal_scalars),
    };
    return cmocka_run_group_tests_name("dtype", tests, NULL, NULL);
}
