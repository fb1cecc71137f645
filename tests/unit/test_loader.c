/* SPDX-License-Identifier: Apache-2.0
 * The loader: order, epochs, ranks, seeking. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <geektrain/data.h>

#include "data/shuffle.h"
#include "files.h"

enum { TOKENS = 16 * 7 + 3, SEQ = 7, SAMPLES = 16 }; /* (115 - 1) / 7 = 16 */

static gt_tokens *tokens;

static int set_up(void **state)
{
    unsigned char bytes[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        bytes[i] = (unsigned char)i;
    }
    if (files_open(state) != 0) {
        return -1;
    }
    return gt_tokens_open(&tokens, files_write("t.txt", bytes, sizeof bytes), "bytes", 256);
}

static int tear_down(void **state)
{
    gt_tokens_close(&tokens);
    return files_close(state);
}

static void shuffle_is_a_permutation(void **state)
{
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 1000, 4097};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        int64_t n = sizes[k], fixed = 0;
        char *seen = calloc((size_t)n, 1);
        for (int64_t i = 0; i < n; i++) {
            int64_t j = gti_shuffle(1, 2, n, i);
            assert_true(j >= 0 && j < n && !seen[j]);
            seen[j] = 1;
            fixed += j == i;
        }
        assert_true(n < 64 || fixed < 10);
        free(seen);
    }
}

/* Neighbours land apart, and epochs and seeds differ. */
static void shuffle_depends_on_seed_and_epoch(void **state)
{
    enum { N = 10000 };
    int64_t same_epoch = 0, same_seed = 0;
    double jump = 0;
    for (int64_t i = 0; i < N; i++) {
        int64_t j = gti_shuffle(1, 0, N, i);
        same_epoch += j == gti_shuffle(1, 1, N, i);
        same_seed += j == gti_shuffle(2, 0, N, i);
        jump += (double)llabs(j - gti_shuffle(1, 0, N, (i + 1) % N)) / N;
    }
    assert_true(same_epoch < 10 && same_seed < 10);
    assert_true(jump > N / 3.0 * 0.95 && jump < N / 3.0 * 1.05); /* 1/3 for a random order */
    assert_true(gti_shuffle(1, 0, INT64_C(1) << 60, 5) < INT64_C(1) << 60);
}

static gt_loader *make(int64_t batch, int rank, int size, bool shuffle, bool prefetch)
{
    gt_loader *l = NULL;
    gt_loader_params p = GT_LOADER_PARAMS_INIT;
    p.seq = SEQ;
    p.batch = batch;
    p.rank = rank;
    p.size = size;
    p.seed = 3;
    p.shuffle = shuffle;
    p.no_prefetch = !prefetch;
    if (gt_loader_create(&l, tokens, &p) != GT_OK) {
        fail_msg("%s", gt_last_error());
    }
    return l;
}

static void samples_are_consecutive_tokens(void **state)
{
    gt_loader *l = make(4, 0, 1, false, true);
    gt_batch b;
    assert_int_equal(gt_loader_samples(l), SAMPLES);
    for (int step = 0; step < 9; step++) {
        assert_int_equal(gt_loader_next(l, &b), GT_OK);
        assert_true(b.samples == 4 && b.seq == SEQ && b.first_sample == 4 * step);
        for (int i = 0; i < 4 * SEQ; i++) {
            int at = (step * 4 % SAMPLES) * SEQ + i;
            assert_int_equal(b.tokens[i], at);
            assert_int_equal(b.targets[i], at + 1);
        }
    }
    assert_int_equal(gt_loader_position(l), 36);
    gt_loader_destroy(&l);
    assert_null(l);
    gt_loader_destroy(&l);
}

/* Any number of data ranks, with or without the thread: the same global batches. */
static void layouts_see_the_same_batches(void **state)
{
    enum { BATCH = 12, STEPS = 7 };
    gt_loader *whole = make(BATCH, 0, 1, true, false);
    for (int step = 0; step < STEPS; step++) {
        gt_batch want;
        assert_int_equal(gt_loader_next(whole, &want), GT_OK);
        for (int size = 1; size <= 4; size++) {
            for (int rank = 0; rank < size; rank++) {
                gt_loader *l = make(BATCH, rank, size, true, rank % 2 == 0);
                gt_batch got;
                assert_int_equal(gt_loader_seek(l, step * BATCH), GT_OK);
                assert_int_equal(gt_loader_next(l, &got), GT_OK);
                int64_t n = BATCH / size;
                assert_int_equal(got.samples, n);
                assert_int_equal(got.first_sample, step * BATCH + rank * n);
                assert_memory_equal(got.tokens, want.tokens + rank * n * SEQ,
                                    (size_t)(n * SEQ) * sizeof(int32_t));
                assert_memory_equal(got.targets, want.targets + rank * n * SEQ,
                                    (size_t)(n * SEQ) * sizeof(int32_t));
                gt_loader_destroy(&l);
            }
        }
    }
    gt_loader_destroy(&whole);
}

/* Batches of 5 over 16 samples: no sample is dropped at the end of an epoch. */
static void every_sample_once_per_epoch(void **state)
{
    gt_loader *l = make(5, 0, 1, true, true);
    int seen[SAMPLES] = {0}, first_order[SAMPLES], order_differs = 0;
    for (int sample = 0; sample < 2 * SAMPLES;) {
        gt_batch b;
        assert_int_equal(gt_loader_next(l, &b), GT_OK);
        for (int k = 0; k < 5 && sample < 2 * SAMPLES; k++, sample++) {
            int index = b.tokens[k * SEQ] / SEQ;
            seen[index]++;
            if (sample < SAMPLES) {
                first_order[sample] = index;
            } else {
                order_differs |= first_order[sample - SAMPLES] != index;
            }
        }
        if (sample == SAMPLES || sample == 2 * SAMPLES) {
            for (int i = 0; i < SAMPLES; i++) {
                assert_int_equal(seen[i], sample / SAMPLES);
            }
        }
    }
    assert_true(order_differs);
    gt_loader_destroy(&l);
}

static void seek_resumes_exactly(void **state)
{
    gt_loader *a = make(3, 0, 1, true, true), *b = make(3, 0, 1, true, true);
    gt_batch x, y;
    for (int i = 0; i < 11; i++) {
        assert_int_equal(gt_loader_next(a, &x), GT_OK);
    }
    assert_int_equal(gt_loader_next(b, &y), GT_OK); /* its thread reads batch 1 meanwhile */
    assert_int_equal(gt_loader_seek(b, gt_loader_position(a)), GT_OK);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(gt_loader_next(a, &x), GT_OK);
        assert_int_equal(gt_loader_next(b, &y), GT_OK);
        assert_memory_equal(x.tokens, y.tokens, 3 * SEQ * sizeof(int32_t));
    }
    assert_int_equal(gt_loader_seek(b, -1), GT_ERR_ARGUMENT);
    gt_loader_destroy(&a);
    gt_loader_destroy(&b);
}

/* Opening looks at the whole of a small file, and at parts of a large one. */
static void bad_tokens_surface_in_next(void **state)
{
    enum { LARGE = 1 << 20, BAD = 15 };
    unsigned char *bytes = calloc(LARGE, 1);
    gt_tokens *small = NULL;
    assert_int_equal(gt_tokens_open(&small, files_path("t.txt"), "bytes", 2 * SEQ + 1),
                     GT_ERR_FORMAT);
    assert_non_null(strstr(gt_last_error(), "token 15 of"));
    bytes[2048 + BAD] = 200;
    gt_loader *l = NULL;
    gt_loader_params p = GT_LOADER_PARAMS_INIT;
    gt_batch b;
    const char *path = files_write("large.txt", bytes, LARGE);
    free(bytes);
    assert_int_equal(gt_tokens_open(&small, path, "bytes", 200), GT_OK);
    p.seq = SEQ;
    p.first = 2048;
    p.batch = p.size = 1;
    assert_int_equal(gt_loader_create(&l, small, &p), GT_OK);
    assert_int_equal(gt_loader_next(l, &b), GT_OK);
    assert_int_equal(gt_loader_next(l, &b), GT_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(gt_loader_next(l, &b), GT_ERR_FORMAT);
        assert_non_null(strstr(gt_last_error(), "token 2063 of"));
    }
    gt_loader_destroy(&l);
    gt_tokens_close(&small);
}

static void wrong_params_are_refused(void **state)
{
    static const struct {
        int64_t first, count, seq, batch;
        int rank, size;
        gt_status want;
    } rows[] = {
        {0, 0, TOKENS, 1, 0, 1, GT_ERR_FORMAT},
        {0, 7, 7, 1, 0, 1, GT_ERR_FORMAT},
        {TOKENS - 7, 0, 7, 1, 0, 1, GT_ERR_FORMAT},
        {TOKENS + 1, 0, 7, 1, 0, 1, GT_ERR_ARGUMENT},
        {1, TOKENS, 7, 1, 0, 1, GT_ERR_ARGUMENT},
        {0, 0, 0, 1, 0, 1, GT_ERR_ARGUMENT},
        {0, 0, 7, 0, 0, 1, GT_ERR_ARGUMENT},
        {0, 0, 7, 3, 0, 2, GT_ERR_ARGUMENT},
        {0, 0, 7, 2, 2, 2, GT_ERR_ARGUMENT},
        {0, 0, 7, 2, -1, 2, GT_ERR_ARGUMENT},
        {0, 0, 7, INT64_MAX, 0, 1, GT_ERR_ARGUMENT},
        {0, 0, INT64_MAX, 1, 0, 1, GT_ERR_FORMAT},
        {3, 0, INT64_MAX - 1, 1, 0, 1, GT_ERR_FORMAT},
        {3, 9, INT64_MAX, 1, 0, 1, GT_ERR_FORMAT},
        {0, 0, INT64_MIN, 1, 0, 1, GT_ERR_ARGUMENT},
        {INT64_MAX, 0, 7, 1, 0, 1, GT_ERR_ARGUMENT},
        {INT64_MIN, 0, 7, 1, 0, 1, GT_ERR_ARGUMENT},
        {0, INT64_MAX, 7, 1, 0, 1, GT_ERR_ARGUMENT},
        {9, INT64_MIN, 7, 1, 0, 1, GT_ERR_ARGUMENT},
        {0, 0, 7, INT64_MIN, 0, 1, GT_ERR_ARGUMENT},
        {0, 0, 7, INT64_MAX / INT32_MAX * INT32_MAX, INT32_MAX - 1, INT32_MAX, GT_ERR_ARGUMENT},
        {0, 0, 7, 1, INT32_MIN, 1, GT_ERR_ARGUMENT},
        {0, 0, 7, 1, 0, INT32_MIN, GT_ERR_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        gt_loader *l = NULL;
        gt_loader_params p = GT_LOADER_PARAMS_INIT;
        p.first = rows[i].first;
        p.count = rows[i].count;
        p.seq = rows[i].seq;
        p.batch = rows[i].batch;
        p.rank = rows[i].rank;
        p.size = rows[i].size;
        assert_int_equal(gt_loader_create(&l, tokens, &p), rows[i].want);
        assert_null(l);
    }
}

/* Training on the first tokens, validation on the rest: no sample reaches over the cut. */
static void split_by_first_and_count(void **state)
{
    gt_loader_params p = GT_LOADER_PARAMS_INIT;
    gt_loader *l = NULL;
    gt_batch b;
    p.seq = SEQ;
    p.batch = p.size = 1;
    p.first = 100;
    assert_int_equal(gt_loader_create(&l, tokens, &p), GT_OK);
    assert_int_equal(gt_loader_samples(l), 2);
    assert_int_equal(gt_loader_next(l, &b), GT_OK);
    assert_int_equal(b.tokens[0], 100);
    gt_loader_destroy(&l);
    p.first = 0;
    p.count = 15;
    assert_int_equal(gt_loader_create(&l, tokens, &p), GT_OK);
    assert_int_equal(gt_loader_samples(l), 2);
    gt_loader_destroy(&l);
}

/* The last sample numbers there are: no overflow on the way, and an end. */
static void positions_up_to_the_last(void **state)
{
    gt_loader *l = make(4, 1, 2, true, true);
    gt_batch b;
    assert_int_equal(gt_loader_seek(l, INT64_MAX / 2), GT_OK);
    assert_int_equal(gt_loader_next(l, &b), GT_OK);
    assert_true(b.first_sample == INT64_MAX / 2 + 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(gt_loader_next(l, &b), GT_ERR_STATE);
        assert_non_null(strstr(gt_last_error(), "beyond the last number"));
    }
    assert_int_equal(gt_loader_seek(l, INT64_MAX / 2 + 1), GT_ERR_ARGUMENT);
    assert_int_equal(gt_loader_seek(l, INT64_MAX), GT_ERR_ARGUMENT);
    assert_int_equal(gt_loader_seek(l, 0), GT_OK);
    assert_int_equal(gt_loader_next(l, &b), GT_OK);
    gt_loader_destroy(&l);
}

static void null_is_an_argument_error(void **state)
{
    gt_loader *l = NULL;
    gt_loader_params p = GT_LOADER_PARAMS_INIT;
    gt_batch b;
    p.seq = p.batch = p.size = 1;
    assert_int_equal(gt_loader_create(NULL, tokens, &p), GT_ERR_ARGUMENT);
    assert_int_equal(gt_loader_create(&l, NULL, &p), GT_ERR_ARGUMENT);
    assert_int_equal(gt_loader_create(&l, tokens, NULL), GT_ERR_ARGUMENT);
    assert_int_equal(gt_loader_next(NULL, &b), GT_ERR_ARGUMENT);
    assert_int_equal(gt_loader_seek(NULL, 0), GT_ERR_ARGUMENT);
    assert_int_equal(gt_loader_position(NULL), 0);
    assert_int_equal(gt_loader_samples(NULL), 0);
    l = make(4, 0, 1, false, true);
    assert_int_equal(gt_loader_next(l, NULL), GT_ERR_ARGUMENT);
    assert_int_equal(gt_loader_position(l), 0); /* the batch was not used up */
    gt_loader_destroy(&l);
    gt_loader_destroy(NULL);
    gt_loader_params_init(NULL, sizeof p);
}

/* In the child the reader's thread is not there: nothing waits for it. */
static int use_in_child(gt_loader *l)
{
    gt_batch b;
    gt_loader *own;
    alarm(20);
    if (gt_loader_next(l, &b) != GT_ERR_STATE || gt_loader_seek(l, 0) != GT_ERR_STATE ||
        strstr(gt_last_error(), "create one here") == NULL) {
        return 1;
    }
    gt_loader_destroy(&l);
    own = make(4, 0, 1, false, true); /* the tokens are shared */
    if (gt_loader_next(own, &b) != GT_OK || b.tokens[1] != 1) {
        return 2;
    }
    gt_loader_destroy(&own);
    return 0;
}

static void forked_children_do_not_hang(void **state)
{
    gt_loader *l = make(4, 0, 1, false, true);
    gt_batch b;
    int status = -1;
    for (int i = 0; i < 20; i++) { /* now and then the reader is at work meanwhile */
        assert_int_equal(gt_loader_next(l, &b), GT_OK);
        pid_t child = fork();
        if (child == 0) {
            _exit(use_in_child(l));
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_int_equal(gt_loader_next(l, &b), GT_OK);
    assert_int_equal(b.first_sample, 80);
    gt_loader_destroy(&l);
}

/* Shards of 33 and 32 tokens: sample 8 reaches over the border, the last one ends the stream. */
enum { CUT = 33, BOTH = 65, SHORT_SEQ = 4, EPOCH = 16, GLOBAL = 4, END = 3 * EPOCH };

static gt_loader *make_sharded(gt_tokens *shards, int rank, int size, bool shuffle)
{
    gt_loader *l = NULL;
    gt_loader_params p = GT_LOADER_PARAMS_INIT;
    p.seq = SHORT_SEQ;
    p.batch = GLOBAL;
    p.rank = rank;
    p.size = size;
    p.seed = 7;
    p.shuffle = shuffle;
    assert_int_equal(gt_loader_create(&l, shards, &p), GT_OK);
    return l;
}

/* The first token of each sample from `position` on, as `size` data ranks see them together. */
static void read_on(gt_tokens *shards, int size, bool shuffle, int64_t position, int64_t count,
                    int64_t reopen_after, int32_t *out)
{
    for (int rank = 0; rank < size; rank++) {
        gt_loader *l = make_sharded(shards, rank, size, shuffle);
        assert_int_equal(gt_loader_seek(l, position), GT_OK);
        for (int64_t at = 0; at < count; at += GLOBAL) {
            gt_batch b;
            if (reopen_after > 0 && at % reopen_after == 0) {
                int64_t saved = gt_loader_position(l);
                assert_int_equal(saved, position + at);
                gt_loader_destroy(&l);
                l = make_sharded(shards, rank, size, shuffle);
                assert_int_equal(gt_loader_seek(l, saved), GT_OK);
            }
            assert_int_equal(gt_loader_next(l, &b), GT_OK);
            assert_int_equal(b.samples, GLOBAL / size);
            assert_int_equal(b.first_sample, position + at + rank * b.samples);
            for (int64_t k = 0; k < b.samples; k++) {
                const int32_t *t = b.tokens + k * SHORT_SEQ, *next = b.targets + k * SHORT_SEQ;
                for (int i = 0; i < SHORT_SEQ; i++) {
                    assert_int_equal(t[i], t[0] + i);
                    assert_int_equal(next[i], t[0] + i + 1);
                }
                out[at + rank * b.samples + k] = t[0];
            }
        }
        gt_loader_destroy(&l);
    }
}

static void every_resume_goes_on_in_the_same_order(void **state)
{
    unsigned char bytes[BOTH];
    char paths[400];
    gt_tokens *shards = NULL;
    for (int i = 0; i < BOTH; i++) {
        bytes[i] = (unsigned char)i;
    }
    snprintf(paths, sizeof paths, "%s:%s", files_write("first.txt", bytes, CUT),
             files_write("second.txt", bytes + CUT, BOTH - CUT));
    assert_int_equal(gt_tokens_open(&shards, paths, "bytes", 256), GT_OK);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        int32_t whole[END + GLOBAL], got[END + GLOBAL];
        read_on(shards, 1, shuffle, 0, END, 0, whole);
        for (int epoch = 0; epoch < 3; epoch++) {
            int seen[EPOCH] = {0};
            for (int i = 0; i < EPOCH; i++) {
                seen[whole[epoch * EPOCH + i] / SHORT_SEQ]++;
            }
            for (int i = 0; i < EPOCH; i++) {
                assert_int_equal(seen[i], 1);
            }
        }
        for (int size = 1; size <= 4; size *= 2) {
            for (int64_t reopen = GLOBAL; reopen <= END; reopen += GLOBAL) {
                read_on(shards, size, shuffle, 0, END, reopen, got);
                assert_memory_equal(got, whole, END * sizeof *got);
            }
            for (int64_t from = 1; from < END; from += from % 3 == 0 ? 1 : 2) { /* odd places too */
                int64_t count = (END - from) / GLOBAL * GLOBAL;
                read_on(shards, size, shuffle, from, count, GLOBAL, got);
                assert_memory_equal(got, whole + from, (size_t)count * sizeof *got);
            }
        }
    }
    gt_tokens_close(&shards);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shuffle_is_a_permutation),
        cmocka_unit_test(shuffle_depends_on_seed_and_epoch),
        cmocka_unit_test(samples_are_consecutive_tokens),
        cmocka_unit_test(layouts_see_the_same_batches),
        cmocka_unit_test(every_sample_once_per_epoch),
        cmocka_unit_test(seek_resumes_exactly),
        cmocka_unit_test(bad_tokens_surface_in_next),
        cmocka_unit_test(wrong_params_are_refused),
        cmocka_unit_test(split_by_first_and_count),
        cmocka_unit_test(positions_up_to_the_last),
        cmocka_unit_test(null_is_an_argument_error),
        cmocka_unit_test(forked_children_do_not_hang),
        cmocka_unit_test(every_resume_goes_on_in_the_same_order),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
