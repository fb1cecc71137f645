/* SPDX-License-Identifier: Apache-2.0
 * Plain kinds of value. One rule for numbers: written as a number or as a string that spells one;
 * an integer may be written as 5e8 or 5.0, but must be whole. */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config/reading.h"
#include "core/fail.h"

const char *gti_describe(json_object *value, char *out, size_t size)
{
    switch (json_object_get_type(value)) {
    case json_type_null:
        snprintf(out, size, "null");
        break;
    case json_type_array:
        snprintf(out, size, "a list");
        break;
    case json_type_object:
        snprintf(out, size, "a section {...}");
        break;
    case json_type_string:
        snprintf(out, size, "\"%.60s\"", json_object_get_string(value));
        break;
    default:
        snprintf(out, size, "%.60s", json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN));
    }
    return out;
}

static void wrong(gti_reading *r, const char *path, json_object *value, const char *wanted)
{
    char got[80];
    gti_problem(r, GTI_PROBLEM_VALUE, path, "is %s, wanted %s",
                gti_describe(value, got, sizeof got), wanted);
}

/* The text of a number, also of one in quotes; NULL for other values. */
static const char *number_text(json_object *value)
{
    enum json_type type = json_object_get_type(value);
    if (type == json_type_int || type == json_type_double) {
        return json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN);
    }
    if (type != json_type_string) {
        return NULL;
    }
    const char *text = json_object_get_string(value);
    if (strcasecmp(text, "infinity") == 0 || strcasecmp(text, "inf") == 0) {
        return "inf";
    }
    if (text[0] == '\0' || strspn(text, "0123456789+-.eE") != strlen(text)) {
        return NULL;
    }
    return text;
}

void gti_key_range(const gti_key *key, char *out, size_t size)
{
    if (key->max >= 1e17 || key->max == FLT_MAX || key->max == INT32_MAX) {
        snprintf(out, size, key->min == DBL_MIN || key->min == FLT_MIN ? "above 0" : "at least %g",
                 key->min);
    } else if (key->max == 0x1.fffffep-1) {
        snprintf(out, size, "from %g to below 1", key->min);
    } else {
        snprintf(out, size, "from %g to %g", key->min, key->max);
    }
}

static bool in_range(gti_reading *r, const gti_key *key, const char *path, json_object *value,
                     double number)
{
    if (number >= key->min && number <= key->max) {
        return true;
    }
    char range[64], got[80];
    gti_key_range(key, range, sizeof range);
    if (number > key->max && strncmp(range, "from", 4) != 0) { /* a limit too far off to print */
        snprintf(range, sizeof range, "at most %.10g", key->max);
    }
    gti_problem(r, GTI_PROBLEM_VALUE, path, "is %s, wanted %s",
                gti_describe(value, got, sizeof got), range);
    return false;
}

bool gti_read_number(gti_reading *r, const gti_key *key, const char *path, json_object *value,
                     double *out)
{
    const char *text = number_text(value);
    char *end = NULL;
    errno = 0;
    double number = text != NULL ? strtod(text, &end) : 0;
    if (text == NULL || *end != '\0' || (errno == ERANGE && fabs(number) > 1)) {
        wrong(r, path, value, end != NULL && *end == '\0' ? "a finite number" : "a number");
        return false;
    }
    if (!in_range(r, key, path, value, number)) {
        return false;
    }
    *out = number;
    return true;
}

/* 64 bits wide, whatever way it is written. */
static bool read_integer(gti_reading *r, const gti_key *key, const char *path, json_object *value,
                         int64_t *out)
{
    const char *text = number_text(value);
    char *end = NULL;
    errno = 0;
    long long whole = text != NULL ? strtoll(text, &end, 10) : 0;
    double number = (double)whole;
    if (text != NULL && *end != '\0') {
        errno = 0;
        number = strtod(text, &end);
        if (*end == '\0' && errno == 0 && number == floor(number) && fabs(number) < 0x1p63) {
            whole = (long long)number;
        } else {
            errno = EINVAL;
        }
    }
    if (text == NULL || errno != 0) {
        wrong(r, path, value, "an integer");
        return false;
    }
    if (!in_range(r, key, path, value, number)) {
        return false;
    }
    *out = whole;
    return true;
}

bool gti_read_bool(gti_reading *r, const char *path, json_object *value, bool *out)
{
    if (json_object_get_type(value) == json_type_boolean) {
        *out = json_object_get_boolean(value);
        return true;
    }
    const char *text =
        json_object_get_type(value) == json_type_string ? json_object_get_string(value) : "";
    if (strcasecmp(text, "true") == 0 || strcasecmp(text, "false") == 0) {
        *out = strcasecmp(text, "true") == 0;
        return true;
    }
    wrong(r, path, value, "true or false");
    return false;
}

bool gti_read_string(gti_reading *r, const char *path, json_object *value, char *out, size_t size)
{
    if (json_object_get_type(value) != json_type_string) {
        wrong(r, path, value, "a string");
        return false;
    }
    const char *text = json_object_get_string(value);
    size_t n = (size_t)json_object_get_string_len(value);
    if (n >= size || strlen(text) != n) {
        gti_problem(r, GTI_PROBLEM_VALUE, path,
                    "is a string of %zu bytes, wanted less than %zu and no zero byte", n, size);
        return false;
    }
    memcpy(out, text, n + 1);
    return true;
}

bool gti_read_choice(gti_reading *r, const char *path, json_object *value, const char *const *names,
                     int *out)
{
    const char *text =
        json_object_get_type(value) == json_type_string ? json_object_get_string(value) : "";
    char list[160] = "";
    for (int i = 0; names[i] != NULL; i++) {
        if (strcasecmp(names[i], text) == 0) {
            *out = i;
            return true;
        }
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    char got[80];
    gti_problem(r, GTI_PROBLEM_VALUE, path, "is %s, wanted one of: %s",
                gti_describe(value, got, sizeof got), list);
    return false;
}

/* The shortest text that reads back to the same bits. */
json_object *gti_write_number(double value, bool single)
{
    char text[40];
    if (isinf(value)) {
        return json_object_new_string("Infinity");
    }
    for (int digits = single ? 6 : 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (single ? strtof(text, NULL) == (float)value : strtod(text, NULL) == value) {
            break;
        }
    }
    return json_object_new_double_s(value, text);
}

/* ---- kinds ------------------------------------------------------------------------------------
 */
#define AT(type, base, key) ((type *)(void *)((char *)(base) + (key)->offset))
#define AT_CONST(type, base, key)                                                                  \
    ((const type *)(const void *)((const char *)(base) + (key)->offset))

static void read_bool(gti_reading *r, const gti_key *key, const char *path, json_object *value)
{
    bool b;
    if (gti_read_bool(r, path, value, &b) && key->size > 0) {
        *AT(bool, &r->config, key) = b;
    }
}

static json_object *write_bool(const gt_config *c, const gti_key *key)
{
    return json_object_new_boolean(*AT_CONST(bool, c, key));
}

static void read_int(gti_reading *r, const gti_key *key, const char *path, json_object *value)
{
    int64_t n;
    if (!read_integer(r, key, path, value, &n) || key->size == 0) {
        return;
    }
    if (key->size == sizeof(int64_t)) {
        *AT(int64_t, &r->config, key) = n;
    } else {
        *AT(int, &r->config, key) = (int)n;
    }
}

static json_object *write_int(const gt_config *c, const gti_key *key)
{
    int64_t n = key->size == sizeof(int64_t) ? *AT_CONST(int64_t, c, key) : *AT_CONST(int, c, key);
    /* 0 means "not given" where the range begins above it. */
    return n == 0 && key->min > 0 ? NULL : json_object_new_int64(n);
}

static void read_double(gti_reading *r, const gti_key *key, const char *path, json_object *value)
{
    double d;
    if (!gti_read_number(r, key, path, value, &d) || key->size == 0) {
        return;
    }
    if (key->size == sizeof(double)) {
        *AT(double, &r->config, key) = d;
    } else {
        *AT(float, &r->config, key) = (float)d;
    }
}

static json_object *write_double(const gt_config *c, const gti_key *key)
{
    return key->size == sizeof(double) ? gti_write_number(*AT_CONST(double, c, key), false)
                                       : gti_write_number(*AT_CONST(float, c, key), true);
}

static void read_string(gti_reading *r, const gti_key *key, const char *path, json_object *value)
{
    char text[GT_PATH_MAX];
    if (!gti_read_string(r, path, value, text, key->size > 0 ? key->size : sizeof text)) {
        return;
    }
    if (text[0] == '\0' && key->min > 0) {
        wrong(r, path, value, "a name");
    } else if (key->size > 0) {
        strcpy(AT(char, &r->config, key), text);
    }
}

static json_object *write_string(const gt_config *c, const gti_key *key)
{
    return json_object_new_string(AT_CONST(char, c, key));
}

static void read_enum(gti_reading *r, const gti_key *key, const char *path, json_object *value)
{
    int choice;
    if (gti_read_choice(r, path, value, key->names, &choice)) {
        *AT(int, &r->config, key) = choice;
    }
}

static json_object *write_enum(const gt_config *c, const gti_key *key)
{
    return json_object_new_string(key->names[*AT_CONST(int, c, key)]);
}

static void read_dtype(gti_reading *r, const gti_key *key, const char *path, json_object *value)
{
    gt_dtype dtype;
    const char *text =
        json_object_get_type(value) == json_type_string ? json_object_get_string(value) : "";
    if (gt_dtype_parse(&dtype, text) != GT_OK ||
        (dtype != GT_F32 && dtype != GT_F16 && dtype != GT_BF16)) {
        wrong(r, path, value, "fp32, fp16 or bf16");
    } else if (key->size > 0) {
        *AT(gt_dtype, &r->config, key) = dtype;
        r->communication_given |= key->offset == offsetof(gt_config, communication_dtype);
    }
}

static json_object *write_dtype(const gt_config *c, const gti_key *key)
{
    return json_object_new_string(gt_dtype_name(*AT_CONST(gt_dtype, c, key)));
}

static void read_any(gti_reading *r, const gti_key *key, const char *path, json_object *value)
{
}

static void read_off(gti_reading *r, const gti_key *key, const char *path, json_object *value)
{
    const char *text = json_object_get_type(value) == json_type_string
                           ? json_object_get_string(value)
                           : json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN);
    char *end;
    double number = strtod(text, &end);
    bool numeric = end != text && *end == '\0';
    for (int i = 0; key->names[i] != NULL; i++) {
        if (strcasecmp(text, key->names[i]) == 0 ||
            (numeric && strtod(key->names[i], &end) == number && *end == '\0')) {
            return;
        }
    }
    char got[80];
    gti_problem(r, GTI_PROBLEM_UNSUPPORTED, path, "is %s, which is not supported%s%s",
                gti_describe(value, got, sizeof got), key->meaning[0] ? ": " : "", key->meaning);
}

const gti_value_type gti_type_bool = {"true or false", read_bool, write_bool};
const gti_value_type gti_type_int = {"integer", read_int, write_int};
const gti_value_type gti_type_int64 = {"integer", read_int, write_int};
const gti_value_type gti_type_uint64 = {"integer", read_int, write_int};
const gti_value_type gti_type_double = {"number", read_double, write_double};
const gti_value_type gti_type_float = {"number", read_double, write_double};
const gti_value_type gti_type_string = {"string", read_string, write_string};
const gti_value_type gti_type_enum = {"name", read_enum, write_enum};
const gti_value_type gti_type_dtype = {"dtype", read_dtype, write_dtype};
const gti_value_type gti_type_any = {"anything", read_any, NULL};
const gti_value_type gti_type_off = {"anything", read_off, NULL};

gt_status gti_key_check(const gt_config *c, const gti_key *key)
{
    if (key->status != GTI_KEY_USED || key->size == 0) {
        return GT_OK;
    }
    double number;
    if (key->type->write == write_int) {
        number = key->size == sizeof(int64_t) ? (double)*AT_CONST(int64_t, c, key)
                                              : *AT_CONST(int, c, key);
        if (number == 0) { /* not given: derived, or refused by whoever needs it */
            return GT_OK;
        }
    } else if (key->type->write == write_double) {
        number = key->size == sizeof(double) ? *AT_CONST(double, c, key) : *AT_CONST(float, c, key);
    } else if (key->type->write == write_dtype) {
        gt_dtype dtype = *AT_CONST(gt_dtype, c, key);
        return dtype == GT_F32 || dtype == GT_F16 || dtype == GT_BF16
                   ? GT_OK
                   : GT_FAIL(GT_ERR_CONFIG, "%s is dtype %d, wanted f32, f16 or bf16", key->path,
                             dtype);
    } else {
        return GT_OK;
    }
    if (!(number >= key->min && number <= key->max)) {
        char range[64];
        gti_key_range(key, range, sizeof range);
        return GT_FAIL(GT_ERR_CONFIG, "%s is %g, wanted %s", key->path, number, range);
    }
    return GT_OK;
}
