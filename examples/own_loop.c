/* SPDX-License-Identifier: Apache-2.0
 *
 * A training loop of your own: libgeektrain's single primitives on buffers from malloc(), no
 * blocks, no trainer. Data parallel, with the same losses on any number of ranks.
 *
 *     own_loop FILE [STEPS]
 *     mpirun -n 4 own_loop FILE [STEPS]
 *
 * The model guesses a byte from the vectors of the 16 before it, side by side (Bengio et al. 2003):
 *
 *     x = embed[bytes]   h = x w1^T + b1   a = gelu(h)   logits = a w2^T + b2
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <geektrain/geektrain.h>

enum { VOCAB = 256, CONTEXT = 16, WIDTH = 24, HIDDEN = 256, BATCH = 256, INPUT = CONTEXT * WIDTH };

static void die(const char *what, const char *why)
{
    fprintf(stderr, "own_loop: %s: %s\n", what, why);
    exit(1);
}

/* Every call returns a status and leaves one sentence. What to do about it is yours to decide. */
static void ok(gt_status status)
{
    if (status != GT_OK) {
        die(gt_status_name(status), gt_last_error());
    }
}

static void *owned[32]; /* memory of this program, freed at its end */
static int owned_count;

static void *zeros(size_t count, size_t size)
{
    void *memory = calloc(count + 1, size);
    if (memory == NULL) {
        die("calloc", "out of memory");
    }
    return owned[owned_count++] = memory;
}

static unsigned char *read_file(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    *size = f != NULL && fseek(f, 0, SEEK_END) == 0 ? (size_t)ftell(f) : 0;
    unsigned char *text = zeros(*size, 1);
    if (*size <= CONTEXT || fseek(f, 0, SEEK_SET) != 0 || fread(text, 1, *size, f) != *size) {
        die(path, "cannot be read, or is too short");
    }
    fclose(f);
    return text;
}

/* Parameters, and in a second set their gradients: views of one flat buffer, so that one all-reduce
 * and one optimizer pass serve all. A tensor is a value that views memory; it owns nothing. */
struct weights {
    gt_tensor flat, embed, w1, b1, w2, b2;
};

static struct weights make_weights(void)
{
    enum { TOTAL = VOCAB * WIDTH + HIDDEN * INPUT + HIDDEN + VOCAB * HIDDEN + VOCAB };
    float *p = zeros(TOTAL, sizeof(float));
    struct weights w = {.flat = gt_tensor_1d(p, GT_F32, TOTAL)};
    w.embed = gt_tensor_2d(p, GT_F32, VOCAB, WIDTH);
    w.w1 = gt_tensor_2d(p += VOCAB * WIDTH, GT_F32, HIDDEN, INPUT);
    w.b1 = gt_tensor_1d(p += HIDDEN * INPUT, GT_F32, HIDDEN);
    w.w2 = gt_tensor_2d(p += HIDDEN, GT_F32, VOCAB, HIDDEN);
    w.b2 = gt_tensor_1d(p += VOCAB * HIDDEN, GT_F32, VOCAB);
    return w;
}

/* Values depend on seed, stream and place in the tensor: every rank draws the same. */
static void init(gt_context *ctx, gt_tensor *t, uint64_t stream, double std)
{
    gt_init_params p = {.struct_size = sizeof(p), .kind = GT_INIT_NORMAL, .stream_id = stream};
    p.std = (float)std;
    ok(gt_init(ctx, t, &p, NULL));
}

static gt_tensor matrix(int64_t rows, int64_t columns)
{
    return gt_tensor_2d(zeros((size_t)(rows * columns), sizeof(float)), GT_F32, rows, columns);
}

/* This rank's part of a batch, n samples, and what the passes leave for each other. */
struct work {
    int64_t n, first;
    gt_tensor ids, targets;             /* i32 [n*CONTEXT], [n]                                */
    gt_tensor vectors, x, dvectors, dx; /* [n*CONTEXT,WIDTH] and, the same memory, [n,INPUT]   */
    gt_tensor h, a, da, logits;
};

static struct work make_work(int rank, int ranks)
{
    int64_t n = gt_split_count(BATCH, ranks, rank); /* it need not divide */
    struct work w = {.n = n, .first = gt_split_first(BATCH, ranks, rank)};
    w.ids = gt_tensor_1d(zeros((size_t)(n * CONTEXT), sizeof(int32_t)), GT_I32, n * CONTEXT);
    w.targets = gt_tensor_1d(zeros((size_t)n, sizeof(int32_t)), GT_I32, n);
    w.vectors = matrix(n * CONTEXT, WIDTH);
    w.dvectors = matrix(n * CONTEXT, WIDTH);
    w.x = gt_tensor_2d(w.vectors.data, GT_F32, n, INPUT);
    w.dx = gt_tensor_2d(w.dvectors.data, GT_F32, n, INPUT);
    w.h = matrix(n, HIDDEN);
    w.a = matrix(n, HIDDEN);
    w.da = matrix(n, HIDDEN);
    w.logits = matrix(n, VOCAB);
    return w;
}

/* Samples lie where a fixed sequence of numbers says: sample i of a step on whatever rank. */
static void read_batch(struct work *w, int64_t step, const unsigned char *text, size_t size)
{
    for (int64_t i = 0; i < w->n; i++) {
        uint64_t z = (uint64_t)(step * BATCH + w->first + i) * 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        const unsigned char *at = text + (z ^ (z >> 27)) % (size - CONTEXT);
        for (int64_t k = 0; k < CONTEXT; k++) {
            ((int32_t *)w->ids.data)[i * CONTEXT + k] = at[k];
        }
        ((int32_t *)w->targets.data)[i] = at[CONTEXT];
    }
}

/* Adds to g the gradients of the batch's mean loss, to stats {sum of losses, number of bytes}. */
static void gradients(gt_context *ctx, struct weights *g, gt_tensor *stats, const struct weights *p,
                      struct work *w)
{
    gt_embedding_params lookup = {.struct_size = sizeof(lookup), .vocab = VOCAB};
    gt_cross_entropy_params loss = GT_CROSS_ENTROPY_PARAMS_INIT;
    loss.grad_scale = 1.0f / BATCH; /* of the whole batch: then the sum over ranks is the mean */

    ok(gt_embedding_forward(ctx, &w->vectors, &p->embed, NULL, &w->ids, NULL, &lookup, NULL));
    ok(gt_linear_forward(ctx, &w->h, &w->x, &p->w1, &p->b1, NULL));
    ok(gt_gelu_forward(ctx, &w->a, &w->h, NULL));
    ok(gt_linear_forward(ctx, &w->logits, &w->a, &p->w2, &p->b2, NULL));
    /* the losses, and in place of the logits their gradient */
    ok(gt_cross_entropy(ctx, &w->logits, NULL, stats, &w->targets, &loss, NULL));
    ok(gt_linear_backward(ctx, &w->da, &g->w2, &g->b2, &w->logits, &w->a, &p->w2, NULL));
    ok(gt_gelu_backward(ctx, &w->da, &w->da, &w->h, NULL));
    ok(gt_linear_backward(ctx, &w->dx, &g->w1, &g->b1, &w->da, &w->x, &p->w1, NULL));
    ok(gt_embedding_backward(ctx, &g->embed, NULL, &w->dvectors, &w->ids, NULL, &lookup, NULL));
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        die("usage", "own_loop FILE [STEPS]");
    }
    size_t size;
    unsigned char *text = read_file(argv[1], &size);
    int64_t steps = argc > 2 ? atoll(argv[2]) : 500;

    gt_context *ctx; /* the cpu, unless params say otherwise      */
    gt_comm *comm;   /* MPI under mpirun, else a world of one     */
    ok(gt_context_create(&ctx, NULL));
    ok(gt_comm_create(&comm, ctx, NULL));
    struct weights p = make_weights(), g = make_weights(), m = make_weights(), v = make_weights();
    struct work w = make_work(gt_comm_rank(comm), gt_comm_size(comm));
    init(ctx, &p.embed, 0, 1.0);
    init(ctx, &p.w1, 1, 1.0 / sqrt(INPUT));
    init(ctx, &p.w2, 2, 1.0 / sqrt(HIDDEN));
    double stats[2], norm2; /* squared norm */
    gt_tensor stats_t = gt_tensor_1d(stats, GT_F64, 2), norm2_t = gt_tensor_1d(&norm2, GT_F64, 1);
    gt_adamw_params adamw = GT_ADAMW_PARAMS_INIT;

    for (int64_t step = 0; step < steps; step++) {
        stats[0] = stats[1] = norm2 = 0;
        ok(gt_fill(ctx, &g.flat, 0, NULL));
        read_batch(&w, step, text, size);
        gradients(ctx, &g, &stats_t, &p, &w);
        ok(gt_all_reduce(comm, &g.flat, GT_SUM, NULL, NULL));
        ok(gt_all_reduce(comm, &stats_t, GT_SUM, NULL, NULL));

        /* clip to norm 1, lower the rate over the last half, update: one pass over the state */
        ok(gt_sum_sq(ctx, &norm2_t, &g.flat, 1.0, NULL));
        ok(gt_context_synchronize(ctx)); /* before the host reads what operations wrote */
        adamw.grad_scale = (float)gt_clip_factor(sqrt(norm2), 1.0);
        adamw.lr = (float)(3e-3 * fmin(1.0, 2.0 * (double)(steps - step) / (double)steps));
        adamw.step = step + 1;
        ok(gt_adamw(ctx, NULL, &p.flat, &m.flat, &v.flat, &g.flat, &adamw, NULL));

        if (gt_comm_rank(comm) == 0 && (step % 50 == 0 || step == steps - 1)) {
            printf("step %4lld  loss %.5f nats per byte  gradient norm %.4f\n", (long long)step,
                   stats[0] / stats[1], sqrt(norm2));
        }
    }
    gt_comm_destroy(&comm);
    gt_context_destroy(&ctx);
    while (owned_count > 0) {
        free(owned[--owned_count]);
    }
    return 0;
}
