/* SPDX-License-Identifier: Apache-2.0
 *
 * Token files, memory-mapped, and a loader whose order is one number.
 *
 * Formats: "bytes" (any file; vocabulary 256), "llmc" (llm.c .bin shards, u16 or u32 tokens),
 * "megatron" (.idx + .bin), "npy" (an array of integers by numpy), and plain little-endian tokens,
 * "u16", "u32" or "i64". "auto" looks at magic numbers and content: text is bytes, plain numbers
 * are tokens when all that is looked at fits the vocabulary, anything else is refused.
 * docs/formats.md has the layouts.
 *
 * Sample s of an epoch is tokens [s*seq, s*seq + seq + 1) of the stream, in an order that is a
 * permutation given by (seed, epoch). Global batch b takes samples position ..
 * position+train_batch-1; data rank r of P takes the r-th contiguous P-th of them. So every layout
 * sees the same batches, and `position` alone resumes.
 */
#ifndef GEEKTRAIN_DATA_H
#define GEEKTRAIN_DATA_H

#include <geektrain/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gt_tokens gt_tokens; /* an open token stream */
typedef struct gt_loader gt_loader;

/* paths: one path, several separated by ':', or a glob ("~/" is the user's folder); a file of that
 * very name comes first. format: "auto" (also NULL and "") or one of the above. vocab: tokens at or
 * above it are an error naming file and index, of a part of each file here and of the rest when
 * they are read; 0: no check. Errors: GT_ERR_IO, GT_ERR_FORMAT. */
GT_API gt_status gt_tokens_open(gt_tokens **out, const char *paths, const char *format,
                                int64_t vocab);
GT_API void gt_tokens_close(gt_tokens **tokens);
GT_API int64_t gt_tokens_count(const gt_tokens *tokens);      /* 0 for NULL  */
GT_API const char *gt_tokens_format(const gt_tokens *tokens); /* "" for NULL */
/* Copies tokens [first, first+count) as i32. Not bound to one thread. */
GT_API gt_status gt_tokens_read(const gt_tokens *tokens, int64_t first, int64_t count,
                                int32_t *out);
/* xxh64 of sizes and sampled contents: equal files give equal values. 0 for NULL. */
GT_API uint64_t gt_tokens_hash(const gt_tokens *tokens);

/* One rank's part of a global batch, in host memory; from a loader: borrowed until its next call.
 * Fill one yourself to train on data of yours. */
typedef struct gt_batch {
    int64_t samples, seq;
    const int32_t *tokens;  /* [samples, seq]                                             */
    const int32_t *targets; /* [samples, seq]: the next token, or ignore_index (-100)     */
    int64_t first_sample;   /* global number of the first sample since the start of training */
} gt_batch;

typedef struct gt_loader_params {
    size_t struct_size;
    int64_t first, count; /* tokens of the stream to use; count 0: to the end           */
    int64_t seq;
    int64_t batch;  /* samples of the *global* batch                              */
    int rank, size; /* along the data axis; batch must be a multiple of size      */
    uint64_t seed;
    bool shuffle;
    bool no_prefetch; /* otherwise a thread reads the next batch meanwhile          */
} gt_loader_params;
#define GT_LOADER_PARAMS_INIT GT_PARAMS_INIT(gt_loader_params)
GT_API void gt_loader_params_init(gt_loader_params *params, size_t size);
/* tokens is borrowed and must outlive the loader. Not collective: each data rank has its own.
 * Errors: GT_ERR_FORMAT when fewer than seq+1 tokens; GT_ERR_ARGUMENT. An epoch's last incomplete
 * global batch is filled from the next epoch: no sample is dropped.
 * A child of fork() makes its own loader (the tokens it may share): there gt_loader_next() and
 * gt_loader_seek() of the parent's are GT_ERR_STATE, and gt_loader_destroy() only frees memory. */
GT_API gt_status gt_loader_create(gt_loader **out, gt_tokens *tokens,
                                  const gt_loader_params *params);
GT_API void gt_loader_destroy(gt_loader **loader);
/* Errors: GT_ERR_FORMAT naming file and index of a token outside the vocabulary. */
GT_API gt_status gt_loader_next(gt_loader *loader, gt_batch *out);
/* Global samples taken so far; 0 for NULL. */
GT_API int64_t gt_loader_position(const gt_loader *loader);
/* The next batch begins at this global sample, 0 to INT64_MAX / 2. */
GT_API gt_status gt_loader_seek(gt_loader *loader, int64_t position);
GT_API int64_t gt_loader_samples(const gt_loader *loader); /* per epoch; 0 for NULL */

#ifdef __cplusplus
}
#endif
#endif
