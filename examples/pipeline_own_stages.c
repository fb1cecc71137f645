/* SPDX-License-Identifier: Apache-2.0
 *
 * Pipeline parallelism for a training loop of your own: your stage functions, your memory, your
 * optimizer; the library brings the schedule and the transfers.
 *
 * A small network of fully connected tanh layers learns z = sin(3x) cos(2y); each stage is one
 * layer, written in plain loops below.
 *
 *     pipeline_own_stages [SCHEDULE [RANKS [CHUNKS]]]     ranks as threads of this process
 *     mpirun -n 4 pipeline_own_stages zb-h1               ranks as processes
 *
 * Whatever the schedule, the losses are the same to the last digit.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <geektrain/pipeline.h>

#define WIDTH 24
#define ROWS 32        /* of a microbatch         */
#define MICROBATCHES 8 /* of a step               */
#define STEPS 400
#define RATE 0.1f
#define CHUNKS_MOST 8

/* One layer y = tanh(W x + b), the last one without tanh. */
typedef struct layer {
    int stage, in, out;
    bool first, last;
    float w[WIDTH * WIDTH], b[WIDTH], dw[WIDTH * WIDTH], db[WIDTH];
    /* Kept per microbatch from forward to backward. `in` needs no copy: the executor keeps it. */
    float y[MICROBATCHES][ROWS * WIDTH], du[MICROBATCHES][ROWS * WIDTH];
} layer;

typedef struct trainer {
    int rank, chunks, step;
    layer *layers[CHUNKS_MOST];
    double loss; /* of the last stage */
} trainer;

/* ---- data and initial weights: a counter-based random number, the same in any layout
 * -------------- */
static float noise(uint64_t key)
{
    key += 0x9e3779b97f4a7c15u;
    key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
    key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
    return (float)((key ^ (key >> 31)) >> 40) / (float)(1 << 23) - 1;
}

static void sample(int step, int microbatch, int row, float x[2], float *z)
{
    uint64_t n = ((uint64_t)step * MICROBATCHES + (uint64_t)microbatch) * ROWS + (uint64_t)row;
    x[0] = noise(2 * n);
    x[1] = noise(2 * n + 1);
    *z = sinf(3 * x[0]) * cosf(2 * x[1]);
}

static layer *layer_create(int stage, int stages)
{
    layer *l = calloc(1, sizeof(*l));
    if (!l) {
        return NULL;
    }
    l->stage = stage;
    l->first = stage == 0;
    l->last = stage == stages - 1;
    l->in = l->first ? 2 : WIDTH;
    l->out = l->last ? 1 : WIDTH;
    for (int i = 0; i < l->out * l->in; i++) {
        l->w[i] = noise(((uint64_t)stage + 1) << 32 | (uint64_t)i) * sqrtf(3.0f / (float)l->in);
    }
    return l;
}

/* ---- the stage functions
 * -------------------------------------------------------------------------- */
/* What the layer takes: the executor's buffer, or the data in the first stage. */
static const float *layer_input(const trainer *t, const layer *l, int m, const gt_tensor *in,
                                float data[ROWS * 2])
{
    float z;
    for (int r = 0; l->first && r < ROWS; r++) {
        sample(t->step, m, r, &data[2 * r], &z);
    }
    return l->first ? data : in[0].data;
}

static gt_status forward(void *user, int m, int chunk, const gt_tensor *in, gt_tensor *out)
{
    trainer *t = user;
    layer *l = t->layers[chunk];
    float data[ROWS * 2], xy[2], z;
    const float *x = layer_input(t, l, m, in, data);
    for (int r = 0; r < ROWS; r++) {
        for (int o = 0; o < l->out; o++) {
            float sum = l->b[o];
            for (int i = 0; i < l->in; i++) {
                sum += l->w[o * l->in + i] * x[r * l->in + i];
            }
            l->y[m][r * l->out + o] = l->last ? sum : tanhf(sum);
        }
        if (l->last) {
            sample(t->step, m, r, xy, &z);
            t->loss += 0.5 * (l->y[m][r] - z) * (l->y[m][r] - z) / (ROWS * MICROBATCHES);
        }
    }
    if (!l->last) {
        memcpy(out[0].data, l->y[m], sizeof(float) * ROWS * (size_t)l->out);
    }
    return GT_OK;
}

/* Gradient of the sum before tanh, and of the input. */
static void backward_input(trainer *t, layer *l, int m, const gt_tensor *dout, gt_tensor *din)
{
    float xy[2], z;
    for (int r = 0; r < ROWS; r++) {
        for (int o = 0; o < l->out; o++) {
            int at = r * l->out + o;
            float y = l->y[m][at];
            if (l->last) {
                sample(t->step, m, r, xy, &z);
                l->du[m][at] = (y - z) / (ROWS * MICROBATCHES);
            } else {
                l->du[m][at] = ((const float *)dout[0].data)[at] * (1 - y * y);
            }
        }
        for (int i = 0; !l->first && i < l->in; i++) {
            float sum = 0;
            for (int o = 0; o < l->out; o++) {
                sum += l->du[m][r * l->out + o] * l->w[o * l->in + i];
            }
            ((float *)din[0].data)[r * l->in + i] = sum;
        }
    }
}

static gt_status backward(void *user, int m, int chunk, const gt_tensor *in, const gt_tensor *dout,
                          gt_tensor *din, unsigned parts)
{
    trainer *t = user;
    layer *l = t->layers[chunk];
    if (parts & GT_BACKWARD_INPUT) {
        backward_input(t, l, m, dout, din);
    }
    if (parts & GT_BACKWARD_WEIGHT) { /* zero-bubble schedules ask for it later */
        float data[ROWS * 2];
        const float *x = layer_input(t, l, m, in, data);
        for (int r = 0; r < ROWS; r++) {
            for (int o = 0; o < l->out; o++) {
                float du = l->du[m][r * l->out + o];
                l->db[o] += du;
                for (int i = 0; i < l->in; i++) {
                    l->dw[o * l->in + i] += du * x[r * l->in + i];
                }
            }
        }
    }
    return GT_OK;
}

/* The chunk's gradients are complete: with several pipelines side by side they would be summed over
 * them here, while other ranks still work. This one updates. */
static gt_status update(void *user, int chunk, bool last)
{
    (void)last;
    layer *l = ((trainer *)user)->layers[chunk];
    for (int i = 0; i < l->out * l->in; i++) {
        l->w[i] -= RATE * l->dw[i];
        l->dw[i] = 0;
    }
    for (int o = 0; o < l->out; o++) {
        l->b[o] -= RATE * l->db[o];
        l->db[o] = 0;
    }
    return GT_OK;
}

/* ---- one rank
 * -------------------------------------------------------------------------------------- */
static gt_status train(trainer *t, gt_context *ctx, gt_comm *comm, const gt_schedule *schedule)
{
    gt_bundle in[CHUNKS_MOST] = {0}, out[CHUNKS_MOST] = {0};
    gt_pipeline_params params = GT_PIPELINE_PARAMS_INIT;
    for (int c = 0; c < t->chunks; c++) {
        const layer *l = t->layers[c];
        in[c] = (gt_bundle){.ports = !l->first, .shape = {{GT_F32, 2, {ROWS, l->in}}}};
        out[c] = (gt_bundle){.ports = !l->last, .shape = {{GT_F32, 2, {ROWS, l->out}}}};
    }
    params.user = t;
    params.forward = forward;
    params.backward = backward;
    params.reduce = update;
    params.inputs = in;
    params.outputs = out;
    gt_pipeline *pipeline = NULL;
    gt_status st = gt_pipeline_create(&pipeline, ctx, comm, schedule, &params);
    for (t->step = 0; t->step < STEPS && st == GT_OK; t->step++) {
        t->loss = 0;
        st = gt_pipeline_run(pipeline, NULL);
        int last = gt_schedule_stage_rank(schedule, gt_schedule_stages(schedule) - 1);
        if (st == GT_OK && t->rank == last && (t->step % 80 == 0 || t->step == STEPS - 1)) {
            printf("step %3d  loss %.9f\n", t->step, t->loss);
        }
    }
    gt_pipeline_stats stats = {0};
    if (st == GT_OK) {
        gt_pipeline_get_stats(pipeline, &stats);
        printf("rank %d: last step %.0f us, %.0f in stages, %.0f waiting; %zu bytes of buffers\n",
               t->rank, 1e6 * stats.seconds, 1e6 * stats.compute_s, 1e6 * stats.wait_s,
               stats.buffer_bytes);
    }
    gt_pipeline_destroy(&pipeline);
    return st;
}

/* What the ranks are started with. */
typedef struct job {
    const char *schedule;
    int ranks, chunks, rank;
    gt_local_world *world; /* NULL: processes, over MPI */
    gt_status status;
} job;

static void *run_rank(void *user)
{
    job *j = user;
    trainer t = {0};
    gt_context *ctx = NULL;
    gt_comm *comm = NULL;
    gt_schedule *schedule = NULL;
    gt_comm_params params = GT_COMM_PARAMS_INIT;
    params.transport = j->world ? "local" : "auto";
    params.local_world = j->world;
    params.local_rank = j->rank;
    gt_status st = gt_context_create(&ctx, NULL);
    if (st == GT_OK) {
        st = gt_comm_create(&comm, ctx, &params);
    }
    if (st == GT_OK) {
        t.rank = gt_comm_rank(comm);
        st =
            gt_schedule_create(&schedule, j->schedule, gt_comm_size(comm), MICROBATCHES, j->chunks);
    }
    if (st == GT_OK) {
        t.chunks = gt_schedule_chunks(schedule);
        for (int c = 0; c < t.chunks && c < CHUNKS_MOST; c++) {
            t.layers[c] =
                layer_create(gt_schedule_stage(schedule, t.rank, c), gt_schedule_stages(schedule));
        }
        st = t.chunks <= CHUNKS_MOST ? train(&t, ctx, comm, schedule) : GT_ERR_ARGUMENT;
    }
    if (st != GT_OK) {
        fprintf(stderr, "rank %d: %s\n", t.rank, gt_last_error());
    }
    for (int c = 0; c < CHUNKS_MOST; c++) {
        free(t.layers[c]);
    }
    gt_schedule_destroy(&schedule);
    gt_comm_destroy(&comm);
    gt_context_destroy(&ctx);
    j->status = st;
    return NULL;
}

static int run_threads(job all)
{
    job jobs[64];
    pthread_t threads[64];
    bool ok = true;
    if (gt_local_world_create(&all.world, all.ranks) != GT_OK) {
        fprintf(stderr, "%s\n", gt_last_error());
        return 1;
    }
    for (int r = 0; r < all.ranks; r++) {
        jobs[r] = all;
        jobs[r].rank = r;
        if (pthread_create(&threads[r], NULL, run_rank, &jobs[r])) {
            perror("pthread_create");
            exit(1);
        }
    }
    for (int r = 0; r < all.ranks; r++) {
        pthread_join(threads[r], NULL);
        ok = ok && jobs[r].status == GT_OK;
    }
    gt_local_world_destroy(&all.world);
    return !ok;
}

int main(int argc, char **argv)
{
    job j = {.schedule = argc > 1 ? argv[1] : "1f1b",
             .ranks = argc > 2 ? atoi(argv[2]) : 4,
             .chunks = argc > 3 ? atoi(argv[3]) : 0};
    if (getenv("OMPI_COMM_WORLD_SIZE")) {
        run_rank(&j);
        return j.status != GT_OK;
    }
    if (j.ranks < 1 || j.ranks > 64) {
        fprintf(stderr, "%d ranks; want 1..64\n", j.ranks);
        return 2;
    }
    return run_threads(j);
}
