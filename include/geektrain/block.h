/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks: the unit of pipeline placement, of ZeRO gather/release and of activation recomputation.
 *
 * A model is an array of blocks; each takes the activation of the one before to the next. A block
 * is a table of functions and whatever state its author needs; the built-in ones (model.h) and
 * yours are made of the same table. What a block must do:
 *
 *   declare   name its parameters with *global* shapes; say which axis tensor parallelism cuts
 *   plan      say, for a given input shape, its output shape, which tensors it saves for the
 *             backward pass, and what scratch it needs. Called before any memory exists, with no
 *             data: the engine allocates exactly that, once, and steps allocate nothing
 *   forward   out = f(in), filling the saved tensors
 *   backward  din from dout, and gradients *added* to the gradient tensors
 *
 * The engine calls them with every parameter gathered, wherever ZeRO keeps it, in any order that
 * the pipeline schedule asks for; `saved` belongs to one microbatch. Blocks only enqueue
 * operations: they never look into tensors on the host. An error that a block returns
 * (gt_set_error() for its own) is every rank's. Guide: docs/blocks.md; a program:
 * examples/custom_block.c.
 */
#ifndef GEEKTRAIN_BLOCK_H
#define GEEKTRAIN_BLOCK_H

#include <geektrain/comm.h>
#include <geektrain/mesh.h>
#include <geektrain/ops.h>
#include <geektrain/params.h>
#include <geektrain/schedule.h>
#include <geektrain/tensor_parallel.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gt_block gt_block;
typedef struct gt_plan gt_plan;
typedef struct gt_saved gt_saved;

/* ---- planning -------------------------------------------------------------------------------- */
/* What a block learns when it plans; the same values hold in every call of forward and backward. */
typedef struct gt_layout {
    gt_dtype dtype; /* of activations and parameters                                             */
    int64_t batch;  /* samples per microbatch                                                    */
    int64_t seq;    /* tokens per sample, of the whole sequence                                   */
    int64_t seq_local; /* tokens per sample on this context-parallel rank */
    int64_t rows;      /* rows of the activation here: batch*seq_local, or this rank's share of them
                          under sequence parallelism                                                */
    int64_t row_first; /* first of those rows */
    int tp_rank, tp_size, cp_rank, cp_size;
    bool sequence_parallel;
    bool split_backward; /* backward will be called in two parts: input, later weight */
    bool no_overlap; /* tensor-parallel collectives are waited for at once (to measure overlap) */
} gt_layout;

GT_API const gt_layout *gt_plan_layout(const gt_plan *plan);
/* Input tensors, in port order. */
GT_API int gt_plan_inputs(const gt_plan *plan);
GT_API const gt_shape *gt_plan_input(const gt_plan *plan, int port);
/* Declares an output (ports in order, at most GT_MAX_PORTS), a saved tensor (index in order), or a
 * workspace tensor (index in order; contents last only for one call of forward or backward: all
 * blocks share the memory). plan runs once for training and once for generation, whose layout may
 * have fewer samples: sizes come from the plan's inputs and layout, nothing else. */
GT_API gt_status gt_plan_output(gt_plan *plan, gt_dtype dtype, int ndim, const int64_t *dims);
GT_API gt_status gt_plan_save(gt_plan *plan, gt_dtype dtype, int ndim, const int64_t *dims);
GT_API gt_status gt_plan_workspace(gt_plan *plan, gt_dtype dtype, int ndim, const int64_t *dims);
/* Declares a constant tensor (index in order), whose values are copied from host memory now and are
 * on the device whenever the block runs: tables computed once, such as rotary frequencies. */
GT_API gt_status gt_plan_constant(gt_plan *plan, gt_dtype dtype, int ndim, const int64_t *dims,
                                  const void *host);
/* Multiply-add counted as two, forward pass of one microbatch on this rank: for the balance of
 * stages and gt_trainer_step_flops(). */
GT_API void gt_plan_flops(gt_plan *plan, double forward_flops);

/* ---- running --------------------------------------------------------------------------------- */
/* What one call of forward or backward works with. */
typedef struct gt_step {
    gt_context *ctx;
    gt_stream *stream; /* enqueue here                                                       */
    const gt_layout *layout;
    const gt_mesh *mesh; /* NULL when run outside a trainer                                    */
    gt_comm *tp, *cp;    /* NULL when their size is 1                                          */
    const gt_tensor *params; /* [declared] parameters, gathered */
    gt_tensor *grads;     /* [declared] add gradients here; data NULL where frozen or not wanted */
    const bool *unset;    /* [declared] of sets_gradient parameters: the gradient holds nothing yet;
                             NULL: none                                                           */
    gt_tensor *workspace; /* [planned]                                                          */
    const gt_tensor *constants; /* [planned] */
    const gt_tensor *tokens;    /* i32 [batch*seq_local]    */
    const gt_tensor *targets;   /* i32 [batch*seq_local]; loss blocks   */
    const gt_tensor *rows; /* i64 [batch*seq_local]: global row = sample*seq + position          */
    const gt_tensor *positions; /* i64 [seq_local] */
    gt_tensor *stats; /* f64[2] += {sum of losses, valid tokens}; loss blocks                */
    bool training;    /* dropout on; gradients will be asked for                            */
    bool recomputing; /* this forward repeats an earlier one                                */
    uint64_t seed;
    int block_index;  /* in the whole model; use block_index*16 + k as dropout site         */
    float grad_scale; /* loss blocks: d(loss sum) is multiplied by it: loss scale / nominal
                         tokens of the global batch                                         */
    int32_t ignore_index;
    int64_t microbatch;
} gt_step;

/* The saved tensors of this microbatch, planned index. */
GT_API gt_tensor *gt_saved_tensor(gt_saved *saved, int index);

/* ---- tensor and sequence parallelism inside a block -------------------------------------------
 * The primitives are those of tensor_parallel.h. What is cut (columns of a column-parallel linear)
 * has gt_layout_all_rows() rows on every rank; what is not has layout->rows. */
GT_API int64_t gt_layout_all_rows(const gt_layout *layout);
/* Bytes of the GT_U8 workspace tensor to plan for the primitives; width: the widest uncut side. */
GT_API size_t gt_layout_tp_scratch(const gt_layout *layout, int64_t width);
/* What the primitives take, in forward and backward; scratch is that workspace tensor. Where tensor
 * parallelism is off they are the plain operations. */
GT_API gt_tp gt_step_tp(const gt_step *step, const gt_tensor *scratch);
/* Global row numbers of the activation's rows here, i64 [layout->rows]: for gt_dropout. */
GT_API gt_tensor gt_step_rows(const gt_step *step);

typedef struct gt_block_ops {
    const char *type;
    gt_status (*declare)(gt_block *block, gt_param_list *params);
    gt_status (*plan)(gt_block *block, gt_plan *plan);
    gt_status (*forward)(gt_block *block, const gt_step *step, const gt_tensor *in, gt_tensor *out,
                         gt_saved *saved);
    /* in is what forward got, dout the gradient of out; din is to be overwritten (data NULL for the
     * first block). grads are to be added to. With parts INPUT only (layout.split_backward): din,
     * and save what WEIGHT will need; WEIGHT only: the parameter gradients (din and dout are then
     * not valid, grads were absent before). BOTH: both. */
    gt_status (*backward)(gt_block *block, const gt_step *step, const gt_tensor *in,
                          const gt_tensor *dout, gt_tensor *din, gt_saved *saved, unsigned parts);
    void (*destroy)(gt_block *block); /* frees block->state; may be NULL */
    /* Loss blocks: the logits (f32 [V], whole vocabulary, on every tensor-parallel rank) of token
     * `row` of the microbatch on this rank; for generation. May be NULL. */
    gt_status (*logits)(gt_block *block, const gt_step *step, const gt_tensor *in, int64_t row,
                        gt_tensor *out);
    bool is_loss; /* last block: its forward computes stats and, when training, also every gradient
                     it can (head and loss fused); its backward then hands over din; out has no
                     ports */
} gt_block_ops;

struct gt_block {
    const gt_block_ops *ops;
    void *state;                  /* the author's                                            */
    char name[GT_PARAM_NAME_MAX]; /* "blocks.3": prefix of its parameters' names */
};

/* ---- models ---------------------------------------------------------------------------------- */
typedef struct gt_model gt_model;
/* An empty list of blocks. Its last block must be a loss block, and only that. Not collective. */
GT_API gt_status gt_model_create(gt_model **out);
/* Appends a block named `name`, unique in the model (copied); ops is borrowed and must outlive the
 * model; the model owns `state` from here on, also on failure (ops->destroy frees it). Errors:
 * GT_ERR_ARGUMENT (name taken, a table without declare, plan, forward or backward), GT_ERR_MEMORY.
 */
GT_API gt_status gt_model_add(gt_model *model, const char *name, const gt_block_ops *ops,
                              void *state);
GT_API int gt_model_blocks(const gt_model *model);
/* Borrowed; NULL past the end. */
GT_API gt_block *gt_model_block(gt_model *model, int index);
/* After the trainers that use it. */
GT_API void gt_model_destroy(gt_model **model);

#ifdef __cplusplus
}
#endif
#endif
