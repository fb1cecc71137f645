/* SPDX-License-Identifier: Apache-2.0
 * Memory mapped twice: once out of reach, once in use. */
#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/guarded/guarded.h"
#include "core/fail.h"
#include "core/file.h"

/* [closed, closed + span) has no access rights; open + page, for span bytes, is the same memory,
 * between two pages without access. The data lies at its end, `offset` bytes in, so that running
 * past it faults within 64 bytes. */
typedef struct range {
    char *closed, *open;
    size_t span, offset, bytes;
} range;

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Ranges that overlap are equal: so a pointer, as a range of one byte, finds what it lies in. */
static int compare_ranges(const void *a, const void *b)
{
    const range *x = a, *y = b;
    if (x->closed + x->span <= y->closed) {
        return -1;
    }
    return y->closed + y->span <= x->closed ? 1 : 0;
}

static void unmap(range *r)
{
    if (r->closed != NULL) {
        munmap(r->closed, r->span);
    }
    if (r->open != NULL) {
        munmap(r->open, r->span + 2 * page_size());
    }
    free(r);
}

static bool map_twice(range *r, int file)
{
    size_t page = page_size();
    if (ftruncate(file, (off_t)r->span) != 0) {
        return false;
    }
    void *closed = mmap(NULL, r->span, PROT_NONE, MAP_SHARED, file, 0);
    if (closed == MAP_FAILED) {
        return false;
    }
    r->closed = closed;
    void *open = mmap(NULL, r->span + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (open == MAP_FAILED) {
        return false;
    }
    r->open = open;
    return mmap(r->open + page, r->span, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) !=
           MAP_FAILED;
}

void gti_guarded_map_init(gti_guarded_map *map)
{
    pthread_rwlock_init(&map->lock, NULL);
}

void gti_guarded_map_close(gti_guarded_map *map)
{
    while (map->ranges != NULL) {
        range *r = *(range **)map->ranges;
        tdelete(r, &map->ranges, compare_ranges);
        unmap(r);
    }
    pthread_rwlock_destroy(&map->lock);
}

static range *create_range(size_t bytes)
{
    size_t page = page_size();
    range *r = calloc(1, sizeof *r);
    if (r == NULL || bytes > PTRDIFF_MAX - 4 * page) {
        errno = ENOMEM;
        free(r);
        return NULL;
    }
    r->bytes = bytes;
    r->span = bytes == 0 ? page : (bytes + page - 1) / page * page;
    r->offset = r->span - (bytes == 0 ? 64 : (bytes + 63) / 64 * 64);
    int file = gti_descriptor(memfd_create("geektrain-guarded", MFD_CLOEXEC));
    bool ok = file >= 0 && map_twice(r, file);
    if (file >= 0) {
        close(file);
    }
    if (!ok) {
        unmap(r);
        return NULL;
    }
    return r;
}

gt_status gti_guarded_map_alloc(gti_guarded_map *map, void **out, size_t bytes)
{
    range *r = create_range(bytes);
    if (r == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "guarded memory of %zu bytes: %s", bytes, strerror(errno));
    }
    pthread_rwlock_wrlock(&map->lock);
    void *node = tsearch(r, &map->ranges, compare_ranges);
    pthread_rwlock_unlock(&map->lock);
    if (node == NULL) {
        unmap(r);
        return GT_FAIL(GT_ERR_MEMORY, "out of host memory for %zu bytes", bytes);
    }
    *out = r->closed + r->offset;
    return GT_OK;
}

void gti_guarded_map_free(gti_guarded_map *map, void *pointer)
{
    range key = {.closed = pointer, .span = 1}, *r = NULL;
    pthread_rwlock_wrlock(&map->lock);
    void *node = tfind(&key, &map->ranges, compare_ranges);
    if (node != NULL) {
        r = *(range **)node;
        tdelete(r, &map->ranges, compare_ranges);
    }
    pthread_rwlock_unlock(&map->lock);
    if (r != NULL) {
        unmap(r);
    }
}

void *gti_guarded_map_find(gti_guarded_map *map, const void *pointer, size_t *left)
{
    range key = {.closed = (char *)pointer, .span = 1};
    void *found = NULL;
    pthread_rwlock_rdlock(&map->lock);
    void *node = tfind(&key, &map->ranges, compare_ranges);
    if (node != NULL) {
        const range *r = *(range **)node;
        size_t inside = (size_t)(key.closed - r->closed);
        if (inside >= r->offset && inside - r->offset <= r->bytes) {
            found = r->open + page_size() + inside;
            *left = r->bytes - (inside - r->offset);
        }
    }
    pthread_rwlock_unlock(&map->lock);
    return found;
}
