/* SPDX-License-Identifier: Apache-2.0
 *
 * Any layout gives the same training run: every row below is trained and compared with one rank.
 * Arguments name the tables to run (all of them without); under mpirun only rows of its size run.
 */
#include "train/layout_run.h"

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static const layout data_rows[] = {
    {.micro = 1},
    {.micro = 3},
    {.micro = 12},
    {.dp = 2, .micro = 1},
    {.dp = 2, .micro = 6},
    {.dp = 3, .micro = 2},
    {.dp = 4, .micro = 3},
    {.dp = 2, .micro = 3, .recompute = true},
    {.dp = 3, .micro = 4, .vocab = 257},
    {.micro = 4, .device = "guarded"},
    {.dp = 2, .micro = 2, .device = "guarded"},
    {.dp = 3, .micro = 4, .recompute = true, .device = "guarded"},
};

static const layout zero_rows[] = {
    {.dp = 2, .zero = 1, .micro = 2},
    {.dp = 2, .zero = 2, .micro = 2},
    {.dp = 2, .zero = 3, .micro = 2},
    {.dp = 3, .zero = 1, .micro = 4},
    {.dp = 3, .zero = 2, .micro = 1},
    {.dp = 3, .zero = 3, .micro = 2},
    {.dp = 4, .zero = 1, .micro = 3},
    {.dp = 4, .zero = 2, .micro = 1},
    {.dp = 4, .zero = 3, .micro = 1},
    {.zero = 3, .micro = 4},
    {.dp = 3, .zero = 3, .micro = 4, .recompute = true},
    {.dp = 2, .zero = 3, .micro = 3, .persistence = 5000},
    {.dp = 2, .zero = 3, .micro = 3, .untied = true},
    {.dp = 4, .zero = 3, .micro = 3, .hpz = 2},
    {.dp = 4, .zero = 3, .micro = 1, .hpz = 2, .dtype = GT_BF16},
    {.dp = 2, .zero = 1, .micro = 2, .device = "guarded"},
    {.dp = 2, .zero = 2, .micro = 2, .device = "guarded"},
    {.dp = 3, .zero = 3, .micro = 2, .device = "guarded"},
    {.dp = 2, .zero = 3, .micro = 2, .offload = GT_OFFLOAD_CPU},
    {.dp = 2, .zero = 2, .micro = 2, .offload = GT_OFFLOAD_FILE},
    {.dp = 2, .zero = 3, .micro = 2, .offload = GT_OFFLOAD_CPU, .device = "guarded"},
};

static const layout dtype_rows[] = {
    {.dtype = GT_BF16, .micro = 4},
    {.dtype = GT_F16, .micro = 4},
    {.dp = 2, .dtype = GT_BF16, .micro = 2},
    {.dp = 2, .dtype = GT_BF16, .micro = 2, .zero = 1},
    {.dp = 3, .dtype = GT_BF16, .micro = 2, .zero = 2},
    {.dp = 2, .dtype = GT_BF16, .micro = 3, .zero = 3},
    {.dp = 2, .dtype = GT_BF16, .micro = 3, .zero = 3, .accumulation = GT_BF16},
    {.dp = 2, .dtype = GT_BF16, .micro = 3, .zero = 3, .remainder = true},
    {.dp = 2, .dtype = GT_BF16, .micro = 6, .zero = 1, .remainder = true, .recompute = true},
    {.dp = 4, .dtype = GT_F16, .micro = 3, .zero = 3},
    {.dp = 2, .dtype = GT_F16, .micro = 6, .zero = 2, .recompute = true},
    {.dp = 2, .dtype = GT_F16, .micro = 2, .zero = 1},
    {.dp = 2, .dtype = GT_F16, .micro = 2, .zero = 3, .offload = GT_OFFLOAD_FILE},
    {.dp = 2, .dtype = GT_BF16, .micro = 2, .zero = 3, .device = "guarded"},
};

static const layout optimizer_rows[] = {
    {.micro = 4, .optimizer = GT_ADAM},
    {.dp = 2, .zero = 1, .micro = 2, .optimizer = GT_ADAM},
    {.dp = 3, .zero = 3, .micro = 2, .optimizer = GT_SGD},
    {.dp = 2, .zero = 2, .micro = 2, .optimizer = GT_LION},
    {.dp = 2, .zero = 0, .micro = 2, .optimizer = GT_LAMB},
    {.dp = 3, .zero = 3, .micro = 2, .optimizer = GT_LAMB},
    {.tp = 2, .zero = 0, .micro = 2, .optimizer = GT_LAMB},
    {.pp = 2, .dp = 2, .zero = 2, .micro = 2, .optimizer = GT_LAMB},
};

static const layout tensor_rows[] = {
    {.tp = 2, .micro = 2},
    {.tp = 4, .micro = 3},
    {.tp = 2, .sequence_parallel = true, .micro = 2},
    {.tp = 4, .sequence_parallel = true, .micro = 2},
    {.tp = 2, .dp = 2, .micro = 2},
    {.tp = 2, .dp = 2, .zero = 1, .micro = 2},
    {.tp = 2, .dp = 2, .zero = 2, .micro = 2, .sequence_parallel = true},
    {.tp = 2, .dp = 2, .zero = 3, .micro = 2, .sequence_parallel = true},
    {.tp = 2, .dp = 3, .zero = 3, .micro = 2, .recompute = true},
    {.tp = 4, .micro = 4, .vocab = 257, .sequence_parallel = true},
    {.tp = 2, .micro = 4, .device = "guarded"},
    {.tp = 2, .micro = 4, .sequence_parallel = true, .device = "guarded"},
};

static const layout context_rows[] = {
    {.cp = 2, .micro = 2},
    {.cp = 4, .micro = 2},
    {.cp = 2, .dp = 2, .zero = 3, .micro = 2},
    {.cp = 2, .tp = 2, .micro = 2},
    {.cp = 2, .tp = 2, .micro = 2, .sequence_parallel = true, .zero = 2},
    {.cp = 2, .llama = true, .micro = 3, .recompute = true},
    {.cp = 2, .micro = 4, .device = "guarded"},
};

static const layout llama_rows[] = {
    {.llama = true, .micro = 3},
    {.llama = true, .dp = 2, .zero = 3, .micro = 3},
    {.llama = true, .tp = 2, .micro = 3},
    {.llama = true, .tp = 4, .micro = 3},
    {.llama = true, .tp = 4, .micro = 3, .sequence_parallel = true},
    {.llama = true, .tp = 4, .zero = 2, .micro = 2},
    {.llama = true, .tp = 2, .dp = 2, .zero = 2, .micro = 3, .sequence_parallel = true},
    {.llama = true, .tp = 4, .dp = 2, .zero = 3, .micro = 2, .recompute = true},
    {.llama = true, .pp = 2, .tp = 2, .micro = 2},
};

/* GPT-2's vocabulary, which no number of ranks divides, tied and untied; with stride 0 every token
 * and target lies in the first rank's part. Twelve heads, for tp 2, 3 and 4. */
#define GPT2_VOCABULARY(...)                                                                       \
    {                                                                                              \
        .vocab = 50257, .layers = 1, .width = 24, .heads = 12, .micro = 6, __VA_ARGS__             \
    }
static const layout vocabulary_rows[] = {
    GPT2_VOCABULARY(.tp = 2, .stride = 1999),
    GPT2_VOCABULARY(.tp = 3, .stride = 1999, .sequence_parallel = true),
    GPT2_VOCABULARY(.tp = 4, .stride = 1999),
    GPT2_VOCABULARY(.pp = 2, .tp = 2, .stride = 1999),
    GPT2_VOCABULARY(.tp = 2, .dp = 2, .zero = 3, .stride = 1999),
    GPT2_VOCABULARY(.tp = 3),
    GPT2_VOCABULARY(.llama = true, .kv_heads = 1, .tp = 2, .stride = 1999),
    GPT2_VOCABULARY(.llama = true, .kv_heads = 1, .tp = 3, .stride = 1999),
    GPT2_VOCABULARY(.llama = true, .kv_heads = 1, .tp = 4, .stride = 1999,
                    .sequence_parallel = true),
};

static const layout pipeline_rows[] = {
    {.pp = 2, .micro = 1},
    {.pp = 3, .micro = 2},
    {.pp = 4, .micro = 3},
    {.pp = 4, .micro = 6},
    {.pp = 2, .micro = 12},
    {.pp = 2, .micro = 2, .schedule = "gpipe"},
    {.pp = 2, .micro = 2, .schedule = "interleaved", .chunks = 2},
    {.pp = 2, .micro = 2, .schedule = "zb-h1"},
    {.pp = 4, .micro = 2, .schedule = "zb-h1"},
    {.pp = 3, .micro = 2, .schedule = "zb-h2"},
    {.pp = 2, .micro = 2, .schedule = "zb-v", .chunks = 2},
    {.pp = 2, .micro = 3, .recompute = true, .schedule = "zb-h1"},
    {.pp = 3, .micro = 3, .untied = true},
    {.pp = 2, .dp = 2, .zero = 1, .micro = 1},
    {.pp = 2, .dp = 2, .zero = 2, .micro = 1},
    {.pp = 2, .dp = 2, .zero = 3, .micro = 1},
    {.pp = 2, .dp = 2, .zero = 3, .micro = 1, .schedule = "interleaved", .chunks = 2},
    {.pp = 2, .dp = 2, .zero = 2, .micro = 2, .schedule = "zb-h1"},
    {.pp = 2, .dp = 2, .zero = 3, .micro = 2, .schedule = "zb-v", .chunks = 2},
    {.pp = 2, .dp = 2, .zero = 3, .micro = 2, .schedule = "gpipe"},
    {.pp = 2, .tp = 2, .micro = 2},
    {.pp = 2, .tp = 2, .micro = 2, .sequence_parallel = true, .schedule = "zb-h1"},
    {.pp = 2, .dp = 2, .tp = 2, .zero = 3, .micro = 2, .sequence_parallel = true},
    {.pp = 2, .cp = 2, .tp = 2, .micro = 2},
    {.pp = 3, .dp = 2, .tp = 2, .zero = 2, .micro = 2, .sequence_parallel = true},
    {.pp = 2, .micro = 2, .device = "guarded"},
    {.pp = 2, .dp = 2, .zero = 3, .micro = 2, .schedule = "zb-h1", .device = "guarded"},
    {.pp = 2, .dp = 2, .zero = 3, .micro = 3, .dtype = GT_BF16},
    {.pp = 2, .micro = 2, .dtype = GT_F16},
};

/* What one rank would do with the row's model and optimizer, in f32. */
static layout alone(const layout *row)
{
    return (layout){.micro = LAYOUT_BATCH,
                    .llama = row->llama,
                    .untied = row->untied,
                    .vocab = row->vocab,
                    .stride = row->stride,
                    .layers = row->layers,
                    .width = row->width,
                    .heads = row->heads,
                    .kv_heads = row->kv_heads,
                    .optimizer = row->optimizer,
                    .no_dropout = row->no_dropout};
}

static bool same_model(const layout *a, const layout *b)
{
    return a->llama == b->llama && a->untied == b->untied && a->vocab == b->vocab &&
           a->stride == b->stride && a->layers == b->layers && a->width == b->width &&
           a->heads == b->heads && a->kv_heads == b->kv_heads && a->optimizer == b->optimizer &&
           a->no_dropout == b->no_dropout;
}

static double tolerance_of(const layout *row)
{
    return row->dtype == GT_F32 ? 1e-5 : row->dtype == GT_F16 ? 5e-3 : 1.5e-2;
}

static void run_row(const layout *row)
{
    static layout reference;
    static layout_curve want;
    static bool have;
    if (gti_mpirun_size() > 0 && gti_mpirun_size() != layout_ranks(row)) {
        return;
    }
    layout one = alone(row);
    if (!have || !same_model(&one, &reference)) {
        layout_run(&want, &one);
        reference = one;
        have = true;
    }
    layout_curve got;
    layout_run(&got, row);
    layout_compare(row, &got, &want, tolerance_of(row));
    if (row->dtype == GT_F32) {
        for (int i = 0; i < 4; i++) {
            TH_EQUAL(got.sampled[i], want.sampled[i]);
        }
    }
    if (got.steady_allocations != 0) {
        th_fail(__FILE__, __LINE__, "%s: step %d made %d allocations, wanted none",
                layout_name(row), LAYOUT_STEPS, (int)got.steady_allocations);
    }
}

/* ---- whole products of axes -------------------------------------------------------------------
 */

static void zero_product(void **state)
{
    static const gt_dtype dtypes[] = {GT_F32, GT_BF16, GT_F16};
    for (int i = 0; i < 4 * 4 * 3 * 2 * 2; i++) {
        int stage = i % 4, dp = i / 4 % 4 + 1, dtype = i / 16 % 3, many = i / 48 % 2;
        layout l = {.dp = dp,
                    .zero = stage,
                    .dtype = dtypes[dtype],
                    .micro = many ? 12 / dp /
                                        (dp == 4   ? 3
                                         : dp == 3 ? 4
                                                   : 3)
                                  : 12 / dp,
                    .recompute = i / 96};
        run_row(&l);
    }
    (void)state;
}

static void mixed_product(void **state)
{
    static const char *const schedules[] = {"1f1b",  "gpipe", "interleaved",
                                            "zb-h1", "zb-h2", "zb-v"};
    for (int i = 0; i < 3 * 2 * 2 * 4 * 6 * 2; i++) {
        int schedule = i / 48 % 6;
        bool two_chunks = schedule == 2 || schedule == 5;
        layout l = {.pp = i % 3 + 2,
                    .dp = i / 3 % 2 + 1,
                    .tp = i / 6 % 2 + 1,
                    .zero = i / 12 % 4,
                    .schedule = schedules[schedule],
                    .chunks = two_chunks ? 2 : 1,
                    .micro = 2,
                    .untied = i / 288,
                    .sequence_parallel = i / 288};
        if (two_chunks && l.pp > 2) {
            continue; /* the model has fewer blocks than stages */
        }
        run_row(&l);
    }
    (void)state;
}

struct table {
    const char *name;
    const layout *rows;
    size_t count;
};

#define TABLE(name)                                                                                \
    {                                                                                              \
#name, name##_rows, COUNT(name##_rows)                                                     \
    }
static const struct table tables[] = {TABLE(data),      TABLE(zero),       TABLE(dtype),
                                      TABLE(optimizer), TABLE(tensor),     TABLE(context),
                                      TABLE(llama),     TABLE(vocabulary), TABLE(pipeline)};

static const struct {
    const char *name;
    CMUnitTestFunction run;
} products[] = {{"zero_product", zero_product}, {"mixed_product", mixed_product}};

static void run_table(void **state)
{
    const struct table *t = *state;
    for (size_t i = 0; i < t->count; i++) {
        run_row(&t->rows[i]);
    }
}

static bool named(int argc, char **argv, const char *name)
{
    bool wanted = argc == 1;
    for (int a = 1; a < argc; a++) {
        wanted |= strcmp(argv[a], name) == 0;
    }
    return wanted;
}

int main(int argc, char **argv)
{
    int failed = 0;
    for (size_t i = 0; i < COUNT(tables); i++) {
        const struct CMUnitTest tests[] = {
            {tables[i].name, run_table, NULL, NULL, (void *)&tables[i]}};
        if (named(argc, argv, tables[i].name)) {
            failed += cmocka_run_group_tests_name(tables[i].name, tests, NULL, NULL);
        }
    }
    for (size_t i = 0; i < COUNT(products); i++) {
        const struct CMUnitTest tests[] = {{products[i].name, products[i].run, NULL, NULL, NULL}};
        if (named(argc, argv, products[i].name)) {
            failed += cmocka_run_group_tests_name(products[i].name, tests, NULL, NULL);
        }
    }
    return failed;
}
