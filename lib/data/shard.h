/* SPDX-License-Identifier: Apache-2.0
 * One memory-mapped token file. */
#ifndef GTI_DATA_SHARD_H
#define GTI_DATA_SHARD_H

#include <stdbool.h>

#include <geektrain/data.h>

#include "data/mapping.h"

typedef enum gti_token_kind {
    GTI_TOKEN_U8 = 0,
    GTI_TOKEN_I8,
    GTI_TOKEN_U16,
    GTI_TOKEN_I16,
    GTI_TOKEN_U32,
    GTI_TOKEN_I32,
    GTI_TOKEN_I64
} gti_token_kind;

typedef struct gti_shard {
    char *path;
    const char *format; /* one of the names in data.h, not "auto" */
    gti_mapping data, index;
    gti_token_kind kind;
    int64_t count;     /* tokens                                          */
    int64_t offset;    /* bytes before the first token of data            */
    int64_t sequences; /* megatron; others 0                              */
    int64_t *starts;   /* megatron: [sequences + 1] tokens before each one */
} gti_shard;

/* format: "auto" or one of the names in data.h; "auto" looks at the content, which for plain
 * numbers must fit `vocab`, and takes `like` (may be NULL) for a file that could be anything. */
gt_status gti_shard_open(gti_shard *out, const char *path, const char *format, int64_t vocab,
                         const char *like);
/* These fill in what a file's header says; its path is set, and but for Megatron's it is mapped. */
gt_status gti_shard_open_megatron(gti_shard *s, const char *path);
gt_status gti_shard_open_llmc(gti_shard *s);
gt_status gti_shard_open_npy(gti_shard *s);
bool gti_is_llmc(const gti_mapping *m);
bool gti_is_npy(const gti_mapping *m);
/* The plain format that the content of a file without a magic number speaks for. Errors:
 * GT_ERR_FORMAT, with what it looks like instead. */
gt_status gti_recognize(const gti_mapping *m, const char *path, int64_t vocab, const char **format);
void gti_shard_close(gti_shard *shard);
/* Tokens [first, first+count), which must lie within. vocab 0: only what i32 holds. */
gt_status gti_shard_read(const gti_shard *shard, int64_t first, int64_t count, int64_t vocab,
                         int32_t *out);
int gti_token_size(gti_token_kind kind);

#endif
