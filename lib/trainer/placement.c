/* SPDX-License-Identifier: Apache-2.0
 * The pipeline schedule, and the model cut over its stages by what its blocks cost. */
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "params/param_layout.h"
#include "trainer/engine.h"

gt_status gti_trainer_make_schedule(gt_trainer *t, const gt_stage_cost *cost)
{
    gt_schedule_params p = GT_SCHEDULE_PARAMS_INIT;
    p.name = t->config.mesh.schedule[0] ? t->config.mesh.schedule : "1f1b";
    p.ranks = gt_mesh_size(t->mesh, GT_AXIS_PP);
    p.microbatches = (int)t->config.grad_accum;
    p.chunks = t->config.mesh.chunks;
    p.cost = cost;
    gt_schedule *made = NULL;
    GT_TRY(gt_schedule_create_params(&made, &p));
    gt_schedule_destroy(&t->schedule);
    t->schedule = made;
    return GT_OK;
}

/* Tensor-parallel ranks may hold unequal shares of a block, yet must all cut the model alike and
 * run the same schedule: the largest share counts. */
gt_status gti_trainer_share_costs(gt_trainer *t)
{
    for (int i = 0; i < t->block_count; i++) {
        t->blocks[i].flops = t->blocks[i].plan[LAYOUT_TRAIN].forward_flops;
        if (t->tp != NULL) {
            gt_tensor most = gt_tensor_1d(&t->blocks[i].flops, GT_F64, 1);
            GT_TRY(gt_all_reduce(t->tp, &most, GT_MAX, NULL, NULL));
        }
    }
    return GT_OK;
}

static double block_cost(const gt_trainer *t, int i)
{
    const struct engine_block *b = &t->blocks[i];
    if (strcmp(t->config.mesh.partition, "parameters") != 0) {
        return b->flops;
    }
    double n = 0;
    for (int k = 0; k < b->declared.count; k++) {
        n += (double)gti_param_numel(&b->declared.params[k]);
    }
    return n;
}

/* The model's first and last block (embedding and head) stay with the first and the last of the
 * others, unless there are too few of those. */
static gt_status cut_model(gt_trainer *t, int *first)
{
    int stages = gt_schedule_stages(t->schedule), n = t->block_count;
    int inner = n - 2 >= stages ? n - 2 : n, skip = (n - inner) / 2;
    const char *how = t->config.mesh.partition[0] ? t->config.mesh.partition : "cost";
    double *cost = calloc((size_t)n, sizeof(double));
    if (cost == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for the costs of %d blocks", n);
    }
    for (int i = 0; i < n; i++) {
        cost[i] = block_cost(t, i);
    }
    bool by_parameters = strcmp(how, "parameters") == 0;
    gt_status st = gt_partition_layers(first, by_parameters ? "cost" : how, inner, stages,
                                       cost + skip, skip ? cost[0] : 0, skip ? cost[n - 1] : 0);
    free(cost);
    for (int s = 1; st == GT_OK && s < stages; s++) {
        first[s] += skip;
    }
    if (st == GT_OK) {
        first[0] = 0;
        first[stages] = n;
    }
    return st;
}

/* Each half of a backward pass costs as much as the forward pass. A loss block does all of it in
 * its forward call; recomputation repeats the forward pass and leaves nothing for later. */
static void add_cost(const gt_trainer *t, const struct engine_block *b, gt_stage_cost *cost)
{
    if (b->block->ops->is_loss) {
        cost->forward += 3 * b->flops;
    } else if (t->config.model.recompute) {
        cost->forward += b->flops;
        cost->backward_input += 3 * b->flops;
    } else {
        cost->forward += b->flops;
        cost->backward_input += b->flops;
        cost->backward_weight += b->flops;
    }
}

/* Zero-bubble schedules arrange themselves for the stages' times. */
static gt_status refine_schedule(gt_trainer *t, const int *first)
{
    int stages = gt_schedule_stages(t->schedule);
    bool zero_bubble = strncmp(gt_schedule_name(t->schedule), "zb-", 3) == 0;
    double sum = 0;
    for (int i = 0; i < t->block_count; i++) {
        sum += t->blocks[i].flops;
    }
    if (!zero_bubble || stages == 1 || sum <= 0) {
        return GT_OK;
    }
    gt_stage_cost *cost = calloc((size_t)stages, sizeof(*cost));
    if (cost == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for the costs of %d stages", stages);
    }
    for (int s = 0; s < stages; s++) {
        for (int i = first[s]; i < first[s + 1]; i++) {
            add_cost(t, &t->blocks[i], &cost[s]);
        }
    }
    gt_status st = gti_trainer_make_schedule(t, cost);
    free(cost);
    return st;
}

static void fill_chunks(gt_trainer *t, const int *first)
{
    int stages = gt_schedule_stages(t->schedule);
    for (int c = 0; c < t->chunk_count; c++) {
        int s = gt_schedule_stage(t->schedule, gt_mesh_index(t->mesh, GT_AXIS_PP), c);
        t->chunks[c] = (struct chunk){.first = first[s],
                                      .count = first[s + 1] - first[s],
                                      .stage = s,
                                      .is_first = s == 0,
                                      .is_last = s == stages - 1};
        for (int i = first[s]; i < first[s + 1]; i++) {
            t->blocks[i].local = true;
        }
    }
}

gt_status gti_trainer_place(gt_trainer *t)
{
    int *first = calloc((size_t)gt_schedule_stages(t->schedule) + 1, sizeof(int));
    t->chunk_count = gt_schedule_chunks(t->schedule);
    t->chunks = calloc((size_t)t->chunk_count, sizeof(*t->chunks));
    gt_status st = first && t->chunks ? cut_model(t, first)
                                      : GT_FAIL(GT_ERR_MEMORY, "no host memory for the stages");
    if (st == GT_OK) {
        st = refine_schedule(t, first);
    }
    if (st == GT_OK) {
        fill_chunks(t, first);
    }
    free(first);
    return st;
}
