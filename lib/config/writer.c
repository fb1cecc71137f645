/* SPDX-License-Identifier: Apache-2.0 */
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "config/keys.h"
#include "core/fail.h"

/* Adds value at "a.b.c", making the sections on the way. */
static gt_status add_at(json_object *root, const char *path, json_object *value)
{
    json_object *section = root;
    const char *dot;
    while ((dot = strchr(path, '.')) != NULL) {
        char name[64];
        json_object *next;
        size_t n = (size_t)(dot - path);
        memcpy(name, path, n);
        name[n] = '\0';
        if (!json_object_object_get_ex(section, name, &next)) {
            next = json_object_new_object();
            if (next == NULL || json_object_object_add(section, name, next) != 0) {
                json_object_put(next);
                json_object_put(value);
                return GT_FAIL(GT_ERR_MEMORY, "no memory to write a configuration");
            }
        }
        section = next;
        path = dot + 1;
    }
    if (json_object_object_add(section, path, value) != 0) {
        json_object_put(value);
        return GT_FAIL(GT_ERR_MEMORY, "no memory to write a configuration");
    }
    return GT_OK;
}

static gt_status build(const gt_config *config, json_object *root)
{
    for (size_t i = 0; i < gti_key_count; i++) {
        const gti_key *key = &gti_keys[i];
        if (key->status == GTI_KEY_USED && key->type->write != NULL) {
            json_object *value = key->type->write(config, key);
            if (value != NULL) {
                GT_TRY(add_at(root, key->path, value));
            }
        }
    }
    return GT_OK;
}

gt_status gt_config_to_json(const gt_config *config, char **out)
{
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    json_object *root = json_object_new_object();
    gt_status st = GT_OK;
    char *text = NULL;
    if (c_locale == (locale_t)0 || root == NULL) {
        st = GT_FAIL(GT_ERR_MEMORY, "no memory to write a configuration");
    } else {
        locale_t before = uselocale(c_locale);
        st = build(config, root);
        int flags =
            JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED | JSON_C_TO_STRING_NOSLASHESCAPE;
        const char *json = st == GT_OK ? json_object_to_json_string_ext(root, flags) : NULL;
        text = json != NULL ? strdup(json) : NULL;
        uselocale(before);
        if (st == GT_OK && text == NULL) {
            st = GT_FAIL(GT_ERR_MEMORY, "no memory to write a configuration");
        }
    }
    json_object_put(root);
    if (c_locale != (locale_t)0) {
        freelocale(c_locale);
    }
    if (st == GT_OK) {
        *out = text;
    }
    return st;
}
