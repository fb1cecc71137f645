/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

#include <json-c/json.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <geektrain/status.h>

#include "machine.h"

enum { CASES_MAX = 64, ROUNDS_LEAST = 3, ROUNDS_MIN = 20, ROUNDS_MAX = 1000 };

typedef struct entry {
    bench_case c;
    bool wanted, is_ceiling, is_value;
    int rounds;
    double seconds[ROUNDS_MAX];
    double median, minimum;
    double value_ceiling;
} entry;

struct bench {
    const char *name, *filter;
    bool json, cpu_time;
    int threads, count;
    double seconds;
    entry entries[CASES_MAX];
};

void bench_expect(int status, const char *call)
{
    if (status != 0) {
        fprintf(stderr, "%s: %s: %s\n", call, gt_status_name((gt_status)status), gt_last_error());
        exit(1);
    }
}

static void usage(const char *name, int status)
{
    fprintf(status == 0 ? stdout : stderr,
            "usage: %s [--json] [--filter TEXT] [--threads N] [--seconds S] [--cpu-time]\n", name);
    exit(status);
}

bench *bench_open(const char *name, int argc, char **argv)
{
    bench_choose_blas_kernels(argv);
    bench *b = calloc(1, sizeof *b);
    if (b == NULL) {
        fprintf(stderr, "%s: out of memory\n", name);
        exit(1);
    }
    b->name = name;
    b->seconds = 5.0;
    for (int i = 1; i < argc; i++) {
        const bool more = i + 1 < argc;
        if (strcmp(argv[i], "--json") == 0) {
            b->json = true;
        } else if (strcmp(argv[i], "--cpu-time") == 0) {
            b->cpu_time = true;
        } else if (strcmp(argv[i], "--filter") == 0 && more) {
            b->filter = argv[++i];
        } else if (strcmp(argv[i], "--threads") == 0 && more && atoi(argv[i + 1]) > 0) {
            b->threads = atoi(argv[++i]);
            omp_set_num_threads(b->threads);
        } else if (strcmp(argv[i], "--seconds") == 0 && more && atof(argv[i + 1]) > 0.0) {
            b->seconds = atof(argv[++i]);
        } else {
            usage(name, strcmp(argv[i], "--help") == 0 ? 0 : 2);
        }
    }
    return b;
}

int bench_threads(const bench *b)
{
    return b->threads;
}

bool bench_wants(const bench *b, const char *name)
{
    return b->filter == NULL || strstr(name, b->filter) != NULL;
}

static entry *new_entry(bench *b)
{
    if (b->count == CASES_MAX) {
        fprintf(stderr, "%s: more than %d cases\n", b->name, CASES_MAX);
        exit(1);
    }
    return &b->entries[b->count++];
}

int bench_add(bench *b, const bench_case *c)
{
    entry *e = new_entry(b);
    e->c = *c;
    e->wanted = bench_wants(b, c->name);
    if (e->wanted && c->ceiling >= 0) {
        b->entries[c->ceiling].wanted = true;
    }
    return b->count - 1;
}

int bench_add_ceiling(bench *b, const bench_case *c)
{
    entry *e = new_entry(b);
    e->c = *c;
    e->c.ceiling = BENCH_NO_CEILING;
    e->is_ceiling = true;
    return b->count - 1;
}

void bench_value(bench *b, const char *name, double value, const char *unit, double ceiling)
{
    entry *e = new_entry(b);
    e->c = (bench_case){.name = name, .unit = unit, .amount = value, .ceiling = BENCH_NO_CEILING};
    e->is_value = true;
    e->wanted = bench_wants(b, name);
    e->median = e->minimum = 1.0;
    e->value_ceiling = ceiling;
}

static int compare(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double read_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double bench_now(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

static void time_once(entry *e, clockid_t clock)
{
    const double start = read_clock(clock);
    e->c.run(e->c.user);
    e->seconds[e->rounds++] = read_clock(clock) - start;
}

static void run_all(bench *b)
{
    for (int i = 0; i < b->count; i++) {
        entry *e = &b->entries[i];
        if (e->wanted && !e->is_value) {
            e->c.run(e->c.user);
        }
    }
    const double start = bench_now();
    for (int round = 0; round < ROUNDS_MAX; round++) {
        const double spent = bench_now() - start;
        if ((round >= ROUNDS_MIN && spent > 1.0) || (round >= ROUNDS_LEAST && spent > b->seconds)) {
            break;
        }
        for (int i = 0; i < b->count; i++) {
            if (b->entries[i].wanted && !b->entries[i].is_value) {
                time_once(&b->entries[i], b->cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC);
            }
        }
    }
    for (int i = 0; i < b->count; i++) {
        entry *e = &b->entries[i];
        if (e->rounds > 0) {
            qsort(e->seconds, (size_t)e->rounds, sizeof(double), compare);
            e->minimum = e->seconds[0];
            e->median = 0.5 * (e->seconds[(e->rounds - 1) / 2] + e->seconds[e->rounds / 2]);
        }
    }
}

/* ---- the report -------------------------------------------------------------------------------*/
static double figure(const entry *e)
{
    return e->c.amount / e->median;
}

static double ceiling_of(const bench *b, const entry *e)
{
    if (e->c.ceiling < 0) {
        return e->value_ceiling;
    }
    return figure(&b->entries[e->c.ceiling]);
}

static void put_result(struct json_object *results, const bench *b, const entry *e)
{
    struct json_object *r = json_object_new_object();
    const double ceiling = ceiling_of(b, e);
    json_object_object_add(r, "name", json_object_new_string(e->c.name));
    json_object_object_add(r, "value", json_object_new_double(figure(e)));
    json_object_object_add(r, "unit", json_object_new_string(e->c.unit));
    if (ceiling > 0.0) {
        json_object_object_add(r, "ceiling", json_object_new_double(ceiling));
        json_object_object_add(r, "ratio", json_object_new_double(figure(e) / ceiling));
    }
    if (!e->is_value) {
        json_object_object_add(r, "best", json_object_new_double(e->c.amount / e->minimum));
        json_object_object_add(r, "runs", json_object_new_int(e->rounds));
    }
    json_object_array_add(results, r);
}

static void print_json(const bench *b)
{
    struct json_object *root = json_object_new_object(), *results = json_object_new_array();
    char machine[256];
    json_object_object_add(root, "bench", json_object_new_string(b->name));
    json_object_object_add(root, "machine",
                           json_object_new_string(bench_machine(machine, sizeof machine)));
    json_object_object_add(root, "commit", json_object_new_string(bench_commit()));
    json_object_object_add(root, "flags", json_object_new_string(bench_flags()));
    for (int i = 0; i < b->count; i++) {
        if (b->entries[i].wanted) {
            put_result(results, b, &b->entries[i]);
        }
    }
    json_object_object_add(root, "results", results);
    puts(json_object_to_json_string_ext(root,
                                        JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_NOSLASHESCAPE));
    json_object_put(root);
}

static void print_table(const bench *b)
{
    char machine[256];
    printf("%s on %s\ncommit %s, %s\n\n", b->name, bench_machine(machine, sizeof machine),
           bench_commit(), bench_flags());
    printf("%-34s %12s %-10s %12s %12s %7s %5s\n", "name", "value", "unit", "best", "ceiling",
           "ratio", "runs");
    for (int i = 0; i < b->count; i++) {
        const entry *e = &b->entries[i];
        if (!e->wanted) {
            continue;
        }
        const double ceiling = ceiling_of(b, e);
        printf("%-34s %12.4g %-10s ", e->c.name, figure(e), e->c.unit);
        if (e->is_value) {
            printf("%12s ", "");
        } else {
            printf("%12.4g ", e->c.amount / e->minimum);
        }
        if (ceiling > 0.0) {
            printf("%12.4g %7.3f ", ceiling, figure(e) / ceiling);
        } else {
            printf("%12s %7s ", "", "");
        }
        printf("%5d\n", e->rounds);
    }
}

int bench_close(bench *b)
{
    run_all(b);
    if (b->json) {
        print_json(b);
    } else {
        print_table(b);
    }
    bench_free_ceilings();
    free(b);
    return 0;
}
