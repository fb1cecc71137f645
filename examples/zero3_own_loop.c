/* SPDX-License-Identifier: Apache-2.0
 *
 * ZeRO-3 in a training loop of your own: no blocks, no trainer. Parameters, gradients and optimizer
 * state are sharded over the ranks, the losses are those of one rank.
 *
 *     zero3_own_loop FILE [STEPS [STAGE]]
 *     mpirun -n 4 zero3_own_loop FILE 200 3
 *
 * A multilayer perceptron guesses a byte from the bits of the 16 before it. Each layer is a ZeRO
 * unit: gathered before use, released after.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <geektrain/geektrain.h>

enum { CONTEXT = 16, LAYERS = 4, WIDEST = 256, BATCH = 256 };
static const int64_t width[LAYERS + 1] = {8 * CONTEXT, 256, 256, 256, 256}; /* last: bytes */

/* Buffers of this program. Layer l takes act[l] to pre[l] and, but for the last, act[l + 1]. */
static float act[LAYERS][BATCH * WIDEST], pre[LAYERS][BATCH * WIDEST], grad[LAYERS][BATCH * WIDEST];
static int32_t target[BATCH];

typedef struct program {
    gt_context *ctx;
    gt_comm *comm;
    gt_params *table;
    gt_zero *zero;
    gt_tokens *text;
    int64_t first, rows; /* this rank's samples of a batch */
} program;

static void ok(gt_status status)
{
    if (status != GT_OK) {
        fprintf(stderr, "zero3_own_loop: %s: %s\n", gt_status_name(status), gt_last_error());
        exit(1);
    }
}

/* Parameters 2l and 2l + 1 of the table are the weight and the bias of layer l, which is unit l. */
static int weight_of(int l)
{
    return 2 * l;
}

static int bias_of(int l)
{
    return 2 * l + 1;
}

static void describe(program *p)
{
    ok(gt_params_create(&p->table, NULL));
    for (int l = 0; l < LAYERS; l++) {
        char unit[32], name[2][48];
        snprintf(unit, sizeof(unit), "layer.%d", l);
        snprintf(name[0], sizeof(name[0]), "%s.weight", unit);
        snprintf(name[1], sizeof(name[1]), "%s.bias", unit);
        gt_param weight = GT_PARAM_INIT, bias = GT_PARAM_INIT;
        weight.name = name[0];
        weight.ndim = 2;
        weight.shape[0] = width[l + 1];
        weight.shape[1] = width[l];
        weight.init = GT_INIT_NORMAL;
        weight.std = (float)sqrt(2.0 / (double)width[l]);
        bias.name = name[1]; /* begins at 0 */
        bias.ndim = 1;
        bias.shape[0] = width[l + 1];
        bias.no_decay = true;
        ok(gt_params_add_unit(p->table, unit, NULL, NULL));
        ok(gt_params_add(p->table, l, &weight, NULL));
        ok(gt_params_add(p->table, l, &bias, NULL));
    }
}

static void set_up(program *p, const char *path, int stage)
{
    gt_zero_params params = GT_ZERO_PARAMS_INIT; /* AdamW, f32 */
    params.stage = stage;
    ok(gt_context_create(&p->ctx, NULL));
    ok(gt_comm_create(&p->comm, p->ctx, NULL)); /* MPI under mpirun, else a world of one */
    describe(p);
    ok(gt_zero_create(&p->zero, p->ctx, p->comm, p->table, &params));
    ok(gt_zero_allocate(p->zero));
    ok(gt_zero_init_values(p->zero, 1)); /* every rank computes its part of the same numbers */
    ok(gt_zero_publish(p->zero));
    p->first = gt_split_first(BATCH, gt_comm_size(p->comm), gt_comm_rank(p->comm));
    p->rows = gt_split_count(BATCH, gt_comm_size(p->comm), gt_comm_rank(p->comm));
    ok(gt_tokens_open(&p->text, path, "bytes", 256));
}

/* Sample i of a step lies at the same place of the text on whatever rank. */
static void read_batch(program *p, int64_t step)
{
    uint64_t places = (uint64_t)(gt_tokens_count(p->text) - CONTEXT);
    for (int64_t i = 0; i < p->rows; i++) {
        uint64_t z = (uint64_t)(step * BATCH + p->first + i) * 0x9e3779b97f4a7c15u;
        int32_t bytes[CONTEXT + 1];
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        ok(gt_tokens_read(p->text, (int64_t)((z ^ (z >> 27)) % places), CONTEXT + 1, bytes));
        for (int64_t k = 0; k < width[0]; k++) {
            act[0][i * width[0] + k] = bytes[k / 8] >> k % 8 & 1 ? 1.0f : -1.0f;
        }
        target[i] = bytes[CONTEXT];
    }
}

static gt_tensor matrix(const program *p, float *data, int l)
{
    return gt_tensor_2d(data, GT_F32, p->rows, width[l]);
}

/* ZeRO hands out flat views; weights are [out, in]. */
static gt_tensor weight(gt_tensor flat, int l)
{
    return gt_tensor_2d(flat.data, flat.dtype, width[l + 1], width[l]);
}

static void forward(program *p)
{
    for (int l = 0; l < LAYERS; l++) {
        gt_tensor w, b, x = matrix(p, act[l], l), y = matrix(p, pre[l], l + 1);
        ok(gt_zero_gather(p->zero, l)); /* the unit's parameters are here, */
        ok(l + 1 < LAYERS ? gt_zero_prefetch(p->zero, l + 1) : GT_OK); /* the next ones coming */
        ok(gt_zero_param(p->zero, weight_of(l), &w));
        ok(gt_zero_param(p->zero, bias_of(l), &b));
        w = weight(w, l);
        ok(gt_linear_forward(p->ctx, &y, &x, &w, &b, NULL));
        if (l + 1 < LAYERS) {
            gt_tensor a = matrix(p, act[l + 1], l + 1);
            ok(gt_gelu_forward(p->ctx, &a, &y, NULL));
        }
        ok(gt_zero_release(p->zero, l)); /* and may go */
    }
}

/* dy, the gradient of layer l's output, is in grad[l]. Each unit's gradient is added to, then
 * handed over: it is summed over the ranks while the layers before are at work. */
static void backward(program *p)
{
    for (int l = LAYERS - 1; l >= 0; l--) {
        gt_tensor w, dw, db, x = matrix(p, act[l], l), dy = matrix(p, grad[l], l + 1);
        gt_tensor dx = matrix(p, l ? grad[l - 1] : NULL, l);
        ok(gt_zero_gather(p->zero, l));
        ok(l > 0 ? gt_zero_prefetch(p->zero, l - 1) : GT_OK);
        ok(gt_zero_param(p->zero, weight_of(l), &w));
        ok(gt_zero_grad(p->zero, weight_of(l), &dw));
        ok(gt_zero_grad(p->zero, bias_of(l), &db));
        w = weight(w, l);
        dw = weight(dw, l);
        ok(gt_linear_backward(p->ctx, l ? &dx : NULL, &dw, &db, &dy, &x, &w, NULL));
        if (l > 0) {
            gt_tensor before = matrix(p, pre[l - 1], l);
            ok(gt_gelu_backward(p->ctx, &dx, &dx, &before, NULL));
        }
        ok(gt_zero_release(p->zero, l));
        ok(gt_zero_reduce(p->zero, l, true)); /* true: the step's last microbatch */
    }
    ok(gt_zero_finish(p->zero));
}

static void train_step(program *p, int64_t step, double lr, double *loss, double *norm)
{
    double sums[3] = {0}; /* of losses, of samples, of squares of gradients */
    gt_tensor all = gt_tensor_1d(sums, GT_F64, 3), stats = gt_tensor_1d(sums, GT_F64, 2);
    gt_tensor square = gt_tensor_1d(sums + 2, GT_F64, 1);
    gt_tensor logits = matrix(p, pre[LAYERS - 1], LAYERS);
    gt_tensor dlogits = matrix(p, grad[LAYERS - 1], LAYERS);
    gt_tensor targets = gt_tensor_1d(target, GT_I32, p->rows);
    gt_cross_entropy_params params = GT_CROSS_ENTROPY_PARAMS_INIT;
    params.grad_scale = 1.0f / BATCH; /* of the whole batch: the sum over ranks is then the mean */
    read_batch(p, step);
    forward(p);
    ok(gt_copy(p->ctx, &dlogits, &logits, NULL));
    ok(gt_cross_entropy(p->ctx, &dlogits, NULL, &stats, &targets, &params, NULL));
    backward(p);
    ok(gt_zero_norm(p->zero, &square)); /* of the elements that this rank answers for */
    ok(gt_all_reduce(p->comm, &all, GT_SUM, NULL, NULL));
    *loss = sums[0] / sums[1];
    *norm = sqrt(sums[2]);
    ok(gt_zero_update(p->zero, lr, gt_clip_factor(*norm, 1.0), step + 1));
}

int main(int argc, char **argv)
{
    program p = {0};
    if (argc < 2) {
        return fprintf(stderr, "usage: zero3_own_loop FILE [STEPS [STAGE]]\n"), 1;
    }
    int64_t steps = argc > 2 ? atoll(argv[2]) : 200;
    set_up(&p, argv[1], argc > 3 ? atoi(argv[3]) : 3);
    for (int64_t step = 0; step < steps; step++) {
        double loss, norm, left = (double)(steps - step) / (double)steps;
        train_step(&p, step, 2e-3 * fmin(1.0, 2.0 * left), &loss, &norm);
        if (gt_comm_rank(p.comm) == 0 && (step % 20 == 0 || step == steps - 1)) {
            printf("step %4lld  loss %.5f nats per byte  gradient norm %.4f\n", (long long)step,
                   loss, norm);
        }
    }
    gt_zero_bytes b;
    gt_zero_formula(p.zero, &b);
    if (gt_comm_rank(p.comm) == 0) {
        printf(
            "rank 0 holds %lld bytes of parameters, %lld of gradients, %lld of optimizer state\n",
            (long long)b.params, (long long)b.grads, (long long)b.optimizer);
    }
    gt_tokens_close(&p.text);
    gt_zero_destroy(&p.zero);
    gt_params_destroy(&p.table);
    gt_comm_destroy(&p.comm);
    gt_context_destroy(&p.ctx);
    return 0;
}
