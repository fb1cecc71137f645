/* SPDX-License-Identifier: Apache-2.0
 * The built-in blocks over tensor- and context-parallel ranks: loss and every gradient as on one.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>

#include "block_runner.h"
#include "nn/gpt.h"
#include "ranks.h"

enum { B = 2, T = 24, V = 37, N = B * T };

typedef struct job {
    gt_model_config config;
    int tp, cp;
    br_options options;
    br_batch batch;
    pthread_mutex_t lock;
    double stats[2], *grads, *params; /* of the whole model, summed over ranks */
    int64_t total;
    uint64_t bytes; /* sent by rank 0 in forward and backward */
} job;

static gt_model_config tiny(const char *type, int64_t heads, int64_t kv_heads)
{
    gt_model_config c = {.layers = 2,
                         .width = 24,
                         .heads = heads,
                         .kv_heads = kv_heads,
                         .ffn = 50,
                         .vocab = V,
                         .seq = T,
                         .rope_base = 100.0f,
                         .init_std = 0.3f,
                         .label_smoothing = 0.1f};
    snprintf(c.type, sizeof(c.type), "%s", type);
    return c;
}

static void fill_batch(int32_t tokens[N], int32_t targets[N])
{
    for (int i = 0; i < N; i++) {
        tokens[i] = (i * 7 + i * i) % V;
        targets[i] = i % 5 == 3 ? -100 : (i * 11 + 2) % V;
    }
}

static void add_up(job *j, br *r)
{
    double stats[2];
    br_stats(r, stats);
    pthread_mutex_lock(&j->lock);
    if (j->grads == NULL) {
        j->total = br_total(r);
        j->grads = calloc((size_t)j->total, sizeof(double));
        j->params = calloc((size_t)j->total, sizeof(double));
    }
    if (r->layout.tp_rank == 0) { /* every tensor-parallel rank has the same loss */
        j->stats[0] += stats[0];
        j->stats[1] += stats[1];
    }
    br_add_gradients(r, j->grads);
    br_get_params(r, j->params);
    pthread_mutex_unlock(&j->lock);
}

static void run_rank(gt_comm *world, gt_context *ctx, void *user)
{
    (void)ctx;
    job *j = user;
    int rank = gt_comm_rank(world);
    br_options o = j->options;
    gt_model *model;
    gt_comm_stats before, after;
    br r;
    TH_OK(gt_comm_split(&o.tp, world, rank / j->tp, rank));
    TH_OK(gt_comm_split(&o.cp, world, rank % j->tp, rank));
    TH_OK(gt_model_create(&model));
    TH_OK(gt_model_add_gpt(model, &j->config));
    br_open(&r, gti_rank_harness(), model, &j->batch, &o);
    gt_comm_get_stats(world, &before);
    br_run(&r, &j->batch);
    TH_OK(gt_context_synchronize(ctx));
    gt_comm_get_stats(world, &after);
    if (rank == 0) {
        j->bytes = after.bytes_sent - before.bytes_sent;
    }
    add_up(j, &r);
    br_close(&r);
    gt_model_destroy(&model);
    gt_comm_destroy(&o.tp);
    gt_comm_destroy(&o.cp);
}

static void run(job *j, const gt_model_config *config, int tp, int cp, br_options options,
                const char *device, const int32_t *tokens, const int32_t *targets)
{
    *j = (job){.config = *config, .tp = tp, .cp = cp, .options = options};
    j->batch = (br_batch){.batch = B,
                          .seq = T,
                          .tokens = tokens,
                          .targets = targets,
                          .grad_scale = 0.25f,
                          .ignore_index = -100};
    j->options.seed = 7;
    pthread_mutex_init(&j->lock, NULL);
    gti_run_ranks(tp * cp, run_rank, device, j);
    pthread_mutex_destroy(&j->lock);
}

static void done(job *j)
{
    free(j->grads);
    free(j->params);
}

/* bf16: relative to the largest gradient, as sums are rounded in other places. */
static void check_same(const job *one, const job *many, gt_dtype dtype, const char *what)
{
    char name[200];
    double largest = 0.0;
    for (int64_t i = 0; i < one->total; i++) {
        largest = fmax(largest, fabs(one->grads[i]));
    }
    bool f32 = dtype == GT_F32;
    th_tolerance loss = {.relative = f32 ? 1e-6 : 5e-3};
    th_tolerance grad = {.absolute = largest * (f32 ? 2e-6 : 4e-2), .relative = f32 ? 2e-5 : 4e-2};
    snprintf(name, sizeof(name), "loss of %s", what);
    th_compare_values(name, many->stats, one->stats, 2, loss);
    snprintf(name, sizeof(name), "parameters of %s", what);
    th_compare_values(name, many->params, one->params, one->total, (th_tolerance){0});
    snprintf(name, sizeof(name), "gradients of %s", what);
    th_compare_values(name, many->grads, one->grads, one->total, grad);
}

typedef struct layout_row {
    int tp, cp;
    bool sequence_parallel, split, no_overlap;
    const char *device;
} layout_row;

static void compare_layouts(const gt_model_config *config, gt_dtype dtype, const layout_row *rows,
                            int count)
{
    int32_t tokens[N], targets[N];
    job one, many;
    fill_batch(tokens, targets);
    run(&one, config, 1, 1, (br_options){.dtype = dtype}, "cpu", tokens, targets);
    for (int i = 0; i < count; i++) {
        const layout_row *l = &rows[i];
        char what[160];
        snprintf(what, sizeof(what), "%s %s tp %d cp %d%s%s%s on %s", config->type,
                 gt_dtype_name(dtype), l->tp, l->cp, l->sequence_parallel ? " sp" : "",
                 l->split ? " split" : "", l->no_overlap ? " no overlap" : "", l->device);
        br_options o = {.dtype = dtype,
                        .sequence_parallel = l->sequence_parallel,
                        .split_backward = l->split,
                        .no_overlap = l->no_overlap};
        run(&many, config, l->tp, l->cp, o, l->device, tokens, targets);
        check_same(&one, &many, dtype, what);
        done(&many);
    }
    done(&one);
}

#define ROWS(...)                                                                                  \
    (const layout_row[]){__VA_ARGS__},                                                             \
        (int)(sizeof((const layout_row[]){__VA_ARGS__}) / sizeof(layout_row))

static void gpt2_over_tensor_ranks(void **state)
{
    (void)state;
    gt_model_config c = tiny("gpt2", 12, 12);
    c.dropout = 0.2f;
    compare_layouts(&c, GT_F32,
                    ROWS({2, 1, false, false, false, "cpu"}, {2, 1, true, false, false, "cpu"},
                         {3, 1, false, false, true, "cpu"}, {3, 1, true, true, false, "cpu"},
                         {4, 1, false, true, false, "cpu"}, {4, 1, true, false, true, "cpu"},
                         {2, 1, false, false, false, "guarded"},
                         {3, 1, true, false, false, "guarded"}));
}

static void gpt2_over_context_ranks(void **state)
{
    (void)state;
    gt_model_config c = tiny("gpt2", 12, 12);
    c.dropout = 0.2f;
    compare_layouts(&c, GT_F32,
                    ROWS({1, 2, false, false, false, "cpu"}, {1, 3, false, true, false, "cpu"},
                         {1, 4, false, false, false, "cpu"}, {2, 2, true, false, false, "cpu"},
                         {3, 2, false, false, false, "cpu"},
                         {2, 2, true, false, false, "guarded"}));
}

static void llama_over_ranks(void **state)
{
    (void)state;
    gt_model_config c = tiny("llama", 4, 2); /* tp 4 shares key/value heads */
    c.untied = true;
    compare_layouts(&c, GT_F32,
                    ROWS({2, 1, false, false, false, "cpu"}, {2, 1, true, true, false, "cpu"},
                         {4, 1, false, false, false, "cpu"}, {4, 1, true, false, false, "cpu"},
                         {1, 4, false, false, false, "cpu"}, {4, 2, true, false, false, "cpu"},
                         {2, 2, false, false, false, "guarded"}));
    c.kv_heads = 1;
    compare_layouts(&c, GT_F32, ROWS({4, 1, true, false, false, "cpu"}));
}

static void sixteen_bits_over_ranks(void **state)
{
    (void)state;
    gt_model_config c = tiny("gpt2", 12, 12);
    c.init_std = 0.1f;
    compare_layouts(&c, GT_BF16,
                    ROWS({2, 1, false, false, false, "cpu"}, {3, 1, true, false, false, "cpu"},
                         {1, 2, false, false, false, "cpu"}));
    c = tiny("llama", 4, 2);
    c.init_std = 0.1f;
    compare_layouts(&c, GT_F16,
                    ROWS({4, 1, true, false, false, "cpu"}, {2, 2, false, false, false, "cpu"}));
}

/* The vocabulary may be smaller than the number of ranks. */
static void small_vocabulary_and_ffn(void **state)
{
    (void)state;
    gt_model_config c = tiny("gpt2", 12, 12);
    int32_t tokens[N], targets[N];
    job one, many;
    c.vocab = 2;
    c.ffn = 3;
    for (int i = 0; i < N; i++) {
        tokens[i] = i % 3 == 0;
        targets[i] = i % 2;
    }
    run(&one, &c, 1, 1, (br_options){.dtype = GT_F32}, "cpu", tokens, targets);
    for (int cut = 0; cut < 2; cut++) {
        br_options o = {.dtype = GT_F32, .sequence_parallel = cut};
        run(&many, &c, 4, 1, o, "cpu", tokens, targets);
        check_same(&one, &many, GT_F32, "two tokens on four ranks");
        done(&many);
    }
    done(&one);
}

/* Bytes that rank 0 sends, per layer, from runs with 1 and 3 layers. */
static void bytes_per_layer_equal_the_formula(void **state)
{
    (void)state;
    int32_t tokens[N], targets[N];
    fill_batch(tokens, targets);
    for (int i = 0; i < 6; i++) {
        int tp = i / 2 + 2, cut = i % 2;
        gt_model_config c = tiny("gpt2", 12, 12);
        c.width = 96; /* all-reduces of 16 KiB and less send everything to everybody */
        br_options o = {.dtype = GT_F32, .sequence_parallel = cut};
        job few, more;
        c.layers = 1;
        run(&few, &c, tp, 1, o, "cpu", tokens, targets);
        c.layers = 3;
        run(&more, &c, tp, 1, o, "cpu", tokens, targets);
        uint64_t activation = (uint64_t)N * 96 * 4; /* bytes of [rows, C] */
        /* Four all-reduces, each 2 (P-1)/P of it; with cut rows six all-gathers and four
         * reduce-scatters, each (P-1)/P: the normed inputs are gathered again for dW. */
        uint64_t units = cut ? 10 : 8;
        TH_EQUAL((more.bytes - few.bytes) / 2,
                 units * activation * (uint64_t)(tp - 1) / (uint64_t)tp);
        done(&few);
        done(&more);
    }
}

/* Ring attention: keys and values go round once, in the backward pass with their gradients. */
static void bytes_of_the_ring_equal_the_formula(void **state)
{
    (void)state;
    int32_t tokens[N], targets[N];
    fill_batch(tokens, targets);
    gt_model_config c = tiny("llama", 4, 2);
    job few, more;
    c.layers = 1;
    run(&few, &c, 1, 4, (br_options){.dtype = GT_F32}, "cpu", tokens, targets);
    c.layers = 3;
    run(&more, &c, 1, 4, (br_options){.dtype = GT_F32}, "cpu", tokens, targets);
    uint64_t kv = (uint64_t)N / 4 * 2 * 2 * 6 * 4, positions = 2 * 3 * T / 4 * 8;
    TH_EQUAL((more.bytes - few.bytes) / 2, (3 + 3 + 4) * kv + positions);
    done(&few);
    done(&more);
}

static void refuse_rank(gt_comm *world, gt_context *ctx, void *user)
{
    (void)ctx;
    (void)user;
    int32_t tokens[N], targets[N];
    gt_model_config c = tiny("gpt2", 12, 12);
    gt_model *model;
    br r;
    fill_batch(tokens, targets);
    TH_OK(gt_model_create(&model));
    TH_OK(gt_model_add_gpt(model, &c));
    br_options o = {.dtype = GT_F32, .tp = world, .sequence_parallel = true};
    br_batch b = {.batch = 1, .seq = 23, .tokens = tokens, .targets = targets};
    TH_FAILS(br_plan(&r, gti_rank_harness(), model, &b, &o), GT_ERR_CONFIG,
             "1 x 23 = 23 rows of a microbatch over tp = 2");
    br_close(&r);
    gt_model_destroy(&model);
}

static void rows_that_do_not_divide_are_refused(void **state)
{
    (void)state;
    gti_run_ranks(2, refuse_rank, "cpu", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_over_tensor_ranks),
        cmocka_unit_test(gpt2_over_context_ranks),
        cmocka_unit_test(llama_over_ranks),
        cmocka_unit_test(sixteen_bits_over_ranks),
        cmocka_unit_test(small_vocabulary_and_ffn),
        cmocka_unit_test(bytes_per_layer_equal_the_formula),
        cmocka_unit_test(bytes_of_the_ring_equal_the_formula),
        cmocka_unit_test(rows_that_do_not_divide_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
