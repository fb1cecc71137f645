/* SPDX-License-Identifier: Apache-2.0
 * The pipeline executor on ranks as threads (and, started by mpirun, as processes): the same bits
 * as the stages run one after the other, and one error for all when something goes wrong. */
#include "gelu_stages.h"

#define ROWS 7

static gt_pipeline *open_pipeline(gs_rank *r, gt_comm *comm)
{
    gt_bundle in[GS_CHUNKS], out[GS_CHUNKS];
    gt_pipeline_params p = gs_params(r, in, out);
    gt_pipeline *pl = NULL;
    TH_OK(gt_pipeline_create(&pl, r->ctx, comm, r->schedule, &p));
    return pl;
}

static gt_schedule *make(const char *name, int ranks, int m, int chunks)
{
    gt_schedule *s = NULL;
    TH_OK(gt_schedule_create(&s, name, ranks, m, chunks));
    return s;
}

/* The boundary buffers are those that the simulator announces. */
static void check_buffers(const gs_rank *r, const gt_pipeline *pl)
{
    gt_rank_report ranks[8];
    gt_schedule_report report;
    gt_pipeline_stats stats;
    const gt_stage_cost unit = {1, 1, 1, 0, 0};
    TH_OK(gt_schedule_simulate(&report, ranks, r->schedule, &unit, 1));
    gt_pipeline_get_stats(pl, &stats);
    const gt_rank_report *mine = &ranks[r->rank];
    int buffers = mine->input_buffers + mine->output_buffers + mine->gradient_buffers +
                  mine->input_gradient_buffers;
    TH_EQUAL(stats.buffer_bytes, (int64_t)buffers * ROWS * GS_WIDTH * 4);
}

typedef struct kind {
    const char *name;
    int chunks;
} kind;

static void run_once(gt_comm *world, gt_context *ctx, void *user)
{
    const kind *k = user;
    static const int microbatches[] = {1, 2, 5, 8};
    for (int i = 0; i < 4; i++) {
        int m = microbatches[i];
        gt_schedule *s = make(k->name, gt_comm_size(world), m, k->chunks);
        gs_rank r;
        gs_rank_open(&r, ctx, s, gt_comm_rank(world), ROWS);
        gt_pipeline *pl = open_pipeline(&r, world);
        check_buffers(&r, pl);
        TH_OK(gt_pipeline_run(pl, NULL));
        TH_TRUE(r.last_reduced);
        TH_EQUAL(r.reduces, r.chunks);
        gs_check(&r, m, r.rows, true);
        gt_pipeline_destroy(&pl);
        gt_schedule_destroy(&s);
    }
}

static void run_equals_sequential(void **state)
{
    (void)state;
    kind kinds[] = {{"gpipe", 1},       {"gpipe", 2}, {"1f1b", 1},  {"interleaved", 2},
                    {"interleaved", 3}, {"zb-h1", 1}, {"zb-h2", 1}, {"zb-v", 2}};
    for (int k = 0; k < 8; k++) {
        for (int ranks = 1; ranks <= 4; ranks++) {
            gti_run_ranks(ranks, run_once, "cpu", &kinds[k]);
        }
        if (k % 2 == 0) {
            gti_run_ranks(2 + k % 3, run_once, "guarded", &kinds[k]);
        }
    }
}

/* The same pipeline again and again: no allocation, gradients add up. */
static void steady(gt_comm *world, gt_context *ctx, void *user)
{
    (void)user;
    gt_schedule *s = make("zb-h1", gt_comm_size(world), 6, 1);
    gs_rank r;
    gs_rank_open(&r, ctx, s, gt_comm_rank(world), ROWS);
    gt_pipeline *pl = open_pipeline(&r, world);
    TH_OK(gt_pipeline_run(pl, NULL));
    TH_OK(gt_barrier(world));
    gt_memory_stats before, after;
    gt_memory_get_stats(ctx, &before);
    for (int i = 0; i < 10; i++) {
        th_fill(gti_rank_harness(), &r.stages[0].dw, 0);
        r.last_reduced = false;
        TH_OK(gt_pipeline_run(pl, NULL));
    }
    gt_memory_get_stats(ctx, &after);
    TH_EQUAL(after.allocations, before.allocations);
    gs_check(&r, 6, r.rows, true);
    gt_pipeline_destroy(&pl);
    gt_schedule_destroy(&s);
}

static void run_allocates_nothing(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++) {
        gti_run_ranks(ranks, steady, "cpu", NULL);
    }
}

/* Microbatches of 5, 7 and 3 rows arrive whole, missing ones call nobody, the last may be short. */
static void ragged(gt_comm *world, gt_context *ctx, void *user)
{
    (void)user;
    static const int64_t rows[][4] = {{5, 7, 3, 7}, {7, 7, 7, 2}, {4, 0, 0, 0}, {0, 0, 0, 0}};
    static const char *const names[] = {"1f1b", "zb-h1", "interleaved"};
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 4; i++) {
            gt_schedule *s = make(names[k], gt_comm_size(world), 4, 0);
            gs_rank r;
            gs_rank_open(&r, ctx, s, gt_comm_rank(world), ROWS);
            memcpy(r.rows, rows[i], sizeof(rows[i]));
            gt_pipeline *pl = open_pipeline(&r, world);
            TH_OK(gt_pipeline_run(pl, rows[i]));
            TH_EQUAL(r.reduces, r.chunks);
            TH_TRUE(i < 3 || r.calls == 0);
            gs_check(&r, 4, rows[i], true);
            gt_pipeline_destroy(&pl);
            gt_schedule_destroy(&s);
        }
    }
}

static void run_takes_ragged_microbatches(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++) {
        gti_run_ranks(ranks, ragged, "cpu", NULL);
    }
    gti_run_ranks(2, ragged, "guarded", NULL);
}

static void forward_only(gt_comm *world, gt_context *ctx, void *user)
{
    (void)user;
    static const char *const names[] = {"1f1b", "interleaved", "zb-v"};
    static const int microbatches[] = {1, 9, 1, 4, 2, 3, 12, 9};
    for (int k = 0; k < 3; k++) {
        gt_schedule *s = make(names[k], gt_comm_size(world), 4, 0);
        gs_rank r;
        gs_rank_open(&r, ctx, s, gt_comm_rank(world), ROWS);
        gt_pipeline *pl = open_pipeline(&r, world);
        for (int i = 0; i < 8; i++) {
            for (int c = 0; c < r.chunks; c++) {
                th_fill(gti_rank_harness(), &r.stages[c].u[0], -1);
            }
            r.rows[microbatches[i] - 1] = 3;
            TH_OK(gt_pipeline_forward(pl, microbatches[i], r.rows));
            gs_check(&r, microbatches[i], r.rows, false);
            r.rows[microbatches[i] - 1] = ROWS;
        }
        TH_OK(gt_pipeline_run(pl, NULL));
        gs_check(&r, 4, r.rows, true);
        gt_pipeline_destroy(&pl);
        gt_schedule_destroy(&s);
    }
}

static void forward_takes_any_number(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++) {
        gti_run_ranks(ranks, forward_only, "cpu", NULL);
    }
    gti_run_ranks(2, forward_only, "guarded", NULL);
}

/* Two towers (0 -> 2 and 1) joined by a head (3). */
static void towers(gt_comm *world, gt_context *ctx, void *user)
{
    (void)user;
    static const int next[] = {2, 3, 3, -1};
    static const char *const names[] = {"gpipe", "1f1b"};
    for (int k = 0; k < 2; k++) {
        gt_schedule_params p = GT_SCHEDULE_PARAMS_INIT;
        p.name = names[k];
        p.ranks = 4;
        p.microbatches = 6;
        p.next = next;
        gt_schedule *s = NULL;
        TH_OK(gt_schedule_create_params(&s, &p));
        gs_rank r;
        gs_rank_open(&r, ctx, s, gt_comm_rank(world), ROWS);
        gt_pipeline *pl = open_pipeline(&r, world);
        TH_OK(gt_pipeline_run(pl, NULL));
        gs_check(&r, 6, r.rows, true);
        TH_OK(gt_pipeline_forward(pl, 3, NULL));
        gt_pipeline_destroy(&pl);
        gt_schedule_destroy(&s);
    }
}

static void run_joins_two_towers(void **state)
{
    (void)state;
    gti_run_ranks(4, towers, "cpu", NULL);
    gti_run_ranks(4, towers, "guarded", NULL);
}

/* A list of one's own: rank 1 takes microbatch 0 last. Transfers find their receive by tag, and
 * rank 0 needs a buffer for each output, as microbatch 0 stays under way. */
static void reordered(gt_comm *world, gt_context *ctx, void *user)
{
    (void)user;
    static const int order[] = {1, 2, 3, 4, 0};
    gt_action first[10], second[10];
    for (int i = 0; i < 5; i++) {
        first[i] = (gt_action){GT_ACTION_FORWARD, i, 0};
        second[i] = (gt_action){GT_ACTION_FORWARD, order[i], 0};
        first[5 + i] = second[5 + i] = (gt_action){GT_ACTION_BACKWARD, i, 0};
    }
    const gt_action *lists[] = {first, second};
    const int counts[] = {10, 10};
    const gt_stage_cost unit = {1, 1, 1, 0, 0};
    gt_schedule *s = NULL;
    gt_schedule_report report;
    gt_rank_report ranks[2];
    TH_OK(gt_schedule_create_actions(&s, 2, 5, 1, NULL, NULL, lists, counts));
    TH_OK(gt_schedule_simulate(&report, ranks, s, &unit, 1));
    TH_EQUAL(ranks[0].output_buffers, 4);
    gs_rank r;
    gs_rank_open(&r, ctx, s, gt_comm_rank(world), ROWS);
    gt_pipeline *pl = open_pipeline(&r, world);
    TH_OK(gt_pipeline_run(pl, NULL));
    gs_check(&r, 5, r.rows, true);
    gt_pipeline_destroy(&pl);
    gt_schedule_destroy(&s);
}

static void run_follows_own_lists(void **state)
{
    (void)state;
    gti_run_ranks(2, reordered, "cpu", NULL);
    gti_run_ranks(2, reordered, "guarded", NULL);
}

/* ---- failures
 * -------------------------------------------------------------------------------------- */
/* Rank user[0] fails in the backward of microbatch user[1]. */
static void failing(gt_comm *world, gt_context *ctx, void *user)
{
    const int *where = user;
    gt_schedule *s = make("1f1b", gt_comm_size(world), 6, 1);
    gs_rank r;
    gs_rank_open(&r, ctx, s, gt_comm_rank(world), ROWS);
    gt_pipeline *pl = open_pipeline(&r, world);
    bool mine = where[0] == r.rank;
    r.fail_backward = mine ? where[1] : -1;
    gt_status st = gt_pipeline_run(pl, NULL);
    if (mine) {
        TH_FAILS(st, GT_ERR_DEVICE, "broke");
        TH_FAILS(gt_pipeline_run(pl, NULL), GT_ERR_STATE, "earlier run failed");
    } else {
        /* A rank that had done its part gets the error from its next call. */
        st = st == GT_OK ? gt_barrier(world) : st;
        TH_FAILS(st, GT_ERR_PEER, "broke");
    }
    gt_pipeline_destroy(&pl);
    gt_schedule_destroy(&s);
}

static void run_fails_on_all_ranks(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++) {
        for (int rank = 0; rank < ranks; rank++) {
            for (int m = 0; m < 6; m += 5) {
                int where[] = {rank, m};
                gti_run_ranks(ranks, failing, "cpu", where);
            }
        }
    }
}

/* Ranks that see different numbers of rows: an error on both, never a cut tensor. */
static void disagreeing_rows(gt_comm *world, gt_context *ctx, void *user)
{
    (void)user;
    gt_schedule *s = make("1f1b", 2, 3, 1);
    gs_rank r;
    gs_rank_open(&r, ctx, s, gt_comm_rank(world), ROWS);
    gt_pipeline *pl = open_pipeline(&r, world);
    const int64_t rows[2][3] = {{5, 7, 3}, {5, 5, 3}};
    memcpy(r.rows, rows[r.rank], sizeof(rows[0]));
    gt_status st = gt_pipeline_run(pl, rows[r.rank]);
    TH_TRUE(st == GT_ERR_MISMATCH || st == GT_ERR_PEER);
    gt_pipeline_destroy(&pl);
    gt_schedule_destroy(&s);
}

static void run_refuses_different_rows(void **state)
{
    (void)state;
    gti_run_ranks(2, disagreeing_rows, "cpu", NULL);
}

static void bad_setup(gt_comm *world, gt_context *ctx, void *user)
{
    (void)user;
    int ranks = gt_comm_size(world), rank = gt_comm_rank(world);
    gt_schedule *s = make("1f1b", ranks, 4, 1), *other = make("1f1b", ranks, 5, 1);
    gs_rank r;
    gs_rank_open(&r, ctx, s, rank, ROWS);
    gt_bundle in[GS_CHUNKS], out[GS_CHUNKS];
    gt_pipeline_params p = gs_params(&r, in, out);
    gt_pipeline *pl = NULL;
    /* Shapes: the same sentence on every rank. */
    if (rank == 1) {
        in[0].shape[0].dims[1] = GS_WIDTH + 1;
    }
    TH_FAILS(gt_pipeline_create(&pl, ctx, world, s, &p), GT_ERR_SHAPE,
             "port 0 of stage 1 (rank 1) takes f32 [7, 7], but stage 0 (rank 0) gives f32 [7, 6]");
    p = gs_params(&r, in, out);
    if (rank == 1) {
        in[0].shape[0].dtype = GT_BF16;
    }
    TH_FAILS(gt_pipeline_create(&pl, ctx, world, s, &p), GT_ERR_SHAPE, "takes bf16 [7, 6]");
    p = gs_params(&r, in, out);
    if (rank == 0) {
        out[0].ports = 2;
        out[0].shape[1] = out[0].shape[0];
    }
    TH_FAILS(gt_pipeline_create(&pl, ctx, world, s, &p), GT_ERR_SHAPE, "takes nothing");
    /* Schedules, and parameters of one rank. */
    p = gs_params(&r, in, out);
    TH_FAILS(gt_pipeline_create(&pl, ctx, world, rank ? s : other, &p), GT_ERR_MISMATCH,
             "pipeline schedule");
    p.forward = rank == 1 ? NULL : p.forward;
    TH_FAILS(gt_pipeline_create(&pl, ctx, world, s, &p), rank == 1 ? GT_ERR_ARGUMENT : GT_ERR_PEER,
             "forward is NULL");
    p = gs_params(&r, in, out);
    p.rows = 2;
    TH_FAILS(gt_pipeline_create(&pl, ctx, world, s, &p), GT_ERR_SHAPE, "multiple of the 2");
    TH_TRUE(pl == NULL);
    gt_schedule_destroy(&s);
    gt_schedule_destroy(&other);
}

static void create_refuses(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 3; ranks++) {
        gti_run_ranks(ranks, bad_setup, "cpu", NULL);
    }
}

/* Each allocation of rank 1 fails once: all ranks get an error, nothing leaks, nobody waits. */
static void failing_memory(gt_comm *world, gt_context *ctx, void *user)
{
    (void)user;
    gt_schedule *s = make("1f1b", 2, 4, 1);
    gs_rank r;
    gs_rank_open(&r, ctx, s, gt_comm_rank(world), ROWS);
    gt_bundle in[GS_CHUNKS], out[GS_CHUNKS];
    gt_pipeline_params p = gs_params(&r, in, out);
    gt_pipeline *pl = NULL;
    for (uint64_t nth = 3; nth < 6; nth++) { /* 1 and 2 are the collective's own */
        gt_memory_fail_at(ctx, r.rank == 1 ? nth : 0);
        TH_FAILS(gt_pipeline_create(&pl, ctx, world, s, &p),
                 r.rank == 1 ? GT_ERR_MEMORY : GT_ERR_PEER, "bytes");
        TH_TRUE(pl == NULL);
    }
    gt_memory_fail_at(ctx, 0);
    TH_OK(gt_pipeline_create(&pl, ctx, world, s, &p));
    TH_OK(gt_pipeline_run(pl, NULL));
    gs_check(&r, 4, r.rows, true);
    gt_pipeline_destroy(&pl);
    gt_schedule_destroy(&s);
}

static void create_without_memory(void **state)
{
    (void)state;
    gti_run_ranks(2, failing_memory, "cpu", NULL);
}

static void create_without_communicator(void **state)
{
    (void)state;
    if (gti_mpirun_size() > 1) {
        return;
    }
    gt_context *ctx = NULL;
    TH_OK(gt_context_create(&ctx, NULL));
    gt_schedule *s = make("1f1b", 2, 4, 1), *one = make("1f1b", 1, 3, 1);
    gs_rank r = {.ctx = ctx, .schedule = one, .chunks = 1, .fail_backward = 0};
    gt_bundle in[GS_CHUNKS], out[GS_CHUNKS];
    r.stages[0].last = true;
    gt_pipeline_params p = gs_params(&r, in, out);
    gt_pipeline *pl = NULL;
    TH_FAILS(gt_pipeline_create(&pl, ctx, NULL, s, &p), GT_ERR_ARGUMENT,
             "for 2 ranks, the communicator has 1");
    p.inputs = p.outputs = NULL;
    p.backward = NULL;
    TH_OK(gt_pipeline_create(&pl, ctx, NULL, one, &p));
    TH_FAILS(gt_pipeline_run(pl, NULL), GT_ERR_STATE, "without a backward");
    gt_pipeline_destroy(&pl);
    gt_schedule_destroy(&s);
    gt_schedule_destroy(&one);
    gt_context_destroy(&ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_equals_sequential),
        cmocka_unit_test(run_allocates_nothing),
        cmocka_unit_test(run_takes_ragged_microbatches),
        cmocka_unit_test(forward_takes_any_number),
        cmocka_unit_test(run_joins_two_towers),
        cmocka_unit_test(run_follows_own_lists),
        cmocka_unit_test(run_fails_on_all_ranks),
        cmocka_unit_test(run_refuses_different_rows),
        cmocka_unit_test(create_refuses),
        cmocka_unit_test(create_without_memory),
        cmocka_unit_test(create_without_communicator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
