/* SPDX-License-Identifier: Apache-2.0
 *
 * A picture and a text model that learn what belongs together (CLIP: Radford et al. 2021), as two
 * stages that run side by side and a third that joins them:
 *
 *     pictures -> image tower  0 \
 *                                 2  similarities, contrastive loss
 *     names    -> text tower   1 /
 *
 *     apt-get install famfamfam-flag-png iso-codes
 *     python3 examples/make_flags.py runs/data/flags.bin
 *     two_tower runs/data/flags.bin                 three ranks as threads of this process
 *     two_tower runs/data/flags.bin 1               one rank that does all three stages' work
 *     mpirun -n 3 two_tower runs/data/flags.bin     three processes
 *
 * All three print the same losses, to the last digit.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <geektrain/geektrain.h>

#include "two_tower_model.h"

#define STEPS 150

/* One rank has a schedule of one stage and calls all three itself. 1F1B then follows each forward
 * with its backward, so that one buffer in between is enough. */
static bool has_stage(const app *a, int stage)
{
    return a->ranks == 1 || a->rank == stage;
}

/* ---- what the executor calls: with three ranks, rank r has stage r */
static gt_status forward(void *user, int m, int chunk, const gt_tensor *in, gt_tensor *out)
{
    app *a = user;
    (void)chunk;
    if (a->ranks == 1) {
        TRY(tower_forward(a, &a->towers[IMAGE], m, &a->joined[IMAGE]));
        TRY(tower_forward(a, &a->towers[TEXT], m, &a->joined[TEXT]));
        return head_forward(a, m, &a->joined[IMAGE], &a->joined[TEXT]);
    }
    return a->rank == HEAD ? head_forward(a, m, &in[IMAGE], &in[TEXT])
                           : tower_forward(a, &a->towers[a->rank], m, &out[0]);
}

static gt_status backward(void *user, int m, int chunk, const gt_tensor *in, const gt_tensor *dout,
                          gt_tensor *din, unsigned parts)
{
    app *a = user;
    (void)chunk, (void)parts; /* 1F1B asks for input and weight part together */
    if (a->ranks == 1) {
        TRY(head_backward(a, m, &a->joined[IMAGE], &a->joined[TEXT], &a->djoined[IMAGE],
                          &a->djoined[TEXT]));
        TRY(tower_backward(a, &a->towers[TEXT], m, &a->djoined[TEXT]));
        return tower_backward(a, &a->towers[IMAGE], m, &a->djoined[IMAGE]);
    }
    return a->rank == HEAD ? head_backward(a, m, &in[IMAGE], &in[TEXT], &din[IMAGE], &din[TEXT])
                           : tower_backward(a, &a->towers[a->rank], m, &dout[0]);
}

/* The gradients of this rank's towers are complete. */
static gt_status update(void *user, int chunk, bool last)
{
    app *a = user;
    (void)chunk, (void)last;
    for (int which = IMAGE; which <= TEXT; which++) {
        if (has_stage(a, which)) {
            TRY(tower_update(a, &a->towers[which]));
        }
    }
    return GT_OK;
}

/* ---- one rank */
static uint64_t random_number(uint64_t key)
{
    key += 0x9e3779b97f4a7c15u;
    key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
    key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
    return key ^ (key >> 31);
}

/* A new order of the pairs for every step, the same on all ranks. */
static void shuffle(app *a)
{
    for (int i = 0; i < a->data->count; i++) {
        uint64_t key = (uint64_t)a->step << 32 | (uint64_t)i;
        int k = (int)(random_number(key) % (uint64_t)(i + 1));
        a->order[i] = a->order[k];
        a->order[k] = i;
    }
}

static gt_status create_stages(app *a)
{
    a->order = calloc((size_t)a->data->count, sizeof(int));
    if (a->order == NULL) {
        return GT_ERR_MEMORY;
    }
    for (int which = IMAGE; which <= TEXT; which++) {
        if (has_stage(a, which)) {
            TRY(tower_create(a, which));
        }
        TRY(app_room(a, &a->joined[which], GT_F32, a->batch, EMBED));
        TRY(app_room(a, &a->djoined[which], GT_F32, a->batch, EMBED));
    }
    return has_stage(a, HEAD) ? head_create(a) : GT_OK;
}

/* The graph: both towers' output goes to stage 2. */
static gt_status create_schedule(const app *a, gt_schedule **out)
{
    static const int next[] = {HEAD, HEAD, -1};
    gt_schedule_params p = GT_SCHEDULE_PARAMS_INIT;
    p.name = "1f1b";
    p.ranks = a->ranks;
    p.microbatches = MICROBATCHES;
    p.next = a->ranks == 1 ? NULL : next;
    return gt_schedule_create_params(out, &p);
}

/* A tower gives one port, the head takes both towers' side by side, in the order of their stages.
 */
static gt_status create_pipeline(app *a, gt_comm *comm, const gt_schedule *s, gt_pipeline **out)
{
    const gt_shape port = {GT_F32, 2, {a->batch, EMBED}};
    const gt_bundle none = {0}, one = {.ports = 1, .shape = {port}};
    const gt_bundle both = {.ports = 2, .shape = {port, port}};
    gt_pipeline_params p = GT_PIPELINE_PARAMS_INIT;
    bool joins = a->ranks == 3 && a->rank == HEAD, gives = a->ranks == 3 && a->rank != HEAD;
    p.user = a;
    p.forward = forward;
    p.backward = backward;
    p.reduce = update;
    p.inputs = joins ? &both : &none;
    p.outputs = gives ? &one : &none;
    return gt_pipeline_create(out, a->ctx, comm, s, &p);
}

static gt_status train(app *a, gt_pipeline *pipeline)
{
    double stats[2]; /* sum of losses, and how many: one for each picture and each name */
    for (a->step = 0; a->step < STEPS; a->step++) {
        shuffle(a);
        if (has_stage(a, HEAD)) {
            TRY(gt_fill(a->ctx, &a->head.stats, 0, NULL));
        }
        TRY(gt_pipeline_run(pipeline, NULL));
        if (has_stage(a, HEAD) && (a->step % 30 == 0 || a->step == STEPS - 1)) {
            TRY(gt_copy_to_host(a->ctx, stats, &a->head.stats, NULL));
            printf("step %3d  loss %.9f\n", a->step, stats[0] / stats[1]);
        }
    }
    a->evaluating = true;
    TRY(gt_pipeline_forward(pipeline, MICROBATCHES, NULL));
    if (has_stage(a, HEAD)) {
        int64_t shown = MICROBATCHES * a->batch;
        printf("the right one of %lld names for %.0f %% of the pictures\n", (long long)a->batch,
               100.0 * a->hits / (double)shown);
    }
    return GT_OK;
}

/* What the ranks are started with. */
typedef struct job {
    const pairs *data;
    int rank;
    gt_local_world *world; /* NULL: processes over MPI, or one rank alone */
    gt_status status;
} job;

static gt_status run(app *a, const job *j, gt_comm **comm, gt_schedule **schedule,
                     gt_pipeline **pipeline)
{
    gt_context_params context = GT_CONTEXT_PARAMS_INIT;
    gt_comm_params params = GT_COMM_PARAMS_INIT;
    context.threads = 1; /* sums in the same order however many ranks share the cores */
    params.transport = j->world ? "local" : "auto";
    params.local_world = j->world;
    params.local_rank = j->rank;
    TRY(gt_context_create(&a->ctx, &context));
    TRY(gt_comm_create(comm, a->ctx, &params));
    a->rank = gt_comm_rank(*comm);
    a->ranks = gt_comm_size(*comm);
    a->batch = a->data->count / MICROBATCHES;
    TRY(create_schedule(a, schedule));
    TRY(gt_comm_agree(*comm, create_stages(a))); /* an error on one rank is an error on all */
    TRY(create_pipeline(a, *comm, *schedule, pipeline));
    return train(a, *pipeline);
}

static void *run_rank(void *user)
{
    job *j = user;
    app a = {.data = j->data};
    gt_comm *comm = NULL;
    gt_schedule *schedule = NULL;
    gt_pipeline *pipeline = NULL;
    j->status = run(&a, j, &comm, &schedule, &pipeline);
    if (j->status != GT_OK) {
        fprintf(stderr, "rank %d: %s: %s\n", a.rank, gt_status_name(j->status), gt_last_error());
    }
    gt_pipeline_destroy(&pipeline);
    gt_schedule_destroy(&schedule);
    app_free(&a);
    free(a.order);
    gt_comm_destroy(&comm);
    gt_context_destroy(&a.ctx);
    return NULL;
}

static bool run_threads(const pairs *data)
{
    gt_local_world *world = NULL;
    job jobs[3];
    pthread_t threads[3];
    bool ok = true;
    if (gt_local_world_create(&world, 3) != GT_OK) {
        fprintf(stderr, "%s\n", gt_last_error());
        return false;
    }
    for (int r = 0; r < 3; r++) {
        jobs[r] = (job){.data = data, .rank = r, .world = world};
        if (pthread_create(&threads[r], NULL, run_rank, &jobs[r])) {
            perror("pthread_create");
            exit(1);
        }
    }
    for (int r = 0; r < 3; r++) {
        pthread_join(threads[r], NULL);
        ok = ok && jobs[r].status == GT_OK;
    }
    gt_local_world_destroy(&world);
    return ok;
}

int main(int argc, char **argv)
{
    const char *processes = getenv("OMPI_COMM_WORLD_SIZE");
    int ranks = processes ? atoi(processes) : argc > 2 ? atoi(argv[2]) : 3;
    pairs data = {0};
    if (argc < 2 || argv[1][0] == '-' || (ranks != 1 && ranks != 3)) {
        fprintf(stderr, "usage: two_tower FILE [RANKS]     RANKS 1 or 3 (also under mpirun -n)\n"
                        "FILE: what examples/make_flags.py wrote\n");
        return 2;
    }
    bool ok = pairs_read(&data, argv[1]);
    if (ok && ranks == 3 && !processes) {
        ok = run_threads(&data);
    } else if (ok) {
        job j = {.data = &data};
        run_rank(&j);
        ok = j.status == GT_OK;
    }
    pairs_free(&data);
    return !ok;
}
