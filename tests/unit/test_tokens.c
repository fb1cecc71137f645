/* SPDX-License-Identifier: Apache-2.0
 * Token files: each format, good and damaged. */
#include <dirent.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <sys/resource.h>
#include <cmocka.h>

#include <geektrain/data.h>

#include "files.h"

static gt_tokens *open_ok(const char *paths, const char *format, int64_t vocab)
{
    gt_tokens *t = NULL;
    if (gt_tokens_open(&t, paths, format, vocab) != GT_OK) {
        fail_msg("%s: %s", paths, gt_last_error());
    }
    return t;
}

static void refuse(const char *paths, const char *format, gt_status want, const char *says)
{
    gt_tokens *t = (gt_tokens *)8;
    gt_status st = gt_tokens_open(&t, paths, format, 0);
    if (st != want || strstr(gt_last_error(), says) == NULL) {
        fail_msg("%s: %s: %s; wanted %s: %s", paths, gt_status_name(st), gt_last_error(),
                 gt_status_name(want), says);
    }
    assert_ptr_equal(t, (gt_tokens *)8);
}

static void expect(gt_tokens *t, int64_t first, int64_t count, const int32_t *want)
{
    int32_t got[64];
    assert_int_equal(gt_tokens_read(t, first, count, got), GT_OK);
    assert_memory_equal(got, want, (size_t)count * sizeof *want);
}

static void bytes_of_any_file(void **state)
{
    gt_tokens *t = open_ok(files_write("a.txt",
                                       "\xff"
                                       "abc",
                                       4),
                           "auto", 256);
    assert_int_equal(gt_tokens_count(t), 4);
    assert_string_equal(gt_tokens_format(t), "bytes");
    expect(t, 0, 4, (int32_t[]){255, 'a', 'b', 'c'});
    int32_t got[8];
    assert_int_equal(gt_tokens_read(t, 0, 5, got), GT_ERR_ARGUMENT);
    assert_int_equal(gt_tokens_read(t, -1, 1, got), GT_ERR_ARGUMENT);
    assert_int_equal(gt_tokens_read(t, INT64_MAX, 1, got), GT_ERR_ARGUMENT);
    assert_int_equal(gt_tokens_read(t, 4, 0, got), GT_OK);
    gt_tokens_close(&t);
    assert_null(t);
    gt_tokens_close(&t);
}

static void shards_join(void **state)
{
    const char *a = files_write("s0.txt", "abc", 3), *b = files_write("s1.txt", "d", 1),
               *c = files_write("s2.txt", "efg", 3);
    char list[600];
    snprintf(list, sizeof list, "%s:%s:%s", a, b, c);
    gt_tokens *t = open_ok(list, "bytes", 0);
    assert_int_equal(gt_tokens_count(t), 7);
    for (int first = 0; first < 7; first++) {
        for (int count = 0; first + count <= 7; count++) {
            int32_t want[] = {'a', 'b', 'c', 'd', 'e', 'f', 'g'};
            expect(t, first, count, want + first);
        }
    }
    gt_tokens *g = open_ok(files_path("s?.txt"), NULL, 0);
    assert_int_equal(gt_tokens_count(g), 7);
    assert_true(gt_tokens_hash(t) == gt_tokens_hash(g));
    snprintf(list, sizeof list, "%s:%s:%s", a, b, files_write("s3.txt", "efh", 3));
    gt_tokens *h = open_ok(list, "bytes", 0);
    assert_true(gt_tokens_hash(t) != gt_tokens_hash(h));
    gt_tokens_close(&h);
    gt_tokens_close(&g);
    gt_tokens_close(&t);
}

static void missing_and_empty_files(void **state)
{
    refuse(files_path("none.txt"), "auto", GT_ERR_IO, "No such file");
    refuse(files_path("none*.txt"), "auto", GT_ERR_IO, "no such file");
    refuse(files_write("empty.txt", "", 0), "auto", GT_ERR_FORMAT, "is empty");
    refuse(files_directory, "bytes", GT_ERR_IO, "not a regular file");
    refuse("", "auto", GT_ERR_ARGUMENT, "no token file");
    refuse(":", "auto", GT_ERR_ARGUMENT, "no token file");
    refuse(files_write("x.txt", "x", 1), "parquet", GT_ERR_ARGUMENT, "\"parquet\" is not known");
    refuse(files_write("x.bin", "xxxxx", 5), "auto", GT_ERR_FORMAT, "neither llm.c's magic");
}

static size_t llmc(unsigned char *out, int32_t magic, int32_t version, int32_t count,
                   const void *tokens, size_t bytes)
{
    int32_t header[256] = {magic, version, count};
    memcpy(out, header, sizeof header);
    memcpy(out + sizeof header, tokens, bytes);
    return sizeof header + bytes;
}

static void llmc_files(void **state)
{
    unsigned char file[1100];
    const uint16_t short_tokens[] = {0, 50256, 7};
    const uint32_t long_tokens[] = {128000, 5};
    size_t n = llmc(file, 20240520, 1, 3, short_tokens, 6);
    const char *good = files_write("good.bin", file, n);
    gt_tokens *t = open_ok(good, "auto", 50257);
    assert_string_equal(gt_tokens_format(t), "llmc");
    assert_int_equal(gt_tokens_count(t), 3);
    expect(t, 0, 3, (int32_t[]){0, 50256, 7});
    gt_tokens_close(&t);
    t = open_ok(good, "llmc", 50256);
    int32_t got[3];
    assert_int_equal(gt_tokens_read(t, 0, 3, got), GT_ERR_FORMAT);
    assert_non_null(strstr(gt_last_error(), "token 1 of "));
    assert_non_null(strstr(gt_last_error(), "good.bin is 50256, wanted 0 to 50255"));
    gt_tokens_close(&t);

    refuse(files_write("cut.bin", file, n - 1), "auto", GT_ERR_FORMAT,
           "has 1029 bytes, but its header promises 3 tokens = 1030");
    refuse(files_write("short.bin", file, 100), "auto", GT_ERR_FORMAT, "less than llm.c's header");
    refuse(files_write("long.bin", file, n + 1), "auto", GT_ERR_FORMAT, "has 1031 bytes");
    n = llmc(file, 20240520, 2, 3, short_tokens, 6);
    refuse(files_write("version.bin", file, n), "auto", GT_ERR_FORMAT, "version 2, wanted 1");
    n = llmc(file, 20240521, 1, 3, short_tokens, 6);
    refuse(files_write("magic.bin", file, n), "llmc", GT_ERR_FORMAT, "begins with 20240521");
    n = llmc(file, 20240520, 1, -3, short_tokens, 6);
    refuse(files_write("minus.bin", file, n), "auto", GT_ERR_FORMAT, "promises -3 tokens");
    n = llmc(file, 20240801, 7, 2, long_tokens, 8);
    t = open_ok(files_write("llama.bin", file, n), "auto", 0);
    expect(t, 0, 2, (int32_t[]){128000, 5});
    gt_tokens_close(&t);
    char mixed[400];
    snprintf(mixed, sizeof mixed, "%s:%s", good, files_write("m.txt", "m", 1));
    refuse(mixed, "auto", GT_ERR_FORMAT, "in format bytes, but");
}

/* Field case 69: 2 documents of 3 and 5 u16 tokens. */
typedef struct pair {
    unsigned char idx[128], bin[16];
    size_t idx_size, bin_size;
} pair;

static void put(unsigned char *at, const void *value, size_t n)
{
    memcpy(at, value, n);
}
#define PUT(at, type, value) put((at), &(type){value}, sizeof(type))

static pair good_pair(void)
{
    pair p = {.idx_size = 82, .bin_size = 16};
    memcpy(p.idx, "MMIDIDX\0\0", 9);
    PUT(p.idx + 9, uint64_t, 1);
    p.idx[17] = 8;
    PUT(p.idx + 18, uint64_t, 2);
    PUT(p.idx + 26, uint64_t, 3);
    PUT(p.idx + 34, int32_t, 3);
    PUT(p.idx + 38, int32_t, 5);
    PUT(p.idx + 42, int64_t, 0);
    PUT(p.idx + 50, int64_t, 6);
    for (int64_t i = 0; i < 3; i++) {
        PUT(p.idx + 58 + 8 * i, int64_t, i);
    }
    for (uint16_t i = 0; i < 8; i++) {
        PUT(p.bin + 2 * i, uint16_t, (uint16_t)(i * 1000));
    }
    return p;
}

static const char *write_pair(const pair *p)
{
    files_write("pair.idx", p->idx, p->idx_size);
    return files_write("pair.bin", p->bin, p->bin_size);
}

static void megatron_pair(void **state)
{
    pair p = good_pair();
    write_pair(&p);
    const char *names[] = {"pair.bin", "pair.idx", "pair", "pair.*"};
    for (int i = 0; i < 4; i++) {
        gt_tokens *t = open_ok(files_path(names[i]), "auto", 0);
        assert_string_equal(gt_tokens_format(t), "megatron");
        assert_int_equal(gt_tokens_count(t), 8);
        for (int first = 0; first < 8; first++) {
            int32_t want[] = {0, 1000, 2000, 3000, 4000, 5000, 6000, 7000};
            expect(t, first, 8 - first, want + first);
        }
        gt_tokens_close(&t);
    }
    /* the sequences in the other order */
    PUT(p.idx + 42, int64_t, 10);
    PUT(p.idx + 50, int64_t, 0);
    gt_tokens *t = open_ok(write_pair(&p), "megatron", 0);
    expect(t, 0, 8, (int32_t[]){5000, 6000, 7000, 0, 1000, 2000, 3000, 4000});
    gt_tokens_close(&t);
    /* i32 tokens, one of them negative */
    p = good_pair();
    p.idx[17] = 4;
    PUT(p.idx + 34, int32_t, 1);
    PUT(p.idx + 38, int32_t, 3);
    PUT(p.idx + 50, int64_t, 4);
    for (int32_t i = 0; i < 4; i++) {
        PUT(p.bin + 4 * i, int32_t, i < 3 ? i * 100000 : -1);
    }
    t = open_ok(write_pair(&p), "megatron", 0);
    expect(t, 0, 3, (int32_t[]){0, 100000, 200000});
    int32_t got[4];
    assert_int_equal(gt_tokens_read(t, 0, 4, got), GT_ERR_FORMAT);
    assert_non_null(strstr(gt_last_error(), "is -1"));
    gt_tokens_close(&t);
}

static void damaged_megatron_pairs_are_refused(void **state)
{
    enum {
        MAGIC,
        VERSION,
        CODE9,
        CODE6,
        POINTER,
        POINTER_MINUS,
        POINTER_WRAP,
        COUNT,
        COUNT_DOCUMENTS,
        IDX_CUT,
        BIN_CUT,
        EMPTY_SEQUENCE,
        EMPTY_DOCUMENT,
        LAST_DOCUMENT,
        HEADER_CUT,
        ZERO,
        KINDS
    };
    static const char *const says[KINDS] = {
        [MAGIC] = "does not begin like",
        [VERSION] = "version 2, wanted 1",
        [CODE9] = "dtype code 9",
        [CODE6] = "dtype code 6 (a float)",
        [POINTER] = "sequence 1 of",
        [POINTER_MINUS] = "sequence 1 of",
        [POINTER_WRAP] = "sequence 1 of",
        [COUNT] = "1152921504606846976 sequences",
        [COUNT_DOCUMENTS] = "1152921504606846976 documents",
        [IDX_CUT] = "has 81 bytes, wanted 82",
        [BIN_CUT] = "sequence 1 of",
        [EMPTY_SEQUENCE] = "sequence 1 of",
        [EMPTY_DOCUMENT] = "document 1 of",
        [LAST_DOCUMENT] = "document 2 of",
        [HEADER_CUT] = "does not begin like",
        [ZERO] = "0 sequences",
    };
    for (int kind = 0; kind < KINDS; kind++) {
        pair p = good_pair();
        switch (kind) {
        case MAGIC:
            p.idx[8] = 1;
            break;
        case VERSION:
            p.idx[9] = 2;
            break;
        case CODE9:
            p.idx[17] = 9;
            break;
        case CODE6:
            p.idx[17] = 6;
            break;
        case POINTER:
            PUT(p.idx + 50, int64_t, 8);
            break;
        case POINTER_MINUS:
            PUT(p.idx + 50, int64_t, -2);
            break;
        case POINTER_WRAP:
            PUT(p.idx + 50, int64_t, INT64_MAX - 1);
            break;
        case COUNT:
            PUT(p.idx + 18, uint64_t, (uint64_t)1 << 60);
            break;
        case COUNT_DOCUMENTS:
            PUT(p.idx + 26, uint64_t, (uint64_t)1 << 60);
            break;
        case IDX_CUT:
            p.idx_size--;
            break;
        case BIN_CUT:
            p.bin_size--;
            break;
        case EMPTY_SEQUENCE:
            PUT(p.idx + 38, int32_t, 0);
            break;
        case EMPTY_DOCUMENT:
            PUT(p.idx + 66, int64_t, 0);
            break;
        case LAST_DOCUMENT:
            PUT(p.idx + 74, int64_t, 3);
            break;
        case HEADER_CUT:
            p.idx_size = 20;
            break;
        case ZERO:
            PUT(p.idx + 18, uint64_t, 0);
            break;
        }
        refuse(write_pair(&p), "auto", GT_ERR_FORMAT, says[kind]);
    }
    refuse(files_write("lonely.bin", "x", 1), "megatron", GT_ERR_IO, "lonely.idx");
}

static int open_descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d != NULL && readdir(d) != NULL) {
        n++;
    }
    closedir(d);
    return n;
}

/* Field case 45. */
static void hundred_shards_with_few_descriptors(void **state)
{
    for (int i = 0; i < 100; i++) {
        char name[32];
        snprintf(name, sizeof name, "many-%03d.txt", i);
        files_write(name, &(char){(char)i}, 1);
    }
    struct rlimit before, few;
    getrlimit(RLIMIT_NOFILE, &before);
    few = before;
    few.rlim_cur = 64;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    int open_before = open_descriptors();
    gt_tokens *t = open_ok(files_path("many-*.txt"), "auto", 0);
    assert_int_equal(open_descriptors(), open_before);
    assert_int_equal(gt_tokens_count(t), 100);
    int32_t got[100];
    assert_int_equal(gt_tokens_read(t, 0, 100, got), GT_OK);
    assert_int_equal(got[99], 99);
    gt_tokens_close(&t);
    setrlimit(RLIMIT_NOFILE, &before);
}

static uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* Damage at random: refused or read, never a fault, never a token outside the file's own. */
static void mutated_files_never_fault(void **state)
{
    uint32_t r = 12345;
    for (int round = 0; round < 3000; round++) {
        pair p = good_pair();
        int hits = 1 + (int)(next_random(&r) % 4);
        for (int i = 0; i < hits; i++) {
            p.idx[next_random(&r) % 82] = (unsigned char)(next_random(&r) >> 24);
        }
        if (next_random(&r) % 8 == 0) {
            p.idx_size = next_random(&r) % 120;
            p.bin_size = next_random(&r) % 17;
        }
        gt_tokens *t = NULL;
        if (gt_tokens_open(&t, write_pair(&p), "megatron", 0) == GT_OK) {
            int32_t got[64];
            int64_t n = gt_tokens_count(t);
            assert_in_range(n, 1, 16);
            (void)gt_tokens_read(t, 0, n, got);
            gt_tokens_close(&t);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_of_any_file),
        cmocka_unit_test(shards_join),
        cmocka_unit_test(missing_and_empty_files),
        cmocka_unit_test(llmc_files),
        cmocka_unit_test(megatron_pair),
        cmocka_unit_test(damaged_megatron_pairs_are_refused),
        cmocka_unit_test(hundred_shards_with_few_descriptors),
        cmocka_unit_test(mutated_files_never_fault),
    };
    return cmocka_run_group_tests(tests, files_open, files_close);
}
