/* SPDX-License-Identifier: Apache-2.0
 * A model: a list of blocks. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <geektrain/block.h>

#include "core/fail.h"
#include "core/names.h"

struct gt_model {
    gt_block **blocks; /* pointers, so that a block's address stays valid */
    int count, room;
    gti_names names;
};

static const char *block_name(const void *model, int index)
{
    return ((const gt_model *)model)->blocks[index]->name;
}

gt_status gt_model_create(gt_model **out)
{
    if (out == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_model_create needs somewhere to put the model");
    }
    gt_model *model = calloc(1, sizeof(*model));
    if (model == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for a model");
    }
    model->names.name_of = block_name;
    *out = model;
    return GT_OK;
}

static void destroy_block(gt_block *block)
{
    if (block->ops->destroy != NULL) {
        block->ops->destroy(block);
    }
}

static gt_status check_block(const gt_model *model, const char *name, const gt_block_ops *ops)
{
    if (model == NULL || name == NULL || name[0] == '\0' || strlen(name) >= GT_PARAM_NAME_MAX) {
        return GT_FAIL(GT_ERR_ARGUMENT, "a block needs a model and a name of 1 to %d characters",
                       GT_PARAM_NAME_MAX - 1);
    }
    if (ops->declare == NULL || ops->plan == NULL || ops->forward == NULL ||
        ops->backward == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "block %s lacks declare, plan, forward or backward", name);
    }
    if (gti_names_find(&model->names, model, name) >= 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the model has a block named %s already", name);
    }
    if (model->count == INT_MAX) {
        return GT_FAIL(GT_ERR_ARGUMENT, "a model has at most %d blocks", INT_MAX);
    }
    return GT_OK;
}

static gt_status append(gt_model *model, const gt_block *block)
{
    if (model->count == model->room) {
        int room = model->room == 0 ? 16 : model->room > INT_MAX / 2 ? INT_MAX : 2 * model->room;
        gt_block **grown = realloc(model->blocks, (size_t)room * sizeof(gt_block *));
        if (grown == NULL) {
            return GT_FAIL(GT_ERR_MEMORY, "no host memory for %d blocks", room);
        }
        model->blocks = grown;
        model->room = room;
    }
    gt_block *copy = malloc(sizeof(*copy));
    if (copy == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no host memory for a block");
    }
    *copy = *block;
    model->blocks[model->count] = copy;
    gt_status st = gti_names_add(&model->names, model);
    if (st != GT_OK) {
        free(copy);
        return st;
    }
    model->count++;
    return GT_OK;
}

gt_status gt_model_add(gt_model *model, const char *name, const gt_block_ops *ops, void *state)
{
    if (ops == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "block %s has no table of functions",
                       name != NULL ? name : "(null)");
    }
    gt_block block = {.ops = ops, .state = state};
    gt_status st = check_block(model, name, ops);
    if (st == GT_OK) {
        snprintf(block.name, sizeof(block.name), "%s", name);
        st = append(model, &block);
    }
    if (st != GT_OK) {
        destroy_block(&block);
    }
    return st;
}

int gt_model_blocks(const gt_model *model)
{
    return model->count;
}

gt_block *gt_model_block(gt_model *model, int index)
{
    return index >= 0 && index < model->count ? model->blocks[index] : NULL;
}

void gt_model_destroy(gt_model **model)
{
    if (model == NULL || *model == NULL) {
        return;
    }
    for (int i = (*model)->count - 1; i >= 0; i--) {
        destroy_block((*model)->blocks[i]);
        free((*model)->blocks[i]);
    }
    free((*model)->blocks);
    gti_names_free(&(*model)->names);
    free(*model);
    *model = NULL;
}
