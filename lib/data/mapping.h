/* SPDX-License-Identifier: Apache-2.0
 * Files as memory. */
#ifndef GTI_DATA_MAPPING_H
#define GTI_DATA_MAPPING_H

#include <geektrain/status.h>

typedef struct gti_mapping {
    const unsigned char *bytes;
    size_t size;
} gti_mapping;

/* Maps a whole file read-only and closes it, so that any number of files costs no descriptor.
 * Errors: GT_ERR_IO; GT_ERR_FORMAT for an empty file. */
gt_status gti_map_file(gti_mapping *out, const char *path);
void gti_unmap(gti_mapping *mapping);

/* What to look at of a file to judge it: a small one whole, of a large one both ends and some pages
 * between. Piece i of as many as gti_sample_count() says; each begins at a multiple of 8. */
size_t gti_sample_count(const gti_mapping *mapping);
gti_mapping gti_sample(const gti_mapping *mapping, size_t i);

#endif
