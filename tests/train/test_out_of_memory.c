/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank runs out of host memory in a call of the step engine, which holds collectives of several
 * groups: all ranks return an error, whichever allocation it was, and none of them because its time
 * limit passed. (Device memory counts too: gt_alloc needs a little host memory each time.)
 */
#include <pthread.h>
#include <stdio.h>

#include "host_memory.h"
#include "train/layout_run.h"

enum { RANKS_MAX = 4 };

typedef gt_status (*call_fn)(gt_trainer *t, const gt_config *c);

typedef struct scene {
    const layout *l;
    call_fn call; /* NULL: creation itself */
    int victim;
    long nth;
    gt_local_world *world;
    pthread_barrier_t created;
    gt_status status[RANKS_MAX];
    char sentence[RANKS_MAX][256];
    bool failed; /* an allocation did */
} scene;

/* ---- calls ------------------------------------------------------------------------------------*/
static void take_batch(gt_batch *batch, int32_t *tokens, int32_t *targets, gt_trainer *t,
                       const gt_config *c)
{
    const gt_mesh *mesh = gt_trainer_mesh(t);
    layout_batch(batch, tokens, targets, c, 0, gt_mesh_index(mesh, GT_AXIS_DP),
                 gt_mesh_size(mesh, GT_AXIS_DP));
}

static gt_status step(gt_trainer *t, const gt_config *c)
{
    int32_t tokens[LAYOUT_BATCH * 8], targets[LAYOUT_BATCH * 8];
    gt_batch batch;
    take_batch(&batch, tokens, targets, t, c);
    return gt_trainer_step(t, &batch, NULL);
}

static gt_status evaluate(gt_trainer *t, const gt_config *c)
{
    int32_t tokens[LAYOUT_BATCH * 8], targets[LAYOUT_BATCH * 8];
    gt_batch batch;
    take_batch(&batch, tokens, targets, t, c);
    return gt_trainer_evaluate(t, &batch, NULL, NULL);
}

static gt_status generate(gt_trainer *t, const gt_config *c)
{
    int32_t prompt[2] = {1, 2}, out[2];
    (void)c;
    return gt_trainer_generate(t, prompt, 2, 2, 0.0f, 1, out);
}

static gt_status read_and_load(gt_trainer *t, const gt_config *c)
{
    float values[32];
    (void)c;
    gt_status st = gt_trainer_read_param(t, "blocks.1.norm2.weight", values, 32);
    return st == GT_OK ? gt_trainer_load_param(t, "blocks.1.norm2.weight", values, 32) : st;
}

/* ---- one rank runs out ------------------------------------------------------------------------*/
static void rank_body(int rank, int size, void *user)
{
    scene *s = user;
    (void)size;
    th h = {0};
    gt_config c;
    gt_comm *world = NULL;
    gt_model *model = NULL;
    gt_trainer *t = NULL;
    gt_comm_params p = GT_COMM_PARAMS_INIT;
    p.local_world = s->world;
    p.local_rank = rank;
    p.timeout_s = 100; /* a stopped machine is not a slow rank */
    th_open(&h, s->l->device ? s->l->device : "cpu");
    layout_config(&c, s->l);
    TH_OK(gt_comm_create(&world, h.ctx, &p));
    TH_OK(gt_model_create(&model));
    TH_OK(gt_model_add_gpt(model, &c.model));
    if (s->call != NULL) {
        TH_OK(gt_trainer_create(&t, h.ctx, world, model, &c));
        pthread_barrier_wait(&s->created); /* else the victim's failure meets others in there */
    }
    th_host_fail_at(rank == s->victim ? s->nth : 0);
    gt_status st =
        s->call != NULL ? s->call(t, &c) : gt_trainer_create(&t, h.ctx, world, model, &c);
    if (th_host_failed()) {
        s->failed = true;
    }
    /* A step does not wait for its last publication: whoever is through is told in the next call.
     */
    st = st == GT_OK ? gt_barrier(world) : st;
    s->status[rank] = st;
    snprintf(s->sentence[rank], sizeof s->sentence[rank], "%s", st != GT_OK ? gt_last_error() : "");
    gt_trainer_destroy(&t);
    gt_model_destroy(&model);
    gt_comm_destroy(&world);
    th_close(&h);
}

static void check_ranks(const scene *s, int size, const char *name)
{
    int failed = 0;
    bool late = false;
    for (int r = 0; r < size; r++) {
        failed += s->status[r] != GT_OK;
        late = late || strstr(s->sentence[r], "waited") != NULL;
    }
    bool good = failed == (s->failed ? size : 0) && !late;
    for (int r = 0; !good && r < size; r++) {
        print_message("%s in %s, allocation %ld of rank %d: rank %d returned %s: %s\n", name,
                      layout_name(s->l), s->nth, s->victim, r, gt_status_name(s->status[r]),
                      s->sentence[r]);
    }
    TH_TRUE(good);
}

/* Allocations of the call until it makes fewer: the first eight, then every `stride`th. */
static void sweep(const layout *l, int victim, long stride, const char *name, call_fn call)
{
    bool failed = true;
    for (long nth = 1; failed; nth += nth < 8 ? 1 : stride) {
        scene s = {.l = l, .call = call, .victim = victim, .nth = nth};
        TH_OK(gt_local_world_create(&s.world, layout_ranks(l)));
        pthread_barrier_init(&s.created, NULL, (unsigned)layout_ranks(l));
        th_threads(layout_ranks(l), rank_body, &s);
        pthread_barrier_destroy(&s.created);
        gt_local_world_destroy(&s.world);
        check_ranks(&s, layout_ranks(l), name);
        failed = s.failed;
    }
}

static const layout layouts[] = {
    {.dp = 2, .zero = 3, .micro = 3},
    {.dp = 2, .zero = 1, .micro = 3, .dtype = GT_BF16, .device = "guarded"},
    {.tp = 2, .sequence_parallel = true, .micro = 2},
    {.pp = 2, .micro = 2, .schedule = "zb-h1"},
    {.pp = 2, .dp = 2, .zero = 2, .micro = 3, .offload = GT_OFFLOAD_CPU, .device = "guarded"},
    {.dp = 4, .zero = 3, .hpz = 2, .micro = 3, .dtype = GT_BF16, .remainder = true},
    {.cp = 2, .micro = 2},
};

static const struct {
    const char *name;
    call_fn call;
} calls[] = {{"create", NULL},
             {"step", step},
             {"evaluate", evaluate},
             {"generate", generate},
             {"read_and_load", read_and_load}};

static long stride = 37;

static void every_call(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        for (size_t k = 0; k < sizeof calls / sizeof *calls; k++) {
            long s = stride + (stride > 1 ? (long)i : 0); /* other allocations in each layout */
            sweep(&layouts[i], (int)(i % 2), s, calls[k].name, calls[k].call);
        }
    }
}

/* With the argument "all": every allocation. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_call)};
    stride = argc > 1 && strcmp(argv[1], "all") == 0 ? 1 : stride;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
