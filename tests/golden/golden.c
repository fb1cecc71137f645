/* SPDX-License-Identifier: Apache-2.0 */
#include "golden.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <geektrain/tensor.h>

#include "harness.h"

enum { STORED_F32, STORED_I32, STORED_F16 };

struct golden {
    int count;
    golden_tensor *tensors;
};

static void *allocate(size_t bytes)
{
    void *p = calloc(1, bytes > 0 ? bytes : 1);
    if (p == NULL) {
        th_fail(__FILE__, __LINE__, "out of memory for %zu bytes", bytes);
    }
    return p;
}

static void read_bytes(FILE *f, const char *path, void *to, size_t bytes)
{
    if (fread(to, 1, bytes, f) != bytes) {
        th_fail(__FILE__, __LINE__, "%s ends early at byte %ld", path, ftell(f));
    }
}

static void widen(golden_tensor *t, const void *raw, uint32_t stored)
{
    size_t n = (size_t)t->numel;
    float *f32 = allocate(n * sizeof *f32);
    int32_t *i32 = allocate(n * sizeof *i32);
    double *f64 = allocate(n * sizeof *f64);
    for (size_t i = 0; i < n; i++) {
        if (stored == STORED_I32) {
            i32[i] = ((const int32_t *)raw)[i];
            f64[i] = i32[i];
        } else {
            f32[i] = stored == STORED_F32 ? ((const float *)raw)[i]
                                          : gt_f16_to_f32(((const uint16_t *)raw)[i]);
            f64[i] = (double)f32[i];
        }
    }
    t->f64 = f64;
    t->f32 = stored == STORED_I32 ? NULL : f32;
    t->i32 = stored == STORED_I32 ? i32 : NULL;
    free(stored == STORED_I32 ? (void *)f32 : (void *)i32);
}

static void read_tensor(FILE *f, const char *path, golden_tensor *t)
{
    uint32_t head[3]; /* length of the name, stored type, dimensions */
    read_bytes(f, path, head, sizeof head);
    if (head[0] > 200 || head[1] > STORED_F16 || head[2] > GOLDEN_DIMS) {
        th_fail(__FILE__, __LINE__, "%s is damaged before byte %ld", path, ftell(f));
    }
    char *name = allocate(head[0] + 1);
    read_bytes(f, path, name, head[0]);
    t->name = name;
    t->ndim = (int)head[2];
    t->numel = 1;
    read_bytes(f, path, t->shape, head[2] * sizeof t->shape[0]);
    for (int d = 0; d < t->ndim; d++) {
        if (t->shape[d] < 0 || t->shape[d] > 1 << 24) {
            th_fail(__FILE__, __LINE__, "%s: %s has %" PRId64 " elements along axis %d", path, name,
                    t->shape[d], d);
        }
        t->numel *= t->shape[d];
    }
    size_t bytes = (size_t)t->numel * (head[1] == STORED_F16 ? 2 : 4);
    void *raw = allocate(bytes);
    read_bytes(f, path, raw, bytes);
    widen(t, raw, head[1]);
    free(raw);
}

golden *golden_open(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        th_fail(__FILE__, __LINE__, "%s cannot be opened", path);
    }
    char magic[8];
    uint32_t count;
    read_bytes(f, path, magic, sizeof magic);
    read_bytes(f, path, &count, sizeof count);
    if (memcmp(magic, "GTGOLD1\n", sizeof magic) != 0 || count > 4096) {
        th_fail(__FILE__, __LINE__, "%s is not a golden file", path);
    }
    golden *g = allocate(sizeof *g);
    g->count = (int)count;
    g->tensors = allocate(count * sizeof *g->tensors);
    for (int i = 0; i < g->count; i++) {
        read_tensor(f, path, &g->tensors[i]);
    }
    fclose(f);
    return g;
}

void golden_close(golden *g)
{
    for (int i = 0; i < g->count; i++) {
        free((char *)g->tensors[i].name);
        free((float *)g->tensors[i].f32);
        free((int32_t *)g->tensors[i].i32);
        free((double *)g->tensors[i].f64);
    }
    free(g->tensors);
    free(g);
}

const golden_tensor *golden_find(const golden *g, const char *name)
{
    for (int i = 0; i < g->count; i++) {
        if (strcmp(g->tensors[i].name, name) == 0) {
            return &g->tensors[i];
        }
    }
    return NULL;
}

const golden_tensor *golden_get(const golden *g, const char *name)
{
    const golden_tensor *t = golden_find(g, name);
    if (t == NULL) {
        th_fail(__FILE__, __LINE__, "the golden file has no %s", name);
    }
    return t;
}

int golden_count(const golden *g)
{
    return g->count;
}

const golden_tensor *golden_at(const golden *g, int index)
{
    return &g->tensors[index];
}
