/* SPDX-License-Identifier: Apache-2.0
 * Schedules on paper: CSV files, the text timeline, the SVG picture. */
#include <unistd.h>

#include "harness.h"

#include <geektrain/schedule.h>

static const gt_stage_cost unit = {1, 1, 1, 0, 0};

static gt_schedule *make(const char *name, int p, int m, int v)
{
    gt_schedule *s = NULL;
    TH_OK(gt_schedule_create(&s, name, p, m, v));
    return s;
}

static void same_lists(const gt_schedule *a, const gt_schedule *b)
{
    for (int r = 0; r < gt_schedule_ranks(a); r++) {
        const gt_action *x, *y;
        int n = gt_schedule_actions(a, r, &x);
        TH_EQUAL(gt_schedule_actions(b, r, &y), n);
        for (int i = 0; i < n; i++) {
            TH_TRUE(x[i].kind == y[i].kind && x[i].microbatch == y[i].microbatch &&
                    x[i].chunk == y[i].chunk);
        }
    }
}

static void csv_comes_back(void **state)
{
    (void)state;
    char path[] = "/tmp/schedule-XXXXXX.csv";
    int fd = mkstemps(path, 4);
    TH_TRUE(fd >= 0);
    static const char *const names[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"};
    static const int chunks[] = {2, 1, 3, 1, 1, 2};
    for (int k = 0; k < 6; k++) {
        for (int transfers = 0; transfers < 2; transfers++) {
            gt_schedule *s = make(names[k], 3, 5, chunks[k]), *t = NULL;
            TH_OK(gt_schedule_write_csv(s, path, transfers));
            TH_OK(gt_schedule_create(&t, path, 3, 5, 0));
            same_lists(s, t);
            gt_schedule_destroy(&t);
            TH_FAILS(gt_schedule_create(&t, path, 3, 6, 0), GT_ERR_CONFIG, "5 microbatches");
            gt_schedule_destroy(&s);
        }
    }
    remove(path);
    close(fd);
}

static void csv_refuses(void **state)
{
    (void)state;
    static const char *const bad[][2] = {{"0F0,0B0\n1F0,1Q0\n", "rank 1 has the cell \"1Q0\""},
                                         {"0F0,0B\n", "\"0B\""},
                                         {"0F0,0B0x\n", "\"0B0x\""},
                                         {"F0\n", "\"F0\""},
                                         {"", "0 ranks"},
                                         {"0F0,0B0\n2F0,2B0\n", "whole number"},
                                         {"0F0,0B0\n0F0,1F0,1B0\n", "rank 0 and rank 1"},
                                         {"0F0,1F0,2F0\n3F0\n", "too many stages"},
                                         {"0F99999999999,0B0\n", "\"0F99999999999\""},
                                         {"0F0\n", "lacks backward"}};
    char path[] = "/tmp/schedule-XXXXXX.csv";
    int fd = mkstemps(path, 4);
    TH_TRUE(fd >= 0);
    close(fd);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        FILE *f = fopen(path, "w");
        fputs(bad[i][0], f);
        fclose(f);
        gt_schedule *s = NULL;
        TH_FAILS(gt_schedule_create(&s, path, 0, 0, 0), GT_ERR_FORMAT, bad[i][1]);
    }
    /* Blanks, quotes, comments, the sharding actions of others. */
    FILE *f = fopen(path, "w");
    fputs("# mine\n\"0UNSHARD\", 0F0 ,,0F1, 0B0, 0B1,0RESHARD\n,1F0,1B0, ,1F1,1B1\n\n", f);
    fclose(f);
    gt_schedule *s = NULL;
    TH_OK(gt_schedule_create(&s, path, 0, 0, 0));
    TH_EQUAL(gt_schedule_ranks(s), 2);
    gt_schedule_destroy(&s);
    remove(path);
}

static void print_draws_timeline(void **state)
{
    (void)state;
    gt_schedule *s = make("1f1b", 2, 3, 1), *v = make("interleaved", 2, 2, 2);
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    TH_OK(gt_schedule_print(s, &unit, 1, 0, f));
    TH_OK(gt_schedule_print(s, &unit, 1, 12, f));
    TH_OK(gt_schedule_print(v, &unit, 1, 0, f));
    fclose(f);
    assert_string_equal(text,
                        "rank 0 |F0 F1 ......B0    F2 B1    ...B2    |\n"
                        "rank 1 |...F0 B0    F1 B1    F2 B2    ......|\n"
                        "rank 0 |FF..B0FB1.B2|\n"
                        "rank 1 |.FB0FB1FB2..|\n"
                        "rank 0 |F0a F1a F0b F1b ........B0b     ....B1b     B0a     B1a     |\n"
                        "rank 1 |....F0a F1a F0b B0b     F1b B1b     B0a     B1a     ........|\n");
    free(text);
    gt_schedule_destroy(&s);
    gt_schedule_destroy(&v);
}

static int occurrences(const char *text, const char *what)
{
    int n = 0;
    for (const char *at = strstr(text, what); at; at = strstr(at + 1, what)) {
        n++;
    }
    return n;
}

static void write_svg_draws_every_action(void **state)
{
    (void)state;
    char path[] = "/tmp/schedule-XXXXXX.svg";
    int fd = mkstemps(path, 4);
    TH_TRUE(fd >= 0);
    gt_schedule *s = make("zb-v", 3, 4, 2);
    TH_OK(gt_schedule_write_svg(s, &unit, 1, path));
    off_t size = lseek(fd, 0, SEEK_END);
    char *text = calloc((size_t)size + 1, 1);
    TH_EQUAL(pread(fd, text, (size_t)size, 0), size);
    TH_EQUAL(occurrences(text, "<g>"), 3 * 4 * 2 * 3);
    TH_EQUAL(occurrences(text, "</g>"), 3 * 4 * 2 * 3);
    TH_EQUAL(occurrences(text, "reduce of chunk"), 3 * 2);
    TH_TRUE(strstr(text, "</svg>\n") == text + size - 7);
    TH_FAILS(gt_schedule_write_svg(s, &unit, 1, "/nowhere/a.svg"), GT_ERR_IO, "/nowhere/a.svg");
    free(text);
    close(fd);
    remove(path);
    gt_schedule_destroy(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(csv_comes_back),
        cmocka_unit_test(csv_refuses),
        cmocka_unit_test(print_draws_timeline),
        cmocka_unit_test(write_svg_draws_every_action),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
