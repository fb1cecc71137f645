/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <geektrain/ops.h>

#include "backend/backend.h"

static void touch(volatile char *p, bool write)
{
    signal(SIGSEGV, SIG_DFL);
    if (write) {
        *p = 1;
    } else {
        (void)*p;
    }
}

/* A child process that reads or writes the address dies of it. */
static void expect_out_of_reach(void *pointer)
{
    for (int write = 0; write < 2; write++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            touch(pointer, write);
            _exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), SIGSEGV);
    }
}

static void host_cannot_touch_memory(void **state)
{
    th h = {0};
    th_open(&h, "guarded");
    gt_tensor t = th_new(&h, GT_F32, TH_SHAPE(3000));
    expect_out_of_reach(t.data);
    expect_out_of_reach((float *)t.data + 2999);
    /* Nor can the kernel, on its behalf. */
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(write(pipes[1], t.data, 4), -1);
    close(pipes[0]);
    close(pipes[1]);
    th_close(&h);
}

static void host_address_is_the_same_memory(void **state)
{
    th h = {0};
    th_open(&h, "guarded");
    gt_tensor t = th_new(&h, GT_F32, TH_SHAPE(100)), part;
    th_iota(&h, &t);
    TH_OK(gt_context_synchronize(h.ctx));
    TH_OK(gt_tensor_slice(&part, &t, 40, 2));
    float *host = gti_host_address(h.ctx, &part);
    assert_non_null(host);
    assert_ptr_not_equal(host, part.data);
    assert_true(host[0] == 40.0f && host[1] == 41.0f);
    host[0] = -1.0f;
    assert_true(th_get(&h, &t)[40] == -1.0);
    float mine;
    gt_tensor foreign = gt_tensor_1d(&mine, GT_F32, 1);
    assert_ptr_equal(gti_host_address(h.ctx, &foreign), &mine); /* host memory is host memory */
    foreign.device = gt_context_device(h.ctx);
    assert_null(gti_host_address(h.ctx, &foreign));
    th_close(&h);
}

/* Running past the end of an allocation by a vector faults also in the operations' mapping. */
static void allocations_end_at_a_page_without_access(void **state)
{
    th h = {0};
    th_open(&h, "guarded");
    for (size_t bytes = 1; bytes < 10000; bytes += 999) {
        gt_tensor t;
        TH_OK(gt_tensor_alloc(h.ctx, &t, GT_MEM_OTHER, GT_U8, TH_SHAPE((int64_t)bytes)));
        char *host = gti_host_address(h.ctx, &t);
        host[0] = host[bytes - 1] = 1;
        expect_out_of_reach(host + (bytes + 63) / 64 * 64);
        gt_tensor_free(h.ctx, &t);
    }
    th_close(&h);
}

/* y follows x through two streams, x changing every round. Returns the rounds that went wrong. */
static int race(th *h, bool ordered, int rounds)
{
    enum { N = 256 };
    gt_tensor x = th_new(h, GT_F32, TH_SHAPE(1, N)), y = th_new(h, GT_F32, TH_SHAPE(1, N));
    gt_tensor z = th_new(h, GT_F32, TH_SHAPE(1, N));
    gt_stream *compute = gt_context_stream(h->ctx, GT_STREAM_COMPUTE);
    gt_stream *comm = gt_context_stream(h->ctx, GT_STREAM_COMM);
    gt_event *event = NULL;
    TH_OK(gt_event_create(&event, h->ctx));
    int wrong = 0;
    for (int round = 0; round < rounds; round++) {
        float in[N], out[N];
        for (int i = 0; i < N; i++) {
            in[i] = (float)(round * N + i);
        }
        TH_OK(gt_copy_from_host(h->ctx, &x, in, compute));
        TH_OK(gt_copy_columns(h->ctx, &y, 0, &x, 0, N, compute));
        TH_OK(gt_event_record(event, compute));
        if (ordered) {
            TH_OK(gt_event_wait(event, comm));
        }
        TH_OK(gt_copy_columns(h->ctx, &z, 0, &y, 0, N, comm));
        TH_OK(gt_copy_to_host(h->ctx, out, &z, comm));
        wrong += memcmp(in, out, sizeof in) != 0;
        TH_OK(gt_context_synchronize(h->ctx));
    }
    gt_event_destroy(&event);
    return wrong;
}

static void events_order_streams(void **state)
{
    th h = {0};
    th_open(&h, "guarded");
    assert_int_equal(race(&h, true, 300), 0);
    th_close(&h);
}

static void missing_event_shows(void **state)
{
    if (TH_THREAD_SANITIZER) {
        skip(); /* it reports the race, which is as good */
    }
    th h = {0};
    th_open(&h, "guarded");
    int wrong = race(&h, false, 300);
    if (wrong < 5) {
        th_fail(__FILE__, __LINE__, "only %d of 300 unordered rounds went wrong", wrong);
    }
    th_close(&h);
}

static void event_queries(void **state)
{
    th h = {0};
    th_open(&h, "guarded");
    gt_tensor x = th_new(&h, GT_F32, TH_SHAPE(16));
    gt_event *event = NULL;
    bool done = false;
    TH_OK(gt_event_create(&event, h.ctx));
    TH_OK(gt_event_query(event, &done));
    assert_true(done); /* never recorded */
    TH_OK(gt_event_synchronize(event));
    int pending = 0;
    for (int i = 0; i < 200; i++) {
        float in[16] = {0};
        TH_OK(gt_copy_from_host(h.ctx, &x, in, NULL));
        TH_OK(gt_event_record(event, NULL));
        TH_OK(gt_event_query(event, &done));
        pending += !done;
        TH_OK(gt_event_synchronize(event));
        TH_OK(gt_event_query(event, &done));
        assert_true(done);
    }
    assert_true(pending > 5);
    TH_OK(gt_event_record(event, NULL));
    gt_event_destroy(&event); /* while it may be pending */
    th_close(&h);
}

/* A wait is for the record before it, not for a later one on another stream. */
static void event_recorded_again(void **state)
{
    th h = {0};
    th_open(&h, "guarded");
    gt_stream *a = gt_context_stream(h.ctx, GT_STREAM_COMPUTE);
    gt_stream *b = gt_context_stream(h.ctx, GT_STREAM_COMM);
    gt_stream *c = gt_context_stream(h.ctx, GT_STREAM_COPY);
    gt_tensor x = th_new(&h, GT_F32, TH_SHAPE(1, 64)), y = th_new(&h, GT_F32, TH_SHAPE(1, 64));
    TH_OK(gt_context_synchronize(h.ctx));
    gt_event *event = NULL;
    TH_OK(gt_event_create(&event, h.ctx));
    for (int i = 0; i < 100; i++) {
        float in[64], out[64];
        for (int k = 0; k < 64; k++) {
            in[k] = (float)(i + k);
        }
        TH_OK(gt_copy_from_host(h.ctx, &x, in, a));
        TH_OK(gt_event_record(event, a));
        TH_OK(gt_event_wait(event, c));
        TH_OK(gt_event_record(event, b)); /* completes at once */
        TH_OK(gt_copy_columns(h.ctx, &y, 0, &x, 0, 64, c));
        TH_OK(gt_copy_to_host(h.ctx, out, &y, c));
        assert_memory_equal(in, out, sizeof in);
        TH_OK(gt_context_synchronize(h.ctx));
    }
    gt_event_destroy(&event);
    th_close(&h);
}

static void bytes_from_host_are_taken(void **state)
{
    th h = {0};
    th_open(&h, "guarded");
    gt_tensor x = th_new(&h, GT_F32, TH_SHAPE(512));
    for (int i = 0; i < 50; i++) {
        float in[512], out[512];
        memset(in, i + 1, sizeof in);
        TH_OK(gt_copy_from_host(h.ctx, &x, in, NULL));
        memset(in, 0, sizeof in);
        TH_OK(gt_copy_to_host(h.ctx, out, &x, NULL));
        assert_int_equal(((unsigned char *)out)[2047], i + 1);
    }
    th_close(&h);
}

static void late_error_surfaces_once(void **state)
{
    th h = {0};
    th_open(&h, "guarded");
    gt_tensor table = th_new(&h, GT_F32, TH_SHAPE(4, 8)), y = th_new(&h, GT_F32, TH_SHAPE(3, 8));
    gt_tensor ids = th_new(&h, GT_I32, TH_SHAPE(3)), spare = th_new(&h, GT_F32, TH_SHAPE(4, 8));
    th_random(&h, &table, 1, 1);
    th_set(&h, &ids, (const double[]){1, 9, 2});
    struct gti_embedding_fwd_args args = {.y = y, .table = table, .ids = ids, .vocab = 4, .seq = 3};
    TH_OK(GTI_RUN(h.ctx, NULL, embedding_fwd, &args)); /* nobody has looked yet */
    TH_FAILS(gt_stream_synchronize(gt_context_stream(h.ctx, GT_STREAM_COMPUTE)), GT_ERR_ARGUMENT,
             "9");
    TH_OK(gt_context_synchronize(h.ctx)); /* told once */

    TH_OK(GTI_RUN(h.ctx, NULL, embedding_fwd, &args));
    TH_FAILS(gt_context_synchronize(h.ctx), GT_ERR_ARGUMENT, "9");

    TH_OK(GTI_RUN(h.ctx, NULL, embedding_fwd, &args));
    gt_status st = GT_OK; /* ... or at a later submission */
    for (int i = 0; i < 1000 && st == GT_OK; i++) {
        usleep(1000);
        st = gt_copy_columns(h.ctx, &spare, 0, &table, 0, 8, NULL);
    }
    TH_FAILS(st, GT_ERR_ARGUMENT, "9");

    th_set(&h, &ids, (const double[]){1, 3, 2});
    TH_OK(GTI_RUN(h.ctx, NULL, embedding_fwd, &args));
    TH_OK(gt_context_synchronize(h.ctx));
    th_compare_values("row 1", th_get(&h, &y) + 8, th_get(&h, &table) + 24, 8, (th_tolerance){0});
    th_close(&h);
}

static void foreign_memory_is_refused(void **state)
{
    th h = {0};
    th_open(&h, "guarded");
    gt_tensor x = th_new(&h, GT_F32, TH_SHAPE(1, 16)), y;
    float mine[16] = {0};
    gt_tensor host = gt_tensor_2d(mine, GT_F32, 1, 16);
    struct gti_copy_columns_args args = {.y = x, .x = host};
    TH_FAILS(GTI_RUN(h.ctx, NULL, copy_columns, &args), GT_ERR_ARGUMENT,
             "copy_columns: tensor 1 is f32[1,16] on cpu, the context's device is guarded");
    args.x.device = gt_context_device(h.ctx);
    TH_FAILS(GTI_RUN(h.ctx, NULL, copy_columns, &args), GT_ERR_ARGUMENT,
             "copy_columns: tensor 1, f32[1,16] on guarded, is no memory of this context");
    TH_OK(gt_tensor_alloc(h.ctx, &y, GT_MEM_OTHER, GT_F32, TH_SHAPE(8)));
    args.x.data = y.data;
    TH_FAILS(GTI_RUN(h.ctx, NULL, copy_columns, &args), GT_ERR_ARGUMENT,
             "ends 32 bytes after its allocation");
    y.shape[0] = 9;
    TH_FAILS(gt_copy_to_host(h.ctx, mine, &y, NULL), GT_ERR_ARGUMENT, "a copy of 36 bytes");
    gt_tensor_free(h.ctx, &y);
    th_close(&h);
}

/* Freed while enqueued work uses it. */
static void free_waits(void **state)
{
    th h = {0};
    th_open(&h, "guarded");
    gt_tensor y = th_new(&h, GT_F32, TH_SHAPE(1, 4096));
    for (int i = 0; i < 50; i++) {
        gt_tensor x;
        TH_OK(gt_tensor_alloc(h.ctx, &x, GT_MEM_OTHER, GT_F32, TH_SHAPE(1, 4096)));
        th_fill(&h, &x, i);
        TH_OK(gt_copy_columns(h.ctx, &y, 0, &x, 0, 4096, NULL));
        gt_tensor_free(h.ctx, &x);
        assert_true(th_get(&h, &y)[4095] == i);
    }
    th_close(&h);
}

static void delay_from_the_environment(void **state)
{
    gt_context *ctx = NULL;
    gt_context_params p = GT_CONTEXT_PARAMS_INIT;
    p.device = "guarded:3";
    setenv("GEEKTRAIN_GUARDED_DELAY", "soon", 1);
    TH_FAILS(gt_context_create(&ctx, &p), GT_ERR_ARGUMENT, "\"soon\", want 0 to 1000000");
    setenv("GEEKTRAIN_GUARDED_DELAY", "0", 1);
    TH_OK(gt_context_create(&ctx, &p));
    assert_int_equal(gt_context_device(ctx).index, 3);
    gt_context_destroy(&ctx);
    unsetenv("GEEKTRAIN_GUARDED_DELAY");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_cannot_touch_memory),
        cmocka_unit_test(host_address_is_the_same_memory),
        cmocka_unit_test(allocations_end_at_a_page_without_access),
        cmocka_unit_test(events_order_streams),
        cmocka_unit_test(missing_event_shows),
        cmocka_unit_test(event_queries),
        cmocka_unit_test(event_recorded_again),
        cmocka_unit_test(bytes_from_host_are_taken),
        cmocka_unit_test(late_error_surfaces_once),
        cmocka_unit_test(foreign_memory_is_refused),
        cmocka_unit_test(free_waits),
        cmocka_unit_test(delay_from_the_environment),
    };
    return cmocka_run_group_tests_name("guarded", tests, NULL, NULL);
}
