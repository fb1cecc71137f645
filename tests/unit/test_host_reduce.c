/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/host_reduce.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "backend/cpu/kernels/combine.h"

static const gti_combine_table *tables[3];
static int table_count;

static void find_tables(void)
{
    tables[table_count++] = &gti_cpu_combine_base;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        tables[table_count++] = &gti_cpu_combine_avx2;
    }
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq")) {
        tables[table_count++] = &gti_cpu_combine_avx512;
    }
#endif
}

static bool same_float(float a, float b)
{
    return memcmp(&a, &b, sizeof(a)) == 0 || (isnan(a) && isnan(b));
}

/* Every 16-bit value widens to what the scalar conversion says and comes back unchanged. */
static void widen_narrow_every_value(void **state)
{
    enum { N = 65536 };
    uint16_t *h = malloc(N * sizeof(*h)), *back = malloc(N * sizeof(*back));
    float *f = malloc(N * sizeof(*f));
    for (uint32_t i = 0; i < N; i++) {
        h[i] = (uint16_t)i;
    }
    for (int t = 0; t < table_count; t++) {
        for (int half = 0; half < 2; half++) {
            gt_dtype dtype = half ? GT_F16 : GT_BF16;
            tables[t]->widen(f, h, dtype, N);
            tables[t]->narrow(back, f, dtype, N);
            for (int i = 0; i < N; i++) {
                float want = half ? gt_f16_to_f32(h[i]) : gt_bf16_to_f32(h[i]);
                assert_true(same_float(f[i], want));
                assert_true(isnan(want) || back[i] == h[i]);
            }
        }
    }
    free(h);
    free(back);
    free(f);
}

/* Around every midpoint between neighbouring f16 values: below, at, above. */
static void narrow_rounds_to_nearest_even(void **state)
{
    enum { N = 3 * 0x7c00 };
    float *f = malloc(N * sizeof(*f));
    uint16_t *h = malloc(N * sizeof(*h));
    for (int half = 0; half < 2; half++) {
        for (uint32_t i = 0; i < 0x7c00; i++) {
            uint32_t bits = i << 16 | 0x8000u;
            float middle;
            memcpy(&middle, &bits, sizeof(middle));
            if (half) {
                middle = 0.5f * (gt_f16_to_f32((uint16_t)i) +
                                 (i == 0x7bff ? 65536.0f : gt_f16_to_f32((uint16_t)(i + 1))));
            }
            f[3 * i] = nextafterf(middle, 0.0f);
            f[3 * i + 1] = middle;
            f[3 * i + 2] = -nextafterf(middle, INFINITY);
        }
        for (int t = 0; t < table_count; t++) {
            tables[t]->narrow(h, f, half ? GT_F16 : GT_BF16, N);
            for (uint32_t i = 0; i < 0x7c00; i++) {
                assert_int_equal(h[3 * i], i);
                assert_int_equal(h[3 * i + 1], i + (i & 1));
                assert_int_equal(h[3 * i + 2], (i + 1) | 0x8000u);
            }
        }
    }
    free(f);
    free(h);
}

/* Odd lengths, unaligned starts, guard elements on both sides. */
static void reduce_f32_tails(void **state)
{
    float acc[64 + 2], x[64 + 1];
    for (int t = 0; t < table_count; t++) {
        for (size_t n = 0; n <= 64; n++) {
            for (int kind = 0; kind < 3; kind++) {
                for (size_t i = 0; i < n + 2; i++) {
                    acc[i] = (float)i * 1.5f - 20.0f;
                    x[i < 65 ? i : 0] = 30.0f - (float)i;
                }
                float before = acc[0], after = acc[n + 1];
                tables[t]->reduce(acc + 1, x, GT_F32, n, (gti_reduce_kind)kind);
                assert_true(acc[0] == before && acc[n + 1] == after);
                for (size_t i = 0; i < n; i++) {
                    float a = (float)(i + 1) * 1.5f - 20.0f, b = x[i];
                    float want = kind == 0 ? a + b : (kind == 1 ? fmaxf(a, b) : fminf(a, b));
                    assert_true(acc[i + 1] == want);
                }
            }
        }
    }
}

/* Eight times 10000 overflows f16 on the way but not when the sum is formed in f32; eight times
 * 2^-24, the smallest f16, is not lost. */
static void reduce_f16_accumulates_in_f32(void **state)
{
    for (int t = 0; t < table_count; t++) {
        uint16_t big[3], small[3], out[3];
        float acc[3];
        for (int i = 0; i < 3; i++) {
            big[i] = gt_f32_to_f16(10000.0f);
            small[i] = 1;
        }
        tables[t]->widen(acc, big, GT_F16, 3);
        for (int rank = 1; rank < 8; rank++) {
            tables[t]->reduce(acc, big, GT_F16, 3, GTI_REDUCE_SUM);
        }
        assert_true(acc[2] == 80000.0f);
        for (int i = 0; i < 3; i++) {
            acc[i] *= 0.125f;
        }
        tables[t]->narrow(out, acc, GT_F16, 3);
        assert_int_equal(out[2], big[2]);
        tables[t]->widen(acc, small, GT_F16, 3);
        for (int rank = 1; rank < 8; rank++) {
            tables[t]->reduce(acc, small, GT_F16, 3, GTI_REDUCE_SUM);
        }
        for (int i = 0; i < 3; i++) {
            acc[i] *= 0.125f;
        }
        tables[t]->narrow(out, acc, GT_F16, 3);
        assert_int_equal(out[2], 1);
    }
}

static void reduce_nan_wins(void **state)
{
    for (int t = 0; t < table_count; t++) {
        for (int kind = 0; kind < 3; kind++) {
            float acc[40], x[40];
            double acc64[4] = {NAN, 1, 2, 3}, x64[4] = {1, NAN, 0, 0};
            for (int i = 0; i < 40; i++) {
                acc[i] = i == 3 ? NAN : 1.0f;
                x[i] = i == 37 ? NAN : 2.0f;
            }
            tables[t]->reduce(acc, x, GT_F32, 40, (gti_reduce_kind)kind);
            tables[t]->reduce(acc64, x64, GT_F64, 4, (gti_reduce_kind)kind);
            for (int i = 0; i < 40; i++) {
                assert_int_equal(isnan(acc[i]) != 0, i == 3 || i == 37);
            }
            assert_true(isnan(acc64[0]) && isnan(acc64[1]) && !isnan(acc64[2]));
        }
    }
}

static void reduce_other_dtypes(void **state)
{
    for (int t = 0; t < table_count; t++) {
        int32_t a32[5] = {1, -7, INT32_MAX, 4, 0}, b32[5] = {5, 3, 1, -4, 0};
        tables[t]->reduce(a32, b32, GT_I32, 5, GTI_REDUCE_SUM);
        assert_true(a32[0] == 6 && a32[1] == -4 && a32[2] == INT32_MIN && a32[3] == 0);
        int64_t a64[3] = {INT64_C(1) << 40, -7, 0}, b64[3] = {5, 3, -1};
        tables[t]->reduce(a64, b64, GT_I64, 3, GTI_REDUCE_MAX);
        assert_true(a64[0] == INT64_C(1) << 40 && a64[1] == 3 && a64[2] == 0);
        uint8_t a8[3] = {200, 0, 7}, b8[3] = {100, 255, 7};
        tables[t]->reduce(a8, b8, GT_U8, 3, GTI_REDUCE_MIN);
        assert_true(a8[0] == 100 && a8[1] == 0 && a8[2] == 7);
        double a[3] = {1e300, 0.1, -1}, b[3] = {1, 0.2, 1};
        tables[t]->reduce(a, b, GT_F64, 3, GTI_REDUCE_SUM);
        assert_true(a[0] == 1e300 && a[1] == 0.1 + 0.2 && a[2] == 0);
    }
}

static void public_entries(void **state)
{
    uint16_t x[2] = {gt_f32_to_bf16(1.0f), gt_f32_to_bf16(3.0f)}, out[2];
    float acc[2];
    assert_int_equal(gti_host_acc_dtype(GT_BF16), GT_F32);
    assert_int_equal(gti_host_acc_dtype(GT_F64), GT_F64);
    gti_host_widen(acc, x, GT_BF16, 2);
    gti_host_reduce(acc, x, GT_BF16, 2, GTI_REDUCE_SUM);
    gti_host_narrow(out, acc, GT_BF16, 2);
    assert_true(gt_bf16_to_f32(out[0]) == 2.0f && gt_bf16_to_f32(out[1]) == 6.0f);
    gti_host_narrow(acc, acc, GT_F32, 2);
    assert_true(acc[0] == 2.0f);
}

int main(void)
{
    find_tables();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(widen_narrow_every_value), cmocka_unit_test(narrow_rounds_to_nearest_even),
        cmocka_unit_test(reduce_f32_tails),         cmocka_unit_test(reduce_f16_accumulates_in_f32),
        cmocka_unit_test(reduce_nan_wins),          cmocka_unit_test(reduce_other_dtypes),
        cmocka_unit_test(public_entries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
