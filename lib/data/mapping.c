/* SPDX-License-Identifier: Apache-2.0 */
#include "data/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/fail.h"
#include "core/file.h"

gt_status gti_map_file(gti_mapping *out, const char *path)
{
    int fd = gti_open(path, O_RDONLY, 0);
    if (fd < 0) {
        return GT_FAIL(GT_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    }
    struct stat st;
    void *bytes = MAP_FAILED;
    gt_status status = GT_OK;
    if (fstat(fd, &st) != 0) {
        status = GT_FAIL(GT_ERR_IO, "cannot stat %s: %s", path, strerror(errno));
    } else if (S_ISDIR(st.st_mode)) {
        status = GT_FAIL(GT_ERR_IO, "%s is a folder, not a regular file; its files are \"%s%s*\"",
                         path, path, path[strlen(path) - 1] == '/' ? "" : "/");
    } else if (!S_ISREG(st.st_mode)) {
        status = GT_FAIL(GT_ERR_IO, "%s is not a regular file, so it cannot be mapped", path);
    } else if (st.st_size == 0) {
        status = GT_FAIL(GT_ERR_FORMAT, "%s is empty", path);
    } else {
        bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED) {
            status = GT_FAIL(GT_ERR_IO, "cannot map %s: %s", path, strerror(errno));
        }
    }
    close(fd);
    if (status == GT_OK) {
        *out = (gti_mapping){bytes, (size_t)st.st_size};
    }
    return status;
}

void gti_unmap(gti_mapping *mapping)
{
    if (mapping->bytes != NULL) {
        munmap((void *)(uintptr_t)mapping->bytes, mapping->size);
    }
    *mapping = (gti_mapping){NULL, 0};
}

enum { PAGE = 4096, PAGES = 64, WHOLE = 4 * PAGE * PAGES };

size_t gti_sample_count(const gti_mapping *mapping)
{
    return mapping->size == 0 ? 0 : mapping->size <= WHOLE ? 1 : PAGES;
}

gti_mapping gti_sample(const gti_mapping *mapping, size_t i)
{
    size_t count = gti_sample_count(mapping), at, end;
    at = count > 1 ? (mapping->size - PAGE) / (PAGES - 1) * i / 8 * 8 : 0;
    end = i + 1 == count ? mapping->size : at + PAGE;
    return (gti_mapping){mapping->bytes + at, end - at};
}
