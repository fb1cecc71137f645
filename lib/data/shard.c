/* SPDX-License-Identifier: Apache-2.0 */
#include "data/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/fail.h"
#include "core/file.h"

/* llm.c: int32 header[256] = {magic, version, tokens, 0...}, then the tokens. */
enum {
    LLMC_HEADER = 256 * 4,
    LLMC_GPT2_MAGIC = 20240520,
    LLMC_GPT2_VERSION = 1,
    LLMC_LLAMA_MAGIC = 20240801,
    LLMC_LLAMA_VERSION = 7
};

gt_status gti_map_file(gti_mapping *out, const char *path)
{
    int fd = gti_open(path, O_RDONLY, 0);
    if (fd < 0) {
        return GT_FAIL(GT_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    }
    struct stat st;
    void *bytes = MAP_FAILED;
    gt_status status = GT_OK;
    if (fstat(fd, &st) != 0) {
        status = GT_FAIL(GT_ERR_IO, "cannot stat %s: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        status = GT_FAIL(GT_ERR_IO, "%s is not a regular file", path);
    } else if (st.st_size == 0) {
        status = GT_FAIL(GT_ERR_FORMAT, "%s is empty", path);
    } else {
        bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED) {
            status = GT_FAIL(GT_ERR_IO, "cannot map %s: %s", path, strerror(errno));
        }
    }
    close(fd);
    if (status == GT_OK) {
        *out = (gti_mapping){bytes, (size_t)st.st_size};
    }
    return status;
}

void gti_unmap(gti_mapping *mapping)
{
    if (mapping->bytes != NULL) {
        munmap((void *)(uintptr_t)mapping->bytes, mapping->size);
    }
    *mapping = (gti_mapping){NULL, 0};
}

int gti_token_size(gti_token_kind kind)
{
    static const int sizes[] = {1, 1, 2, 2, 4, 4, 8};
    return sizes[kind];
}

static int32_t word(const gti_mapping *m, int index)
{
    int32_t v;
    memcpy(&v, m->bytes + 4 * index, sizeof v);
    return v;
}

static bool is_llmc(const gti_mapping *m)
{
    return m->size >= 4 && (word(m, 0) == LLMC_GPT2_MAGIC || word(m, 0) == LLMC_LLAMA_MAGIC);
}

static gt_status read_llmc_header(gti_shard *s)
{
    if (s->data.size < LLMC_HEADER) {
        return GT_FAIL(GT_ERR_FORMAT, "%s has %zu bytes, less than llm.c's header of %d", s->path,
                       s->data.size, LLMC_HEADER);
    }
    int32_t magic = word(&s->data, 0), version = word(&s->data, 1), tokens = word(&s->data, 2);
    if (!is_llmc(&s->data)) {
        return GT_FAIL(GT_ERR_FORMAT, "%s begins with %d, wanted llm.c's magic number %d or %d",
                       s->path, magic, LLMC_GPT2_MAGIC, LLMC_LLAMA_MAGIC);
    }
    bool llama = magic == LLMC_LLAMA_MAGIC;
    int32_t known = llama ? LLMC_LLAMA_VERSION : LLMC_GPT2_VERSION;
    if (version != known) {
        return GT_FAIL(GT_ERR_FORMAT, "%s has version %d, wanted %d", s->path, version, known);
    }
    s->kind = llama ? GTI_TOKEN_U32 : GTI_TOKEN_U16;
    s->offset = LLMC_HEADER;
    s->count = tokens;
    int64_t wanted = LLMC_HEADER + (int64_t)tokens * gti_token_size(s->kind);
    if (tokens <= 0 || (int64_t)s->data.size != wanted) {
        return GT_FAIL(GT_ERR_FORMAT,
                       "%s has %zu bytes, but its header promises %d tokens = %lld bytes", s->path,
                       s->data.size, tokens, (long long)wanted);
    }
    return GT_OK;
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

static gt_status open_as(gti_shard *s, const char *format)
{
    bool automatic = strcmp(format, "auto") == 0;
    if (strcmp(format, "megatron") == 0 || (automatic && is_megatron(s->path))) {
        return gti_shard_open_megatron(s, s->path);
    }
    GT_TRY(gti_map_file(&s->data, s->path));
    if (strcmp(format, "llmc") == 0 || (automatic && is_llmc(&s->data))) {
        s->format = "llmc";
        return read_llmc_header(s);
    }
    if (automatic && ends_with(s->path, ".bin")) {
        return GT_FAIL(GT_ERR_FORMAT,
                       "%s has neither llm.c's magic number nor an .idx beside it; say format "
                       "\"bytes\" to read it as plain bytes",
                       s->path);
    }
    if (!automatic && strcmp(format, "bytes") != 0) {
        return GT_FAIL(GT_ERR_ARGUMENT,
                       "token format \"%s\" is not known, wanted auto, bytes, llmc or megatron",
                       format);
    }
    s->format = "bytes";
    s->kind = GTI_TOKEN_U8;
    s->count = (int64_t)s->data.size;
    return GT_OK;
}

gt_status gti_shard_open(gti_shard *out, const char *path, const char *format)
{
    gti_shard s = {.path = strdup(path)};
    if (s.path == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no memory to open %s", path);
    }
    gt_status st = open_as(&s, format);
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
        return GT_FAIL(GT_ERR_FORMAT, "token %lld of %s is %lld, wanted 0 to %lld",
                       (long long)(first + good), s->path, (long long)bad, (long long)(limit - 1));
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
