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
    refuse(files_directory, "bytes", GT_ERR_IO, "is a folder, not a regular file");
    refuse("/dev/null", "bytes", GT_ERR_IO, "not a regular file, so it cannot be mapped");
    refuse("", "auto", GT_ERR_ARGUMENT, "no token file");
    refuse(":", "auto", GT_ERR_ARGUMENT, "no token file");
    refuse(files_write("x.txt", "x", 1), "parquet", GT_ERR_ARGUMENT, "\"parquet\" is not known");
}

static void null_is_an_argument_error(void **state)
{
    gt_tokens *t = NULL;
    const char *path = files_write("null.txt", "abc", 3);
    assert_int_equal(gt_tokens_open(NULL, path, "auto", 0), GT_ERR_ARGUMENT);
    assert_int_equal(gt_tokens_open(&t, NULL, "auto", 0), GT_ERR_ARGUMENT);
    assert_int_equal(gt_tokens_open(&t, path, "auto", -1), GT_ERR_ARGUMENT);
    assert_int_equal(gt_tokens_open(&t, path, "auto", INT64_MIN), GT_ERR_ARGUMENT);
    assert_null(t);
    assert_int_equal(gt_tokens_read(NULL, 0, 0, &(int32_t){0}), GT_ERR_ARGUMENT);
    assert_int_equal(gt_tokens_count(NULL), 0);
    assert_string_equal(gt_tokens_format(NULL), "");
    assert_true(gt_tokens_hash(NULL) == 0);
    gt_tokens_close(NULL);
    gt_tokens_close(&t);
    t = open_ok(path, NULL, INT64_MAX);
    assert_int_equal(gt_tokens_read(t, 0, 3, NULL), GT_ERR_ARGUMENT);
    assert_int_equal(gt_tokens_read(t, 0, 0, NULL), GT_OK);
    assert_int_equal(gt_tokens_read(t, INT64_MIN, INT64_MAX, &(int32_t){0}), GT_ERR_ARGUMENT);
    gt_tokens_close(&t);
}

/* ---- what "auto" takes a file for */
enum { MANY = 3000 };

static void *numbers(int size, uint32_t limit, void *out)
{
    unsigned char *at = out;
    uint32_t r = 99;
    for (int i = 0; i < MANY; i++) {
        r = r * 1664525 + 1013904223;
        uint64_t v = (r >> 8) % (limit - 1);
        v = i == 7 ? limit - 1 : i % 3 == 0 ? v % 100 : v;
        memcpy(at + i * size, &v, (size_t)size);
    }
    return out;
}

static void plain_numbers_are_recognized_by_the_vocabulary(void **state)
{
    static unsigned char space[8 * MANY + 8];
    static const struct {
        int size;
        const char *format;
    } rows[] = {{2, "u16"}, {4, "u32"}, {8, "i64"}};
    static const uint32_t limits[] = {65, 256, 50257, 65534};
    for (int i = 0; i < 3; i++) {
        for (size_t k = 0; k < 4; k++) {
            int size = rows[i].size;
            const char *path =
                files_write("plain.bin", numbers(size, limits[k], space), (size_t)(size * MANY));
            gt_tokens *t = open_ok(path, "auto", limits[k]);
            assert_string_equal(gt_tokens_format(t), rows[i].format);
            assert_int_equal(gt_tokens_count(t), MANY);
            int32_t got = -1;
            assert_int_equal(gt_tokens_read(t, 7, 1, &got), GT_OK);
            assert_int_equal(got, limits[k] - 1);
            gt_tokens_close(&t);
            t = NULL;
            assert_int_equal(gt_tokens_open(&t, path, "auto", limits[k] - 1), GT_ERR_FORMAT);
            assert_non_null(strstr(gt_last_error(), "Say the format (u16, u32, i64 or bytes)"));
            assert_int_equal(gt_tokens_open(&t, path, rows[i].format, limits[k] - 1),
                             GT_ERR_FORMAT);
            assert_non_null(strstr(gt_last_error(), "token 7 of "));
            assert_null(t);
            t = open_ok(path, "bytes", 0);
            assert_int_equal(gt_tokens_count(t), size * MANY);
            gt_tokens_close(&t);
            refuse(path, "auto", GT_ERR_FORMAT, "no vocabulary is given");
        }
    }
    /* odd sizes, random bytes, a vocabulary that any 16 bits fit, zeros, too few to tell */
    numbers(2, 50257, space);
    refuse(files_write("odd.bin", space, 2 * MANY - 1), "u16", GT_ERR_FORMAT,
           "no multiple of the 2");
    gt_tokens *t = (gt_tokens *)8;
    assert_int_equal(gt_tokens_open(&t, files_write("odd.bin", space, 2 * MANY - 1), "auto", 50257),
                     GT_ERR_FORMAT);
    assert_int_equal(gt_tokens_open(&t, files_write("big.bin", space, 2 * MANY), "auto", 128256),
                     GT_ERR_FORMAT);
    assert_int_equal(gt_tokens_open(&t, files_write("few.bin", space, 40), "auto", 50257),
                     GT_ERR_FORMAT);
    for (size_t i = 0; i < sizeof space; i++) {
        space[i] = (unsigned char)(i * i * 131 + i * 7 + 3 + i / 256);
    }
    assert_int_equal(gt_tokens_open(&t, files_write("noise.bin", space, 8 * MANY), "auto", 50257),
                     GT_ERR_FORMAT);
    memset(space, 0, sizeof space);
    assert_int_equal(gt_tokens_open(&t, files_write("zero.bin", space, 8 * MANY), "auto", 50257),
                     GT_ERR_FORMAT);
    assert_ptr_equal(t, (gt_tokens *)8);
    /* a last shard that is too short to tell is what the one before it is */
    char both[600];
    snprintf(both, sizeof both, "%s:%s", files_write("p0.bin", numbers(2, 50257, space), 2 * MANY),
             files_write("p1.bin", space, 6));
    t = open_ok(both, "auto", 50257);
    assert_int_equal(gt_tokens_count(t), MANY + 3);
    gt_tokens_close(&t);
}

static void text_of_any_name_is_bytes(void **state)
{
    static const char *const texts[] = {"x",
                                        "plain\n",
                                        "\xef\xbb\xbf na\xc3\xafve \xe6\x97\xa5",
                                        "Gr\xfc\xdf"
                                        "e in Latin-1",
                                        "{\"text\": \"json\"}\n",
                                        "\x1b[31mred\x1b[0m\r\n\f\b"};
    static const char *const names[] = {"t.txt", "t.bin", "t", "t.dat"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        for (int k = 0; k < 4; k++) {
            gt_tokens *t = open_ok(files_write(names[k], texts[i], strlen(texts[i])), "auto", 256);
            assert_string_equal(gt_tokens_format(t), "bytes");
            gt_tokens_close(&t);
        }
    }
    /* a vocabulary that lacks what the text has */
    gt_tokens *t = NULL;
    assert_int_equal(gt_tokens_open(&t, files_write("t.txt", "abc\xff", 4), "auto", 128),
                     GT_ERR_FORMAT);
    assert_non_null(
        strstr(gt_last_error(), "(bytes) is 255, wanted 0 to 127, what the vocabulary"));
}

static void other_files_are_named(void **state)
{
    static const struct {
        const char *begin, *says;
    } rows[] = {{"\x1f\x8b", "gzip; unpack it"},
                {"\x28\xb5\x2f\xfd", "zstd; unpack it"},
                {"PK\x03\x04", "a zip archive"},
                {"PAR1", "a Parquet file"},
                {"\x89HDF", "an HDF5 file"},
                {"\x80\x04", "a pickle"},
                {"\xff\xfe", "text in UTF-16"},
                {"%PDF", "a PDF file"},
                {"BZh", "bzip2; unpack it first"},
                {"\xfd"
                 "7zXZ",
                 "xz; unpack it first"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unsigned char file[200];
        for (size_t k = 0; k < sizeof file; k++) {
            file[k] = (unsigned char)(k * 37);
        }
        memcpy(file, rows[i].begin, strlen(rows[i].begin));
        const char *path = files_write("other", file, sizeof file);
        refuse(path, "auto", GT_ERR_FORMAT, rows[i].says);
        gt_tokens *t = open_ok(path, "bytes", 256); /* told: as it is */
        assert_int_equal(gt_tokens_count(t), 200);
        gt_tokens_close(&t);
    }
}

/* ---- numpy.save() */
static const char *write_npy(const char *dictionary, int major, const void *values, size_t bytes)
{
    static unsigned char file[1024];
    size_t n = strlen(dictionary), at = major == 1 ? 10 : 12;
    memset(file, 0, sizeof file);
    memcpy(file, "\x93NUMPY", 6);
    file[6] = (unsigned char)major;
    memcpy(file + 8, &(uint32_t){(uint32_t)n}, major == 1 ? 2 : 4);
    memcpy(file + at, dictionary, n);
    memcpy(file + at + n, values, bytes);
    return files_write("array.npy", file, at + n + bytes);
}

static void npy_files(void **state)
{
    const uint16_t u16[] = {1, 2, 50256, 4};
    const int64_t i64[] = {1, 2, 50256, 4};
    static const char *const good[] = {
        "{'descr': '<u2', 'fortran_order': False, 'shape': (4,), }   \n",
        "{'descr': '<u2', 'fortran_order': True, 'shape': (4,), }\n",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 2), }\n",
        "{'shape': (1,4), 'fortran_order': False, 'descr': '<u2'}"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        for (int major = 1; major <= 3; major++) {
            gt_tokens *t = open_ok(write_npy(good[i], major, u16, sizeof u16), "auto", 50257);
            assert_string_equal(gt_tokens_format(t), "npy");
            assert_int_equal(gt_tokens_count(t), 4);
            expect(t, 0, 4, (int32_t[]){1, 2, 50256, 4});
            gt_tokens_close(&t);
        }
    }
    gt_tokens *t = open_ok(
        write_npy("{'descr': '<i8', 'fortran_order': False, 'shape': (4,), }", 1, i64, sizeof i64),
        "npy", 50257);
    expect(t, 0, 4, (int32_t[]){1, 2, 50256, 4});
    gt_tokens_close(&t);
    static const struct {
        const char *dictionary, *says;
    } bad[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "dtype '<f4'"},
        {"{'descr': '>u2', 'fortran_order': False, 'shape': (4,), }", "dtype '>u2'"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (4,), }", "dtype '|O'"},
        {"{'fortran_order': False, 'shape': (4,), }", "dtype (none)"},
        {"{'descr': '<u2', 'fortran_order': True, 'shape': (2, 2), }", "column by column"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }", "promises 5 values"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }", "promises 3 values"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (0,), }", "promises 0 values"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (), }", "promises 1 values"},
        {"{'descr': '<u2', 'fortran_order': False, }", "no shape"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (-4,), }", "no shape"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (4", "no shape"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (4,", "no shape"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (4611686018427387904, 4), }",
         "no shape"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999999999999,), }",
         "no shape"},
        {"{'descr':", "dtype"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        refuse(write_npy(bad[i].dictionary, 1, u16, sizeof u16), "auto", GT_ERR_FORMAT,
               bad[i].says);
    }
    refuse(files_write("cut.npy", "\x93NUMPY\1", 7), "auto", GT_ERR_FORMAT, "header is damaged");
    refuse(files_write("cut.npy", "\x93NUMPY\1\0\xff\0{'descr'", 18), "auto", GT_ERR_FORMAT,
           "header is damaged");
    refuse(files_write("cut.npy", "\x93NUMPY\2\0\xff\xff\xff\xff{'descr'", 20), "auto",
           GT_ERR_FORMAT, "header is damaged");
    refuse(files_write("cut.npy", "\x93NUMPY\11\0\1\0\0\0{}", 14), "auto", GT_ERR_FORMAT,
           "header is damaged");
    refuse(files_write("no.npy", "abc", 3), "npy", GT_ERR_FORMAT, "does not begin like a .npy");
}

/* ---- names */
static void names_with_signs_in_them(void **state)
{
    static const char *const names[] = {"a:b.txt",
                                        "a[1].txt",
                                        "what?.txt",
                                        "st*r.txt",
                                        "with space.txt",
                                        "~tilde.txt",
                                        "\xe6\x97\xa5\xe6\x9c\xac.txt"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        gt_tokens *t = open_ok(files_write(names[i], "abcd", 4 - i % 2), "auto", 0);
        assert_int_equal(gt_tokens_count(t), 4 - i % 2);
        gt_tokens_close(&t);
    }
    char *home = getenv("HOME"), *kept = home != NULL ? strdup(home) : NULL;
    setenv("HOME", files_directory, 1);
    files_write("in-home.txt", "abcde", 5);
    gt_tokens *t = open_ok("~/in-home.txt", "auto", 0);
    assert_int_equal(gt_tokens_count(t), 5);
    gt_tokens_close(&t);
    t = open_ok("~/in-ho*:~/in-home.txt", "auto", 0);
    assert_int_equal(gt_tokens_count(t), 10);
    gt_tokens_close(&t);
    refuse("~/none.txt", "auto", GT_ERR_IO, "no such file");
    if (kept != NULL) {
        setenv("HOME", kept, 1);
    } else {
        unsetenv("HOME");
    }
    free(kept);
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
    assert_int_equal(gt_tokens_open(&t, good, "llmc", 50256), GT_ERR_FORMAT);
    assert_non_null(strstr(gt_last_error(), "token 1 of "));
    assert_non_null(strstr(gt_last_error(), "good.bin (llmc) is 50256, wanted 0 to 50255"));
    assert_null(t);

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
    gt_tokens *t = open_ok(files_path("many-*.txt"), "bytes", 0);
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
        cmocka_unit_test(null_is_an_argument_error),
        cmocka_unit_test(plain_numbers_are_recognized_by_the_vocabulary),
        cmocka_unit_test(text_of_any_name_is_bytes),
        cmocka_unit_test(other_files_are_named),
        cmocka_unit_test(npy_files),
        cmocka_unit_test(names_with_signs_in_them),
        cmocka_unit_test(llmc_files),
        cmocka_unit_test(megatron_pair),
        cmocka_unit_test(damaged_megatron_pairs_are_refused),
        cmocka_unit_test(hundred_shards_with_few_descriptors),
        cmocka_unit_test(mutated_files_never_fault),
    };
    return cmocka_run_group_tests(tests, files_open, files_close);
}
