/* SPDX-License-Identifier: Apache-2.0
 * Shards of llm.c: int32 header[256] = {magic, version, tokens, 0...}, then the tokens. */
#include <string.h>

#include "core/fail.h"
#include "data/shard.h"

enum {
    LLMC_HEADER = 256 * 4,
    LLMC_GPT2_MAGIC = 20240520,
    LLMC_GPT2_VERSION = 1,
    LLMC_LLAMA_MAGIC = 20240801,
    LLMC_LLAMA_VERSION = 7
};

static int32_t word(const gti_mapping *m, int index)
{
    int32_t v;
    memcpy(&v, m->bytes + 4 * index, sizeof v);
    return v;
}

bool gti_is_llmc(const gti_mapping *m)
{
    return m->size >= 4 && (word(m, 0) == LLMC_GPT2_MAGIC || word(m, 0) == LLMC_LLAMA_MAGIC);
}

gt_status gti_shard_open_llmc(gti_shard *s)
{
    if (s->data.size < LLMC_HEADER) {
        return GT_FAIL(GT_ERR_FORMAT, "%s has %zu bytes, less than llm.c's header of %d", s->path,
                       s->data.size, LLMC_HEADER);
    }
    int32_t magic = word(&s->data, 0), version = word(&s->data, 1), tokens = word(&s->data, 2);
    if (!gti_is_llmc(&s->data)) {
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
