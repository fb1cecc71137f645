/* SPDX-License-Identifier: Apache-2.0
 * The configuration keys as data: one table, walked by the reader, the writer, the range check and
 * the program that writes docs/config.md. */
#ifndef GTI_CONFIG_KEYS_H
#define GTI_CONFIG_KEYS_H

#include <json-c/json.h>

#include <geektrain/config.h>

typedef enum gti_key_status {
    GTI_KEY_USED = 0,
    GTI_KEY_UNUSED,      /* known, checked, without effect here: one info line             */
    GTI_KEY_UNSUPPORTED, /* an error unless its value is one of the "off" values in `names` */
    GTI_KEY_ALIAS,       /* another spelling of `target`                                   */
    GTI_KEY_DEPRECATED   /* still works; a warning                                         */
} gti_key_status;

typedef struct gti_key gti_key;
typedef struct gti_reading gti_reading;

/* How a value is read into a gt_config and written from it. */
typedef struct gti_value_type {
    const char *name; /* "an integer" */
    /* Reports through gti_problem(); stores only good values. */
    void (*read)(gti_reading *r, const gti_key *key, const char *path, json_object *value);
    /* A new object, or NULL for a key that is not written. */
    json_object *(*write)(const gt_config *config, const gti_key *key);
} gti_value_type;

struct gti_key {
    const char *path; /* a trailing ".*" stands for anything below */
    gti_key_status status;
    const gti_value_type *type;
    size_t offset, size;      /* the field of gt_config            */
    double min, max;          /* inclusive, of numbers             */
    const char *const *names; /* of enums; of unsupported: off     */
    const char *target;       /* of aliases                        */
    const char *meaning;
};

extern const gti_key gti_keys[];
extern const size_t gti_key_count;

extern const gti_value_type gti_type_bool, gti_type_int, gti_type_int64, gti_type_uint64,
    gti_type_double, gti_type_float, gti_type_string, gti_type_enum, gti_type_dtype, gti_type_any,
    gti_type_off;
/* Those that stand for more than one field, or need the rest of the document. */
extern const gti_value_type gti_type_optimizer, gti_type_adam_w_mode, gti_type_betas,
    gti_type_groups, gti_type_frozen, gti_type_half, gti_type_param_dtype, gti_type_offload,
    gti_type_cpu_offload, gti_type_offload_param, gti_type_warmup, gti_type_parallel,
    gti_type_checkpoint_interval, gti_type_pipe_partition;

const gti_key *gti_key_find(const char *path);
/* True when some key lies below `path`. */
bool gti_key_is_section(const char *path);
/* Writes a suggestion for an unknown key into out, "" when nothing is near. */
void gti_key_nearest(const char *path, char *out, size_t size);
/* "at least 1", "from 0 to 3", ... */
void gti_key_range(const gti_key *key, char *out, size_t size);
/* Range of one numeric key in a config that may have been filled in by hand. */
gt_status gti_key_check(const gt_config *config, const gti_key *key);

/* Relations between keys, for the reader (is it possible at all?) and for gt_config_resolve. */
gt_status gti_batch_possible(const gt_config *config);

#endif
