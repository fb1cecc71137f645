/* SPDX-License-Identifier: Apache-2.0 */
#include "config/hjson.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"

enum { MAX_DEPTH = 24, MAX_KEYS = 2000, PATH_SIZE = 512 };

typedef struct scanner {
    const char *text;
    size_t at, length;
    gti_json_text *out;
    char path[PATH_SIZE];
    int depth;
    size_t counted; /* bytes whose line ends are counted */
    int line;
    const char *open_ended; /* the last string without quotes that swallowed what may be syntax */
    size_t open_ended_size;
} scanner;

static int peek(const scanner *s, size_t ahead)
{
    return s->at + ahead < s->length ? (unsigned char)s->text[s->at + ahead] : -1;
}

static int line_of(scanner *s)
{
    if (s->counted > s->at) {
        s->counted = 0;
        s->line = 0;
    }
    for (; s->counted < s->at; s->counted++) {
        s->line += s->text[s->counted] == '\n';
    }
    return s->line + 1;
}

static gt_status syntax(scanner *s, const char *wanted)
{
    size_t start = s->at;
    while (start > 0 && s->text[start - 1] != '\n') {
        start--;
    }
    char got[16];
    int c = peek(s, 0);
    snprintf(got, sizeof got, c < 0 ? "the end" : isprint(c) ? "'%c'" : "byte 0x%02x", c);
    if (s->open_ended != NULL) { /* probably meant to end earlier */
        int n = s->open_ended_size < 40 ? (int)s->open_ended_size : 40;
        return GT_FAIL(
            GT_ERR_CONFIG,
            "line %d, column %zu: got %s, wanted %s (a string without quotes goes to the "
            "end of its line: \"%.*s\")",
            line_of(s), s->at - start + 1, got, wanted, n, s->open_ended);
    }
    return GT_FAIL(GT_ERR_CONFIG, "line %d, column %zu: got %s, wanted %s", line_of(s),
                   s->at - start + 1, got, wanted);
}

static gt_status emit(scanner *s, const char *bytes, size_t n)
{
    gti_json_text *o = s->out;
    if (o->length + n + 1 > o->capacity) {
        size_t capacity = 2 * (o->length + n) + 256;
        char *grown = realloc(o->json, capacity);
        if (grown == NULL) {
            return GT_FAIL(GT_ERR_MEMORY, "no memory for %zu bytes of configuration", capacity);
        }
        o->json = grown;
        o->capacity = capacity;
    }
    memcpy(o->json + o->length, bytes, n);
    o->length += n;
    o->json[o->length] = '\0';
    return GT_OK;
}

/* Blanks and comments. */
static gt_status skip(scanner *s)
{
    while (s->at < s->length) {
        int c = peek(s, 0);
        if (c == '#' || (c == '/' && peek(s, 1) == '/')) {
            while (s->at < s->length && s->text[s->at] != '\n') {
                s->at++;
            }
        } else if (c == '/' && peek(s, 1) == '*') {
            const char *from = s->text + s->at + 2;
            const char *end = memmem(from, s->length - s->at - 2, "*/", 2);
            if (end == NULL) {
                return syntax(s, "the end of this comment");
            }
            s->at = (size_t)(end + 2 - s->text);
        } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
            s->at++;
        } else {
            break;
        }
    }
    return GT_OK;
}

/* A string in single or double quotes with its escapes as they are; json-c checks those. */
static gt_status quoted(scanner *s)
{
    size_t start = s->at, from = start + 1;
    const char quote = s->text[s->at++];
    GT_TRY(emit(s, "\"", 1));
    while (peek(s, 0) != quote) {
        int c = peek(s, 0), step = c == '\\' ? 2 : 1;
        if (c < 0 || c == '\n' || c == 0) {
            s->at = start;
            return syntax(s, quote == '"' ? "the closing '\"' of this string on the same line"
                                          : "the closing ' of this string on the same line");
        }
        if (c == '"' || (step == 2 && peek(s, 1) == '\'')) { /* JSON quotes these otherwise */
            GT_TRY(emit(s, s->text + from, s->at - from));
            GT_TRY(emit(s, c == '"' ? "\\\"" : "'", c == '"' ? 2 : 1));
            from = s->at + (size_t)step;
        }
        s->at += (size_t)step;
    }
    GT_TRY(emit(s, s->text + from, s->at - from));
    s->at++;
    return emit(s, "\"", 1);
}

static gt_status emit_as_string(scanner *s, const char *bytes, size_t n)
{
    GT_TRY(emit(s, "\"", 1));
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)bytes[i];
        char escape[8];
        if (c == '"' || c == '\\' || c < 0x20) {
            snprintf(escape, sizeof escape, "\\u%04x", c);
            GT_TRY(emit(s, escape, 6));
        } else {
            GT_TRY(emit(s, bytes + i, 1));
        }
    }
    return emit(s, "\"", 1);
}

/* -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)? */
static bool is_number(const char *t, size_t n)
{
    size_t i = n > 0 && t[0] == '-', from = i;
    while (i < n && isdigit((unsigned char)t[i])) {
        i++;
    }
    if (i == from || (t[from] == '0' && i > from + 1)) {
        return false;
    }
    if (i < n && t[i] == '.') {
        for (from = ++i; i < n && isdigit((unsigned char)t[i]); i++) {
        }
        if (i == from) {
            return false;
        }
    }
    if (i < n && (t[i] == 'e' || t[i] == 'E')) {
        i++;
        i += i < n && (t[i] == '+' || t[i] == '-');
        for (from = i; i < n && isdigit((unsigned char)t[i]); i++) {
        }
        if (i == from) {
            return false;
        }
    }
    return i == n;
}

static const char *const words[] = {"true", "false", "null", NULL};
static const char *const python_words[] = {"NaN", "Infinity", "-Infinity", NULL};

static bool is_word(const char *t, size_t n, const char *const *list)
{
    for (; *list != NULL; list++) {
        if (strlen(*list) == n && memcmp(*list, t, n) == 0) {
            return true;
        }
    }
    return false;
}

static size_t trimmed(const char *t, size_t n)
{
    while (n > 0 && isspace((unsigned char)t[n - 1])) {
        n--;
    }
    return n;
}

/* A number, true, false, null, or one of the words that Python writes; or else everything to the
 * end of the line is a string. */
static gt_status bare(scanner *s)
{
    const char *t = s->text + s->at;
    size_t left = s->length - s->at, n = 0, line = 0;
    while (line < left && t[line] != '\n') {
        line++;
    }
    while (n < line && strchr(",]}#", t[n]) == NULL &&
           !(t[n] == '/' && n + 1 < line && (t[n + 1] == '/' || t[n + 1] == '*'))) {
        n++;
    }
    n = trimmed(t, n);
    if (n == 0) {
        return syntax(s, "a value");
    }
    if (is_number(t, n) || is_word(t, n, words)) {
        s->at += n;
        return emit(s, t, n);
    }
    if (is_word(t, n, python_words)) {
        s->at += n;
        return emit_as_string(s, t, n);
    }
    if (memchr(t, 0, line) != NULL) {
        return syntax(s, "a value without zero bytes");
    }
    s->at += line;
    if (n < trimmed(t, line)) {
        s->open_ended = t;
        s->open_ended_size = trimmed(t, line);
    }
    return emit_as_string(s, t, trimmed(t, line));
}

static gt_status note_key(scanner *s, size_t siblings)
{
    gti_json_text *o = s->out;
    for (size_t i = siblings; i < o->key_count; i++) {
        if (strcmp(o->keys[i].path, s->path) == 0) {
            return GT_FAIL(GT_ERR_CONFIG, "line %d: %s is given twice, first on line %d",
                           line_of(s), s->path, o->keys[i].line);
        }
    }
    if (o->key_count == MAX_KEYS) {
        return GT_FAIL(GT_ERR_CONFIG, "line %d: more than %d keys", line_of(s), MAX_KEYS);
    }
    if (o->key_count == o->key_capacity) {
        size_t capacity = 2 * o->key_capacity + 64;
        gti_json_key *grown = realloc(o->keys, capacity * sizeof *grown);
        if (grown == NULL) {
            return GT_FAIL(GT_ERR_MEMORY, "no memory for %zu keys", capacity);
        }
        o->keys = grown;
        o->key_capacity = capacity;
    }
    char *copy = strdup(s->path);
    if (copy == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no memory for a key");
    }
    o->keys[o->key_count++] = (gti_json_key){copy, line_of(s)};
    return GT_OK;
}

/* Appends a key to the path; returns the old length through *mark. */
static gt_status push_path(scanner *s, const char *key, size_t n, size_t *mark)
{
    *mark = strlen(s->path);
    if (*mark + n + 2 > PATH_SIZE) {
        return syntax(s, "a shorter key");
    }
    char *end = s->path + *mark;
    if (*mark > 0 && key[0] != '[') {
        *end++ = '.';
    }
    memcpy(end, key, n);
    end[n] = '\0';
    return GT_OK;
}

static gt_status key(scanner *s, size_t *mark, size_t siblings)
{
    size_t start = s->at;
    if (peek(s, 0) == '"' || peek(s, 0) == '\'') {
        GT_TRY(quoted(s));
        size_t n = s->at - start - 2;
        if (memchr(s->text + start, '\\', n + 1) != NULL) {
            s->at = start;
            return syntax(s, "a key without escapes");
        }
        GT_TRY(push_path(s, s->text + start + 1, n, mark));
    } else {
        while (peek(s, 0) > ' ' && strchr(":,{}[]\"#", peek(s, 0)) == NULL) {
            s->at++;
        }
        if (s->at == start) {
            return syntax(s, "a key");
        }
        GT_TRY(emit_as_string(s, s->text + start, s->at - start));
        GT_TRY(push_path(s, s->text + start, s->at - start, mark));
    }
    return note_key(s, siblings);
}

static gt_status value(scanner *s);

static gt_status member(scanner *s, size_t siblings)
{
    size_t mark = 0;
    GT_TRY(key(s, &mark, siblings));
    GT_TRY(skip(s));
    if (peek(s, 0) != ':') {
        return syntax(s, "':' after a key");
    }
    s->at++;
    GT_TRY(emit(s, ":", 1));
    GT_TRY(skip(s));
    GT_TRY(value(s));
    s->path[mark] = '\0';
    return GT_OK;
}

static gt_status element(scanner *s, int index)
{
    char name[16];
    size_t mark = 0;
    snprintf(name, sizeof name, "[%d]", index);
    GT_TRY(push_path(s, name, strlen(name), &mark));
    GT_TRY(value(s));
    s->path[mark] = '\0';
    return GT_OK;
}

/* An object or a list: members with a comma, a line end, or both between them. */
static gt_status container(scanner *s, char open, char close)
{
    if (++s->depth > MAX_DEPTH) {
        return syntax(s, "less deep nesting");
    }
    s->at++;
    GT_TRY(emit(s, &open, 1));
    size_t siblings = s->out->key_count;
    GT_TRY(skip(s));
    for (int i = 0; peek(s, 0) != close; i++) {
        if (i > 0) {
            GT_TRY(emit(s, ",", 1));
        }
        GT_TRY(open == '{' ? member(s, siblings) : element(s, i));
        size_t end = s->at;
        GT_TRY(skip(s));
        bool new_line = memchr(s->text + end, '\n', s->at - end) != NULL;
        if (peek(s, 0) == ',') {
            s->at++;
            GT_TRY(skip(s));
        } else if (peek(s, 0) != close && (peek(s, 0) < 0 || !new_line)) {
            return syntax(s, open == '{' ? "',' or '}'" : "',' or ']'");
        }
    }
    s->at++;
    s->depth--;
    return emit(s, &close, 1);
}

static gt_status value(scanner *s)
{
    switch (peek(s, 0)) {
    case '{':
        return container(s, '{', '}');
    case '[':
        return container(s, '[', ']');
    case '"':
    case '\'':
        return quoted(s);
    case -1:
        return syntax(s, "a value");
    default:
        return bare(s);
    }
}

gt_status gti_hjson_to_json(gti_json_text *out, const char *text, size_t length)
{
    memset(out, 0, sizeof *out);
    scanner s = {.text = text, .length = length, .out = out};
    if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        s.at = 3;
    }
    GT_TRY(skip(&s));
    if (peek(&s, 0) != '{') {
        return syntax(&s, "'{'");
    }
    GT_TRY(value(&s));
    GT_TRY(skip(&s));
    return peek(&s, 0) < 0 ? GT_OK : syntax(&s, "the end after the last '}'");
}

int gti_json_line(const gti_json_text *text, const char *path)
{
    for (size_t i = 0; i < text->key_count; i++) {
        if (strcmp(text->keys[i].path, path) == 0) {
            return text->keys[i].line;
        }
    }
    return 0;
}

void gti_json_text_free(gti_json_text *text)
{
    for (size_t i = 0; i < text->key_count; i++) {
        free(text->keys[i].path);
    }
    free(text->keys);
    free(text->json);
    memset(text, 0, sizeof *text);
}
