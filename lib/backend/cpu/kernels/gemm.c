/* SPDX-License-Identifier: Apache-2.0
 *
 * c[M,N] = op(a) op(b) + beta c + bias, then GELU; any float dtype, sums in f32.
 *
 * The classical order (Goto & van de Geijn 2008): for each panel of columns and each GTI_KC steps
 * of k, the team packs that panel of b once; then jobs of a few row panels times a group of columns
 * are dealt out, each packing its own piece of a. 16-bit operands are widened while they are
 * packed. Every element of c is summed over k in the same order whatever the number of threads.
 *
 * With AVX-512 all products but oneDNN's are made here. OpenBLAS is within a few hundredths of it
 * on idle cores, but deals each thread an equal part and has one instruction in three that is no
 * multiply-add: where cores are shared with others, as rented ones are, it is a fifth slower, and a
 * step waits for its slowest thread. On older processors OpenBLAS takes large f32 products. What is
 * here then serves 16-bit operands, which OpenBLAS does not have (they are widened while panels are
 * packed, never as whole matrices; bias, GELU and rounding are applied to tiles in the first-level
 * cache), small products, and processors for which OpenBLAS has only its oldest kernels (blas.c).
 */
#include <omp.h>

#include "backend/cpu/blas.h"
#include "backend/cpu/kernels/convert.h"
#include "backend/cpu/kernels/kernel.h"
#include "backend/cpu/kernels/pack.h"
#include "backend/cpu/kernels/tile.h"
#include "backend/cpu/kernels/vmath.h"
#include "backend/cpu/onednn.h"
#include "backend/cpu/scratch.h"
#if defined(__AVX512BF16__)
#include "backend/cpu/kernels/gemm_pairs.h"
#else
#include "backend/cpu/kernels/gemm_panels.h"
#endif

/* This file is compiled once more for products of bf16 pairs, which the AVX-512 one hands over
 * where the device prefers them. */
#if defined(__AVX512F__) && !defined(__AVX512BF16__)
gt_status gti_cpu_gemm_avx512bf16(gti_device *device, void *native, const void *args);
#define TAKEN_BY_PAIRS(device, g) ((g)->a.dtype == GT_BF16 && gti_cpu_bf16_pairs(device))
#define GEMM_BY_PAIRS gti_cpu_gemm_avx512bf16
#else
#define TAKEN_BY_PAIRS(device, g) false
#define GEMM_BY_PAIRS GTI_KERNEL_NAME(gemm)
#endif

enum {
    BLOCK_PANELS = 6,     /* row panels per job                                       */
    B_FLOATS = 1 << 20,   /* of one packed panel of b                                 */
    SUM_ROWS = 4096,      /* rows at a time when partial sums need a panel of their own */
    SUM_FLOATS = 1 << 21, /* of that panel                                            */
    SMALL = 1 << 19       /* multiply-adds below which one thread is faster           */
};

typedef struct panel {
    const struct gti_gemm_args *g;
    int64_t i0, m, j0, n, k0, kc; /* the part of c and k at work                    */
    int64_t steps;                /* rows of the packed panels: kc, or half of it    */
    bool first, last;             /* of the steps over k                             */
    float *packed;                /* [ceil(n/NR)][steps][NR]                         */
    float *sums;                  /* [m][n] partial sums, or NULL: c itself is f32   */
    int64_t row_blocks;           /* of up to BLOCK_PANELS row panels               */
    int64_t whole;                /* this many of them are one job each             */
    int64_t column_groups;        /* the others are this many                       */
} panel;

/* ---- the tile, by number of rows --------------------------------------------------------------*/
typedef void (*tile_fn)(const gti_tile_args *t, int add);
#define TILE(rows)                                                                                 \
    static void tile_##rows(const gti_tile_args *t, int add)                                       \
    {                                                                                              \
        GTI_PANEL_TILE(t, rows, 1, rows, add);                                                     \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)
#if GTI_MR > 6
TILE(7)
TILE(8)
TILE(9)
TILE(10)
TILE(11)
TILE(12)
TILE(13)
TILE(14)
#endif
static const tile_fn tiles[GTI_MR + 1] = {
    NULL,   tile_1, tile_2, tile_3,  tile_4,  tile_5,  tile_6,
#if GTI_MR > 6
    tile_7, tile_8, tile_9, tile_10, tile_11, tile_12, tile_13, tile_14,
#endif
};

/* ---- what happens to a finished tile ----------------------------------------------------------*/
static void gelu(float *x)
{
#pragma omp simd
    for (int j = 0; j < GTI_NR; j++) {
        const float v = x[j];
        x[j] = 0.5f * v * (1.0f + gti_tanhf(0.7978845608028654f * (v + 0.044715f * v * v * v)));
    }
}

GTI_ALWAYS_INLINE void add_row(float *x, const void *y, gt_dtype dtype, int64_t at, int64_t n)
{
    float wider[GTI_NR] = {0};
    gti_load_f32(wider, y, dtype, (size_t)at, (size_t)n);
    for (int j = 0; j < GTI_NR; j++) {
        x[j] += wider[j];
    }
}

/* n is a constant where the tile is whole, so that its copies are vectors. */
GTI_ALWAYS_INLINE void finish_row(const panel *p, float *x, int64_t row, int64_t column, int64_t n)
{
    const struct gti_gemm_args *g = p->g;
    const int64_t at = (p->i0 + row) * g->ldc + p->j0 + column;
    float *sum = p->sums != NULL ? p->sums + row * p->n + column : (float *)g->c.data + at;
    if (!p->first) {
        add_row(x, sum, GT_F32, 0, n);
    }
    if (p->first && g->beta != 0.0f) {
        add_row(x, g->c.data, g->c.dtype, at, n);
    }
    if (!p->last) {
        memcpy(sum, x, (size_t)n * sizeof(float));
        return;
    }
    if (g->bias.data != NULL) {
        add_row(x, g->bias.data, g->bias.dtype, p->j0 + column, n);
    }
    if (g->epilogue == GTI_EPILOGUE_GELU) {
        if (g->aux.data != NULL) {
            const int64_t aux_at = (p->i0 + row) * g->n + p->j0 + column;
            gti_store_f32(g->aux.data, x, g->aux.dtype, (size_t)aux_at, (size_t)n);
        }
        gelu(x);
    }
    gti_store_f32(g->c.data, x, g->c.dtype, (size_t)at, (size_t)n);
}

static bool stores_directly(const panel *p, int64_t columns)
{
    const struct gti_gemm_args *g = p->g;
    return columns == GTI_NR && p->sums == NULL && g->c.dtype == GT_F32 &&
           (!p->last || (g->bias.data == NULL && g->epilogue == GTI_EPILOGUE_NONE));
}

static void run_tile(const panel *p, const float *a, int64_t row, int64_t rows, int64_t column)
{
    const struct gti_gemm_args *g = p->g;
    const int64_t columns = p->n - column < GTI_NR ? p->n - column : GTI_NR;
    float result[GTI_MR * GTI_NR] __attribute__((aligned(64)));
    gti_tile_args t = {.a = a,
                       .b = p->packed + column * p->steps,
                       .ldb = GTI_NR,
                       .k = p->steps,
                       .c = result,
                       .ldc = GTI_NR};
    if (stores_directly(p, columns)) {
        t.c = (float *)g->c.data + (p->i0 + row) * g->ldc + p->j0 + column;
        t.ldc = g->ldc;
        tiles[rows](&t, !p->first || g->beta != 0.0f);
        return;
    }
    tiles[rows](&t, 0);
    for (int64_t r = 0; r < rows; r++) {
        float *x = result + r * GTI_NR;
        if (columns == GTI_NR) {
            finish_row(p, x, row + r, column, GTI_NR);
        } else {
            finish_row(p, x, row + r, column, columns);
        }
    }
}

/* ---- packing and jobs -------------------------------------------------------------------------*/
static void pack_b(const panel *p, int64_t column)
{
    const struct gti_gemm_args *g = p->g;
    const int64_t n = p->n - column < GTI_NR ? p->n - column : GTI_NR;
    float *dst = p->packed + column * p->steps;
    if (n < GTI_NR) {
        memset(dst, 0, (size_t)(p->steps * GTI_NR) * sizeof(float));
    }
    if (g->trans_b) {
        gti_panel_transposed(dst, GTI_NR, g->b.data, g->b.dtype, p->j0 + column, n, g->ldb, p->k0,
                             p->kc);
    } else {
        gti_panel_rows(dst, GTI_NR, g->b.data, g->b.dtype, p->j0 + column, n, g->ldb, p->k0, p->kc);
    }
}

static void pack_a(const panel *p, float *dst, int64_t row, int64_t rows)
{
    const struct gti_gemm_args *g = p->g;
    if (g->trans_a) {
        gti_panel_rows(dst, rows, g->a.data, g->a.dtype, p->i0 + row, rows, g->lda, p->k0, p->kc);
    } else {
        gti_panel_transposed(dst, rows, g->a.data, g->a.dtype, p->i0 + row, rows, g->lda, p->k0,
                             p->kc);
    }
}

static int64_t job_count(const panel *p)
{
    return p->whole + (p->row_blocks - p->whole) * p->column_groups;
}

/* *held is the row block that packed_a holds. */
static void run_job(const panel *p, int64_t job, float *packed_a, int64_t *held)
{
    const int64_t row_panels = (p->m + GTI_MR - 1) / GTI_MR;
    const int64_t column_panels = (p->n + GTI_NR - 1) / GTI_NR;
    const bool whole = job < p->whole;
    const int64_t cut = job - p->whole, groups = whole ? 1 : p->column_groups;
    const int64_t block = whole ? job : p->whole + cut / groups;
    const int64_t group = whole ? 0 : cut % groups;
    const int64_t r0 = block * row_panels / p->row_blocks * GTI_MR;
    const int64_t r_end = (block + 1) * row_panels / p->row_blocks * GTI_MR;
    const int64_t r1 = r_end < p->m ? r_end : p->m;
    const int64_t c0 = group * column_panels / groups * GTI_NR;
    const int64_t c_end = (group + 1) * column_panels / groups * GTI_NR;
    const int64_t c1 = c_end < p->n ? c_end : p->n;
    for (int64_t r = r0; r < r1 && *held != block; r += GTI_MR) {
        pack_a(p, packed_a + (r - r0) * p->steps, r, r1 - r < GTI_MR ? r1 - r : GTI_MR);
    }
    *held = block;
    for (int64_t c = c0; c < c1; c += GTI_NR) {
        for (int64_t r = r0; r < r1; r += GTI_MR) {
            run_tile(p, packed_a + (r - r0) * p->steps, r, r1 - r < GTI_MR ? r1 - r : GTI_MR, c);
        }
    }
}

/* One panel, by every thread of the team; *failed is set by a thread that gets no memory. Who finds
 * no job left goes on to pack the next panel, elsewhere; nobody starts its jobs before all are
 * there (the barrier of the first loop), so all of this panel's are done by then. */
static void run_panel(const panel *p, int *failed)
{
    const size_t a_bytes = sizeof(float) * BLOCK_PANELS * GTI_MR * GTI_KC;
    float *packed_a = gti_cpu_scratch(GTI_SCRATCH_OWN, a_bytes);
    int64_t held = -1;
    if (packed_a == NULL) {
#pragma omp atomic write
        *failed = 1;
    }
#pragma omp for schedule(dynamic)
    for (int64_t c = 0; c < p->n; c += GTI_NR) {
        pack_b(p, c);
    }
#pragma omp for schedule(dynamic) nowait
    for (int64_t job = 0; job < job_count(p); job++) {
        if (packed_a != NULL) {
            run_job(p, job, packed_a, &held);
        }
    }
}

/* ---- the blocking -----------------------------------------------------------------------------*/
typedef struct blocking {
    int64_t mc, nc, kc; /* c and k are cut into these   */
    bool sums;          /* partial sums need a panel    */
    int threads;
} blocking;

static int64_t even_piece(int64_t n, int64_t most, int64_t unit)
{
    const int64_t pieces = (n + most - 1) / most;
    const int64_t piece = (n + pieces - 1) / pieces;
    return (piece + unit - 1) / unit * unit;
}

static blocking choose_blocking(const struct gti_gemm_args *g, int threads)
{
    blocking s = {.mc = g->m, .kc = GTI_KC, .threads = threads};
    if (g->k <= GTI_KC) {
        s.kc = g->k > 0 ? g->k : 1;
    } else {
        s.kc = even_piece(g->k, GTI_KC, 4);
    }
    s.sums = g->c.dtype != GT_F32 && g->k > s.kc;
    int64_t most = B_FLOATS / s.kc;
    if (s.sums) {
        s.mc = g->m < SUM_ROWS ? g->m : even_piece(g->m, SUM_ROWS, GTI_MR);
        most = most < SUM_FLOATS / s.mc ? most : SUM_FLOATS / s.mc;
    }
    s.nc = even_piece(g->n, most, GTI_NR);
    if ((double)g->m * (double)g->n * (double)(g->k + 1) < SMALL) {
        s.threads = 1;
    }
    return s;
}

/* Row blocks are the jobs, since each packs its rows of a; the last ones are cut by columns as
 * well, so that the threads end together, be some slower than others. */
static void cut_jobs(panel *p, int threads)
{
    const int64_t row_panels = (p->m + GTI_MR - 1) / GTI_MR;
    const int64_t column_panels = (p->n + GTI_NR - 1) / GTI_NR;
    p->row_blocks = (row_panels + BLOCK_PANELS - 1) / BLOCK_PANELS;
    p->whole = p->row_blocks;
    p->column_groups = 1;
    if (threads > 1) {
        const int64_t cut = p->row_blocks < 2 * threads ? p->row_blocks : 2 * threads;
        const int64_t most = (column_panels + 3) / 4;
        const int64_t wanted = (8 * threads + cut - 1) / cut;
        p->whole = p->row_blocks - cut;
        p->column_groups = wanted < most ? wanted : most;
    }
}

static int run_blocks(const struct gti_gemm_args *g, const blocking *s, float *packed, float *sums)
{
    const int64_t panel_floats = s->nc * s->kc;
    int failed = 0;
#pragma omp parallel num_threads(s->threads)
    for (int64_t i = 0, turn = 0; i < g->m; i += s->mc) {
        for (int64_t j = 0; j < g->n; j += s->nc) {
            for (int64_t k = 0; k == 0 || k < g->k; k += s->kc, turn ^= 1) {
                panel p = {.g = g,
                           .i0 = i,
                           .j0 = j,
                           .k0 = k,
                           .packed = packed + turn * panel_floats,
                           .sums = sums};
                p.m = g->m - i < s->mc ? g->m - i : s->mc;
                p.n = g->n - j < s->nc ? g->n - j : s->nc;
                p.kc = g->k - k < s->kc ? g->k - k : s->kc;
                p.steps = gti_panel_steps(p.kc);
                p.first = k == 0;
                p.last = k + s->kc >= g->k;
                cut_jobs(&p, s->threads);
                run_panel(&p, &failed);
            }
        }
    }
    return failed;
}

/* ---- by OpenBLAS ------------------------------------------------------------------------------*/
#if defined(__AVX512F__)
#define OPENBLAS_IS_FASTER false
#else
#define OPENBLAS_IS_FASTER true
#endif

static bool blas_takes(const struct gti_gemm_args *g)
{
    const int64_t most = g->m > g->n ? g->m : g->n;
    const int64_t rows = g->lda > g->ldb ? g->lda : g->ldb;
    return OPENBLAS_IS_FASTER && g->a.dtype == GT_F32 && g->c.dtype == GT_F32 &&
           (double)g->m * (double)g->n * (double)g->k >= SMALL && most <= INT32_MAX &&
           g->k <= INT32_MAX && rows <= INT32_MAX && g->ldc <= INT32_MAX && gti_blas_usable();
}

static bool onednn_takes(const struct gti_gemm_args *g)
{
    return g->a.dtype == GT_BF16 && (double)g->m * (double)g->n * (double)g->k >= SMALL &&
           gti_onednn_preferred();
}

/* Bias and GELU over finished rows. */
static void finish_rows(const struct gti_gemm_args *g, int threads)
{
    const float *bias = g->bias.data;
    const bool with_gelu = g->epilogue == GTI_EPILOGUE_GELU;
    if (bias == NULL && !with_gelu) {
        return;
    }
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < g->m; i++) {
        float *c = (float *)g->c.data + i * g->ldc;
        float *aux = g->aux.data != NULL && with_gelu ? (float *)g->aux.data + i * g->n : NULL;
        for (int64_t j0 = 0; j0 < g->n; j0 += GTI_NR) {
            float x[GTI_NR] = {0};
            const int64_t n = g->n - j0 < GTI_NR ? g->n - j0 : GTI_NR;
            memcpy(x, c + j0, (size_t)n * sizeof(float));
            if (bias != NULL) {
                for (int64_t j = 0; j < n; j++) {
                    x[j] += bias[j0 + j];
                }
            }
            if (aux != NULL) {
                memcpy(aux + j0, x, (size_t)n * sizeof(float));
            }
            if (with_gelu) {
                gelu(x);
            }
            memcpy(c + j0, x, (size_t)n * sizeof(float));
        }
    }
}

/* GELU over finished rows of any float dtype; what is in c already goes to aux. */
static void gelu_rows(const struct gti_gemm_args *g, int threads)
{
    if (g->epilogue != GTI_EPILOGUE_GELU) {
        return;
    }
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j += GTI_NR) {
            float x[GTI_NR] = {0};
            const size_t n = (size_t)(g->n - j < GTI_NR ? g->n - j : GTI_NR);
            gti_load_f32(x, g->c.data, g->c.dtype, (size_t)(i * g->ldc + j), n);
            if (g->aux.data != NULL) {
                gti_store_f32(g->aux.data, x, g->aux.dtype, (size_t)(i * g->n + j), n);
            }
            gelu(x);
            gti_store_f32(g->c.data, x, g->c.dtype, (size_t)(i * g->ldc + j), n);
        }
    }
}

gt_status GTI_KERNEL(gemm)
{
    const struct gti_gemm_args *g = raw;
    if (onednn_takes(g)) {
        GT_TRY(gti_onednn_gemm(g));
        gelu_rows(g, gti_cpu_threads(device));
        return GT_OK;
    }
    if (TAKEN_BY_PAIRS(device, g)) {
        return GEMM_BY_PAIRS(device, native, raw);
    }
    if (g->m == 0 || g->n == 0) {
        return GT_OK;
    }
    if (blas_takes(g)) {
        gti_blas_sgemm(g, gti_cpu_threads(device));
        finish_rows(g, gti_cpu_threads(device));
        return GT_OK;
    }
    const blocking s = choose_blocking(g, gti_cpu_threads(device));
    float *packed = gti_cpu_scratch(GTI_SCRATCH_SHARED, 2 * sizeof(float) * (size_t)(s.nc * s.kc));
    float *sums = NULL;
    if (s.sums) {
        sums = gti_cpu_scratch(GTI_SCRATCH_SUMS, sizeof(float) * (size_t)(s.mc * s.nc));
    }
    if (packed == NULL || (s.sums && sums == NULL) || run_blocks(g, &s, packed, sums)) {
        return GT_FAIL(GT_ERR_MEMORY, "out of memory for the panels of a matrix product");
    }
    return GT_OK;
}
