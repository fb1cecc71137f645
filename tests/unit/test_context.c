/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <geektrain/context.h>

#include "backend/backend.h"
#include "core/log.h"

typedef struct lines {
    char last[256];
    gt_log_level level;
    int count;
} lines;

static void take_line(void *user, gt_log_level level, const char *message)
{
    lines *l = user;
    strncpy(l->last, message, sizeof l->last - 1);
    l->level = level;
    l->count++;
}

static int threads_of_default_context(void)
{
    gt_context *ctx = NULL;
    assert_int_equal(gt_context_create(&ctx, NULL), GT_OK);
    int threads = gt_context_threads(ctx);
    gt_context_destroy(&ctx);
    return threads;
}

/* As mpirun sets them for its ranks. */
static void ranks_of_a_machine_share_its_cores(void **state)
{
    const char *given = getenv("OMP_NUM_THREADS"), *launched = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    if (launched != NULL) {
        skip();
    }
    unsetenv("OMP_NUM_THREADS");
    int alone = threads_of_default_context();
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "1", 1);
    assert_int_equal(threads_of_default_context(), alone);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "100000", 1);
    assert_int_equal(threads_of_default_context(), 1);
    setenv("OMP_NUM_THREADS", "2", 1); /* somebody chose: not divided */
    assert_int_equal(threads_of_default_context(), alone);
    unsetenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    if (given != NULL) {
        setenv("OMP_NUM_THREADS", given, 1);
    } else {
        unsetenv("OMP_NUM_THREADS");
    }
}

static void create_defaults(void **state)
{
    gt_context *ctx = NULL;
    assert_int_equal(gt_context_create(&ctx, NULL), GT_OK);
    assert_int_equal(gt_context_device(ctx).type, GT_DEVICE_CPU);
    assert_true(gt_context_threads(ctx) >= 1);
    assert_int_equal(gt_context_seed(ctx), 0);
    gt_context_destroy(&ctx);
    assert_null(ctx);
    gt_context_destroy(&ctx);
    gt_context_destroy(NULL);
}

static void create_takes_params(void **state)
{
    gt_context *ctx = NULL;
    gt_context_params p = GT_CONTEXT_PARAMS_INIT;
    p.seed = 0x123456789abcdefULL;
    p.threads = 3;
    assert_int_equal(gt_context_create(&ctx, &p), GT_OK);
    assert_int_equal(gt_context_seed(ctx), 0x123456789abcdefULL);
    assert_int_equal(gt_context_threads(ctx), 3);
    gt_context_destroy(&ctx);
}

static void expect_refused(const char *device, gt_status want, const char *part)
{
    gt_context *ctx = (gt_context *)&ctx, *before = ctx;
    gt_context_params p = GT_CONTEXT_PARAMS_INIT;
    p.device = device;
    assert_int_equal(gt_context_create(&ctx, &p), want);
    assert_ptr_equal(ctx, before);
    assert_non_null(strstr(gt_last_error(), part));
}

static void create_refuses_devices(void **state)
{
    expect_refused("gpu", GT_ERR_ARGUMENT, "\"gpu\", want cpu, guarded or cuda:N");
    expect_refused("cpu:x", GT_ERR_ARGUMENT, "cpu:x");
    expect_refused("cpu:", GT_ERR_ARGUMENT, "\"cpu:\"");
    expect_refused("", GT_ERR_ARGUMENT, "\"\"");
    expect_refused("cp", GT_ERR_ARGUMENT, "\"cp\"");
    expect_refused("cpu:1", GT_ERR_ARGUMENT, "cpu:1");
    expect_refused("cuda:0", GT_ERR_UNSUPPORTED, "no cuda backend");
}

static void create_refuses_params(void **state)
{
    gt_context *ctx = NULL;
    gt_context_params p = GT_CONTEXT_PARAMS_INIT;
    p.threads = -1;
    assert_int_equal(gt_context_create(&ctx, &p), GT_ERR_ARGUMENT);
    assert_int_equal(gt_context_create(NULL, NULL), GT_ERR_ARGUMENT);
    memset(&p, 0, sizeof p);
    assert_int_equal(gt_context_create(&ctx, &p), GT_ERR_ARGUMENT);
    assert_non_null(strstr(gt_last_error(), "gt_context_params.struct_size is 0"));
    assert_null(ctx);
}

static void create_params_of_other_versions(void **state)
{
    struct {
        gt_context_params p;
        uint64_t later;
    } newer;
    gt_context *ctx = NULL;
    gt_context_params_init(&newer.p, sizeof newer);
    assert_int_equal(newer.later, 0);
    assert_int_equal(gt_context_create(&ctx, &newer.p), GT_OK); /* newer caller, nothing new used */
    gt_context_destroy(&ctx);
    newer.later = 1;
    assert_int_equal(gt_context_create(&ctx, &newer.p), GT_ERR_ARGUMENT);

    gt_context_params older = GT_CONTEXT_PARAMS_INIT;
    older.struct_size = offsetof(gt_context_params, threads);
    older.seed = 5;
    older.threads = -7; /* beyond what the older caller has */
    assert_int_equal(gt_context_create(&ctx, &older), GT_OK);
    assert_int_equal(gt_context_seed(ctx), 5);
    gt_context_destroy(&ctx);
}

static void log_prefix_and_level(void **state)
{
    lines l = {.count = 0};
    gt_context *ctx = NULL;
    gt_context_params p = GT_CONTEXT_PARAMS_INIT;
    p.log = take_line;
    p.log_user = &l;
    assert_int_equal(gt_context_create(&ctx, &p), GT_OK);
    gti_log(ctx, GT_LOG_INFO, "hello %d", 5);
    assert_string_equal(l.last, "hello 5");
    gt_context_set_rank(ctx, 2, 8);
    gti_log(ctx, GT_LOG_WARN, "%s", "again");
    assert_string_equal(l.last, "[rank 2/8] again");
    assert_int_equal(l.level, GT_LOG_WARN);
    gti_log(ctx, GT_LOG_DEBUG, "dropped");
    assert_int_equal(l.count, 2);
    gt_context_destroy(&ctx);

    p.log_level_set = true; /* GT_LOG_ERROR */
    assert_int_equal(gt_context_create(&ctx, &p), GT_OK);
    gti_log(ctx, GT_LOG_WARN, "dropped");
    assert_int_equal(l.count, 2);
    gti_log(ctx, GT_LOG_ERROR, "kept");
    assert_int_equal(l.count, 3);
    gt_context_destroy(&ctx);
}

static void isa_forced_by_environment(void **state)
{
    gt_context *ctx = NULL;
    assert_int_equal(setenv("GEEKTRAIN_ISA", "base", 1), 0);
    assert_int_equal(gt_context_create(&ctx, NULL), GT_OK);
    gt_context_destroy(&ctx);
    assert_int_equal(setenv("GEEKTRAIN_ISA", "mmx", 1), 0);
    assert_int_equal(gt_context_create(&ctx, NULL), GT_ERR_ARGUMENT);
    assert_non_null(strstr(gt_last_error(), "\"mmx\", want base, avx2, avx512 or avx512bf16"));
    assert_int_equal(unsetenv("GEEKTRAIN_ISA"), 0);
}

static void copies_and_events_on_cpu(void **state)
{
    gt_context *ctx = NULL;
    assert_int_equal(gt_context_create(&ctx, NULL), GT_OK);
    gt_tensor t;
    assert_int_equal(gt_tensor_alloc(ctx, &t, GT_MEM_OTHER, GT_F32, 1, (const int64_t[]){3}),
                     GT_OK);
    const float in[3] = {1, 2, 3};
    float out[3] = {0};
    gt_event *event = NULL;
    bool done = false;
    assert_int_equal(gt_event_create(&event, ctx), GT_OK);
    assert_int_equal(gt_event_query(event, &done), GT_OK);
    assert_true(done);
    assert_int_equal(gt_copy_from_host(ctx, &t, in, NULL), GT_OK);
    gt_stream *copy = gt_context_stream(ctx, GT_STREAM_COPY);
    assert_int_equal(gt_event_record(event, NULL), GT_OK);
    assert_int_equal(gt_event_wait(event, copy), GT_OK);
    assert_int_equal(gt_event_synchronize(event), GT_OK);
    assert_int_equal(gt_copy_to_host(ctx, out, &t, copy), GT_OK);
    assert_memory_equal(in, out, sizeof in);
    assert_int_equal(gt_context_synchronize(ctx), GT_OK);
    gt_event_destroy(&event);
    assert_null(event);

    gt_context *other = NULL;
    assert_int_equal(gt_context_create(&other, NULL), GT_OK);
    gt_stream *foreign = gt_context_stream(other, GT_STREAM_COMPUTE);
    assert_int_equal(gt_copy_to_host(ctx, out, &t, foreign), GT_ERR_ARGUMENT);
    t.device.type = GT_DEVICE_GUARDED;
    assert_int_equal(gt_copy_to_host(ctx, out, &t, NULL), GT_ERR_ARGUMENT);
    assert_non_null(strstr(gt_last_error(), "f32[3] on guarded, want one on cpu"));
    gt_context_destroy(&other);
    gt_tensor_free(ctx, &t);
    gt_context_destroy(&ctx);
}

static void dispatch_refuses(void **state)
{
    gt_context *ctx = NULL;
    assert_int_equal(gt_context_create(&ctx, NULL), GT_OK);
    float x = 0;
    struct gti_fill_args args = {.y = gt_tensor_1d(&x, GT_F32, 1), .value = 1};
    args.y.device.type = GT_DEVICE_CUDA;
    assert_int_equal(GTI_RUN(ctx, NULL, fill, &args), GT_ERR_ARGUMENT);
    assert_non_null(strstr(gt_last_error(), "fill: tensor 0 is f32[1] on cuda"));
    assert_true(x == 0);
    gt_context_destroy(&ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(create_defaults),
        cmocka_unit_test(ranks_of_a_machine_share_its_cores),
        cmocka_unit_test(create_takes_params),
        cmocka_unit_test(create_refuses_devices),
        cmocka_unit_test(create_refuses_params),
        cmocka_unit_test(create_params_of_other_versions),
        cmocka_unit_test(log_prefix_and_level),
        cmocka_unit_test(isa_forced_by_environment),
        cmocka_unit_test(copies_and_events_on_cpu),
        cmocka_unit_test(dispatch_refuses),
    };
    return cmocka_run_group_tests_name("context", tests, NULL, NULL);
}
