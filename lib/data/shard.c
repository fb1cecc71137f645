/* SPDX-License-Identifier: Apache-2.0 */
#include "data/shard.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/fail.h"

int gti_token_size(gti_token_kind kind)
{
    static const int sizes[] = {1, 1, 2, 2, 4, 4, 8};
    return sizes[kind];
}

static bool ends_with(const char *path, const char *suffix)
{
    size_t n = strlen(path), m = strlen(suffix);
    return n >= m && strcmp(path + n - m, suffix) == 0;
}

/* Megatron's pair is given by its .idx, its .bin, or the name that both share. */
static bool is_megatron(const char *path)
{
    char *index = malloc(strlen(path) + 5);
    if (index == NULL) {
        return false;
    }
    strcpy(index, path);
    if (ends_with(index, ".bin") || ends_with(index, ".idx")) {
        index[strlen(index) - 4] = '\0';
    }
    strcat(index, ".idx");
    bool found = access(index, F_OK) == 0;
    free(index);
    return found;
}

/* A file that is nothing but tokens. */
static gt_status open_plain(gti_shard *s, gti_token_kind kind)
{
    size_t size = (size_t)gti_token_size(kind);
    if (s->data.size % size != 0) {
        return GT_FAIL(GT_ERR_FORMAT, "%s has %zu bytes, no multiple of the %zu of a token",
                       s->path, s->data.size, size);
    }
    s->kind = kind;
    s->count = (int64_t)(s->data.size / size);
    return GT_OK;
}

static const struct plain {
    const char *name;
    gti_token_kind kind;
} plain[] = {{"bytes", GTI_TOKEN_U8},
             {"u16", GTI_TOKEN_U16},
             {"u32", GTI_TOKEN_U32},
             {"i64", GTI_TOKEN_I64}};

static const struct plain *find_plain(const char *format)
{
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        if (strcmp(plain[i].name, format) == 0) {
            return &plain[i];
        }
    }
    return NULL;
}

static gt_status open_as(gti_shard *s, const char *format)
{
    const struct plain *p = find_plain(format);
    if (p != NULL) {
        s->format = p->name;
        return open_plain(s, p->kind);
    }
    if (strcmp(format, "llmc") == 0) {
        s->format = "llmc";
        return gti_shard_open_llmc(s);
    }
    if (strcmp(format, "npy") == 0) {
        s->format = "npy";
        return gti_shard_open_npy(s);
    }
    return GT_FAIL(GT_ERR_ARGUMENT,
                   "token format \"%s\" is not known, wanted auto, bytes, u16, u32, i64, npy, llmc "
                   "or megatron",
                   format);
}

/* By its magic number; else as `like`, the format of the file before it, where that has none; else
 * by what it holds. */
static gt_status recognize(const gti_shard *s, int64_t vocab, const char *like, const char **format)
{
    if (gti_is_llmc(&s->data)) {
        *format = "llmc";
    } else if (gti_is_npy(&s->data)) {
        *format = "npy";
    } else if (like != NULL && find_plain(like) != NULL && strcmp(like, "bytes") != 0) {
        *format = like;
    } else {
        return gti_recognize(&s->data, s->path, vocab, format);
    }
    return GT_OK;
}

static gt_status open_by(gti_shard *s, const char *format, int64_t vocab, const char *like)
{
    bool automatic = strcmp(format, "auto") == 0;
    if (strcmp(format, "megatron") == 0 || (automatic && is_megatron(s->path))) {
        return gti_shard_open_megatron(s, s->path);
    }
    GT_TRY(gti_map_file(&s->data, s->path));
    if (automatic) {
        GT_TRY(recognize(s, vocab, like, &format));
    }
    return open_as(s, format);
}

gt_status gti_shard_open(gti_shard *out, const char *path, const char *format, int64_t vocab,
                         const char *like)
{
    gti_shard s = {.path = strdup(path)};
    if (s.path == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no memory to open %s", path);
    }
    gt_status st = open_by(&s, format, vocab, like);
    if (st != GT_OK) {
        gti_shard_close(&s);
        return st;
    }
    *out = s;
    return GT_OK;
}

void gti_shard_close(gti_shard *shard)
{
    gti_unmap(&shard->data);
    gti_unmap(&shard->index);
    free(shard->starts);
    free(shard->path);
    memset(shard, 0, sizeof *shard);
}

/* One loop per kind of token; no alignment is assumed. */
#define WIDEN(type)                                                                                \
    for (int64_t i = 0; i < count; i++) {                                                          \
        type v;                                                                                    \
        memcpy(&v, from + i * (int64_t)sizeof v, sizeof v);                                        \
        if ((uint64_t)(int64_t)v >= (uint64_t)limit) {                                             \
            *bad = (int64_t)v;                                                                     \
            return i;                                                                              \
        }                                                                                          \
        out[i] = (int32_t)v;                                                                       \
    }

/* Returns how many tokens are in [0, limit); if not all, *bad is the first that is not. */
static int64_t widen(gti_token_kind kind, const unsigned char *from, int64_t count, int64_t limit,
                     int32_t *out, int64_t *bad)
{
    switch (kind) {
    case GTI_TOKEN_U8:
        WIDEN(uint8_t)
        break;
    case GTI_TOKEN_I8:
        WIDEN(int8_t)
        break;
    case GTI_TOKEN_U16:
        WIDEN(uint16_t)
        break;
    case GTI_TOKEN_I16:
        WIDEN(int16_t)
        break;
    case GTI_TOKEN_U32:
        WIDEN(uint32_t)
        break;
    case GTI_TOKEN_I32:
        WIDEN(int32_t)
        break;
    case GTI_TOKEN_I64:
        WIDEN(int64_t)
        break;
    }
    return count;
}

static gt_status read_run(const gti_shard *s, int64_t byte, int64_t first, int64_t count,
                          int64_t vocab, int32_t *out)
{
    int64_t limit = vocab > 0 ? vocab : (int64_t)INT32_MAX + 1, bad = 0;
    int64_t good = widen(s->kind, s->data.bytes + byte, count, limit, out, &bad);
    if (good < count) {
        return GT_FAIL(GT_ERR_FORMAT, "token %lld of %s (%s) is %lld, wanted 0 to %lld%s",
                       (long long)(first + good), s->path, s->format, (long long)bad,
                       (long long)(limit - 1), vocab > 0 ? ", what the vocabulary has" : "");
    }
    return GT_OK;
}

static int64_t sequence_of(const gti_shard *s, int64_t token)
{
    int64_t low = 0, high = s->sequences; /* starts[low] <= token < starts[high] */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (s->starts[middle] <= token) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Megatron's sequences may lie anywhere in the .bin. */
static int64_t pointer_of(const gti_shard *s, int64_t sequence)
{
    int64_t pointer;
    memcpy(&pointer, s->index.bytes + s->offset + 8 * sequence, sizeof pointer);
    return pointer;
}

gt_status gti_shard_read(const gti_shard *s, int64_t first, int64_t count, int64_t vocab,
                         int32_t *out)
{
    int size = gti_token_size(s->kind);
    if (s->sequences == 0) {
        return read_run(s, s->offset + first * size, first, count, vocab, out);
    }
    for (int64_t i = sequence_of(s, first); count > 0; i++) {
        int64_t skip = first - s->starts[i], run = s->starts[i + 1] - first;
        run = run < count ? run : count;
        GT_TRY(read_run(s, pointer_of(s, i) + skip * size, first, run, vocab, out));
        first += run;
        out += run;
        count -= run;
    }
    return GT_OK;
}
