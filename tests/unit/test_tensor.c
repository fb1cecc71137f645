/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include "core/tensor.h"

static void views_of_host_memory(void **state)
{
    float x[6] = {0, 1, 2, 3, 4, 5};
    gt_tensor t = gt_tensor_2d(x, GT_F32, 2, 3);
    assert_int_equal(gt_tensor_numel(&t), 6);
    assert_int_equal(gt_tensor_bytes(&t), 24);
    assert_int_equal(t.device.type, GT_DEVICE_CPU);
    gt_tensor scalar = gt_tensor_make(x, GT_F64, 0, NULL);
    assert_int_equal(gt_tensor_numel(&scalar), 1);
    assert_int_equal(gt_tensor_bytes(&scalar), 8);
    gt_tensor empty = gt_tensor_2d(NULL, GT_BF16, 0, 7);
    assert_int_equal(gt_tensor_numel(&empty), 0);

    gt_tensor slice;
    TH_OK(gt_tensor_slice(&slice, &t, 4, 2));
    assert_ptr_equal(slice.data, x + 4);
    assert_int_equal(slice.shape[0], 2);
    TH_OK(gt_tensor_slice(&slice, &t, 6, 0));
    assert_int_equal(gt_tensor_numel(&slice), 0);
}

static void refusals_leave_out_alone(void **state)
{
    float x[6];
    gt_tensor t = gt_tensor_2d(x, GT_F32, 2, 3), out = {.ndim = 77};
    TH_FAILS(gt_tensor_slice(&out, &t, 4, 3), GT_ERR_SHAPE,
             "slice of 3 elements from 4 on leaves f32[2,3] on cpu");
    TH_FAILS(gt_tensor_slice(&out, &t, -1, 1), GT_ERR_SHAPE, "leaves");
    TH_FAILS(gt_tensor_slice(&out, &t, 1, INT64_MAX), GT_ERR_SHAPE, "leaves");
    TH_FAILS(gt_tensor_reshape(&out, &t, TH_SHAPE(5)), GT_ERR_SHAPE,
             "5 elements, want those of f32[2,3]");
    TH_FAILS(gt_tensor_reshape(&out, &t, TH_SHAPE(-2, -3)), GT_ERR_SHAPE, "dimension 0 is -2");
    TH_FAILS(gt_tensor_reshape(&out, &t, TH_SHAPE(1, 1, 1, 1, 1, 1, 6)), GT_ERR_SHAPE,
             "ndim is 7, want 0 to 6");
    TH_FAILS(gt_tensor_reshape(&out, &t, TH_SHAPE(INT64_MAX, INT64_MAX)), GT_ERR_SHAPE,
             "multiply to more than");
    TH_FAILS(gt_tensor_reshape(&out, NULL, TH_SHAPE(1)), GT_ERR_ARGUMENT, "t is NULL");
    assert_int_equal(out.ndim, 77);
    TH_OK(gt_tensor_reshape(&out, &t, TH_SHAPE(3, 1, 2)));
    assert_int_equal(out.ndim, 3);
    assert_ptr_equal(out.data, x);
}

static void empty_dimensions_do_not_overflow(void **state)
{
    int64_t numel;
    size_t bytes;
    TH_OK(gti_shape_bytes(GT_F32, TH_SHAPE(INT64_MAX, INT64_MAX, 0), &numel, &bytes));
    assert_int_equal(numel, 0);
    assert_int_equal(bytes, 0);
    TH_FAILS(gti_shape_bytes((gt_dtype)9, TH_SHAPE(1), &numel, &bytes), GT_ERR_DTYPE, "9 is not");
}

static void text_of_a_tensor(void **state)
{
    char text[GTI_TENSOR_TEXT];
    gt_tensor t = gt_tensor_make(
        NULL, GT_I64, TH_SHAPE(INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN));
    t.device.type = GT_DEVICE_GUARDED;
    const char *got = gti_tensor_text(text, &t);
    assert_non_null(strstr(got, "i64[-9223372036854775808,"));
    assert_non_null(strstr(got, "] on guarded"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(views_of_host_memory),
        cmocka_unit_test(refusals_leave_out_alone),
        cmocka_unit_test(empty_dimensions_do_not_overflow),
        cmocka_unit_test(text_of_a_tensor),
    };
    return cmocka_run_group_tests_name("tensor", tests, NULL, NULL);
}
