/* SPDX-License-Identifier: Apache-2.0
 *
 * The register tile that GEMM and attention are made of: c[r, NR] (+)= a[r, k] b[k, NR], r <=
 * GTI_MR rows, NR = two vectors wide. The tile of sums stays in registers; each step loads two
 * vectors of b and broadcasts one element of a per row. Written with the compilers' vector types,
 * so the same lines serve every instruction set; only the tile's size differs.
 *
 * Nothing is said about where a and b lie: element (i, k) of a is a[i * row + k * step], rows of b
 * are ldb apart. So packed panels, plain rows and transposed operands all go through it.
 */
#ifndef GTI_CPU_TILE_H
#define GTI_CPU_TILE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define GTI_LANES 16
#define GTI_MR 14
#elif defined(__AVX2__)
#define GTI_LANES 8
#define GTI_MR 6
#else
#define GTI_LANES 4
#define GTI_MR 6
#endif
#define GTI_NR (2 * GTI_LANES)

#define GTI_ALWAYS_INLINE static inline __attribute__((always_inline))

typedef float gti_vec __attribute__((vector_size(4 * GTI_LANES)));
typedef float gti_vec_u __attribute__((vector_size(4 * GTI_LANES), aligned(4)));

GTI_ALWAYS_INLINE gti_vec gti_load(const float *p)
{
    return *(const gti_vec_u *)p;
}
GTI_ALWAYS_INLINE void gti_store(float *p, gti_vec v)
{
    *(gti_vec_u *)p = v;
}
GTI_ALWAYS_INLINE gti_vec gti_splat(float x)
{
    return x - (gti_vec){0};
}

#if defined(__clang__)
#define GTI_UNROLL _Pragma("clang loop unroll(full)")
#else
#define GTI_UNROLL _Pragma("GCC unroll 16")
#endif

/* acc += b * (the element at p in every lane), as one instruction. */
#if defined(__AVX512F__)
#define GTI_FETCHES 1
#define GTI_FETCH_AND_ADD(acc, b, p)                                                               \
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(b), "m"(*(p)))
#else
#define GTI_FETCHES 0
#define GTI_FETCH_AND_ADD(acc, b, p) ((acc) += gti_splat(*(p)) * (b))
#endif

#define GTI_TILE_AHEAD 16 /* rows of b: panels longer than the first cache come in time */

typedef struct gti_tile_args {
    const float *a, *b;
    ptrdiff_t row, step, ldb;
    int64_t k;
    float *c; /* rows ldc apart, NR wide */
    ptrdiff_t ldc;
} gti_tile_args;

/* Of one step of k: row i of the tile gains a[i] times the two vectors of b. Two of three rows have
 * the multiply-add fetch and spread the element itself, twice, instead of a load for both: where a
 * core is shared by two hardware threads, as rented ones are, it is instructions that run short,
 * not loads (a fifth faster there, measured with a busy twin). */
GTI_ALWAYS_INLINE void gti_tile_step(gti_vec (*acc)[2], const float *a, const ptrdiff_t row,
                                     const int rows, const float *b, ptrdiff_t ldb)
{
    const gti_vec b0 = gti_load(b), b1 = gti_load(b + GTI_LANES);
    __builtin_prefetch(b + GTI_TILE_AHEAD * ldb);
    __builtin_prefetch(b + GTI_TILE_AHEAD * ldb + GTI_LANES);
    GTI_UNROLL
    for (int i = 0; i < rows; i++) {
        if (GTI_FETCHES && i % 3 != 0) {
            GTI_FETCH_AND_ADD(acc[i][0], b0, a + i * row);
            GTI_FETCH_AND_ADD(acc[i][1], b1, a + i * row);
            continue;
        }
        const gti_vec x = gti_splat(a[i * row]);
        acc[i][0] += x * b0;
        acc[i][1] += x * b1;
    }
}

/* c = a b, or c += a b. rows, row and step become constants where the caller gives constants. */
GTI_ALWAYS_INLINE void gti_tile(const gti_tile_args *t, const int rows, const ptrdiff_t row,
                                const ptrdiff_t step, const int add)
{
    gti_vec acc[GTI_MR][2];
    const float *a = t->a, *b = t->b;
    float *c = t->c;
    GTI_UNROLL
    for (int i = 0; i < rows; i++) {
        acc[i][0] = acc[i][1] = (gti_vec){0};
        __builtin_prefetch(c + i * t->ldc, 1);
    }
    int64_t k = t->k;
    for (; rows == GTI_MR && k >= 4; k -= 4) {
        GTI_UNROLL
        for (int u = 0; u < 4; u++) {
            gti_tile_step(acc, a + u * step, row, rows, b + u * t->ldb, t->ldb);
        }
        a += 4 * step;
        b += 4 * t->ldb;
    }
    for (; k > 0; k--) {
        gti_tile_step(acc, a, row, rows, b, t->ldb);
        a += step;
        b += t->ldb;
    }
    GTI_UNROLL
    for (int i = 0; i < rows; i++) {
        float *r = c + i * t->ldc;
        gti_store(r, add ? gti_load(r) + acc[i][0] : acc[i][0]);
        gti_store(r + GTI_LANES, add ? gti_load(r + GTI_LANES) + acc[i][1] : acc[i][1]);
    }
}

#endif
