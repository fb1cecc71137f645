/* SPDX-License-Identifier: Apache-2.0
 * Megatron-LM's indexed dataset, NAME.idx beside NAME.bin, little-endian and packed:
 *
 *   "MMIDIDX\0\0"  u64 version = 1  u8 dtype  u64 sequences  u64 documents
 *   i32 sizes[sequences]  i64 pointers[sequences] (bytes into .bin)  i64 document_index[documents]
 *
 * and, for multimodal sets, i8 modes[sequences] after it. Nothing in the file is believed before it
 * fits the file's size. */
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "data/shard.h"

enum { MAGIC_SIZE = 9, HEADER = 34 };

static const char magic[MAGIC_SIZE] = "MMIDIDX\0";

static gt_status set_kind(gti_shard *s, int code)
{
    static const struct {
        int code;
        gti_token_kind kind;
    } known[] = {{1, GTI_TOKEN_U8},  {2, GTI_TOKEN_I8},  {3, GTI_TOKEN_I16},
                 {4, GTI_TOKEN_I32}, {5, GTI_TOKEN_I64}, {8, GTI_TOKEN_U16}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (known[i].code == code) {
            s->kind = known[i].kind;
            return GT_OK;
        }
    }
    return GT_FAIL(GT_ERR_FORMAT, "%s has dtype code %d%s, wanted 1, 2, 3, 4, 5 or 8 (an integer)",
                   s->path, code, code == 6 || code == 7 ? " (a float)" : "");
}

/* Sizes and places of the sequences, and the running count of tokens. */
static gt_status read_sequences(gti_shard *s)
{
    int64_t n = s->sequences, size = gti_token_size(s->kind);
    s->starts = malloc((size_t)(n + 1) * sizeof *s->starts);
    if (s->starts == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no memory for the %lld sequences of %s", (long long)n,
                       s->path);
    }
    s->starts[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t length;
        int64_t pointer;
        memcpy(&length, s->index.bytes + HEADER + 4 * i, sizeof length);
        memcpy(&pointer, s->index.bytes + HEADER + 4 * n + 8 * i, sizeof pointer);
        if (length <= 0) {
            return GT_FAIL(GT_ERR_FORMAT, "sequence %lld of %s has %d tokens", (long long)i,
                           s->path, length);
        }
        int64_t bin = (int64_t)s->data.size;
        if (pointer < 0 || pointer > bin || length * size > bin - pointer) {
            return GT_FAIL(
                GT_ERR_FORMAT,
                "sequence %lld of %s lies at bytes %lld + %lld of its .bin, which has %lld",
                (long long)i, s->path, (long long)pointer, (long long)(length * size),
                (long long)bin);
        }
        s->starts[i + 1] = s->starts[i] + length;
    }
    s->count = s->starts[n];
    if (s->count * size != (int64_t)s->data.size) {
        return GT_FAIL(GT_ERR_FORMAT, "%s promises %lld tokens = %lld bytes, but its .bin has %zu",
                       s->path, (long long)s->count, (long long)(s->count * size), s->data.size);
    }
    return GT_OK;
}

/* Documents are runs of sequences: 0 = d[0] < d[1] < ... = sequences. */
static gt_status check_documents(const gti_shard *s, int64_t documents)
{
    const unsigned char *at = s->index.bytes + HEADER + 12 * s->sequences;
    int64_t before = -1;
    for (int64_t i = 0; i < documents; i++) {
        int64_t d;
        memcpy(&d, at + 8 * i, sizeof d);
        if (d <= before || (i == 0 && d != 0) || d > s->sequences) {
            return GT_FAIL(
                GT_ERR_FORMAT, "document %lld of %s begins at sequence %lld after %lld, of %lld",
                (long long)i, s->path, (long long)d, (long long)before, (long long)s->sequences);
        }
        before = d;
    }
    if (before != s->sequences) {
        return GT_FAIL(GT_ERR_FORMAT, "the documents of %s end at sequence %lld of %lld", s->path,
                       (long long)before, (long long)s->sequences);
    }
    return GT_OK;
}

static gt_status read_index(gti_shard *s)
{
    uint64_t version, sequences, documents, size = s->index.size;
    if (size < HEADER || memcmp(s->index.bytes, magic, MAGIC_SIZE) != 0) {
        return GT_FAIL(GT_ERR_FORMAT, "%s does not begin like a Megatron index", s->path);
    }
    memcpy(&version, s->index.bytes + 9, sizeof version);
    if (version != 1) {
        return GT_FAIL(GT_ERR_FORMAT, "%s has version %llu, wanted 1", s->path,
                       (unsigned long long)version);
    }
    GT_TRY(set_kind(s, s->index.bytes[17]));
    memcpy(&sequences, s->index.bytes + 18, sizeof sequences);
    memcpy(&documents, s->index.bytes + 26, sizeof documents);
    uint64_t limit = size / 8;
    if (sequences == 0 || documents == 0 || sequences > limit || documents > limit) {
        return GT_FAIL(GT_ERR_FORMAT,
                       "%s has %zu bytes, but says %llu sequences and %llu documents", s->path,
                       s->index.size, (unsigned long long)sequences, (unsigned long long)documents);
    }
    uint64_t wanted = HEADER + 12 * sequences + 8 * documents;
    if (size != wanted && size != wanted + sequences) {
        return GT_FAIL(GT_ERR_FORMAT,
                       "%s has %zu bytes, wanted %llu for %llu sequences and %llu documents",
                       s->path, s->index.size, (unsigned long long)wanted,
                       (unsigned long long)sequences, (unsigned long long)documents);
    }
    s->sequences = (int64_t)sequences;
    s->offset = HEADER + 4 * s->sequences; /* of the pointers, in the index */
    GT_TRY(read_sequences(s));
    return check_documents(s, (int64_t)documents);
}

gt_status gti_shard_open_megatron(gti_shard *s, const char *path)
{
    size_t n = strlen(path);
    if (n > 4 && (strcmp(path + n - 4, ".bin") == 0 || strcmp(path + n - 4, ".idx") == 0)) {
        n -= 4;
    }
    char *index = malloc(2 * (n + 5)), *bin = index != NULL ? index + n + 5 : NULL;
    if (index == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no memory to open %s", path);
    }
    memcpy(index, path, n);
    memcpy(bin, path, n);
    strcpy(index + n, ".idx");
    strcpy(bin + n, ".bin");
    s->format = "megatron";
    gt_status st = gti_map_file(&s->index, index);
    if (st == GT_OK) {
        st = gti_map_file(&s->data, bin);
    }
    if (st == GT_OK) {
        st = read_index(s);
    }
    free(index);
    return st;
}
