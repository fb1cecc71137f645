/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensor parallelism in a training loop of your own: a byte model whose every matrix is cut over
 * the ranks, on buffers from malloc(), without blocks or trainer. The same losses on any number of
 * ranks.
 *
 *     mpirun -n 4 tensor_parallel_mlp FILE [STEPS] [--sequence-parallel]
 *
 *     x = embed[16 bytes]      vocabulary cut       y = a w2^T + b2   row-parallel
 *     a = gelu(x w1^T + b1)    column-parallel      logits = y w3^T   column-parallel: vocabulary
 * cut
 *
 * With --sequence-parallel x and y are cut by rows, too: nothing is held or computed twice.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <geektrain/geektrain.h>

enum { VOCAB = 256, CONTEXT = 16, WIDTH = 24, HIDDEN = 300, OUT = 64, BATCH = 240 };
enum { INPUT = CONTEXT * WIDTH };

static void die(const char *what, const char *why)
{
    fprintf(stderr, "tensor_parallel_mlp: %s: %s\n", what, why);
    exit(1);
}

static void ok(gt_status status)
{
    if (status != GT_OK) {
        die(gt_status_name(status), gt_last_error());
    }
}

static void *owned[64]; /* memory of this program, freed at its end */
static int owned_count;

static void *zeros(size_t count, size_t size)
{
    void *memory = calloc(count + 1, size);
    if (memory == NULL) {
        die("calloc", "out of memory");
    }
    return owned[owned_count++] = memory;
}

static gt_tensor matrix(int64_t rows, int64_t columns)
{
    return gt_tensor_2d(zeros((size_t)(rows * columns), sizeof(float)), GT_F32, rows, columns);
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

/* This rank's pieces. gt_split_count cuts what does not divide: 300 over 7 ranks is 43 or 42. */
struct weights {
    gt_tensor flat, embed, w1, b1, w2, b2, w3;
};

static struct weights make_weights(int64_t v, int64_t f)
{
    int64_t total = v * WIDTH + f * INPUT + f + OUT * f + OUT + v * OUT;
    float *p = zeros((size_t)total, sizeof(float));
    struct weights w = {.flat = gt_tensor_1d(p, GT_F32, total)};
    w.embed = gt_tensor_2d(p, GT_F32, v, WIDTH);
    w.w1 = gt_tensor_2d(p += v * WIDTH, GT_F32, f, INPUT);
    w.b1 = gt_tensor_1d(p += f * INPUT, GT_F32, f);
    w.w2 = gt_tensor_2d(p += f, GT_F32, OUT, f);
    w.b2 = gt_tensor_1d(p += OUT * f, GT_F32, OUT); /* whole on every rank */
    w.w3 = gt_tensor_2d(p += OUT, GT_F32, v, OUT);
    return w;
}

/* The piece of a tensor [outer, global, inner] that this rank holds gets the values that the whole
 * one would have there: initial values do not depend on the number of ranks. */
static void init(const gt_tp *tp, gt_tensor *t, uint64_t stream, double std, int64_t global,
                 int64_t inner)
{
    int rank = gt_comm_rank(tp->comm), size = gt_comm_size(tp->comm);
    gt_init_params p = {.struct_size = sizeof(p), .kind = GT_INIT_NORMAL, .stream_id = stream};
    p.std = (float)std;
    p.inner = inner;
    p.axis_global = global;
    p.axis_local = gt_split_count(global, size, rank);
    p.axis_first = gt_split_first(global, size, rank);
    if (gt_tensor_numel(t) > 0) {
        ok(gt_init(tp->ctx, t, &p, NULL));
    }
}

/* Every rank reads the same batch: it is the model that is cut. */
struct work {
    gt_tensor ids, targets;
    gt_tensor vectors, x, dvectors, dx; /* of our rows: [n*CONTEXT,WIDTH], same memory [n,INPUT] */
    gt_tensor h, a, da;                 /* [BATCH,f]     */
    gt_tensor y, dy;                    /* [n,OUT]       */
    gt_tensor logits;                   /* [BATCH,v]     */
};

static struct work make_work(int64_t n, int64_t v, int64_t f)
{
    struct work w = {.vectors = matrix(n * CONTEXT, WIDTH), .dvectors = matrix(n * CONTEXT, WIDTH)};
    w.ids = gt_tensor_1d(zeros(BATCH * CONTEXT, sizeof(int32_t)), GT_I32, BATCH * CONTEXT);
    w.targets = gt_tensor_1d(zeros(BATCH, sizeof(int32_t)), GT_I32, BATCH);
    w.x = gt_tensor_2d(w.vectors.data, GT_F32, n, INPUT);
    w.dx = gt_tensor_2d(w.dvectors.data, GT_F32, n, INPUT);
    w.h = matrix(BATCH, f);
    w.a = matrix(BATCH, f);
    w.da = matrix(BATCH, f);
    w.y = matrix(n, OUT);
    w.dy = matrix(n, OUT);
    w.logits = matrix(BATCH, v);
    return w;
}

static void read_batch(struct work *w, int64_t step, const unsigned char *text, size_t size)
{
    for (int64_t i = 0; i < BATCH; i++) {
        uint64_t z = (uint64_t)(step * BATCH + i) * 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        const unsigned char *at = text + (z ^ (z >> 27)) % (size - CONTEXT);
        for (int64_t k = 0; k < CONTEXT; k++) {
            ((int32_t *)w->ids.data)[i * CONTEXT + k] = at[k];
        }
        ((int32_t *)w->targets.data)[i] = at[CONTEXT];
    }
}

static void gradients(const gt_tp *tp, struct weights *g, gt_tensor *stats, const struct weights *p,
                      struct work *w)
{
    gt_embedding_params lookup = {.struct_size = sizeof(lookup), .vocab = VOCAB};
    gt_cross_entropy_params loss = GT_CROSS_ENTROPY_PARAMS_INIT;
    gt_tp_column_params up = GT_TP_COLUMN_PARAMS_INIT;
    loss.grad_scale = 1.0f / BATCH;
    up.bias = &p->b1;
    up.gelu = true;
    up.pre_gelu = &w->h;

    ok(gt_tp_embedding_forward(tp, &w->vectors, &p->embed, NULL, &w->ids, NULL, &lookup, NULL));
    ok(gt_tp_column_forward(tp, &w->a, &w->x, &p->w1, &up, NULL));
    ok(gt_tp_row_forward(tp, &w->y, &w->a, &p->w2, &p->b2, NULL, NULL));
    ok(gt_tp_column_forward(tp, &w->logits, &w->y, &p->w3, NULL, NULL));
    ok(gt_tp_cross_entropy(tp, &w->logits, NULL, stats, &w->targets, VOCAB, &loss, NULL));

    ok(gt_tp_column_backward(tp, &w->dy, &g->w3, NULL, &w->logits, &w->y, &p->w3, NULL));
    ok(gt_tp_row_backward(tp, &w->da, &g->w2, &g->b2, &w->dy, &w->a, &p->w2, NULL));
    ok(gt_gelu_backward(tp->ctx, &w->da, &w->da, &w->h, NULL));
    ok(gt_tp_column_backward(tp, &w->dx, &g->w1, &g->b1, &w->da, &w->x, &p->w1, NULL));
    ok(gt_tp_embedding_backward(tp, &g->embed, NULL, &w->dvectors, &w->ids, NULL, &lookup, NULL));
    if (tp->sequence_parallel) { /* a replicated weight that saw only our rows: sum once */
        ok(gt_all_reduce(tp->comm, &g->b2, GT_SUM, NULL, NULL));
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        die("usage", "tensor_parallel_mlp FILE [STEPS] [--sequence-parallel]");
    }
    size_t size;
    unsigned char *text = read_file(argv[1], &size);
    int64_t steps = argc > 2 && argv[2][0] != '-' ? atoll(argv[2]) : 300;

    gt_tp tp = GT_TP_INIT;
    ok(gt_context_create(&tp.ctx, NULL));
    ok(gt_comm_create(&tp.comm, tp.ctx, NULL)); /* MPI under mpirun, else a world of one */
    tp.sequence_parallel = strcmp(argv[argc - 1], "--sequence-parallel") == 0;
    int ranks = gt_comm_size(tp.comm), rank = gt_comm_rank(tp.comm);
    if (tp.sequence_parallel && BATCH % ranks != 0) {
        die("--sequence-parallel",
            "the number of ranks does not divide the 240 samples of a batch");
    }
    int64_t v = gt_split_count(VOCAB, ranks, rank), f = gt_split_count(HIDDEN, ranks, rank);
    int64_t n = tp.sequence_parallel ? BATCH / ranks : BATCH;
    size_t scratch = gt_tp_scratch_bytes(&tp, GT_F32, BATCH, INPUT) +
                     gt_tp_cross_entropy_scratch_bytes(&tp, BATCH);
    tp.scratch = gt_tensor_1d(zeros(scratch, 1), GT_U8, (int64_t)scratch);

    struct weights p = make_weights(v, f), g = make_weights(v, f);
    struct weights m1 = make_weights(v, f), m2 = make_weights(v, f);
    struct work w = make_work(n, v, f);
    init(&tp, &p.embed, 0, 1.0, VOCAB, WIDTH);
    init(&tp, &p.w1, 1, 1.0 / sqrt(INPUT), HIDDEN, INPUT);
    init(&tp, &p.w2, 2, 1.0 / sqrt(HIDDEN), HIDDEN, 1);
    init(&tp, &p.w3, 3, 1.0 / sqrt(OUT), VOCAB, OUT);
    double stats[2];
    gt_tensor stats_t = gt_tensor_1d(stats, GT_F64, 2);
    gt_adamw_params adamw = GT_ADAMW_PARAMS_INIT;

    for (int64_t step = 0; step < steps; step++) {
        stats[0] = stats[1] = 0;
        ok(gt_fill(tp.ctx, &g.flat, 0, NULL));
        read_batch(&w, step, text, size);
        gradients(&tp, &g, &stats_t, &p, &w);
        adamw.lr = (float)(3e-3 * fmin(1.0, 2.0 * (double)(steps - step) / (double)steps));
        adamw.step = step + 1;
        ok(gt_adamw(tp.ctx, NULL, &p.flat, &m1.flat, &m2.flat, &g.flat, &adamw, NULL));
        ok(gt_context_synchronize(tp.ctx)); /* before the host reads what operations wrote */
        if (rank == 0 && (step % 50 == 0 || step == steps - 1)) {
            printf("step %4lld  loss %.5f nats per byte\n", (long long)step, stats[0] / stats[1]);
        }
    }
    gt_comm_stats sent;
    gt_comm_get_stats(tp.comm, &sent);
    if (rank == 0) {
        printf("%d ranks, %.1f KB sent by rank 0 per step\n", ranks,
               (double)sent.bytes_sent / (double)steps / 1e3);
    }
    gt_comm_destroy(&tp.comm);
    gt_context_destroy(&tp.ctx);
    while (owned_count > 0) {
        free(owned[--owned_count]);
    }
    return 0;
}
