/* SPDX-License-Identifier: Apache-2.0
 *
 * A step in the steady state allocates nothing: not of the device, which the context counts, and
 * not of the host. This program stands in for malloc and counts what the library, and the C library
 * for it, ask for. What OpenMP, OpenBLAS and oneDNN take for themselves is not ours to avoid.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "train/layout_run.h"

enum { WARM = 3, STEPS = 6, CALLERS = 4 };

static atomic_bool counting;
static atomic_int count;
static void *callers[CALLERS];

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static void note(void *caller)
{
    static const char *const theirs[] = {"libgomp", "libopenblas", "libdnnl"};
    Dl_info info;
    if (!atomic_load(&counting)) {
        return;
    }
    for (int i = 0; i < 3 && dladdr(caller, &info) != 0 && info.dli_fname != NULL; i++) {
        if (strstr(info.dli_fname, theirs[i]) != NULL) {
            return;
        }
    }
    int at = atomic_fetch_add(&count, 1);
    if (at < CALLERS) {
        callers[at] = caller;
    }
}

void *malloc(size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_calloc(n, bytes);
}

void *realloc(void *old, size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_realloc(old, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    note(__builtin_return_address(0));
    void *p = __libc_memalign(alignment, bytes);
    *out = p != NULL ? p : *out;
    return p != NULL ? 0 : 12; /* ENOMEM */
}

/* ---- runs -------------------------------------------------------------------------------------*/
static void count_from_here(gt_comm *world, bool on)
{
    TH_OK(gt_barrier(world)); /* nobody is still in the step before */
    if (gt_comm_rank(world) == 0) {
        atomic_store(&counting, on);
    }
    TH_OK(gt_barrier(world));
}

static void one_rank(gt_comm *world, gt_context *ctx, void *user)
{
    const layout *l = user;
    gt_config config;
    gt_model *model = NULL;
    gt_trainer *trainer = NULL;
    int32_t tokens[LAYOUT_BATCH * 8], targets[LAYOUT_BATCH * 8];
    gt_batch batch;
    gt_step_result result = GT_STEP_RESULT_INIT;
    gt_memory_stats before, after;
    layout_config(&config, l);
    TH_OK(gt_model_create(&model));
    TH_OK(gt_model_add_gpt(model, &config.model));
    TH_OK(gt_trainer_create(&trainer, ctx, world, model, &config));
    const gt_mesh *mesh = gt_trainer_mesh(trainer);
    int rank = gt_mesh_index(mesh, GT_AXIS_DP), size = gt_mesh_size(mesh, GT_AXIS_DP);
    count_from_here(world, false);
    for (int step = 0; step < STEPS; step++) {
        if (step == WARM) {
            gt_memory_get_stats(ctx, &before);
            count_from_here(world, true);
        }
        layout_batch(&batch, tokens, targets, &config, step, rank, size);
        TH_OK(gt_trainer_step(trainer, &batch, &result));
    }
    count_from_here(world, false);
    gt_memory_get_stats(ctx, &after);
    TH_EQUAL(after.allocations, before.allocations);
    gt_trainer_destroy(&trainer);
    gt_model_destroy(&model);
}

static void run_row(layout l)
{
    Dl_info info;
    atomic_store(&count, 0);
    if (layout_ranks(&l) == 1) {
        th h = {0};
        gt_comm *world = NULL;
        gt_comm_params params = GT_COMM_PARAMS_INIT;
        params.transport = "self";
        th_open(&h, "cpu");
        TH_OK(gt_comm_create(&world, h.ctx, &params));
        one_rank(world, h.ctx, &l);
        gt_comm_destroy(&world);
        th_close(&h);
    } else {
        gti_run_ranks(layout_ranks(&l), one_rank, "cpu", &l);
    }
    int n = atomic_load(&count);
    for (int i = 0; i < n && i < CALLERS; i++) {
        bool known = dladdr(callers[i], &info) != 0;
        print_message("allocated by %s, %s + 0x%zx\n",
                      known && info.dli_sname != NULL ? info.dli_sname : "?",
                      known ? info.dli_fname : "?",
                      known ? (size_t)((char *)callers[i] - (char *)info.dli_fbase) : 0);
    }
    if (n != 0) {
        th_fail(__FILE__, __LINE__, "%s: steps %d to %d allocated %d times, wanted none",
                layout_name(&l), WARM, STEPS - 1, n);
    }
}

static void the_counter_counts(void **state)
{
    (void)state;
    atomic_store(&count, 0);
    atomic_store(&counting, true);
    void *volatile p = malloc(10);
    void *volatile q = aligned_alloc(64, 64);
    atomic_store(&counting, false);
    free(p);
    free(q);
    TH_EQUAL(atomic_load(&count), 2);
}

static void one_rank_allocates_nothing(void **state)
{
    (void)state;
    run_row((layout){.dtype = GT_F32});
    run_row((layout){.dtype = GT_F32, .recompute = true, .micro = 3});
    run_row((layout){.dtype = GT_BF16, .llama = true});
    run_row((layout){.dtype = GT_F16});
    run_row((layout){.dtype = GT_BF16, .remainder = true});
    run_row((layout){.dtype = GT_F32, .optimizer = GT_LAMB});
    run_row((layout){.dtype = GT_BF16, .optimizer = GT_LION, .untied = true});
}

static void sharded_state_allocates_nothing(void **state)
{
    (void)state;
    for (int stage = 0; stage < 4; stage++) {
        run_row((layout){.dtype = GT_F32, .dp = 2, .zero = stage});
        run_row((layout){.dtype = GT_BF16, .dp = 2, .zero = stage, .llama = true});
    }
    run_row((layout){.dtype = GT_F32, .dp = 2, .zero = 2, .offload = GT_OFFLOAD_CPU});
}

static void cut_layers_allocate_nothing(void **state)
{
    (void)state;
    run_row((layout){.dtype = GT_F32, .tp = 2});
    run_row((layout){.dtype = GT_BF16, .tp = 2, .sequence_parallel = true, .llama = true});
    run_row((layout){.dtype = GT_F32, .cp = 2});
    run_row((layout){.dtype = GT_BF16, .cp = 2, .llama = true});
}

static void pipelines_allocate_nothing(void **state)
{
    (void)state;
    static const char *const schedules[] = {"gpipe", "1f1b", "zb-h1", "zb-h2"};
    for (int i = 0; i < 4; i++) {
        run_row((layout){.dtype = GT_F32, .pp = 2, .schedule = schedules[i]});
    }
    run_row((layout){.dtype = GT_F32, .pp = 2, .schedule = "interleaved", .chunks = 2});
    run_row((layout){.dtype = GT_F32, .pp = 2, .schedule = "zb-v", .chunks = 2});
    run_row((layout){.dtype = GT_BF16, .pp = 2, .dp = 2, .zero = 3});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_counter_counts),
        cmocka_unit_test(one_rank_allocates_nothing),
        cmocka_unit_test(sharded_state_allocates_nothing),
        cmocka_unit_test(cut_layers_allocate_nothing),
        cmocka_unit_test(pipelines_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
