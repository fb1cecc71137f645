/* SPDX-License-Identifier: Apache-2.0
 * ZeRO as a primitive: layout, padding, sums, norms, memory to the byte, updates, divergence. */
#include <math.h>
#include <stdio.h>

#include <geektrain/zero.h>

#include "ranks.h"
#include "zero/state.h"

enum { UNITS = 3 };

/* Lengths that divide nothing, an empty tensor and one of a single element. */
static const int64_t lengths[UNITS][3] = {{10, 3, 0}, {5, 16, 0}, {37, 1, 130}};

static gt_zero_params params_of(int stage, gt_dtype dtype)
{
    gt_zero_params p = GT_ZERO_PARAMS_INIT;
    p.stage = stage;
    p.dtype = dtype;
    p.communication_dtype = dtype;
    p.optimizer.lr = 1e-3;
    p.optimizer.beta1 = 0.9;
    p.optimizer.beta2 = 0.999;
    p.optimizer.eps = 1e-8;
    return p;
}

enum { SETS = 1 }; /* the tensor of each unit whose gradient is set, not added to */

/* Parameter 3u + t of the table is tensor t of unit u. */
static int number(int u, int t)
{
    return 3 * u + t;
}

static gt_params *make_table(void)
{
    gt_params *table = NULL;
    TH_OK(gt_params_create(&table, NULL));
    for (int u = 0; u < UNITS; u++) {
        char unit[16];
        snprintf(unit, sizeof(unit), "unit%d", u);
        TH_OK(gt_params_add_unit(table, unit, NULL, NULL));
        for (int i = 0; i < 3; i++) {
            char name[16];
            snprintf(name, sizeof(name), "u%d.t%d", u, i);
            gt_param p = GT_PARAM_INIT;
            p.name = name;
            p.ndim = 1;
            p.shape[0] = lengths[u][i];
            p.sets_gradient = i == SETS;
            TH_OK(gt_params_add(table, u, &p, NULL));
        }
    }
    return table;
}

static gt_zero *make(gt_comm *world, gt_context *ctx, const gt_zero_params *p)
{
    gt_zero *z = NULL;
    TH_OK(gt_zero_create(&z, ctx, world, make_table(), p));
    TH_OK(gt_zero_allocate(z));
    return z;
}

static void destroy(gt_zero **z)
{
    gt_params *table = (*z)->table;
    gt_zero_destroy(z);
    gt_params_destroy(&table);
}

static float value(int u, int t, int64_t i)
{
    return (float)(u * 4 + t) + 0.25f * (float)(i % 4);
}

static void load(gt_zero *z)
{
    float host[256];
    for (int u = 0; u < UNITS; u++) {
        for (int t = 0; t < 3; t++) {
            for (int64_t i = 0; i < lengths[u][t]; i++) {
                host[i] = value(u, t, i);
            }
            TH_OK(gt_zero_load_param(z, number(u, t), host));
        }
    }
    TH_OK(gt_zero_publish(z));
}

static void expect_tensor(const gt_tensor *t, gt_context *ctx, int u, int k)
{
    float host[256];
    gt_tensor wide;
    int64_t n = gt_tensor_numel(t);
    TH_EQUAL(n, lengths[u][k]);
    TH_OK(gt_tensor_alloc(ctx, &wide, GT_MEM_OTHER, GT_F32, 1, &n));
    TH_OK(gt_cast(ctx, &wide, t, NULL));
    TH_OK(gt_copy_to_host(ctx, host, &wide, NULL));
    for (int64_t i = 0; i < n; i++) {
        TH_TRUE(host[i] == value(u, k, i)); /* all are exact in bf16 and f16 */
    }
    gt_tensor_free(ctx, &wide);
}

struct variant {
    int stage;
    gt_dtype dtype, accum;
    bool remainder;
    int64_t persistence;
    int hpz;
};

static const struct variant variants[] = {
    {.stage = 0},
    {.stage = 1},
    {.stage = 2},
    {.stage = 3},
    {.stage = 0, .dtype = GT_BF16},
    {.stage = 1, .dtype = GT_BF16, .remainder = true},
    {.stage = 2, .dtype = GT_F16},
    {.stage = 3, .dtype = GT_BF16},
    {.stage = 3, .dtype = GT_BF16, .accum = GT_BF16, .remainder = true},
    {.stage = 3, .persistence = 60},
    {.stage = 3, .dtype = GT_BF16, .hpz = 2},
};
#define VARIANTS ((int)(sizeof(variants) / sizeof(variants[0])))

static gt_zero_params variant_params(const struct variant *v, gt_comm *world)
{
    gt_zero_params p = params_of(v->stage, v->dtype);
    p.accum_dtype = v->accum;
    p.optimizer.master_remainder = v->remainder;
    p.persistence_threshold = v->persistence;
    p.hpz_partition_size = v->hpz && gt_comm_size(world) % v->hpz == 0 ? v->hpz : 0;
    return p;
}

/* Whatever the stage, gathered parameters are the loaded ones, with NaN in all padding. */
static void gathers(gt_comm *world, gt_context *ctx, void *user)
{
    for (int k = 0; k < VARIANTS; k++) {
        gt_zero_params p = variant_params(&variants[k], world);
        gt_zero *z = make(world, ctx, &p);
        load(z);
        for (int round = 0; round < 2; round++) {
            for (int u = 0; u < UNITS; u++) {
                if (u + 1 < UNITS) {
                    TH_OK(gt_zero_prefetch(z, u + 1));
                }
                TH_OK(gt_zero_gather(z, u));
                for (int t = 0; t < 3; t++) {
                    gt_tensor view;
                    TH_OK(gt_zero_param(z, number(u, t), &view));
                    expect_tensor(&view, ctx, u, t);
                }
                TH_OK(gt_zero_release(z, u));
            }
        }
        for (int u = 0; u < UNITS; u++) {
            for (int t = 0; t < 3; t++) {
                float host[256];
                TH_OK(gt_zero_read_param(z, number(u, t), host));
                for (int64_t i = 0; i < lengths[u][t]; i++) {
                    TH_TRUE(host[i] == value(u, t, i));
                }
            }
        }
        destroy(&z);
    }
    (void)user;
}

/* Fills this rank's gradient with rank-dependent values; padding gets NaN to prove it is not read.
 */
static void add_gradient(gt_zero *z, gt_context *ctx, int u, int rank, double factor)
{
    for (int t = 0; t < 3; t++) {
        gt_tensor g, ones;
        bool unset;
        TH_OK(gt_zero_grad_unset(z, number(u, t), &g, &unset));
        TH_TRUE(!unset || t == SETS);
        int64_t n = gt_tensor_numel(&g);
        float one = (float)(factor * (rank + 1) * (t + 1));
        if (unset) {
            TH_OK(gt_fill(ctx, &g, one, NULL));
            TH_OK(gt_zero_grad_unset(z, number(u, t), &g, &unset));
            TH_TRUE(!unset); /* once */
            continue;
        }
        TH_OK(gt_tensor_alloc(ctx, &ones, GT_MEM_OTHER, GT_F32, 1, &n));
        TH_OK(gt_fill(ctx, &ones, 1.0, NULL));
        TH_OK(gt_axpby(ctx, &g, &ones, one, 1.0f, NULL));
        gt_tensor_free(ctx, &ones);
    }
}

static double wanted_norm_sq(int size, double microbatches)
{
    double sum = 0, ranks = size * (size + 1) / 2.0;
    for (int u = 0; u < UNITS; u++) {
        for (int t = 0; t < 3; t++) {
            double g = ranks * (t + 1) * microbatches;
            sum += g * g * (double)lengths[u][t];
        }
    }
    return sum;
}

static double global_norm_sq(gt_zero *z, gt_comm *world, gt_context *ctx)
{
    gt_tensor acc;
    int64_t one = 1;
    double host = 0;
    TH_OK(gt_tensor_alloc(ctx, &acc, GT_MEM_OTHER, GT_F64, 1, &one));
    TH_OK(gt_fill(ctx, &acc, 0.0, NULL));
    TH_OK(gt_zero_norm(z, &acc));
    TH_OK(gt_all_reduce(world, &acc, GT_SUM, NULL, NULL));
    TH_OK(gt_copy_to_host(ctx, &host, &acc, NULL));
    gt_tensor_free(ctx, &acc);
    return host;
}

/* Two microbatches: sums over ranks and microbatches, norm of each distinct element once, the first
 * Adam step, and the same parameters on every rank and in every stage afterwards. */
static void steps(gt_comm *world, gt_context *ctx, void *user)
{
    int rank = gt_comm_rank(world), size = gt_comm_size(world);
    for (int k = 0; k < VARIANTS; k++) {
        gt_zero_params p = variant_params(&variants[k], world);
        gt_zero *z = make(world, ctx, &p);
        load(z);
        for (int m = 0; m < 2; m++) {
            for (int u = UNITS - 1; u >= 0; u--) {
                TH_OK(gt_zero_gather(z, u));
                add_gradient(z, ctx, u, rank, 1.0);
                TH_OK(gt_zero_release(z, u));
                TH_OK(gt_zero_reduce(z, u, m == 1));
            }
        }
        TH_OK(gt_zero_finish(z));
        double got = global_norm_sq(z, world, ctx), want = wanted_norm_sq(size, 2);
        TH_TRUE(fabs(got - want) <= 1e-12 * want);
        TH_OK(gt_zero_update(z, 1e-3, 1.0, 1));
        for (int u = 0; u < UNITS; u++) {
            for (int t = 0; t < 3; t++) {
                float host[256];
                TH_OK(gt_zero_read_param(z, number(u, t), host));
                for (int64_t i = 0; i < lengths[u][t]; i++) {
                    float step = host[i] - value(u, t, i);
                    TH_TRUE(fabsf(step + 1e-3f) < 4e-5f); /* first Adam step: -lr */
                }
            }
        }
        destroy(&z);
    }
    (void)user;
}

/* Ranks that use different units in a step (experts, early exit) neither hang nor lose gradients.
 */
static void uneven_use(gt_comm *world, gt_context *ctx, void *user)
{
    int rank = gt_comm_rank(world);
    for (int stage = 0; stage <= 3; stage++) {
        gt_zero_params p = params_of(stage, GT_F32);
        gt_zero *z = make(world, ctx, &p);
        add_gradient(z, ctx, rank % 2, 0, rank % 2 ? 6.0 : 2.0);
        TH_OK(gt_zero_finish(z));
        float host[256];
        for (int u = 0; u < UNITS; u++) {
            TH_OK(gt_zero_read_grad(z, number(u, 0), host));
            int users = u > 1 ? 0 : gt_comm_size(world) / 2 + (u == 0 && gt_comm_size(world) % 2);
            TH_TRUE(host[0] == (float)users * (u ? 6.0f : 2.0f));
        }
        destroy(&z);
    }
    (void)user;
}

static void divergent_order(gt_comm *world, gt_context *ctx, void *user)
{
    gt_zero_params p = params_of(3, GT_F32);
    gt_zero *z = make(world, ctx, &p);
    /* Units 0 and 1 have one padded size, so that no collective can tell them apart. */
    int first = gt_comm_rank(world) == 1 ? 1 : 0;
    for (int i = 0; i < 2; i++) {
        int u = i == 0 ? first : 1 - first;
        TH_OK(gt_zero_gather(z, u));
        TH_OK(gt_zero_release(z, u));
    }
    if (gt_comm_size(world) > 1) {
        TH_FAILS(gt_zero_finish(z), GT_ERR_MISMATCH, "rank 1 gathered unit unit1 as number 1");
    } else {
        TH_OK(gt_zero_finish(z));
    }
    destroy(&z);
    (void)user;
}

/* Live bytes per tag are the formula, to the byte. */
static void memory(gt_comm *world, gt_context *ctx, void *user)
{
    for (int k = 0; k < VARIANTS; k++) {
        gt_memory_stats before, after;
        gt_memory_get_stats(ctx, &before);
        gt_zero_params p = variant_params(&variants[k], world);
        gt_zero *z = make(world, ctx, &p);
        gt_memory_get_stats(ctx, &after);
        gt_zero_bytes f;
        gt_zero_formula(z, &f);
        TH_EQUAL(after.live[GT_MEM_PARAMS] - before.live[GT_MEM_PARAMS], f.params);
        TH_EQUAL(after.live[GT_MEM_GRADS] - before.live[GT_MEM_GRADS], f.grads);
        TH_EQUAL(after.live[GT_MEM_OPTIMIZER] - before.live[GT_MEM_OPTIMIZER], f.optimizer);
        int64_t element = (int64_t)gt_dtype_size(p.dtype), padded = 0;
        int P = gt_comm_size(world);
        for (int u = 0; u < UNITS; u++) {
            padded += z->units[u].bucket[GTI_TRAINED].flat->shard;
        }
        if (p.stage == 3 && p.persistence_threshold == 0 && P > 1) {
            int64_t pieces =
                p.hpz_partition_size && p.hpz_partition_size < P ? P / p.hpz_partition_size : 1;
            TH_EQUAL(f.params, pieces * padded * element);
        }
        int64_t state = p.dtype == GT_F32 ? 8 : p.optimizer.master_remainder ? 10 : 12;
        TH_EQUAL(f.optimizer, padded * state * (p.stage == 0 ? P : 1));
        destroy(&z);
    }
    (void)user;
}

static void nonfinite(gt_comm *world, gt_context *ctx, void *user)
{
    gt_zero_params p = params_of(2, GT_F32);
    gt_zero *z = make(world, ctx, &p);
    gt_tensor g;
    bool unset;
    TH_OK(gt_zero_grad_unset(z, number(0, SETS), &g, &unset));
    TH_TRUE(unset);
    TH_OK(gt_fill(ctx, &g, 0.0, NULL));
    TH_OK(gt_zero_grad(z, number(1, SETS), &g)); /* clears it */
    if (gt_comm_rank(world) == gt_comm_size(world) - 1) {
        TH_OK(gt_fill(ctx, &g, INFINITY, NULL));
    }
    TH_OK(gt_zero_finish(z));
    TH_TRUE(!isfinite(global_norm_sq(z, world, ctx)));
    char name[64];
    TH_OK(gt_zero_find_nonfinite(z, name, sizeof(name)));
    TH_TRUE(name[0] == '\0' || strcmp(name, "u1.t1") == 0);
    TH_OK(gt_zero_discard(z));
    destroy(&z);
    (void)user;
}

static void bad_calls(gt_comm *world, gt_context *ctx, void *user)
{
    gt_zero *z = NULL;
    gt_zero_params p = params_of(4, GT_F32);
    gt_params *table = make_table();
    TH_FAILS(gt_zero_create(&z, ctx, world, table, &p), GT_ERR_ARGUMENT, "stage 4");
    p = params_of(1, GT_I32);
    TH_FAILS(gt_zero_create(&z, ctx, world, table, &p), GT_ERR_DTYPE, "i32");
    p = params_of(1, GT_BF16);
    p.optimizer.master_remainder = true;
    p.optimizer.type = GT_LION;
    TH_FAILS(gt_zero_create(&z, ctx, world, table, &p), GT_ERR_UNSUPPORTED, "Adam and AdamW");
    bool guilty = gt_comm_rank(world) == gt_comm_size(world) - 1;
    p = params_of(3, GT_F32);
    TH_FAILS(gt_zero_create(&z, ctx, world, table, guilty ? NULL : &p),
             guilty ? GT_ERR_ARGUMENT : GT_ERR_PEER, "needs out, ctx, table and params");
    gt_params_destroy(&table);
    z = make(world, ctx, &p);
    gt_tensor t;
    TH_FAILS(gt_zero_gather(z, 7), GT_ERR_ARGUMENT, "unit 7");
    TH_FAILS(gt_zero_release(z, 0), GT_ERR_STATE, "unit0");
    TH_FAILS(gt_zero_update(z, 1e-3, 1.0, 1), GT_ERR_STATE, "gt_zero_finish");
    if (gt_comm_size(world) > 1) {
        TH_FAILS(gt_zero_param(z, number(0, 0), &t), GT_ERR_STATE, "not gathered");
    }
    destroy(&z);
    (void)user;
}

struct row {
    const char *name;
    gti_rank_fn fn;
};

static const struct row rows[] = {
    {"gathered parameters are the loaded ones", gathers},
    {"sums, norms and steps agree in all stages", steps},
    {"uneven use", uneven_use},
    {"divergent gather order", divergent_order},
    {"memory to the byte", memory},
    {"non-finite gradients are named", nonfinite},
    {"bad calls", bad_calls},
};

static void run(void **state)
{
    const struct row *r = *state;
    for (int ranks = 1; ranks <= 4; ranks++) {
        gti_run_ranks(ranks, r->fn, "cpu", NULL);
    }
    gti_run_ranks(3, r->fn, "guarded", NULL);
}

int main(void)
{
    struct CMUnitTest tests[sizeof(rows) / sizeof(rows[0])];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tests[i] = (struct CMUnitTest){rows[i].name, run, NULL, NULL, (void *)&rows[i]};
    }
    return cmocka_run_group_tests_name("zero", tests, NULL, NULL);
}
