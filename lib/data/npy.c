/* SPDX-License-Identifier: Apache-2.0
 * One array of integers as numpy.save() writes it:
 *
 *   "\x93NUMPY"  u8 major  u8 minor  u16 (version 1) or u32 length
 *   "{'descr': '<u2', 'fortran_order': False, 'shape': (1000,), }" in `length` bytes, the values */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "data/shard.h"

enum { MAGIC_SIZE = 6, TEXT_MAX = 4096 };

static const char magic[] = "\x93NUMPY";

bool gti_is_npy(const gti_mapping *m)
{
    return m->size >= MAGIC_SIZE && memcmp(m->bytes, magic, MAGIC_SIZE) == 0;
}

/* The dictionary as a string; sets where the values begin. */
static gt_status read_text(gti_shard *s, char text[TEXT_MAX + 1])
{
    size_t size = s->data.size, at = 10, length = 0;
    int major = size >= 12 ? s->data.bytes[6] : 0;
    if (major >= 1 && major <= 3) {
        uint16_t small;
        uint32_t large;
        memcpy(&small, s->data.bytes + 8, sizeof small);
        memcpy(&large, s->data.bytes + 8, sizeof large);
        at = major == 1 ? 10 : 12;
        length = major == 1 ? small : large;
    }
    if (length == 0 || length > TEXT_MAX || length > size - at) {
        return GT_FAIL(GT_ERR_FORMAT, "%s begins like a .npy file, but its header is damaged",
                       s->path);
    }
    memcpy(text, s->data.bytes + at, length);
    text[length] = '\0';
    s->offset = (int64_t)(at + length);
    return GT_OK;
}

/* What stands after 'key':, or NULL. */
static const char *value_of(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    at = at != NULL ? strchr(at + strlen(key), ':') : NULL;
    while (at != NULL && (*at == ':' || *at == ' ')) {
        at++;
    }
    return at;
}

static gt_status set_kind(gti_shard *s, const char *value)
{
    static const struct {
        const char *name;
        gti_token_kind kind;
    } known[] = {{"|u1", GTI_TOKEN_U8},  {"|i1", GTI_TOKEN_I8},  {"<u2", GTI_TOKEN_U16},
                 {"<i2", GTI_TOKEN_I16}, {"<u4", GTI_TOKEN_U32}, {"<i4", GTI_TOKEN_I32},
                 {"<u8", GTI_TOKEN_I64}, {"<i8", GTI_TOKEN_I64}}; /* beyond 2^63: negative */
    for (size_t i = 0; value != NULL && i < sizeof known / sizeof known[0]; i++) {
        if (value[0] != '\0' && strncmp(value + 1, known[i].name, 3) == 0) {
            s->kind = known[i].kind;
            return GT_OK;
        }
    }
    return GT_FAIL(GT_ERR_FORMAT, "%s holds values of dtype %.8s, wanted little-endian integers",
                   s->path, value != NULL ? value : "(none)");
}

/* The product of "(3, 4)"; false when there is no such tuple or no room for as many. */
static bool count_values(const char *value, int64_t *count, int *axes)
{
    if (value == NULL || *value++ != '(') {
        return false;
    }
    *count = 1;
    for (*axes = 0; *value != ')'; ++*axes) {
        char *end;
        long long n = isdigit((unsigned char)*value) ? strtoll(value, &end, 10) : -1;
        if (n < 0 || (n > 0 && *count > INT64_MAX / 8 / n)) {
            return false;
        }
        *count *= n;
        value = end + strspn(end, ", ");
    }
    return true;
}

gt_status gti_shard_open_npy(gti_shard *s)
{
    char text[TEXT_MAX + 1];
    int axes = 0;
    if (!gti_is_npy(&s->data)) {
        return GT_FAIL(GT_ERR_FORMAT, "%s does not begin like a .npy file", s->path);
    }
    GT_TRY(read_text(s, text));
    GT_TRY(set_kind(s, value_of(text, "'descr'")));
    if (!count_values(value_of(text, "'shape'"), &s->count, &axes)) {
        return GT_FAIL(GT_ERR_FORMAT, "%s has no shape in its header", s->path);
    }
    const char *order = value_of(text, "'fortran_order'");
    if (axes > 1 && (order == NULL || strncmp(order, "False", 5) != 0)) {
        return GT_FAIL(GT_ERR_FORMAT, "%s is stored column by column, wanted rows", s->path);
    }
    int64_t wanted = s->offset + s->count * gti_token_size(s->kind);
    if (s->count == 0 || (int64_t)s->data.size != wanted) {
        return GT_FAIL(GT_ERR_FORMAT,
                       "%s has %zu bytes, but its header promises %lld values = %lld bytes",
                       s->path, s->data.size, (long long)s->count, (long long)wanted);
    }
    return GT_OK;
}
