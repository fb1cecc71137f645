/* SPDX-License-Identifier: Apache-2.0
 * Writes the tables of docs/config.md from the table of keys, or checks that they are current.
 *
 *   config_docs docs/config.md           checks; status 1 when the file needs --write
 *   config_docs --write docs/config.md */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/keys.h"

static const char begin[] = "<!-- tables: made by config_docs from lib/config/keys.c -->\n";

static void default_of(const gti_key *key, char *out, size_t size)
{
    gt_config c;
    gt_config_init(&c);
    json_object *value = key->type->write != NULL ? key->type->write(&c, key) : NULL;
    const char *text =
        value != NULL ? json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN) : "-";
    snprintf(out, size, "%s", strcmp(text, "\"\"") == 0 ? "-" : text);
    json_object_put(value);
}

static void used_row(FILE *f, const gti_key *key)
{
    char value[80], range[64] = "";
    default_of(key, value, sizeof value);
    if (key->max > key->min && strcmp(key->type->name, "string") != 0) {
        gti_key_range(key, range, sizeof range);
    }
    fprintf(f, "| `%s` | %s%s%s | `%s` | %s |\n", key->path, key->type->name, range[0] ? ", " : "",
            range, value, key->meaning);
}

static void tables(FILE *f)
{
    fputs("\n## Keys with an effect\n\n| key | value | default | meaning |\n|---|---|---|---|\n",
          f);
    for (size_t i = 0; i < gti_key_count; i++) {
        if (gti_keys[i].status == GTI_KEY_USED) {
            used_row(f, &gti_keys[i]);
        }
    }
    fputs("\n## Other spellings and old keys\n\n| key | stands for | note |\n|---|---|---|\n", f);
    for (size_t i = 0; i < gti_key_count; i++) {
        const gti_key *k = &gti_keys[i];
        if (k->status == GTI_KEY_ALIAS || k->status == GTI_KEY_DEPRECATED) {
            fprintf(f, "| `%s` | %s%s%s | %s |\n", k->path, k->target != NULL ? "`" : "old key",
                    k->target != NULL ? k->target : "", k->target != NULL ? "`" : "", k->meaning);
        }
    }
    fputs("\n## Not supported\n\nAn error, unless the value says \"off\".\n\n| key | accepted | "
          "note |\n"
          "|---|---|---|\n",
          f);
    for (size_t i = 0; i < gti_key_count; i++) {
        const gti_key *k = &gti_keys[i];
        if (k->status == GTI_KEY_UNSUPPORTED) {
            fprintf(f, "| `%s` | ", k->path);
            for (int n = 0; k->names[n] != NULL; n++) {
                fprintf(f, "%s`%s`", n > 0 ? ", " : "", k->names[n]);
            }
            fprintf(f, "%s | %s |\n", k->names[0] == NULL ? "nothing" : "", k->meaning);
        }
    }
    fputs(
        "\n## Known, without use here\n\nType and range are checked, one info line lists them.\n\n",
        f);
    const char *separator = "";
    for (size_t i = 0; i < gti_key_count; i++) {
        if (gti_keys[i].status == GTI_KEY_UNUSED) {
            fprintf(f, "%s`%s`", separator, gti_keys[i].path);
            separator = ",\n";
        }
    }
    fputs("\n", f);
}

int main(int argc, char **argv)
{
    const char *path = argv[argc - 1];
    FILE *f = argc > 1 ? fopen(path, "rb") : NULL;
    static char old[1 << 18];
    size_t n = f != NULL ? fread(old, 1, sizeof old - 1, f) : 0;
    char *made = NULL, *at = strstr(old, begin);
    size_t made_size = 0;
    if (f != NULL) {
        fclose(f);
    }
    if (at == NULL) {
        fprintf(stderr, "usage: config_docs [--write] docs/config.md (with its marker line)\n");
        return 2;
    }
    at += strlen(begin);
    FILE *out = open_memstream(&made, &made_size);
    tables(out);
    fclose(out);
    int status = strcmp(at, made) != 0;
    if (status && strcmp(argv[1], "--write") == 0) {
        f = fopen(path, "wb");
        status = f == NULL || fwrite(old, 1, (size_t)(at - old), f) != (size_t)(at - old) ||
                 fwrite(made, 1, made_size, f) != made_size || fclose(f) != 0;
    } else if (status) {
        fprintf(stderr,
                "%s (%zu bytes) is not what lib/config/keys.c says; run: config_docs --write %s\n",
                path, n, path);
    }
    free(made);
    return status;
}
