/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on tensors, on any device. Each checks shapes, dtypes and devices, names the offending
 * one, then enqueues the work on `stream` (NULL: the compute stream).
 *
 * Letters: B batch, T sequence, C width, H heads, D head size, F hidden width, V vocabulary, N
 * rows. A "float dtype" is f32, bf16 or f16. Tensors said to be optional may be NULL. All are
 * row-major. Unless said otherwise the tensors of a call have one float dtype, gradients of weights
 * may also be f32, and arithmetic is f32 or better. Empty tensors are fine. Outputs must not
 * overlap inputs unless said otherwise. docs/numerics.md says in which order sums are formed.
 *
 * Errors common to all: GT_ERR_SHAPE, GT_ERR_DTYPE, GT_ERR_ARGUMENT (a required NULL, or a token id
 * or target out of range; on asynchronous devices the latter surfaces at the next synchronisation),
 * GT_ERR_UNSUPPORTED (the device has no such operation).
 */
#ifndef GEEKTRAIN_OPS_H
#define GEEKTRAIN_OPS_H

#include <geektrain/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- elementwise and whole-tensor ------------------------------------------------------------ */
/* y[i] = value, rounded to y's dtype; any dtype. Integers: a value they hold. */
GT_API gt_status gt_fill(gt_context *ctx, gt_tensor *y, double value, gt_stream *stream);
/* y = x, as many elements of the same dtype; any dtype. */
GT_API gt_status gt_copy(gt_context *ctx, gt_tensor *y, const gt_tensor *x, gt_stream *stream);
/* Columns [y_first, y_first + count) of y[N,*] become columns [x_first, ...) of x[N,*]; one dtype.
 */
GT_API gt_status gt_copy_columns(gt_context *ctx, gt_tensor *y, int64_t y_first, const gt_tensor *x,
                                 int64_t x_first, int64_t count, gt_stream *stream);
/* y = x between float dtypes, rounded to nearest, ties to even; f64 to and from f32 only. */
GT_API gt_status gt_cast(gt_context *ctx, gt_tensor *y, const gt_tensor *x, gt_stream *stream);
/* y = alpha*x + beta*y; float dtypes may differ. */
GT_API gt_status gt_axpby(gt_context *ctx, gt_tensor *y, const gt_tensor *x, float alpha,
                          float beta, gt_stream *stream);
/* acc f64[1] += factor * sum of squares of x, formed in f64. */
GT_API gt_status gt_sum_sq(gt_context *ctx, gt_tensor *acc, const gt_tensor *x, double factor,
                           gt_stream *stream);
/* index i64[1] = position of the first NaN or infinity in x, or -1. */
GT_API gt_status gt_find_nonfinite(gt_context *ctx, gt_tensor *index, const gt_tensor *x,
                                   gt_stream *stream);

/* ---- matrix multiplication ------------------------------------------------------------------- */
typedef struct gt_gemm_params {
    size_t struct_size;
    bool trans_a, trans_b;
    bool accumulate;       /* c += instead of c =                                            */
    bool gelu;             /* c = gelu(op(a) op(b) + bias)                                   */
    const gt_tensor *bias; /* [N], optional                                                  */
    gt_tensor *pre_gelu;   /* [M,N], optional: the value before the GELU                     */
} gt_gemm_params;
#define GT_GEMM_PARAMS_INIT GT_PARAMS_INIT(gt_gemm_params)
GT_API void gt_gemm_params_init(gt_gemm_params *params, size_t size);
/* c[M,N] = op(a) op(b) (+ bias). a is [M,K] or, transposed, [K,M]; b [K,N] or [N,K]. Leading
 * dimensions of tensors with more than two are folded into the rows. c may be f32 while a and b are
 * 16-bit. */
GT_API gt_status gt_gemm(gt_context *ctx, gt_tensor *c, const gt_tensor *a, const gt_tensor *b,
                         const gt_gemm_params *params, gt_stream *stream);
/* y[N,O] = x[N,I] w[O,I]^T + bias[O] (optional). */
GT_API gt_status gt_linear_forward(gt_context *ctx, gt_tensor *y, const gt_tensor *x,
                                   const gt_tensor *w, const gt_tensor *bias, gt_stream *stream);
/* dx = dy w (overwritten), dw += dy^T x, dbias += column sums of dy; each optional, and so are w
 * without dx and x without dw. */
GT_API gt_status gt_linear_backward(gt_context *ctx, gt_tensor *dx, gt_tensor *dw, gt_tensor *dbias,
                                    const gt_tensor *dy, const gt_tensor *x, const gt_tensor *w,
                                    gt_stream *stream);

/* db[C] += column sums of dy[N,C]; db f32 or dy's dtype; the order of summation does not depend on
 * the number of threads. */
GT_API gt_status gt_bias_grad(gt_context *ctx, gt_tensor *db, const gt_tensor *dy,
                              gt_stream *stream);

/* ---- norms ----------------------------------------------------------------------------------- */
/* s = x + residual (residual, s optional together), y = (s - mean) rstd gamma + beta; x [N,C];
 * mean, rstd [N] f32 (optional). Ba et al. 2016. */
GT_API gt_status gt_layernorm_forward(gt_context *ctx, gt_tensor *y, gt_tensor *s, gt_tensor *mean,
                                      gt_tensor *rstd, const gt_tensor *x,
                                      const gt_tensor *residual, const gt_tensor *gamma,
                                      const gt_tensor *beta, float eps, gt_stream *stream);
/* dx = gradient of the input (+ dresidual, optional); dgamma +=, dbeta +=; each optional. x is the
 * normed input (s above). */
GT_API gt_status gt_layernorm_backward(gt_context *ctx, gt_tensor *dx, gt_tensor *dgamma,
                                       gt_tensor *dbeta, const gt_tensor *dy,
                                       const gt_tensor *dresidual, const gt_tensor *x,
                                       const gt_tensor *gamma, const gt_tensor *mean,
                                       const gt_tensor *rstd, gt_stream *stream);
/* Zhang & Sennrich 2019. */
GT_API gt_status gt_rmsnorm_forward(gt_context *ctx, gt_tensor *y, gt_tensor *s, gt_tensor *rstd,
                                    const gt_tensor *x, const gt_tensor *residual,
                                    const gt_tensor *gamma, float eps, gt_stream *stream);
GT_API gt_status gt_rmsnorm_backward(gt_context *ctx, gt_tensor *dx, gt_tensor *dgamma,
                                     const gt_tensor *dy, const gt_tensor *dresidual,
                                     const gt_tensor *x, const gt_tensor *gamma,
                                     const gt_tensor *rstd, gt_stream *stream);

/* ---- activations ----------------------------------------------------------------------------- */
/* GPT-2's tanh form (Hendrycks & Gimpel 2016). y may be x; dx may be dy. */
GT_API gt_status gt_gelu_forward(gt_context *ctx, gt_tensor *y, const gt_tensor *x,
                                 gt_stream *stream);
GT_API gt_status gt_gelu_backward(gt_context *ctx, gt_tensor *dx, const gt_tensor *dy,
                                  const gt_tensor *x, gt_stream *stream);
/* gu[N,2F] = (gate, up); y[N,F] = silu(gate) * up (Shazeer 2020). */
GT_API gt_status gt_swiglu_forward(gt_context *ctx, gt_tensor *y, const gt_tensor *gu,
                                   gt_stream *stream);
GT_API gt_status gt_swiglu_backward(gt_context *ctx, gt_tensor *dgu, const gt_tensor *dy,
                                    const gt_tensor *gu, gt_stream *stream);

/* Counter-based dropout: element [n,c] is kept by Philox(seed, site) at counter rows[n]*columns +
 * first_column + c, where rows (i64 [N]) are *global* row numbers and columns the width of the
 * whole tensor: every sharding draws the same mask. The backward pass is the same call on the
 * gradient. */
typedef struct gt_dropout_params {
    size_t struct_size;
    float p;                       /* probability of zeroing, [0, 1) */
    uint64_t seed;                 /* of the run                     */
    uint64_t site;                 /* which dropout of the model     */
    int64_t columns, first_column; /* columns 0: x's width */
} gt_dropout_params;
#define GT_DROPOUT_PARAMS_INIT GT_PARAMS_INIT(gt_dropout_params)
GT_API void gt_dropout_params_init(gt_dropout_params *params, size_t size);
GT_API gt_status gt_dropout(gt_context *ctx, gt_tensor *y, const gt_tensor *x,
                            const gt_tensor *rows, const gt_dropout_params *params,
                            gt_stream *stream);

/* ---- attention ------------------------------------------------------------------------------- */
/* Softmax attention blocked over keys (Milakov & Gimelshein 2018; Dao et al. 2022): no T x T
 * matrix. q, out: [B,Tq,H,D] with row stride; k, v: [B,Tk,Hkv,D]. A tensor's data pointer is its
 * first element; `ld*` are elements between consecutive t, so that the thirds of a packed [B,T,3C]
 * qkv can be passed without copies (0: dense). Query t sees key u if (not causal or kpos[u] <=
 * qpos[t]) and kpos[u] >= starts[b,t] and key_mask[b,u] != 0. Queries that see no key give 0 and
 * lse -inf, and zero gradients.
 *
 * starts holds documents packed into one sample apart: with causal and starts[b,t] = the position
 * at which the document of token t begins, each document is computed as if it were alone, whatever
 * kpos and qpos the tokens come with. Tiles of keys outside a document cost nothing. gt_rope() and
 * gt_embedding_forward() count positions from 0 in each document when given them as `rows`. */
typedef struct gt_attention_params {
    size_t struct_size;
    int64_t b, tq, tk, heads, kv_heads, head_size;
    int64_t ldq, ldk, ldv, ldo; /* 0: heads*head_size resp. kv_heads*head_size            */
    int64_t lddq, lddk, lddv;   /* of the gradients; 0: dense                              */
    float scale;                /* 0: 1/sqrt(head_size)                                    */
    bool causal;
    bool accumulate;              /* backward: dq, dk, dv += instead of =                    */
    const gt_tensor *qpos, *kpos; /* i64 [Tq], [Tk], optional: positions; default the index  */
    const gt_tensor *key_mask;    /* u8 [B,Tk], optional                                     */
    const gt_tensor *starts;      /* i64 [B,Tq], optional: lowest key position that is seen  */
} gt_attention_params;
#define GT_ATTENTION_PARAMS_INIT GT_PARAMS_INIT(gt_attention_params)
GT_API void gt_attention_params_init(gt_attention_params *params, size_t size);
/* lse f32 [B,H,Tq]: log of the softmax denominator. q, k, v, out only need enough elements behind
 * their pointer: shape any, numel is the reach of the view. */
GT_API gt_status gt_attention_forward(gt_context *ctx, gt_tensor *out, gt_tensor *lse,
                                      const gt_tensor *q, const gt_tensor *k, const gt_tensor *v,
                                      const gt_attention_params *params, gt_stream *stream);
GT_API gt_status gt_attention_backward(gt_context *ctx, gt_tensor *dq, gt_tensor *dk, gt_tensor *dv,
                                       const gt_tensor *dout, const gt_tensor *out,
                                       const gt_tensor *lse, const gt_tensor *q, const gt_tensor *k,
                                       const gt_tensor *v, const gt_attention_params *params,
                                       gt_stream *stream);
/* Joins attention over disjoint key sets: (out, lse) <- (out, lse) + (part, part_lse). out, part
 * dense [B,T,H,D]; lse [B,H,T]. */
GT_API gt_status gt_attention_merge(gt_context *ctx, gt_tensor *out, gt_tensor *lse,
                                    const gt_tensor *part, const gt_tensor *part_lse, int64_t b,
                                    int64_t t, int64_t heads, int64_t head_size, gt_stream *stream);
/* Rotary position embedding in place (Su et al. 2021), pairs (i, i + D/2), the first `heads` heads
 * of each row of ld elements; freq f32 [D/2]; position = rows[n] % seq, where rows i64 [N] are
 * global row numbers or simply the position of each row, below seq; scale multiplies the result
 * (1 but for YaRN). inverse: the gradient. */
GT_API gt_status gt_rope(gt_context *ctx, gt_tensor *x, const gt_tensor *rows,
                         const gt_tensor *freq, int64_t ld, int64_t heads, int64_t seq, float scale,
                         bool inverse, gt_stream *stream);

/* ---- embedding ------------------------------------------------------------------------------- */
/* y[N,C] = table[ids[n] - first] (0 outside this shard) + positions[rows[n] % seq] (optional);
 * ids i32 [N] in [0, vocab); rows i64 [N]: global row numbers or simply the position of each row,
 * below seq. */
typedef struct gt_embedding_params {
    size_t struct_size;
    int64_t first; /* first row of this vocabulary shard */
    int64_t vocab; /* of the whole model                 */
    int64_t seq;   /* tokens per sample                  */
} gt_embedding_params;
#define GT_EMBEDDING_PARAMS_INIT GT_PARAMS_INIT(gt_embedding_params)
GT_API gt_status gt_embedding_forward(gt_context *ctx, gt_tensor *y, const gt_tensor *table,
                                      const gt_tensor *positions, const gt_tensor *ids,
                                      const gt_tensor *rows, const gt_embedding_params *params,
                                      gt_stream *stream);
/* dtable +=, dpositions += (each optional), in a fixed order. */
GT_API gt_status gt_embedding_backward(gt_context *ctx, gt_tensor *dtable, gt_tensor *dpositions,
                                       const gt_tensor *dy, const gt_tensor *ids,
                                       const gt_tensor *rows, const gt_embedding_params *params,
                                       gt_stream *stream);

/* ---- loss ------------------------------------------------------------------------------------ */
typedef struct gt_cross_entropy_params {
    size_t struct_size;
    float grad_scale;      /* the gradient is multiplied by it (loss scale / nominal tokens)    */
    float label_smoothing; /* eps of (1-eps)*nll + eps*mean over the vocabulary of -log p       */
    float z_loss;          /* z of z*(log sum exp)^2 added to each token's loss                 */
    int32_t ignore_index;  /* a target with this value does not count; PARAMS_INIT sets -100    */
    bool no_grad;          /* leave the logits alone                                            */
} gt_cross_entropy_params;
#ifdef __cplusplus
#define GT_CROSS_ENTROPY_PARAMS_INIT gt_params_by(gt_cross_entropy_params_init)
#else
#define GT_CROSS_ENTROPY_PARAMS_INIT                                                               \
    {                                                                                              \
        .struct_size = sizeof(gt_cross_entropy_params), .grad_scale = 1.0f, .ignore_index = -100   \
    }
#endif
GT_API void gt_cross_entropy_params_init(gt_cross_entropy_params *params, size_t size);
/* logits[N,V] become their gradient; losses f32 [N] (optional); stats f64[2] += {sum of losses,
 * valid tokens}. targets i32 [N]. Probabilities are never stored. */
GT_API gt_status gt_cross_entropy(gt_context *ctx, gt_tensor *logits, gt_tensor *losses,
                                  gt_tensor *stats, const gt_tensor *targets,
                                  const gt_cross_entropy_params *params, gt_stream *stream);

/* The same over a vocabulary shard: logits[N,Vlocal] are columns [first, first + Vlocal) of `vocab`
 * (Vlocal may be 0). Three steps, between which the caller all-reduces over the ranks that share
 * the vocabulary; then every rank has the same losses and stats, and its part of the gradient:
 *
 *   max f32 [N] = row maximum, -inf for an empty shard                 then all-reduce GT_MAX
 *   sums f32 [3,N] = {sum exp(z - max), z_target - max where the target
 *                     lies here, else 0, sum of (z - max)}             then all-reduce GT_SUM
 *   logits become their gradient; losses, stats as gt_cross_entropy
 */
GT_API gt_status gt_cross_entropy_max(gt_context *ctx, gt_tensor *max, const gt_tensor *logits,
                                      gt_stream *stream);
GT_API gt_status gt_cross_entropy_sums(gt_context *ctx, gt_tensor *sums, const gt_tensor *logits,
                                       const gt_tensor *max, const gt_tensor *targets,
                                       const gt_cross_entropy_params *params, int64_t first,
                                       int64_t vocab, gt_stream *stream);
GT_API gt_status gt_cross_entropy_grad(gt_context *ctx, gt_tensor *logits, gt_tensor *losses,
                                       gt_tensor *stats, const gt_tensor *max,
                                       const gt_tensor *sums, const gt_tensor *targets,
                                       const gt_cross_entropy_params *params, int64_t first,
                                       int64_t vocab, gt_stream *stream);

/* ---- initial values -------------------------------------------------------------------------- */
typedef enum gt_init_kind { GT_INIT_CONSTANT = 0, GT_INIT_NORMAL, GT_INIT_UNIFORM } gt_init_kind;
typedef struct gt_init_params {
    size_t struct_size;
    gt_init_kind kind;
    float mean, std; /* uniform: [mean - std, mean + std)                                    */
    uint64_t seed, stream_id; /* Philox key and stream (Salmon et al. 2011)                       */
    int64_t offset; /* y is elements [offset, offset+numel) of the local tensor             */
    /* The local tensor is [outer, axis_local, inner], the piece [axis_first, axis_first+axis_local)
     * of [outer, axis_global, inner]. All 0: the whole tensor. */
    int64_t axis_local, inner, axis_global, axis_first;
} gt_init_params;
#define GT_INIT_PARAMS_INIT GT_PARAMS_INIT(gt_init_params)
GT_API void gt_init_params_init(gt_init_params *params, size_t size);
GT_API gt_status gt_init(gt_context *ctx, gt_tensor *y, const gt_init_params *params,
                         gt_stream *stream);

/* ---- optimizers on flat shards: one pass each ------------------------------------------------ */
/* All: master f32 [n] is updated; param (float dtype, optional, may be master's memory) receives
 * the value rounded to nearest; grad is any float dtype and left as it is; g = grad * grad_scale,
 * where grad_scale carries averaging, unscaling and clipping. step counts applied updates from 1.
 * Non-finite gradients propagate: look at the norm first.
 *
 * Moments are f32 or bf16. bf16 moments are rounded stochastically: to nearest, a second moment
 * would stand still, since one step changes it by 1 - beta2 = 0.001 of itself and bf16 keeps steps
 * of 0.004-0.008. The random bits are hashed from the element's own values and the step, so every
 * sharding draws the same. */
typedef struct gt_adamw_params {
    size_t struct_size;
    float lr, beta1, beta2, eps, weight_decay, grad_scale;
    int64_t step;
    bool l2; /* weight decay added to the gradient (Adam) instead of decoupled (AdamW) */
} gt_adamw_params;
#ifdef __cplusplus
#define GT_ADAMW_PARAMS_INIT gt_params_by(gt_adamw_params_init)
#else
#define GT_ADAMW_PARAMS_INIT                                                                       \
    {                                                                                              \
        .struct_size = sizeof(gt_adamw_params), .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f,       \
        .eps = 1e-8f, .grad_scale = 1.0f, .step = 1                                                \
    }
#endif
GT_API void gt_adamw_params_init(gt_adamw_params *params, size_t size);
/* Loshchilov & Hutter 2019; eps outside the root, after bias correction:
 * p -= lr * ((m/c1) / (sqrt(v/c2) + eps) + weight_decay*p), c = 1 - beta^step. eps may be 0: a
 * quotient by 0 counts as 0, so that what has had no gradient stays. master may be the
 * remainder (GT_U8, 2n bytes, see gt_master_split) of a bf16 param, which is then required: 2 bytes
 * per parameter in place of 4, the same numbers. */
GT_API gt_status gt_adamw(gt_context *ctx, gt_tensor *param, gt_tensor *master, gt_tensor *m,
                          gt_tensor *v, const gt_tensor *grad, const gt_adamw_params *params,
                          gt_stream *stream);
typedef struct gt_sgd_params {
    size_t struct_size;
    float lr, momentum, dampening, weight_decay, grad_scale;
    bool nesterov;
    int64_t step; /* 1: the velocity starts as the gradient */
} gt_sgd_params;
#ifdef __cplusplus
#define GT_SGD_PARAMS_INIT gt_params_by(gt_sgd_params_init)
#else
#define GT_SGD_PARAMS_INIT                                                                         \
    {                                                                                              \
        .struct_size = sizeof(gt_sgd_params), .grad_scale = 1.0f, .step = 1                        \
    }
#endif
GT_API void gt_sgd_params_init(gt_sgd_params *params, size_t size);
/* torch.optim.SGD. velocity is optional when momentum is 0. */
GT_API gt_status gt_sgd(gt_context *ctx, gt_tensor *param, gt_tensor *master, gt_tensor *velocity,
                        const gt_tensor *grad, const gt_sgd_params *params, gt_stream *stream);
typedef struct gt_lion_params {
    size_t struct_size;
    float lr, beta1, beta2, weight_decay, grad_scale;
} gt_lion_params;
#ifdef __cplusplus
#define GT_LION_PARAMS_INIT gt_params_by(gt_lion_params_init)
#else
#define GT_LION_PARAMS_INIT                                                                        \
    {                                                                                              \
        .struct_size = sizeof(gt_lion_params), .beta1 = 0.9f, .beta2 = 0.99f, .grad_scale = 1.0f   \
    }
#endif
GT_API void gt_lion_params_init(gt_lion_params *params, size_t size);
/* Chen et al. 2023. */
GT_API gt_status gt_lion(gt_context *ctx, gt_tensor *param, gt_tensor *master, gt_tensor *m,
                         const gt_tensor *grad, const gt_lion_params *params, gt_stream *stream);
/* LAMB (You et al. 2020) in two halves, between which the caller all-reduces norms f64[2] = {sum
 * p^2, sum u^2} of one tensor over its shards; update f32 [n] is workspace. */
GT_API gt_status gt_lamb_update(gt_context *ctx, gt_tensor *update, gt_tensor *m, gt_tensor *v,
                                gt_tensor *norms, const gt_tensor *master, const gt_tensor *grad,
                                const gt_adamw_params *params, gt_stream *stream);
/* LAMB's trust ratio |p| / |u|, held to [min_coeff, max_coeff], or 1 when either norm is 0; norms
 * as gt_lamb_update leaves them, summed over the shards of the tensor. DeepSpeed's bounds are 0.01
 * and 10; 0 and INFINITY bound nothing. 1 for NULL or norms that are not finite. */
GT_API double gt_lamb_trust(const double norms[2], double min_coeff, double max_coeff);
/* master -= lr * trust * update. */
GT_API gt_status gt_lamb_apply(gt_context *ctx, gt_tensor *param, gt_tensor *master,
                               const gt_tensor *update, float lr, float trust, gt_stream *stream);

/* An f32 master held as a bf16 parameter and 16 more bits (Transformer Engine's scheme). With the
 * bits of x cut in upper:lower halves, remainder = lower and param = upper + (lower >= 0x8000): x
 * rounded to nearest, halfway cases away from zero (those cannot go to even: the cut could not be
 * undone). Back: upper = param - (lower >= 0x8000). Exact for every finite and infinite x; any NaN
 * becomes the one quiet NaN. param bf16 [n], remainder GT_U8 with 2n bytes, x f32 [n]. */
GT_API gt_status gt_master_split(gt_context *ctx, gt_tensor *param, gt_tensor *remainder,
                                 const gt_tensor *x, gt_stream *stream);
GT_API gt_status gt_master_join(gt_context *ctx, gt_tensor *x, const gt_tensor *param,
                                const gt_tensor *remainder, gt_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
