/* SPDX-License-Identifier: Apache-2.0
 * What a file without a magic number of ours holds: text, numbers, or something else. */
#include <stdio.h>
#include <string.h>

#include "core/fail.h"
#include "data/shard.h"

/* ---- text: no zero byte, hardly a control character; any encoding but UTF-16 and UTF-32 */
static bool is_text(const gti_mapping *m)
{
    size_t controls = 0, total = 0;
    for (size_t i = 0; i < gti_sample_count(m); i++) {
        gti_mapping piece = gti_sample(m, i);
        for (size_t k = 0; k < piece.size; k++) {
            unsigned char c = piece.bytes[k];
            if (c == 0) {
                return false;
            }
            controls += c == 0x7f || (c < 0x20 && strchr("\b\t\n\v\f\r\x1b", c) == NULL);
        }
        total += piece.size;
    }
    return 100 * controls <= total;
}

/* ---- other programs' files */
static const char *foreign_name(const gti_mapping *m)
{
    static const struct {
        const char *bytes, *name;
    } known[] = {
        {"\x1f\x8b", "compressed by gzip; unpack it first"},
        {"\x28\xb5\x2f\xfd", "compressed by zstd; unpack it first"},
        {"\xfd"
         "7zXZ",
         "compressed by xz; unpack it first"},
        {"BZh", "compressed by bzip2; unpack it first"},
        {"PK\x03\x04", "a zip archive (or .npz, or a model of torch's), not tokens"},
        {"PAR1", "a Parquet file; write its tokens or its text out first"},
        {"ARROW1", "an Arrow file; write its tokens or its text out first"},
        {"\x89HDF", "an HDF5 file; write its tokens or its text out first"},
        {"\x80\x02", "a pickle, not tokens"},
        {"\x80\x03", "a pickle, not tokens"},
        {"\x80\x04", "a pickle, not tokens"},
        {"\x80\x05", "a pickle, not tokens"},
        {"SQLite format 3", "a database, not tokens"},
        {"GGUF", "a model (GGUF), not tokens"},
        {"%PDF", "a PDF file; write its text out first"},
        {"\x7f"
         "ELF",
         "a program, not tokens"},
        {"\xff\xfe", "text in UTF-16; convert it to UTF-8 first, by iconv for instance"},
        {"\xfe\xff", "text in UTF-16; convert it to UTF-8 first, by iconv for instance"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        size_t n = strlen(known[i].bytes);
        if (m->size > n && memcmp(m->bytes, known[i].bytes, n) == 0) {
            return known[i].name;
        }
    }
    return NULL;
}

/* ---- plain numbers: all that is looked at fits the vocabulary, which random bytes would not */
typedef struct largest {
    uint64_t of16, of32, of64;
} largest;

static largest find_largest(const gti_mapping *m)
{
    largest max = {0, 0, 0};
    for (size_t i = 0; i < gti_sample_count(m); i++) {
        gti_mapping piece = gti_sample(m, i);
        for (size_t k = 0; k < piece.size; k += 8) {
            uint64_t v = 0;
            memcpy(&v, piece.bytes + k, piece.size - k < 8 ? piece.size - k : 8);
            max.of64 = v > max.of64 ? v : max.of64;
            for (int half = 0; half < 2; half++, v >>= 32) {
                max.of32 = (v & 0xffffffff) > max.of32 ? v & 0xffffffff : max.of32;
                max.of16 = (v & 0xffff) > max.of16 ? v & 0xffff : max.of16;
                max.of16 = (v >> 16 & 0xffff) > max.of16 ? v >> 16 & 0xffff : max.of16;
            }
        }
    }
    return max;
}

static const char *numbers(const gti_mapping *m, const largest *max, uint64_t vocab)
{
    enum { FEW_BYTES = 64 }; /* too few to tell */
    if (m->size < FEW_BYTES || max->of16 == 0) {
        return NULL;
    }
    if (m->size % 8 == 0 && max->of64 < vocab) {
        return "i64";
    }
    if (m->size % 4 == 0 && max->of32 < vocab) {
        return "u32";
    }
    /* A vocabulary that needs more bits is fitted by any 16. */
    return m->size % 2 == 0 && max->of16 < vocab && vocab < 0xffff ? "u16" : NULL;
}

gt_status gti_recognize(const gti_mapping *m, const char *path, int64_t vocab, const char **format)
{
    if (is_text(m)) {
        *format = "bytes";
        return GT_OK;
    }
    const char *foreign = foreign_name(m);
    if (foreign != NULL) {
        return GT_FAIL(GT_ERR_FORMAT, "%s is %s (or say format \"bytes\" to read it as it is)",
                       path, foreign);
    }
    largest max = find_largest(m);
    *format = numbers(m, &max, (uint64_t)vocab);
    if (*format != NULL) {
        return GT_OK;
    }
    char given[64] = "no vocabulary is given";
    if (vocab > 0) {
        snprintf(given, sizeof given, "the vocabulary has %lld", (long long)vocab);
    }
    return GT_FAIL(GT_ERR_FORMAT,
                   "%s is no text and has no magic number; as u16 its tokens go up to %llu, as u32 "
                   "up to %llu, and %s. Say the format (u16, u32, i64 or bytes) and a vocabulary "
                   "that holds them",
                   path, (unsigned long long)max.of16, (unsigned long long)max.of32, given);
}
