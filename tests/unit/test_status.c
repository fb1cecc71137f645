/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <stdio.h>

#include "core/fail.h"

static void names_are_pinned(void **state)
{
    static const struct {
        int value;
        const char *name;
    } rows[] = {
        {0, "GT_OK"},
        {-1, "GT_ERR_ARGUMENT"},
        {-2, "GT_ERR_SHAPE"},
        {-3, "GT_ERR_DTYPE"},
        {-4, "GT_ERR_MEMORY"},
        {-5, "GT_ERR_UNSUPPORTED"},
        {-6, "GT_ERR_IO"},
        {-7, "GT_ERR_FORMAT"},
        {-8, "GT_ERR_CONFIG"},
        {-9, "GT_ERR_COMM"},
        {-10, "GT_ERR_MISMATCH"},
        {-11, "GT_ERR_PEER"},
        {-12, "GT_ERR_TIMEOUT"},
        {-13, "GT_ERR_STATE"},
        {-14, "GT_ERR_DEVICE"},
        {-99, "GT_ERR_INTERNAL"},
        {-15, "not a gt_status"},
        {1, "not a gt_status"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_string_equal(gt_status_name((gt_status)rows[i].value), rows[i].name);
    }
}

static gt_status fails(int n)
{
    return GT_FAIL(GT_ERR_SHAPE, "gamma has %d, want C=%d", n, 16);
}

static gt_status passes_on(bool *reached)
{
    GT_TRY(fails(3));
    *reached = true;
    return GT_OK;
}

static void fail_writes_the_sentence(void **state)
{
    bool reached = false;
    assert_int_equal(passes_on(&reached), GT_ERR_SHAPE);
    assert_false(reached);
    assert_string_equal(gt_last_error(), "gamma has 3, want C=16");
    assert_int_equal(GT_FAIL(GT_ERR_PEER, "rank 2: %s", gt_last_error()), GT_ERR_PEER);
    assert_string_equal(gt_last_error(), "rank 2: gamma has 3, want C=16");
}

static void sentences_are_cut_not_overrun(void **state)
{
    char text[2 * GTI_ERROR_MAX];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(GT_FAIL(GT_ERR_IO, "%s", text), GT_ERR_IO);
    assert_int_equal(strlen(gt_last_error()), GTI_ERROR_MAX - 1);
    fails(4);
    assert_int_equal(gti_fail_text(GT_ERR_COMM, text), GT_ERR_COMM);
    assert_int_equal(strlen(gt_last_error()), GTI_ERROR_MAX - 1);
    assert_int_equal(gti_fail_text(GT_ERR_COMM, gt_last_error() + 1000), GT_ERR_COMM);
    assert_string_equal(gt_last_error(), "xxxxxxxxxxxxxxxxxxxxxxx");
}

static void callers_set_sentences_too(void **state)
{
    fails(3);
    assert_int_equal(gt_set_error(GT_ERR_UNSUPPORTED, "%s: after %s", "adapter", gt_last_error()),
                     GT_ERR_UNSUPPORTED);
    assert_string_equal(gt_last_error(), "adapter: after gamma has 3, want C=16");
}

static void other_thread(int rank, int size, void *user)
{
    TH_TRUE(gt_last_error()[0] == '\0');
    fails(rank);
    char want[64];
    snprintf(want, sizeof want, "gamma has %d, want C=16", rank);
    TH_TRUE(strcmp(gt_last_error(), want) == 0);
}

static void every_thread_has_its_own(void **state)
{
    fails(99);
    th_threads(4, other_thread, NULL);
    assert_string_equal(gt_last_error(), "gamma has 99, want C=16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_pinned),
        cmocka_unit_test(fail_writes_the_sentence),
        cmocka_unit_test(sentences_are_cut_not_overrun),
        cmocka_unit_test(callers_set_sentences_too),
        cmocka_unit_test(every_thread_has_its_own),
    };
    return cmocka_run_group_tests_name("status", tests, NULL, NULL);
}
