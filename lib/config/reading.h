/* SPDX-License-Identifier: Apache-2.0
 * What one reading of a document collects before its values are known to be good. */
#ifndef GTI_CONFIG_READING_H
#define GTI_CONFIG_READING_H

#include "config/hjson.h"
#include "config/keys.h"

enum { GTI_MAX_PROBLEMS = 48, GTI_PROBLEM_SIZE = 320, GTI_NOTE_SIZE = 1024 };

typedef enum gti_severity { /* the order in which problems are told */
                            GTI_PROBLEM_VALUE = 0,
                            GTI_PROBLEM_UNSUPPORTED,
                            GTI_PROBLEM_UNKNOWN,
                            GTI_PROBLEM_KINDS
} gti_severity;

struct gti_reading {
    gt_config config;
    gt_context *ctx;
    const gti_json_text *text; /* NULL: lines are not told */
    bool is_file;              /* not a single value        */
    const char **given_by;     /* [gti_key_count] path that set this key */
    json_object **given_value; /* borrowed                               */
    int problems;
    gti_severity severity[GTI_MAX_PROBLEMS];
    char problem[GTI_MAX_PROBLEMS][GTI_PROBLEM_SIZE];
    char unused[GTI_NOTE_SIZE], automatic[GTI_NOTE_SIZE];
    /* Settled at the end of the document; -1: not given. */
    int param_dtype, fp16, bf16, adam_w_mode, optimizer_adam, cpu_offload;
    bool betas_given, communication_given;
    char offload_param_path[128]; /* "": not asked for */
};

void gti_problem(gti_reading *r, gti_severity severity, const char *path, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* "a list", "\"abc\"", "3.5" */
const char *gti_describe(json_object *value, char *out, size_t size);

/* Values, each true when *out is good; otherwise the problem is noted. */
bool gti_read_bool(gti_reading *r, const char *path, json_object *value, bool *out);
bool gti_read_number(gti_reading *r, const gti_key *key, const char *path, json_object *value,
                     double *out);
bool gti_read_string(gti_reading *r, const char *path, json_object *value, char *out, size_t size);
bool gti_read_choice(gti_reading *r, const char *path, json_object *value, const char *const *names,
                     int *out);
json_object *gti_write_number(double value, bool single);

/* What depends on several keys. */
void gti_settle(gti_reading *r);

#endif
