/* SPDX-License-Identifier: Apache-2.0
 * Text to gt_config: one walk over the document, key by key through the table. */
#include <errno.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/reading.h"
#include "core/fail.h"
#include "core/file.h"
#include "core/log.h"

enum { MAX_BYTES = 1 << 20 };

void gti_problem(gti_reading *r, gti_severity severity, const char *path, const char *format, ...)
{
    int i = r->problems++;
    if (i >= GTI_MAX_PROBLEMS) {
        return;
    }
    char *out = r->problem[i];
    int line = r->text != NULL ? gti_json_line(r->text, path) : 0;
    int n = line > 0          ? snprintf(out, GTI_PROBLEM_SIZE, "line %d: %.150s ", line, path)
            : path[0] != '\0' ? snprintf(out, GTI_PROBLEM_SIZE, "%.150s ", path)
                              : 0;
    va_list args;
    va_start(args, format);
    vsnprintf(out + n, (size_t)(GTI_PROBLEM_SIZE - n), format, args);
    va_end(args);
    r->severity[i] = severity;
}

static void append(char *list, size_t size, const char *text)
{
    size_t used = strlen(list);
    if (used + strlen(text) + 3 < size) {
        snprintf(list + used, size - used, "%s%s", used > 0 ? ", " : "", text);
    }
}

/* True when another spelling of the same key has set it to something else. */
static bool conflicts(gti_reading *r, const gti_key *key, const char *spelling, json_object *value)
{
    size_t i = (size_t)(key - gti_keys);
    if (r->given_by[i] != NULL && !json_object_equal(r->given_value[i], value)) {
        gti_problem(r, GTI_PROBLEM_VALUE, spelling, "and %s say the same thing differently",
                    r->given_by[i]);
        return true;
    }
    r->given_by[i] = spelling;
    r->given_value[i] = value;
    return false;
}

static void read_key(gti_reading *r, const gti_key *key, const char *path, json_object *value)
{
    const gti_value_type *type = key->type;
    const gti_key *target = key;
    const char *spelling = key->path;
    if (json_object_get_type(value) == json_type_string &&
        strcmp(json_object_get_string(value), "auto") == 0 && type != &gti_type_any &&
        strcmp(key->path, "data.format") != 0) {
        append(r->automatic, sizeof r->automatic, path);
        return;
    }
    if (key->status == GTI_KEY_ALIAS) {
        target = gti_key_find(key->target);
        if (type == NULL) {
            type = target->type;
            key = target;
        }
    }
    bool off = json_object_get_type(value) == json_type_int && json_object_get_int(value) == 0 &&
               type == &gti_type_parallel;
    if (!off && key->status != GTI_KEY_UNUSED && conflicts(r, target, spelling, value)) {
        return;
    }
    if (key->status == GTI_KEY_UNUSED) {
        append(r->unused, sizeof r->unused, path);
    } else if (key->status == GTI_KEY_DEPRECATED) {
        gti_log(r->ctx, GT_LOG_WARN, "%s is an old key: %s", path, key->meaning);
    }
    type->read(r, key, path, value);
}

static void unknown_key(gti_reading *r, const char *path)
{
    char near[128];
    gti_key_nearest(path, near, sizeof near);
    gti_problem(r, GTI_PROBLEM_UNKNOWN, path, "is not a known key%s%s",
                near[0] ? "; nearest: " : "", near);
}

static void walk(gti_reading *r, json_object *section, const char *prefix)
{
    json_object_object_foreach(section, name, value)
    {
        char path[640], got[80];
        snprintf(path, sizeof path, "%s%s%s", prefix, prefix[0] ? "." : "", name);
        const gti_key *key = strchr(name, '.') == NULL ? gti_key_find(path) : NULL;
        if (name[0] == '_' || value == NULL) {
            continue; /* a note to the reader of the file; null: as if absent */
        }
        if (key != NULL && (key->type != &gti_type_any || !gti_key_is_section(path))) {
            read_key(r, key, path, value);
        } else if (strchr(name, '.') != NULL || !gti_key_is_section(path)) {
            unknown_key(r, path);
        } else if (json_object_get_type(value) == json_type_object) {
            walk(r, value, path);
        } else {
            gti_problem(r, GTI_PROBLEM_VALUE, path, "is %s, wanted a section {...}",
                        gti_describe(value, got, sizeof got));
        }
    }
}

/* All problems in one sentence, wrong values first, as many as fit. */
static gt_status tell_problems(const gti_reading *r)
{
    char text[GTI_ERROR_MAX - 128] = "";
    int told = 0;
    for (int kind = 0; kind < GTI_PROBLEM_KINDS; kind++) {
        for (int i = 0; i < r->problems && i < GTI_MAX_PROBLEMS; i++) {
            size_t used = strlen(text);
            if ((int)r->severity[i] == kind && used + strlen(r->problem[i]) + 3 < sizeof text) {
                snprintf(text + used, sizeof text - used, "%s%s", told++ > 0 ? "; " : "",
                         r->problem[i]);
            }
        }
    }
    if (told < r->problems) {
        return GT_FAIL(GT_ERR_CONFIG, "%s; and %d more", text, r->problems - told);
    }
    return GT_FAIL(GT_ERR_CONFIG, "%s", text);
}

static void tell_notes(const gti_reading *r)
{
    if (r->unused[0] != '\0') {
        gti_log(r->ctx, GT_LOG_INFO, "configuration keys without use here: %s", r->unused);
    }
    if (r->automatic[0] != '\0') {
        gti_log(r->ctx, GT_LOG_INFO, "\"auto\" means the default for: %s", r->automatic);
    }
    if (r->offload_param_path[0] != '\0') {
        gti_log(r->ctx, GT_LOG_WARN, "%s has no effect below ZeRO stage 3", r->offload_param_path);
    }
}

static gt_status parse_json(const gti_json_text *text, json_object **root)
{
    struct json_tokener *tokener = json_tokener_new();
    if (tokener == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no memory for the JSON reader");
    }
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
    *root = json_tokener_parse_ex(tokener, text->json, (int)text->length + 1);
    enum json_tokener_error error = json_tokener_get_error(tokener);
    size_t at = json_tokener_get_parse_end(tokener);
    json_tokener_free(tokener);
    if (error != json_tokener_success) {
        json_object_put(*root);
        size_t from = at > 20 ? at - 20 : 0;
        return GT_FAIL(GT_ERR_CONFIG, "%s near: %.30s", json_tokener_error_desc(error),
                       text->json + (from < text->length ? from : 0));
    }
    return GT_OK;
}

static gt_status read_document(gti_reading *r, const char *text, size_t length)
{
    gti_json_text json;
    json_object *root = NULL;
    gt_status st = gti_hjson_to_json(&json, text, length);
    if (st == GT_OK) {
        st = parse_json(&json, &root);
    }
    if (st == GT_OK) {
        r->text = r->is_file ? &json : NULL;
        walk(r, root, "");
        gti_settle(r);
        gt_status possible = gti_batch_possible(&r->config);
        if (possible != GT_OK) {
            gti_problem(r, GTI_PROBLEM_VALUE, "", "%s", gt_last_error());
        }
        st = r->problems > 0 ? tell_problems(r) : GT_OK;
        json_object_put(root);
    }
    gti_json_text_free(&json);
    return st;
}

/* Reads over *config; it is unchanged on failure. Numbers mean the same in every locale. */
static gt_status read_over(gt_config *config, gt_context *ctx, const char *text, size_t length,
                           bool is_file)
{
    if (length > MAX_BYTES) {
        return GT_FAIL(GT_ERR_CONFIG, "the configuration has %zu bytes, wanted at most %d", length,
                       MAX_BYTES);
    }
    gti_reading *r = calloc(1, sizeof *r);
    const char **given_by = calloc(gti_key_count, sizeof *given_by);
    json_object **given_value = calloc(gti_key_count, sizeof(json_object *));
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    gt_status st = GT_OK;
    if (r == NULL || given_by == NULL || given_value == NULL || c_locale == (locale_t)0) {
        st = GT_FAIL(GT_ERR_MEMORY, "no memory to read a configuration");
    } else {
        locale_t before = uselocale(c_locale);
        r->config = *config;
        r->ctx = ctx;
        r->is_file = is_file;
        r->given_by = given_by;
        r->given_value = given_value;
        r->param_dtype = r->fp16 = r->bf16 = r->adam_w_mode = r->optimizer_adam = r->cpu_offload =
            -1;
        st = read_document(r, text, length);
        uselocale(before);
        if (st == GT_OK) {
            tell_notes(r);
            *config = r->config;
        }
    }
    if (c_locale != (locale_t)0) {
        freelocale(c_locale);
    }
    free(given_value);
    free(given_by);
    free(r);
    return st;
}

gt_status gt_config_parse(gt_config *out, gt_context *ctx, const char *text, size_t length)
{
    gt_config config;
    gt_config_init(&config);
    GT_TRY(read_over(&config, ctx, text, length, true));
    *out = config;
    return GT_OK;
}

static gt_status read_file(const char *path, char **text, size_t *length)
{
    FILE *file = gti_fopen(path, "r");
    if (file == NULL) {
        return GT_FAIL(GT_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    }
    *text = malloc(MAX_BYTES + 1);
    errno = 0;
    *length = *text != NULL ? fread(*text, 1, MAX_BYTES + 1, file) : 0;
    bool failed = ferror(file) != 0;
    int error = errno;
    fclose(file);
    if (*text == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no memory to read %s", path);
    }
    if (failed) {
        free(*text);
        return GT_FAIL(GT_ERR_IO, "cannot read %s: %s", path, strerror(error));
    }
    return GT_OK;
}

gt_status gt_config_load(gt_config *out, gt_context *ctx, const char *path)
{
    char *text;
    size_t length;
    GT_TRY(read_file(path, &text, &length));
    gt_status st = gt_config_parse(out, ctx, text, length);
    free(text);
    if (st != GT_OK) {
        char why[GTI_ERROR_MAX];
        snprintf(why, sizeof why, "%s", gt_last_error());
        return GT_FAIL(st, "%s: %s", path, why);
    }
    return GT_OK;
}

/* {"a":{"b":value}}; a value that is no list, section or quoted string goes in quotes, since
 * numbers and booleans may be strings. */
gt_status gt_config_set(gt_config *config, gt_context *ctx, const char *path, const char *value)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    size_t n = strlen(path), depth = 0;
    if (n == 0 || n > 200 || strspn(path, letters) != n || path[0] == '.' || path[n - 1] == '.' ||
        strstr(path, "..") != NULL) {
        return GT_FAIL(GT_ERR_CONFIG, "\"%.60s\" is no key path; wanted section.key", path);
    }
    if (strpbrk(value, "\r\n") != NULL) {
        return GT_FAIL(GT_ERR_CONFIG, "the value of %s holds a line end", path);
    }
    char *text = malloc(2 * strlen(value) + 4 * n + 16);
    if (text == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no memory for the value of %s", path);
    }
    char *at = text;
    for (const char *part = path; *part != '\0'; depth++) {
        size_t m = strcspn(part, ".");
        at += sprintf(at, "{\"%.*s\":", (int)m, part);
        part += m + (part[m] == '.');
    }
    bool quote = strchr("[{\"", value[0]) == NULL || value[0] == '\0';
    for (const char *v = quote ? "\"" : ""; *v != '\0'; v++) {
        *at++ = *v;
    }
    for (const char *v = value; *v != '\0'; v++) {
        if (quote && (*v == '"' || *v == '\\')) {
            *at++ = '\\';
        }
        *at++ = *v;
    }
    at += sprintf(at, "%s", quote ? "\"" : "");
    for (size_t i = 0; i < depth; i++) {
        *at++ = '}';
    }
    gt_status st = read_over(config, ctx, text, (size_t)(at - text), false);
    free(text);
    return st;
}
