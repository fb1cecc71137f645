/* SPDX-License-Identifier: Apache-2.0
 * A token stream: the shards one after the other. */
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/fail.h"
#include "data/shard.h"

struct gt_tokens {
    gti_shard *shards;
    size_t shard_count, capacity;
    int64_t *starts; /* [shard_count + 1] tokens before each shard */
    int64_t vocab;
};

static gt_status add_shard(gt_tokens *t, const char *path, const char *format)
{
    if (t->shard_count == t->capacity) {
        size_t capacity = 2 * t->capacity + 8;
        gti_shard *grown = realloc(t->shards, capacity * sizeof *grown);
        if (grown == NULL) {
            return GT_FAIL(GT_ERR_MEMORY, "no memory for %zu token files", capacity);
        }
        t->shards = grown;
        t->capacity = capacity;
    }
    gti_shard shard;
    const char *like = t->shard_count > 0 ? t->shards[0].format : NULL;
    GT_TRY(gti_shard_open(&shard, path, format, t->vocab, like));
    if (t->shard_count > 0 && shard.format != t->shards[0].format) {
        gt_status st = GT_FAIL(GT_ERR_FORMAT, "%s is in format %s, but %s in format %s", path,
                               shard.format, t->shards[0].path, t->shards[0].format);
        gti_shard_close(&shard);
        return st;
    }
    t->shards[t->shard_count++] = shard;
    return GT_OK;
}

/* A pattern's files in alphabetical order, "~" the user's folder; of a Megatron pair the .bin is
 * passed over. */
static gt_status add_glob(gt_tokens *t, const char *pattern, const char *format)
{
    glob_t found;
    int error = glob(pattern, GLOB_ERR | GLOB_TILDE, NULL, &found);
    if (error != 0) {
        globfree(&found);
        return GT_FAIL(GT_ERR_IO, "%s: %s", pattern,
                       error == GLOB_NOMATCH   ? "no such file"
                       : error == GLOB_NOSPACE ? "no memory to list the files"
                                               : "cannot list the files");
    }
    gt_status st = GT_OK;
    for (size_t i = 0; i < found.gl_pathc && st == GT_OK; i++) {
        const char *path = found.gl_pathv[i];
        size_t n = strlen(path);
        bool pair = i + 1 < found.gl_pathc && n > 4 && strcmp(path + n - 4, ".bin") == 0 &&
                    strncmp(path, found.gl_pathv[i + 1], n - 3) == 0 &&
                    strcmp(found.gl_pathv[i + 1] + n - 4, ".idx") == 0;
        if (!pair) {
            st = add_shard(t, path, format);
        }
    }
    globfree(&found);
    return st;
}

/* A name that is there is meant, whatever signs are in it. */
static gt_status add_path(gt_tokens *t, const char *path, const char *format)
{
    bool pattern = path[0] == '~' || strpbrk(path, "*?[") != NULL;
    return pattern && access(path, F_OK) != 0 ? add_glob(t, path, format)
                                              : add_shard(t, path, format);
}

static gt_status add_paths(gt_tokens *t, const char *paths, const char *format)
{
    if (access(paths, F_OK) == 0) { /* a name with ':' in it */
        return add_shard(t, paths, format);
    }
    char *copy = strdup(paths), *rest = copy, *path;
    gt_status st = copy != NULL ? GT_OK : GT_FAIL(GT_ERR_MEMORY, "no memory for the token paths");
    while (st == GT_OK && (path = strsep(&rest, ":")) != NULL) {
        st = path[0] != '\0' ? add_path(t, path, format) : GT_OK;
    }
    free(copy);
    if (st == GT_OK && t->shard_count == 0) {
        st = GT_FAIL(GT_ERR_ARGUMENT, "no token file is given");
    }
    return st;
}

static gt_status count_tokens(gt_tokens *t)
{
    t->starts = malloc((t->shard_count + 1) * sizeof *t->starts);
    if (t->starts == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no memory for %zu token files", t->shard_count);
    }
    t->starts[0] = 0;
    for (size_t i = 0; i < t->shard_count; i++) {
        t->starts[i + 1] = t->starts[i] + t->shards[i].count;
    }
    return GT_OK;
}

/* A vocabulary that does not fit shows here, not after hours. */
static gt_status check_some(const gt_tokens *t)
{
    enum { RUN = 1024, RUNS = 256, RUNS_MIN = 4 };
    int32_t run[RUN];
    int64_t runs = RUNS / (int64_t)t->shard_count;
    runs = runs > RUNS_MIN ? runs : RUNS_MIN;
    for (size_t i = 0; i < t->shard_count; i++) {
        const gti_shard *s = &t->shards[i];
        int64_t step = s->count > RUN * runs ? s->count / runs : RUN;
        for (int64_t at = 0; at < s->count; at += step) {
            int64_t n = s->count - at < RUN ? s->count - at : RUN;
            GT_TRY(gti_shard_read(s, at, n, t->vocab, run));
        }
    }
    return GT_OK;
}

gt_status gt_tokens_open(gt_tokens **out, const char *paths, const char *format, int64_t vocab)
{
    if (out == NULL || paths == NULL || paths[0] == '\0') {
        return GT_FAIL(GT_ERR_ARGUMENT,
                       out == NULL ? "gt_tokens_open: out is NULL" : "no token file is given");
    }
    if (vocab < 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the vocabulary is %lld, wanted 0 or more",
                       (long long)vocab);
    }
    gt_tokens *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no memory to open %s", paths);
    }
    t->vocab = vocab;
    gt_status st = add_paths(t, paths, format != NULL && format[0] != '\0' ? format : "auto");
    if (st == GT_OK) {
        st = count_tokens(t);
    }
    if (st == GT_OK && vocab > 0) {
        st = check_some(t);
    }
    if (st != GT_OK) {
        gt_tokens_close(&t);
        return st;
    }
    *out = t;
    return GT_OK;
}

void gt_tokens_close(gt_tokens **tokens)
{
    if (tokens == NULL || *tokens == NULL) {
        return;
    }
    for (size_t i = 0; i < (*tokens)->shard_count; i++) {
        gti_shard_close(&(*tokens)->shards[i]);
    }
    free((*tokens)->shards);
    free((*tokens)->starts);
    free(*tokens);
    *tokens = NULL;
}

int64_t gt_tokens_count(const gt_tokens *tokens)
{
    return tokens != NULL ? tokens->starts[tokens->shard_count] : 0;
}

const char *gt_tokens_format(const gt_tokens *tokens)
{
    return tokens != NULL ? tokens->shards[0].format : "";
}

gt_status gt_tokens_read(const gt_tokens *t, int64_t first, int64_t count, int32_t *out)
{
    if (t == NULL || (out == NULL && count > 0)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_tokens_read: tokens or out is NULL");
    }
    int64_t total = gt_tokens_count(t);
    if (first < 0 || count < 0 || first > total || count > total - first) {
        return GT_FAIL(GT_ERR_ARGUMENT, "tokens %lld + %lld asked for, but there are %lld",
                       (long long)first, (long long)count, (long long)total);
    }
    size_t low = 0, high = t->shard_count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (t->starts[middle] <= first) {
            low = middle;
        } else {
            high = middle;
        }
    }
    for (size_t i = low; count > 0; i++) {
        int64_t skip = first - t->starts[i], run = t->starts[i + 1] - first;
        run = run < count ? run : count;
        GT_TRY(gti_shard_read(&t->shards[i], skip, run, t->vocab, out));
        first += run;
        out += run;
        count -= run;
    }
    return GT_OK;
}

static void hash_bytes(XXH64_state_t *state, const gti_mapping *m)
{
    uint64_t size = m->size;
    XXH64_update(state, &size, sizeof size);
    for (size_t i = 0; i < gti_sample_count(m); i++) {
        gti_mapping piece = gti_sample(m, i);
        XXH64_update(state, piece.bytes, piece.size);
    }
}

uint64_t gt_tokens_hash(const gt_tokens *tokens)
{
    XXH64_state_t *state = tokens != NULL ? XXH64_createState() : NULL;
    if (state == NULL) {
        return 0;
    }
    XXH64_reset(state, tokens->shard_count);
    for (size_t i = 0; i < tokens->shard_count; i++) {
        const gti_shard *s = &tokens->shards[i];
        XXH64_update(state, s->format, strlen(s->format));
        hash_bytes(state, &s->index);
        hash_bytes(state, &s->data);
    }
    uint64_t hash = XXH64_digest(state);
    XXH64_freeState(state);
    return hash;
}
