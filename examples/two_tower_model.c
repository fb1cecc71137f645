/* SPDX-License-Identifier: Apache-2.0 */
#include "two_tower_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- data: see make_flags.py */
bool pairs_read(pairs *p, const char *path)
{
    FILE *file = fopen(path, "rb");
    bool ok = file && fread(p, sizeof(int32_t), 4, file) == 4 && p->magic == 0x47544647 &&
              p->count >= MICROBATCHES && p->count < 1 << 20 && p->pixels > 0 &&
              p->pixels < 1 << 20 && p->letters > 0 && p->letters < 1 << 10;
    if (ok) {
        size_t n = (size_t)p->count, pixels = (size_t)p->pixels, letters = (size_t)p->letters;
        p->pictures = malloc(n * pixels);
        p->names = malloc(n * letters);
        ok = p->pictures && p->names && fread(p->pictures, pixels, n, file) == n &&
             fread(p->names, letters, n, file) == n;
    }
    if (file) {
        fclose(file);
    }
    if (!ok) {
        fprintf(stderr, "%s is not a file of pairs; examples/make_flags.py makes one\n", path);
    }
    return ok;
}

void pairs_free(pairs *p)
{
    free(p->pictures);
    free(p->names);
}

/* ---- memory */
static gt_status room(app *a, gt_tensor *t, gt_memory_tag tag, gt_dtype dtype, int64_t rows,
                      int64_t columns)
{
    const int64_t shape[2] = {rows, columns};
    TRY(gt_tensor_alloc(a->ctx, t, tag, dtype, columns ? 2 : 1, shape));
    a->owned[a->owned_count++] = t;
    return GT_OK;
}

gt_status app_room(app *a, gt_tensor *t, gt_dtype dtype, int64_t rows, int64_t columns)
{
    return room(a, t, GT_MEM_ACTIVATIONS, dtype, rows, columns);
}

void app_free(app *a)
{
    for (int i = 0; i < a->owned_count; i++) {
        gt_tensor_free(a->ctx, a->owned[i]);
    }
}

/* ---- parameters */
/* The same initial values on whatever rank: the stream names the parameter. */
static gt_status param_create(app *a, param *p, int stream, int64_t rows, int64_t columns,
                              float mean, float std)
{
    gt_init_params init = GT_INIT_PARAMS_INIT;
    init.kind = std > 0 ? GT_INIT_NORMAL : GT_INIT_CONSTANT;
    init.mean = mean;
    init.std = std;
    init.seed = 1;
    init.stream_id = (uint64_t)stream;
    TRY(room(a, &p->value, GT_MEM_PARAMS, GT_F32, rows, columns));
    TRY(room(a, &p->grad, GT_MEM_GRADS, GT_F32, rows, columns));
    TRY(room(a, &p->m, GT_MEM_OPTIMIZER, GT_F32, rows, columns));
    TRY(room(a, &p->v, GT_MEM_OPTIMIZER, GT_F32, rows, columns));
    TRY(gt_fill(a->ctx, &p->grad, 0, NULL));
    TRY(gt_fill(a->ctx, &p->m, 0, NULL));
    TRY(gt_fill(a->ctx, &p->v, 0, NULL));
    return gt_init(a->ctx, &p->value, &init, NULL);
}

static gt_status param_update(gt_context *ctx, param *p, int step)
{
    gt_adamw_params adamw = GT_ADAMW_PARAMS_INIT;
    adamw.lr = RATE;
    adamw.step = step + 1;
    TRY(gt_adamw(ctx, NULL, &p->value, &p->m, &p->v, &p->grad, &adamw, NULL));
    return gt_fill(ctx, &p->grad, 0, NULL);
}

/* ---- the stages */
gt_status tower_create(app *a, int which)
{
    tower *t = &a->towers[which];
    int64_t b = a->batch, letters = a->data->letters;
    t->which = which;
    t->params = which == TEXT ? PARAMS : LETTERS;
    t->in = which == TEXT ? letters * LETTER : a->data->pixels;
    const int64_t shapes[PARAMS][2] = {{HIDDEN, t->in}, {HIDDEN, 0},   {EMBED, HIDDEN},  {EMBED, 0},
                                       {EMBED, 0},      {256, LETTER}, {letters, LETTER}};
    const float std[PARAMS] = {sqrtf(1.0f / (float)t->in), 0, sqrtf(1.0f / HIDDEN), 0, 0, 1, 0.5f};
    for (int i = 0; i < t->params; i++) { /* |y| = sqrt(EMBED) gamma: y y'^T = SCALE cos(y, y') */
        float mean = i == GAMMA ? sqrtf(SCALE / EMBED) : 0;
        TRY(param_create(a, &t->p[i], which * PARAMS + i, shapes[i][0], shapes[i][1], mean,
                         std[i]));
    }
    for (int m = 0; m < MICROBATCHES; m++) {
        TRY(app_room(a, &t->x[m], GT_F32, b, t->in));
        TRY(app_room(a, &t->h[m], GT_F32, b, HIDDEN));
        TRY(app_room(a, &t->act[m], GT_F32, b, HIDDEN));
        TRY(app_room(a, &t->z[m], GT_F32, b, EMBED));
        TRY(app_room(a, &t->rstd[m], GT_F32, b, 0));
        TRY(app_room(a, &t->ids[m], GT_I32, b * letters, 0));
    }
    TRY(app_room(a, &t->dz, GT_F32, b, EMBED));
    TRY(app_room(a, &t->dact, GT_F32, b, HIDDEN));
    TRY(app_room(a, &t->dx, GT_F32, b, t->in));
    TRY(app_room(a, &t->rows, GT_I64, b * letters, 0));
    int64_t *rows = malloc((size_t)(b * letters) * sizeof(*rows));
    for (int64_t i = 0; rows && i < b * letters; i++) {
        rows[i] = i;
    }
    gt_status st = rows ? gt_copy_from_host(a->ctx, &t->rows, rows, NULL) : GT_ERR_MEMORY;
    free(rows);
    return st;
}

/* The letters' embeddings as [B * letters, LETTER]; side by side they are [B, in]. */
static gt_status by_letter(const app *a, const gt_tensor *x, gt_tensor *out)
{
    const int64_t shape[2] = {a->batch * a->data->letters, LETTER};
    return gt_tensor_reshape(out, x, 2, shape);
}

static gt_embedding_params embedding(const app *a)
{
    gt_embedding_params e = GT_EMBEDDING_PARAMS_INIT;
    e.vocab = 256;
    e.seq = a->data->letters;
    return e;
}

/* x of microbatch m: pixels as -1..1, or letters looked up. */
static gt_status load(app *a, tower *t, int m)
{
    const pairs *d = a->data;
    int64_t each = t->which == TEXT ? d->letters : d->pixels, n = a->batch * each;
    const uint8_t *bytes = t->which == TEXT ? d->names : d->pictures;
    union {
        float f;
        int32_t i;
    } *host = malloc((size_t)n * sizeof(*host));
    for (int64_t i = 0; host && i < n; i++) {
        uint8_t byte = bytes[a->order[m * a->batch + i / each] * each + i % each];
        if (t->which == TEXT) {
            host[i].i = byte;
        } else {
            host[i].f = (float)byte / 127.5f - 1;
        }
    }
    gt_tensor *to = t->which == TEXT ? &t->ids[m] : &t->x[m], x;
    gt_status st = host ? gt_copy_from_host(a->ctx, to, host, NULL) : GT_ERR_MEMORY;
    free(host);
    if (st != GT_OK || t->which == IMAGE) {
        return st;
    }
    const gt_embedding_params e = embedding(a);
    TRY(by_letter(a, &t->x[m], &x));
    return gt_embedding_forward(a->ctx, &x, &t->p[LETTERS].value, &t->p[PLACES].value, &t->ids[m],
                                &t->rows, &e, NULL);
}

gt_status tower_forward(app *a, tower *t, int m, gt_tensor *y)
{
    gt_context *ctx = a->ctx;
    param *p = t->p;
    TRY(load(a, t, m));
    TRY(gt_linear_forward(ctx, &t->h[m], &t->x[m], &p[W1].value, &p[B1].value, NULL));
    TRY(gt_gelu_forward(ctx, &t->act[m], &t->h[m], NULL));
    TRY(gt_linear_forward(ctx, &t->z[m], &t->act[m], &p[W2].value, &p[B2].value, NULL));
    return gt_rmsnorm_forward(ctx, y, NULL, &t->rstd[m], &t->z[m], NULL, &p[GAMMA].value, 1e-6f,
                              NULL);
}

gt_status tower_backward(app *a, tower *t, int m, const gt_tensor *dy)
{
    gt_context *ctx = a->ctx;
    param *p = t->p;
    gt_tensor dx;
    TRY(gt_rmsnorm_backward(ctx, &t->dz, &p[GAMMA].grad, dy, NULL, &t->z[m], &p[GAMMA].value,
                            &t->rstd[m], NULL));
    TRY(gt_linear_backward(ctx, &t->dact, &p[W2].grad, &p[B2].grad, &t->dz, &t->act[m],
                           &p[W2].value, NULL));
    TRY(gt_gelu_backward(ctx, &t->dact, &t->dact, &t->h[m], NULL));
    TRY(gt_linear_backward(ctx, t->which == TEXT ? &t->dx : NULL, &p[W1].grad, &p[B1].grad,
                           &t->dact, &t->x[m], &p[W1].value, NULL));
    if (t->which == IMAGE) {
        return GT_OK;
    }
    const gt_embedding_params e = embedding(a);
    TRY(by_letter(a, &t->dx, &dx));
    return gt_embedding_backward(ctx, &p[LETTERS].grad, &p[PLACES].grad, &dx, &t->ids[m], &t->rows,
                                 &e, NULL);
}

gt_status tower_update(app *a, tower *t)
{
    for (int i = 0; i < t->params; i++) {
        TRY(param_update(a->ctx, &t->p[i], a->step));
    }
    return GT_OK;
}

gt_status head_create(app *a)
{
    int64_t b = a->batch;
    for (int m = 0; m < MICROBATCHES; m++) {
        TRY(app_room(a, &a->head.by_picture[m], GT_F32, b, b));
        TRY(app_room(a, &a->head.by_name[m], GT_F32, b, b));
    }
    TRY(app_room(a, &a->head.stats, GT_F64, 2, 0));
    TRY(app_room(a, &a->head.targets, GT_I32, b, 0));
    int32_t *targets = malloc((size_t)b * sizeof(*targets)); /* name i belongs to picture i */
    for (int32_t i = 0; targets && i < b; i++) {
        targets[i] = i;
    }
    gt_status st =
        targets ? gt_copy_from_host(a->ctx, &a->head.targets, targets, NULL) : GT_ERR_MEMORY;
    free(targets);
    return st;
}

/* For how many pictures of the microbatch the most similar name is the right one. */
static gt_status count_hits(app *a, const gt_tensor *by_picture)
{
    int64_t b = a->batch;
    float *s = malloc(gt_tensor_bytes(by_picture));
    gt_status st = s ? gt_copy_to_host(a->ctx, s, by_picture, NULL) : GT_ERR_MEMORY;
    for (int64_t i = 0; st == GT_OK && i < b; i++) {
        int64_t best = 0;
        for (int64_t k = 1; k < b; k++) {
            best = s[i * b + k] > s[i * b + best] ? k : best;
        }
        a->hits += best == i;
    }
    free(s);
    return st;
}

/* The loss needs all pairs of the microbatch at once: each is the others' counterexample. */
gt_status head_forward(app *a, int m, const gt_tensor *image, const gt_tensor *text)
{
    gt_tensor *by_picture = &a->head.by_picture[m], *by_name = &a->head.by_name[m];
    gt_gemm_params transposed = GT_GEMM_PARAMS_INIT;
    gt_cross_entropy_params loss = GT_CROSS_ENTROPY_PARAMS_INIT;
    transposed.trans_b = true;
    loss.grad_scale = 0.5f / (float)(MICROBATCHES * a->batch);
    loss.no_grad = a->evaluating;
    TRY(gt_gemm(a->ctx, by_picture, image, text, &transposed, NULL));
    TRY(gt_gemm(a->ctx, by_name, text, image, &transposed, NULL));
    if (a->evaluating) {
        TRY(count_hits(a, by_picture));
    }
    TRY(gt_cross_entropy(a->ctx, by_picture, NULL, &a->head.stats, &a->head.targets, &loss, NULL));
    return gt_cross_entropy(a->ctx, by_name, NULL, &a->head.stats, &a->head.targets, &loss, NULL);
}

gt_status head_backward(app *a, int m, const gt_tensor *image, const gt_tensor *text,
                        gt_tensor *dimage, gt_tensor *dtext)
{
    const gt_tensor *by_picture = &a->head.by_picture[m], *by_name = &a->head.by_name[m];
    gt_gemm_params add = GT_GEMM_PARAMS_INIT;
    add.trans_a = true;
    add.accumulate = true;
    TRY(gt_gemm(a->ctx, dimage, by_picture, text, NULL, NULL));
    TRY(gt_gemm(a->ctx, dimage, by_name, text, &add, NULL));
    TRY(gt_gemm(a->ctx, dtext, by_name, image, NULL, NULL));
    return gt_gemm(a->ctx, dtext, by_picture, image, &add, NULL);
}
