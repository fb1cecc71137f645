/* SPDX-License-Identifier: Apache-2.0
 * Finds the number of a name among many: a hash table over a list that somebody else keeps. */
#ifndef GTI_CORE_NAMES_H
#define GTI_CORE_NAMES_H

#include <stddef.h>

#include <geektrain/status.h>

typedef struct gti_names {
    const char *(*name_of)(const void *list, int index); /* set by the user, who may move names */
    int *slots;                                          /* index + 1, 0: empty */
    size_t room;                                         /* a power of two */
    int count;
} gti_names;

/* Its index, -1: there is none of that name. */
int gti_names_find(const gti_names *names, const void *list, const char *name);
/* Entry number `count` of the list; its name is not in yet. */
gt_status gti_names_add(gti_names *names, const void *list);
void gti_names_free(gti_names *names);

#endif
