/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <pthread.h>

static gt_memory_stats stats_of(const th *h)
{
    gt_memory_stats s;
    gt_memory_get_stats(h->ctx, &s);
    return s;
}

static void live_and_peak_are_exact(void **state)
{
    TH_ON_DEVICES(h)
    {
        void *a, *b, *c;
        TH_OK(gt_alloc(h.ctx, &a, 1000, GT_MEM_PARAMS));
        TH_OK(gt_alloc(h.ctx, &b, 1, GT_MEM_GRADS));
        TH_OK(gt_alloc(h.ctx, &c, 500, GT_MEM_PARAMS));
        gt_memory_stats s = stats_of(&h);
        TH_EQUAL(s.live[GT_MEM_PARAMS], 1500);
        TH_EQUAL(s.live[GT_MEM_GRADS], 1);
        TH_EQUAL(s.live_total, 1501);
        gt_free(h.ctx, a);
        TH_OK(gt_alloc(h.ctx, &a, 600, GT_MEM_PARAMS));
        s = stats_of(&h);
        TH_EQUAL(s.live[GT_MEM_PARAMS], 1100);
        TH_EQUAL(s.peak[GT_MEM_PARAMS], 1500);
        TH_EQUAL(s.peak_total, 1501);
        TH_EQUAL(s.allocations, 4);
        gt_memory_reset_peak(h.ctx);
        s = stats_of(&h);
        TH_EQUAL(s.peak[GT_MEM_PARAMS], 1100);
        TH_EQUAL(s.peak_total, 1101);
        gt_free(h.ctx, a);
        gt_free(h.ctx, b);
        gt_free(h.ctx, c);
        gt_free(h.ctx, NULL);
        TH_EQUAL(stats_of(&h).live_total, 0);
    }
}

static void alignment_and_empty(void **state)
{
    static const size_t sizes[] = {0,
                                   1,
                                   63,
                                   64,
                                   65,
                                   4095,
                                   4097,
                                   ((size_t)4 << 20) - 1,
                                   (size_t)4 << 20,
                                   ((size_t)6 << 20) + 1};
    TH_ON_DEVICES(h)
    {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            void *p = NULL, *q = NULL;
            TH_OK(gt_alloc(h.ctx, &p, sizes[i], GT_MEM_OTHER));
            TH_OK(gt_alloc(h.ctx, &q, sizes[i], GT_MEM_OTHER));
            TH_TRUE(p != NULL && q != NULL && p != q);
            TH_EQUAL((uintptr_t)p % 64, 0);
            gt_free(h.ctx, p);
            gt_free(h.ctx, q);
        }
    }
}

static void injected_failure_and_limit(void **state)
{
    TH_ON_DEVICES(h)
    {
        void *keep = NULL, *p = NULL;
        TH_OK(gt_alloc(h.ctx, &keep, 100, GT_MEM_COMM));
        gt_memory_fail_at(h.ctx, 2);
        TH_OK(gt_alloc(h.ctx, &p, 10, GT_MEM_COMM));
        gt_free(h.ctx, p);
        p = NULL;
        TH_FAILS(gt_alloc(h.ctx, &p, 10, GT_MEM_COMM), GT_ERR_MEMORY,
                 "10 bytes of comm: failure injected; 100 bytes are live");
        TH_TRUE(p == NULL);
        TH_OK(gt_alloc(h.ctx, &p, 10, GT_MEM_COMM)); /* fails once only */
        gt_free(h.ctx, p);

        gt_memory_set_limit(h.ctx, 150);
        TH_OK(gt_alloc(h.ctx, &p, 50, GT_MEM_COMM));
        gt_free(h.ctx, p);
        TH_FAILS(gt_alloc(h.ctx, &p, 51, GT_MEM_GRADS), GT_ERR_MEMORY,
                 "51 bytes of grads: over the memory limit; 100 bytes are live");
        TH_FAILS(gt_alloc(h.ctx, &p, SIZE_MAX, GT_MEM_GRADS), GT_ERR_MEMORY, "limit");
        gt_memory_set_limit(h.ctx, 0);
        TH_EQUAL(stats_of(&h).live_total, 100);
        gt_free(h.ctx, keep);
    }
}

static void too_much(void **state)
{
    TH_ON_DEVICES(h)
    {
        void *p = NULL;
        gt_tensor t = {.ndim = 5};
        TH_FAILS(gt_alloc(h.ctx, &p, SIZE_MAX / 2, GT_MEM_PARAMS), GT_ERR_MEMORY,
                 "bytes of params: out of memory; 0 bytes are live");
        TH_FAILS(gt_alloc(h.ctx, &p, SIZE_MAX, GT_MEM_PARAMS), GT_ERR_MEMORY, "out of memory");
        TH_FAILS(gt_tensor_alloc(h.ctx, &t, GT_MEM_PARAMS, GT_F32, TH_SHAPE(INT64_MAX / 4 + 1)),
                 GT_ERR_SHAPE, "multiply to more");
        TH_FAILS(gt_tensor_alloc(h.ctx, &t, GT_MEM_PARAMS, GT_F32, TH_SHAPE(3, -1)), GT_ERR_SHAPE,
                 "dimension 1 is -1");
        TH_FAILS(gt_alloc(h.ctx, &p, 1, GT_MEM_TAG_COUNT), GT_ERR_ARGUMENT, "not a memory tag");
        TH_TRUE(p == NULL && t.ndim == 5);
        TH_EQUAL(stats_of(&h).allocations, 0);
    }
}

typedef struct lines {
    char text[1024];
    int count;
} lines;

static void take_line(void *user, gt_log_level level, const char *message)
{
    lines *l = user;
    strncat(l->text, message, sizeof l->text - strlen(l->text) - 1);
    l->count++;
}

static void leaks_and_foreign_pointers_are_reported(void **state)
{
    for (int d = 0; th_devices[d] != NULL; d++) {
        lines l = {.count = 0};
        gt_context_params p = GT_CONTEXT_PARAMS_INIT;
        p.device = th_devices[d];
        p.log = take_line;
        p.log_user = &l;
        gt_context *ctx = NULL;
        TH_OK(gt_context_create(&ctx, &p));
        int mine = 0;
        gt_free(ctx, &mine);
        TH_EQUAL(l.count, 1);
        TH_TRUE(strstr(l.text, "did not allocate") != NULL);
        void *a, *b;
        TH_OK(gt_alloc(ctx, &a, 77, GT_MEM_ACTIVATIONS));
        TH_OK(gt_alloc(ctx, &b, 3, GT_MEM_ACTIVATIONS));
        gt_context_destroy(&ctx); /* frees them: AddressSanitizer sees no leak */
        TH_EQUAL(l.count, 2);
        TH_TRUE(strstr(l.text, "80 bytes of activations not freed") != NULL);
    }
}

static void *read_stats(void *raw)
{
    for (int i = 0; i < 2000; i++) {
        gt_memory_stats s;
        gt_memory_get_stats(raw, &s);
        TH_TRUE(s.live_total % 8 == 0 && s.live_total <= 8 * 16);
    }
    return NULL;
}

static void stats_from_another_thread(void **state)
{
    th h = {0};
    th_open(&h, "cpu");
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, read_stats, h.ctx), 0);
    for (int round = 0; round < 100; round++) {
        void *p[16];
        for (int i = 0; i < 16; i++) {
            TH_OK(gt_alloc(h.ctx, &p[i], 8, GT_MEM_WORKSPACE));
        }
        for (int i = 0; i < 16; i++) {
            gt_free(h.ctx, p[i * 7 % 16]);
        }
    }
    pthread_join(thread, NULL);
    TH_EQUAL(stats_of(&h).peak_total, 8 * 16);
    th_close(&h);
}

static void tags_have_names(void **state)
{
    for (int tag = 0; tag < GT_MEM_TAG_COUNT; tag++) {
        assert_non_null(gt_memory_tag_name((gt_memory_tag)tag));
    }
    assert_string_equal(gt_memory_tag_name(GT_MEM_OPTIMIZER), "optimizer");
    assert_string_equal(gt_memory_tag_name((gt_memory_tag)50), "not a tag");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(live_and_peak_are_exact),
        cmocka_unit_test(alignment_and_empty),
        cmocka_unit_test(injected_failure_and_limit),
        cmocka_unit_test(too_much),
        cmocka_unit_test(leaks_and_foreign_pointers_are_reported),
        cmocka_unit_test(stats_from_another_thread),
        cmocka_unit_test(tags_have_names),
    };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
