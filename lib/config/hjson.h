/* SPDX-License-Identifier: Apache-2.0
 * Hjson, as far as DeepSpeed's configuration files use it, rewritten as strict JSON for json-c. */
#ifndef GTI_CONFIG_HJSON_H
#define GTI_CONFIG_HJSON_H

#include <stddef.h>

#include <geektrain/status.h>

typedef struct gti_json_key { /* where a key stands */
    char *path;               /* "optimizer.params.groups[0].pattern" */
    int line;
} gti_json_key;

typedef struct gti_json_text {
    char *json; /* strict, terminated */
    size_t length, capacity;
    gti_json_key *keys;
    size_t key_count, key_capacity;
} gti_json_text;

/* Reads: comments (#, //, slash-star), trailing and missing commas, single quotes, keys without
 * quotes, values without quotes (strings, to the end of the line), a byte order mark, CRLF. Errors:
 * GT_ERR_CONFIG with line and column; a key given twice in one object is one. */
gt_status gti_hjson_to_json(gti_json_text *out, const char *text, size_t length);
void gti_json_text_free(gti_json_text *text);
int gti_json_line(const gti_json_text *text, const char *path); /* 0: unknown */

#endif
