/* SPDX-License-Identifier: Apache-2.0 */
#include "core/names.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"

/* FNV-1a, its high bits folded in. */
static size_t hash(const char *name)
{
    uint64_t h = 1469598103934665603u;
    for (; *name; name++) {
        h = (h ^ (uint64_t)(unsigned char)*name) * 1099511628211u;
    }
    return (size_t)(h ^ h >> 32);
}

/* Where the name is, or where it would go. */
static int *slot_of(const gti_names *names, const void *list, const char *name)
{
    size_t at = hash(name) & (names->room - 1);
    while (names->slots[at] != 0 && strcmp(names->name_of(list, names->slots[at] - 1), name) != 0) {
        at = (at + 1) & (names->room - 1);
    }
    return &names->slots[at];
}

int gti_names_find(const gti_names *names, const void *list, const char *name)
{
    return names->room == 0 ? -1 : *slot_of(names, list, name) - 1;
}

/* At most half full, so that searches end soon. */
static gt_status grow(gti_names *names, const void *list)
{
    gti_names larger = *names;
    larger.room = names->room == 0 ? 64 : 2 * names->room;
    larger.slots = calloc(larger.room, sizeof *larger.slots);
    if (larger.slots == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for a table of %d names", names->count);
    }
    for (int i = 0; i < names->count; i++) {
        *slot_of(&larger, list, names->name_of(list, i)) = i + 1;
    }
    free(names->slots);
    *names = larger;
    return GT_OK;
}

gt_status gti_names_add(gti_names *names, const void *list)
{
    if (2 * ((size_t)names->count + 1) > names->room) {
        GT_TRY(grow(names, list));
    }
    *slot_of(names, list, names->name_of(list, names->count)) = names->count + 1;
    names->count++;
    return GT_OK;
}

void gti_names_free(gti_names *names)
{
    free(names->slots);
    names->slots = NULL;
    names->room = 0;
    names->count = 0;
}
