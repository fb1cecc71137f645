/* SPDX-License-Identifier: Apache-2.0
 * Progress line, metrics.jsonl, run directory. */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <fcntl.h>
#include <unistd.h>
#include <json-c/json.h>
#include <cmocka.h>

#include <geektrain/monitor.h>

#include "files.h"
#include "monitor/progress.h"

static char *text;
static size_t text_size;
static FILE *stream;

static gt_monitor *make(const char *run_dir, int64_t total, int interactive, int width)
{
    gt_monitor *m = NULL;
    gt_monitor_params p = GT_MONITOR_PARAMS_INIT;
    stream = open_memstream(&text, &text_size);
    p.stream = stream;
    p.run_dir = run_dir;
    p.total_steps = total;
    p.interactive = interactive;
    p.width = width;
    p.flops_per_step = 1e9;
    p.peak_flops = 4e9;
    p.print_interval = 2;
    if (gt_monitor_create(&m, &p) != GT_OK) {
        fail_msg("%s", gt_last_error());
    }
    return m;
}

static void finish(gt_monitor **m)
{
    gt_monitor_destroy(m);
    assert_null(*m);
    fclose(stream);
}

static gt_step_result result(double loss)
{
    return (gt_step_result){.loss = loss,
                            .tokens = 1000,
                            .gradient_norm = 1.5,
                            .clip_factor = 1,
                            .loss_scale = 1,
                            .learning_rate = 3e-4,
                            .seconds = 0.5,
                            .applied = 1};
}

static void counts_and_durations(void **state)
{
    static const struct {
        double value;
        const char *want;
    } counts[] = {{0, "0"},        {7, "7"},         {0.5, "0.50"},     {999, "999"},
                  {1000, "1.00k"}, {12345, "12.3k"}, {999949, "1.00M"}, {2.5e9, "2.50G"}},
      durations[] = {{0, "0:00"},       {59.6, "1:00"}, {3599, "59:59"}, {3600, "1:00:00"},
                     {90061, "1d 01h"}, {NAN, "?"},     {-1, "?"},       {INFINITY, "?"}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        char got[32];
        gti_format_count(counts[i].value, got, sizeof got);
        assert_string_equal(got, counts[i].want);
    }
    for (size_t i = 0; i < sizeof durations / sizeof durations[0]; i++) {
        char got[32];
        gti_format_duration(durations[i].value, got, sizeof got);
        assert_string_equal(got, durations[i].want);
    }
}

/* Never a character in the last column, for any width; the loss as soon as it fits. */
static void line_fits_every_width(void **state)
{
    gti_progress p = {.step = 37,
                      .total = 2000,
                      .loss = 2.34567,
                      .gradient_norm = 0.812,
                      .learning_rate = 3e-4,
                      .tokens_per_s = 45678,
                      .flops_share = 0.731,
                      .seconds_left = 123};
    size_t before = 0;
    for (int width = 1; width < 300; width++) {
        char line[GTI_PROGRESS_MAX];
        gti_progress_line(&p, width, line);
        assert_true(strlen(line) == 0 || strlen(line) < (size_t)width);
        assert_true(width < 30 || strstr(line, "loss  2.3457") != NULL);
        assert_true(strlen(line) + 20 > before);
        before = strlen(line);
    }
    char line[GTI_PROGRESS_MAX];
    gti_progress_line(&p, 120, line);
    assert_non_null(
        strstr(line, "step   37/2000  loss  2.3457   45.7k tok/s     2:03 left   73% of gemm"));
    p.step = 1000;
    gti_progress_line(&p, 60 + 1, line);
    assert_int_equal(strcspn(line, ">") - 1, (strcspn(line, "]") - 1) / 2); /* half full */
}

static void plain_lines_without_a_terminal(void **state)
{
    gt_monitor *m = make(NULL, 5, 0, 0);
    for (int i = 0; i < 5; i++) {
        gt_step_result r = result(3 - 0.5 * i);
        assert_int_equal(gt_monitor_step(m, &r), GT_OK);
    }
    assert_int_equal(gt_monitor_evaluation(m, 1.25, 4000), GT_OK);
    finish(&m);
    assert_string_equal(text, "step 1/5  loss  3.0000   2.00k tok/s     0:02 left   50% of gemm  "
                              "norm      1.5  lr 3.00e-04\n"
                              "step 2/5  loss  2.5000   2.00k tok/s     0:02 left   50% of gemm  "
                              "norm      1.5  lr 3.00e-04\n"
                              "step 4/5  loss  1.5000   2.00k tok/s     0:01 left   50% of gemm  "
                              "norm      1.5  lr 3.00e-04\n"
                              "step 5/5  loss  1.0000   2.00k tok/s     0:00 left   50% of gemm  "
                              "norm      1.5  lr 3.00e-04\n"
                              "step 5  validation loss 1.2500 over 4000 tokens\n");
    free(text);
}

static void interactive_line_is_redrawn_in_place(void **state)
{
    gt_monitor *m = make(NULL, 2, 1, 100);
    gt_step_result r = result(3);
    assert_int_equal(gt_monitor_step(m, &r), GT_OK);
    gt_monitor_message(m, "hello %d", 7);
    assert_int_equal(gt_monitor_step(m, &r), GT_OK);
    finish(&m);
    assert_non_null(strstr(text, "\r\x1b[2Khello 7\n["));
    assert_non_null(strstr(text, "step 1/2"));
    assert_non_null(strstr(text, "\r\x1b[2K[====="));
    assert_null(strstr(text, "\x1b[32m")); /* no colour: not a terminal */
    int lines = 0;
    for (const char *c = text; *c != '\0'; c++) {
        lines += *c == '\n';
    }
    assert_int_equal(lines, 2);
    assert_int_equal(text[strlen(text) - 1], '\n');
    free(text);
}

/* What a monitor writes to a terminal without a size, for values of TERM and COLUMNS. */
static void on_terminal(const char *term, const char *columns, char *seen, size_t size)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) {
        skip(); /* no terminals here: a chroot without /dev/pts */
    }
    FILE *terminal = fopen(ptsname(master), "w");
    assert_non_null(terminal);
    setenv("TERM", term, 1);
    setenv("COLUMNS", columns, 1);
    gt_monitor_params p = GT_MONITOR_PARAMS_INIT;
    p.stream = terminal;
    p.total_steps = 1;
    gt_monitor *m = NULL;
    gt_step_result r = result(3);
    assert_int_equal(gt_monitor_create(&m, &p), GT_OK);
    assert_int_equal(gt_monitor_step(m, &r), GT_OK);
    gt_monitor_destroy(&m);
    fflush(terminal);
    ssize_t n = read(master, seen, size - 1);
    assert_true(n > 0);
    seen[n] = '\0';
    fclose(terminal);
    close(master);
}

/* mpirun's ranks have such a terminal, also when its own output is a file. */
static void terminals_without_a_size(void **state)
{
    char seen[1024];
    on_terminal("dumb", "", seen, sizeof seen);
    assert_non_null(strstr(seen, "step 1/1"));
    assert_null(strchr(seen, '\x1b'));
    on_terminal("xterm", "80", seen, sizeof seen);
    assert_non_null(strstr(seen, "[\x1b[32m"));
    size_t usual = strlen(seen);
    on_terminal("xterm", "40", seen, sizeof seen);
    assert_true(strlen(seen) < usual);
}

static json_object *read_line(FILE *f)
{
    char line[2048];
    assert_non_null(fgets(line, sizeof line, f));
    json_object *o = json_tokener_parse(line);
    if (o == NULL) {
        fail_msg("no JSON: %s", line);
    }
    return o;
}

static double get(json_object *o, const char *name)
{
    json_object *v;
    assert_true(json_object_object_get_ex(o, name, &v));
    return json_object_get_double(v);
}

static void metrics_are_json_lines(void **state)
{
    gt_monitor *m = make(files_path("a/b/run"), 3, -1, 0);
    gt_step_result r = result(2.5);
    assert_int_equal(gt_monitor_step(m, &r), GT_OK);
    r.loss = NAN;
    r.gradient_norm = INFINITY;
    r.outcome = GT_STEP_SKIPPED_NONFINITE;
    strcpy(r.offender, "blocks.0.\"x\\y");
    r.offender_rank = 3;
    assert_int_equal(gt_monitor_step(m, &r), GT_OK);
    /* on disk already, before the monitor is closed */
    FILE *f = fopen(files_path("a/b/run/metrics.jsonl"), "r");
    assert_non_null(f);
    json_object *one = read_line(f), *two = read_line(f), *v;
    assert_true(get(one, "step") == 1 && get(one, "loss") == 2.5 && get(one, "tokens") == 1000);
    assert_true(get(one, "learning_rate") == 3e-4 && get(one, "seconds") == 0.5);
    assert_true(json_object_object_get_ex(two, "loss", &v) && v == NULL);
    assert_true(json_object_object_get_ex(two, "gradient_norm", &v) && v == NULL);
    assert_true(json_object_object_get_ex(two, "outcome", &v));
    assert_string_equal(json_object_get_string(v), "nonfinite");
    assert_true(json_object_object_get_ex(two, "offender", &v));
    assert_string_equal(json_object_get_string(v), "blocks.0.\"x\\y");
    assert_true(get(two, "offender_rank") == 3);
    json_object_put(one);
    json_object_put(two);
    assert_int_equal(gt_monitor_evaluation(m, 1.5, 64), GT_OK);
    one = read_line(f);
    assert_true(get(one, "step") == 2 && get(one, "validation_loss") == 1.5);
    json_object_put(one);
    fclose(f);
    finish(&m);
    assert_non_null(strstr(text, "step 2 skipped: non-finite gradients in blocks.0.\"x\\y"));
    free(text);
}

static void run_directory_holds_the_config(void **state)
{
    gt_config c, back;
    gt_config_init(&c);
    c.model.layers = 9;
    gt_monitor *m = NULL;
    gt_monitor_params p = GT_MONITOR_PARAMS_INIT;
    p.run_dir = files_path("with-config");
    p.config = &c;
    assert_int_equal(gt_monitor_create(&m, &p), GT_OK);
    gt_monitor_destroy(&m);
    assert_int_equal(gt_config_load(&back, NULL, files_path("with-config/config.json")), GT_OK);
    assert_memory_equal(&c, &back, sizeof c);
    p.run_dir = files_path("with-config"); /* again: an existing directory is fine */
    assert_int_equal(gt_monitor_create(&m, &p), GT_OK);
    gt_monitor_destroy(&m);
}

static void unwritable_run_directories(void **state)
{
    gt_monitor *m = NULL;
    gt_monitor_params p = GT_MONITOR_PARAMS_INIT;
    files_write("plain", "x", 1);
    p.run_dir = files_path("plain");
    assert_int_equal(gt_monitor_create(&m, &p), GT_ERR_IO);
    assert_non_null(strstr(gt_last_error(), "is not a directory"));
    p.run_dir = files_path("plain/sub");
    assert_int_equal(gt_monitor_create(&m, &p), GT_ERR_IO);
    p.run_dir = "/proc/geektrain";
    assert_int_equal(gt_monitor_create(&m, &p), GT_ERR_IO);
    assert_non_null(strstr(gt_last_error(), "cannot make the directory /proc/geektrain"));
    assert_int_equal(gt_make_directory(files_path("taken")), GT_OK);
    assert_int_equal(gt_make_directory(files_path("taken/metrics.jsonl")), GT_OK);
    p.run_dir = files_path("taken");
    assert_int_equal(gt_monitor_create(&m, &p), GT_ERR_IO);
    assert_non_null(strstr(gt_last_error(), "taken/metrics.jsonl: Is a directory"));
    assert_int_equal(gt_make_directory(files_path("taken/config.json")), GT_OK);
    gt_config config;
    gt_config_init(&config);
    p.config = &config;
    assert_int_equal(gt_monitor_create(&m, &p), GT_ERR_IO);
    assert_non_null(strstr(gt_last_error(), "taken/config.json: Is a directory"));
    assert_null(m);
}

/* A full disk is an error of the step, not silence. */
static void full_disk_is_an_error(void **state)
{
    char command[400];
    snprintf(command, sizeof command, "mkdir '%s/full' && ln -s /dev/full '%s/full/metrics.jsonl'",
             files_directory, files_directory);
    assert_int_equal(system(command), 0);
    gt_monitor *m = make(files_path("full"), 3, -1, 0);
    gt_step_result r = result(2.5);
    assert_int_equal(gt_monitor_step(m, &r), GT_ERR_IO);
    assert_non_null(strstr(gt_last_error(), "metrics.jsonl: No space left"));
    finish(&m);
    free(text);
}

/* A peak that was measured in a slow moment is no ceiling: it rises to what a step reaches. */
static void faster_steps_raise_the_peak(void **state)
{
    gt_monitor *m = make(NULL, 0, 0, 0);
    for (int i = 0; i < 200; i++) {
        gt_step_result r = result(1);
        r.seconds = i < 100 ? 0.125 : 0.25; /* 8e9 FLOP/s against a peak of 4e9, then half of it */
        assert_int_equal(gt_monitor_step(m, &r), GT_OK);
    }
    finish(&m);
    assert_non_null(strstr(text, "step      1  loss  1.0000   8.00k tok/s  100% of gemm"));
    assert_non_null(strstr(text, "step    100  loss  1.0000   8.00k tok/s  100% of gemm"));
    assert_non_null(strstr(text, "step    200  loss  1.0000   4.01k tok/s   50% of gemm"));
    free(text);
    (void)state;
}

static void peak_is_measured(void **state)
{
    gt_context *ctx;
    double flops = 0;
    gt_memory_stats stats;
    assert_int_equal(gt_context_create(&ctx, NULL), GT_OK);
    assert_int_equal(gt_peak_flops(ctx, GT_F32, &flops), GT_OK);
    assert_true(flops > 1e8 && flops < 1e15);
    gt_memory_get_stats(ctx, &stats);
    assert_int_equal(stats.live_total, 0);
    gt_memory_set_limit(ctx, 1 << 20);
    double before = flops;
    assert_int_equal(gt_peak_flops(ctx, GT_F32, &flops), GT_ERR_MEMORY);
    assert_true(flops == before);
    gt_context_destroy(&ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_and_durations),
        cmocka_unit_test(terminals_without_a_size),
        cmocka_unit_test(line_fits_every_width),
        cmocka_unit_test(plain_lines_without_a_terminal),
        cmocka_unit_test(interactive_line_is_redrawn_in_place),
        cmocka_unit_test(metrics_are_json_lines),
        cmocka_unit_test(run_directory_holds_the_config),
        cmocka_unit_test(unwritable_run_directories),
        cmocka_unit_test(full_disk_is_an_error),
        cmocka_unit_test(faster_steps_raise_the_peak),
        cmocka_unit_test(peak_is_measured),
    };
    return cmocka_run_group_tests(tests, files_open, files_close);
}
