/* SPDX-License-Identifier: Apache-2.0
 *
 * The model of two_tower.c, made of the library's ops: an image tower, a text tower, and the
 * contrastive loss over both. Functions take the microbatch's number m: what forward leaves for
 * backward is kept once per microbatch.
 */
#ifndef TWO_TOWER_MODEL_H
#define TWO_TOWER_MODEL_H

#include <geektrain/geektrain.h>

#define MICROBATCHES 4 /* of a step, which sees every pair once */
#define HIDDEN 128
#define EMBED 48
#define LETTER 12 /* width of a letter's embedding */
#define RATE 3e-3f
#define SCALE 8.0f /* of the similarities at the start; gamma learns it */

#define TRY(call)                                                                                  \
    do {                                                                                           \
        gt_status try_status = (call);                                                             \
        if (try_status != GT_OK) {                                                                 \
            return try_status;                                                                     \
        }                                                                                          \
    } while (0)

/* Pictures and their names, from a file that make_flags.py wrote. */
typedef struct pairs {
    int32_t magic, count, pixels, letters;
    uint8_t *pictures, *names;
} pairs;

typedef struct param {
    gt_tensor value, grad, m, v; /* m, v: AdamW's moments */
} param;

enum { IMAGE, TEXT, HEAD };
enum { W1, B1, W2, B2, GAMMA, LETTERS, PLACES, PARAMS }; /* the last two: text only */

/* y = rmsnorm(gelu(x W1^T + b1) W2^T + b2) gamma, where x is the pixels, or the letters' embeddings
 * side by side. With x, what backward needs is kept for every microbatch. */
typedef struct tower {
    int which, params;
    int64_t in;
    param p[PARAMS];
    gt_tensor x[MICROBATCHES], h[MICROBATCHES], act[MICROBATCHES], z[MICROBATCHES];
    gt_tensor rstd[MICROBATCHES], ids[MICROBATCHES];
    gt_tensor dz, dact, dx, rows;
} tower;

/* Similarities of every picture with every name of the microbatch, and the other way round. */
typedef struct head {
    gt_tensor by_picture[MICROBATCHES],
        by_name[MICROBATCHES]; /* [B,B]; after the loss: gradients */
    gt_tensor targets, stats;
} head;

/* One rank. */
typedef struct app {
    gt_context *ctx;
    const pairs *data;
    int rank, ranks, step;
    int64_t batch; /* pairs in a microbatch, B */
    int *order;    /* of the pairs in this step */
    tower towers[2];
    head head;
    gt_tensor joined[2], djoined[2]; /* one rank: what the executor sends otherwise */
    bool evaluating;
    int hits; /* names found, when evaluating */
    gt_tensor *owned[128];
    int owned_count;
} app;

/* Says what is wrong with a file. */
bool pairs_read(pairs *p, const char *path);
void pairs_free(pairs *p);

gt_status tower_create(app *a, int which);
gt_status tower_forward(app *a, tower *t, int m, gt_tensor *y);
/* Adds to the parameters' gradients. */
gt_status tower_backward(app *a, tower *t, int m, const gt_tensor *dy);
/* A step of AdamW; the gradients are 0 again. */
gt_status tower_update(app *a, tower *t);

gt_status head_create(app *a);
/* Adds to the loss statistics. */
gt_status head_forward(app *a, int m, const gt_tensor *image, const gt_tensor *text);
gt_status head_backward(app *a, int m, const gt_tensor *image, const gt_tensor *text,
                        gt_tensor *dimage, gt_tensor *dtext);

/* A tensor that app_free frees. columns 0: a vector. */
gt_status app_room(app *a, gt_tensor *t, gt_dtype dtype, int64_t rows, int64_t columns);
void app_free(app *a);

#endif
