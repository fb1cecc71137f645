/* SPDX-License-Identifier: Apache-2.0
 * One memory-mapped token file. */
#ifndef GTI_DATA_SHARD_H
#define GTI_DATA_SHARD_H

#include <stdbool.h>

#include <geektrain/data.h>

typedef enum gti_token_kind {
    GTI_TOKEN_U8 = 0,
    GTI_TOKEN_I8,
    GTI_TOKEN_U16,
    GTI_TOKEN_I16,
    GTI_TOKEN_U32,
    GTI_TOKEN_I32,
    GTI_TOKEN_I64
} gti_token_kind;

typedef struct gti_mapping {
    const unsigned char *bytes;
    size_t size;
} gti_mapping;

typedef struct gti_shard {
    char *path;
    const char *format; /* "bytes", "llmc", "megatron" */
    gti_mapping data, index;
    gti_token_kind kind;
    int64_t count;     /* tokens                                          */
    int64_t offset;    /* bytes before the first token of data            */
    int64_t sequences; /* megatron; others 0                              */
    int64_t *starts;   /* megatron: [sequences + 1] tokens before each one */
} gti_shard;

/* Maps a whole file read-only and closes it, so that any number of files costs no descriptor.
 * Errors: GT_ERR_IO; GT_ERR_FORMAT for an empty file. */
gt_status gti_map_file(gti_mapping *out, const char *path);
void gti_unmap(gti_mapping *mapping);

/* format: "auto" or one of the names above. */
gt_status gti_shard_open(gti_shard *out, const char *path, const char *format);
gt_status gti_shard_open_megatron(gti_shard *out, const char *path);
void gti_shard_close(gti_shard *shard);
/* Tokens [first, first+count), which must lie within. vocab 0: only what i32 holds. */
gt_status gti_shard_read(const gti_shard *shard, int64_t first, int64_t count, int64_t vocab,
                         int32_t *out);
int gti_token_size(gti_token_kind kind);

#endif
