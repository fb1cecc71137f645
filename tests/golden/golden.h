/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads golden files (README.md): named tensors that PyTorch computed.
 *
 *     golden *g = golden_open(TEST_GOLDEN_DIR "/gpt2.gold");  // fails the test if it cannot
 *     const golden_tensor *w = golden_get(g, "initial/embed.tokens");
 *     ... w->shape[0], w->f32[i] ...
 *     golden_close(g);
 */
#ifndef TESTS_GOLDEN_H
#define TESTS_GOLDEN_H

#include <stdint.h>

#define GOLDEN_DIMS 6

typedef struct golden_tensor {
    const char *name;
    int ndim;
    int64_t shape[GOLDEN_DIMS];
    int64_t numel;
    const float *f32;   /* NULL for integers                         */
    const int32_t *i32; /* NULL for floats                           */
    const double *f64;  /* the same values, whatever the stored type */
} golden_tensor;

typedef struct golden golden;

/* A file that is missing or damaged fails the cmocka test with a sentence. */
golden *golden_open(const char *path);
void golden_close(golden *g);

/* The tensor of that name; a missing one fails the test. */
const golden_tensor *golden_get(const golden *g, const char *name);
/* The same, or NULL. */
const golden_tensor *golden_find(const golden *g, const char *name);

/* All tensors in file order. */
int golden_count(const golden *g);
const golden_tensor *golden_at(const golden *g, int index);

#endif
