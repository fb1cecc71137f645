/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract of every device operation, and the table by which a backend implements them.
 *
 * An operation is one argument struct. Its tensors come first, outputs before inputs, then the
 * scalars; an optional tensor that is absent has data == NULL. That uniform shape is what lets the
 * dispatcher treat a call as data: the guarded device copies the struct into a queue and rewrites
 * its tensors, a meta device could count its bytes and FLOPs.
 *
 * Shapes and dtypes have been checked by lib/ops before a backend sees them; kernels check only
 * what lies in the data (token ids, targets) and return a status for it.
 *
 * Letters: B batch, T sequence, C width, H heads, D head size, V vocabulary, N rows (= B*T).
 * "float dtype" means f32, bf16 or f16, the same for all activations and weights of a call unless
 * said otherwise; mean, rstd, lse, losses are f32; arithmetic is f32 or better.
 *
 * To add an operation: a struct here and its line in GTI_OPS, a checked public entry in lib/ops,
 * one line in each backend's table, a reference in lib/backend/cpu/reference/, a row in tests/ops.
 */
#ifndef GTI_BACKEND_H
#define GTI_BACKEND_H

#include <geektrain/context.h>
#include <geektrain/tensor.h>

/* name, number of leading tensors in struct gti_<name>_args */
#define GTI_OPS(X)                                                                                 \
    X(fill, 1)                                                                                     \
    X(copy, 2)                                                                                     \
    X(copy_columns, 2)                                                                             \
    X(cast, 2)                                                                                     \
    X(axpby, 2)                                                                                    \
    X(gemm, 5)                                                                                     \
    X(bias_grad, 2)                                                                                \
    X(layernorm_fwd, 8)                                                                            \
    X(layernorm_bwd, 9)                                                                            \
    X(rmsnorm_fwd, 6)                                                                              \
    X(rmsnorm_bwd, 7)                                                                              \
    X(gelu_fwd, 2)                                                                                 \
    X(gelu_bwd, 3)                                                                                 \
    X(swiglu_fwd, 2)                                                                               \
    X(swiglu_bwd, 3)                                                                               \
    X(rope, 3)                                                                                     \
    X(attention_fwd, 9)                                                                            \
    X(attention_merge, 4)                                                                          \
    X(attention_bwd, 13)                                                                           \
    X(embedding_fwd, 5)                                                                            \
    X(embedding_bwd, 5)                                                                            \
    X(xent, 4)                                                                                     \
    X(xent_max, 2)                                                                                 \
    X(xent_sums, 4)                                                                                \
    X(xent_grad, 6)                                                                                \
    X(dropout, 3)                                                                                  \
    X(init, 1)                                                                                     \
    X(reduce, 3)                                                                                   \
    X(sum_sq, 2)                                                                                   \
    X(find_nonfinite, 2)                                                                           \
    X(adamw, 5)                                                                                    \
    X(sgd, 4)                                                                                      \
    X(lion, 4)                                                                                     \
    X(lamb_update, 6)                                                                              \
    X(lamb_apply, 3)                                                                               \
    X(master_split, 3)                                                                             \
    X(master_join, 3)

/* y[i] = value, any dtype. */
struct gti_fill_args {
    gt_tensor y;
    double value;
};
/* y = x, same dtype and count; no overlap. */
struct gti_copy_args {
    gt_tensor y, x;
};
/* y[n, y_first + c] = x[n, x_first + c], c < count, for rows of ldy and ldx elements; same dtype,
 * no overlap. */
struct gti_copy_columns_args {
    gt_tensor y, x;
    int64_t rows, count, ldy, ldx, y_first, x_first;
};
/* y = x between float dtypes (f32, bf16, f16; f64 from/to f32), same count; in place when y.data ==
 * x.data and the sizes are equal. */
struct gti_cast_args {
    gt_tensor y, x;
};
/* y = alpha*x + beta*y, float dtypes, may differ (arithmetic f32). beta == 0 does not read y. */
struct gti_axpby_args {
    gt_tensor y, x;
    float alpha, beta;
};

/* c[M,N] = op(a) op(b) + beta*c (+ bias[N]), then epilogue; a is [M,K] ([K,M] if trans_a), b is
 * [K,N] ([N,K] if trans_b), all row-major and dense except that lda/ldb/ldc may give longer rows.
 * a and b have one float dtype; c has that dtype or f32; bias that of a. With GTI_EPILOGUE_GELU the
 * value before the GELU goes to aux[M,N] (may be absent) and c = gelu(value). beta is 0 or 1. */
typedef enum gti_epilogue { GTI_EPILOGUE_NONE = 0, GTI_EPILOGUE_GELU } gti_epilogue;
struct gti_gemm_args {
    gt_tensor c, aux, a, b, bias;
    int64_t m, n, k, lda, ldb, ldc;
    bool trans_a, trans_b;
    float beta;
    gti_epilogue epilogue;
};
/* db[C] += column sums of dy[N,C]; db f32 or dy's dtype; fixed summation order. */
struct gti_bias_grad_args {
    gt_tensor db, dy;
};

/* s = x + residual when residual is present (s may be x or residual), else s = x and `s` absent;
 * y[n,c] = (s - mean[n]) * rstd[n] * gamma[c] + beta[c]; mean, rstd [N] f32 (may be absent);
 * rstd = 1/sqrt(var + eps), biased variance, two-pass or Welford. */
struct gti_layernorm_fwd_args {
    gt_tensor y, s, mean, rstd, x, residual, gamma, beta;
    float eps;
};
/* dx = gradient through the norm (+ dresidual when present, which may be dx itself);
 * dgamma[C] += , dbeta[C] += (absent: not computed; dx absent: not computed), dtype f32 or x's.
 * dx may be dy. Parts can so be asked for one at a time (zero-bubble schedules). */
struct gti_layernorm_bwd_args {
    gt_tensor dx, dgamma, dbeta, dy, dresidual, x, gamma, mean, rstd;
};
/* y = s * rstd[n] * gamma[c], rstd = 1/sqrt(mean(s^2) + eps); s, residual as in layernorm_fwd. */
struct gti_rmsnorm_fwd_args {
    gt_tensor y, s, rstd, x, residual, gamma;
    float eps;
};
struct gti_rmsnorm_bwd_args {
    gt_tensor dx, dgamma, dy, dresidual, x, gamma, rstd;
};

/* GPT-2's tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). In place allowed. */
struct gti_gelu_fwd_args {
    gt_tensor y, x;
};
/* dx = dy * gelu'(x); dx may be dy. */
struct gti_gelu_bwd_args {
    gt_tensor dx, dy, x;
};
/* gu[N,2F] holds gate in columns [0,F), up in [F,2F); y[N,F] = silu(gate) * up. */
struct gti_swiglu_fwd_args {
    gt_tensor y, gu;
};
/* dgu[N,2F]; may be gu. */
struct gti_swiglu_bwd_args {
    gt_tensor dgu, dy, gu;
};
/* Rotates the first `heads` heads of each row of x[N, ld] in place (ld >= heads*D; D even), pairs
 * (i, i + D/2), by angle position[n] * freq[i]; freq[D/2] f32, rows[N] i64 where position = rows[n]
 * % seq. inverse rotates back (the gradient). attention_scale multiplies sin and cos (YaRN). */
struct gti_rope_args {
    gt_tensor x, rows, freq;
    int64_t ld, heads, head_size, seq;
    float scale;
    bool inverse;
};

/* out[b,tq,h,:] = softmax_k(scale * q.k over allowed k) v, lse[b,h,tq] = log of the denominator
 * (natural log, scaled scores). q and out are [B,Tq,H,D], k and v [B,Tk,Hkv,D], H a multiple of
 * Hkv; consecutive t are ld* elements apart (so the parts of a packed qkv can be viewed) and
 * consecutive b T*ld*. Key k is allowed for query q when (not causal or kpos[k] <= qpos[q]) and
 * (starts absent or kpos[k] >= starts[b,q]) and (key_mask absent or key_mask[b,k] != 0); qpos[Tq],
 * kpos[Tk] i64 are optional (absent: index), so are starts[B,Tq] i64 and key_mask[B,Tk] u8.
 * A query without any allowed key has out 0 and lse -inf. No T x T matrix is stored. */
struct gti_attention_fwd_args {
    gt_tensor out, lse, q, k, v, qpos, kpos, starts, key_mask;
    int64_t b, tq, tk, h, hkv, d, ldq, ldk, ldv, ldo;
    float scale;
    bool causal;
};
/* Joins the attention over two disjoint key sets: (out, lse) <- merge((out, lse), (part,
 * part_lse)), dense [B,T,H,D] f32 or float dtype, [B,H,T]. */
struct gti_attention_merge_args {
    gt_tensor out, lse, part, part_lse;
    int64_t b, t, h, d;
};
/* Gradients given dout, the final out and lse (over *all* keys, also those not in this k). dq, dk,
 * dv are overwritten, or added to with accumulate. Layouts as forward; dq has ldq, dk ldk, dv ldv
 * of their own. dq, dk, dv may not alias q, k, v. */
struct gti_attention_bwd_args {
    gt_tensor dq, dk, dv, dout, out, lse, q, k, v, qpos, kpos, starts, key_mask;
    int64_t b, tq, tk, h, hkv, d, ldq, ldk, ldv, ldo, lddq, lddk, lddv;
    float scale;
    bool causal, accumulate;
};

/* y[n,:] = table[ids[n] - first] (+ positions[rows[n] % seq] when positions is present), 0 for the
 * table part when ids[n] lies outside [first, first + table rows). ids i32 [N], rows i64 [N].
 * GT_ERR_ARGUMENT naming row and id when ids[n] < 0 or >= vocab. add_positions is false on all but
 * one tensor-parallel rank when the results are summed. */
struct gti_embedding_fwd_args {
    gt_tensor y, table, positions, ids, rows;
    int64_t first, vocab, seq;
};
/* dtable[id - first] += dy[n], dpositions[rows[n] % seq] += dy[n] (either may be absent), in a
 * fixed order; gradient tensors f32 or dy's dtype. */
struct gti_embedding_bwd_args {
    gt_tensor dtable, dpositions, dy, ids, rows;
    int64_t first, vocab, seq;
};

/* Softmax cross entropy and its gradient in one pass. logits[N,V] (float dtype) are overwritten by
 * d(sum of losses)/d(logits) * grad_scale when with_grad; losses[N] f32 (may be absent); to stats
 * f64[2] are added {sum of losses, number of valid rows}. targets[N] i32; a target equal to
 * ignore_index gives loss 0 and gradient 0; any other outside [0,V) is GT_ERR_ARGUMENT naming the
 * row. label_smoothing eps (plain convention: (1-eps)*nll + eps*mean over V of -log p); z_loss adds
 * z*(log sum exp)^2. */
struct gti_xent_args {
    gt_tensor logits, losses, stats, targets;
    float grad_scale, label_smoothing, z_loss;
    int32_t ignore_index;
    bool with_grad;
};
/* The same over a vocabulary shard [first, first + Vlocal), in three steps between which the caller
 * all-reduces: max[N] f32 = row maximum (-inf for an empty shard) -> all-reduce MAX; */
struct gti_xent_max_args {
    gt_tensor max, logits;
};
/* sums f32 [3,N] = {sum exp(z - max), z_target - max if the target lies in this shard else 0, sum
 * of (z - max)} -> all-reduce SUM; */
struct gti_xent_sums_args {
    gt_tensor sums, logits, max, targets;
    int64_t first, vocab;
    int32_t ignore_index;
};
/* logits <- gradient, losses, stats as xent (every rank computes the same losses). */
struct gti_xent_grad_args {
    gt_tensor logits, losses, stats, max, sums, targets;
    int64_t first, vocab;
    float grad_scale, label_smoothing, z_loss;
    int32_t ignore_index;
    bool with_grad;
};

/* y = x * keep/(1-p), keep by Philox(key, stream) at counter rows[n]*columns + c for element [n,c];
 * rows i64 [N] holds the *global* row index, so any sharding draws the same mask. y may be x. The
 * backward pass is the same call. */
struct gti_dropout_args {
    gt_tensor y, x, rows;
    float p;
    uint64_t key, stream;
    int64_t columns;      /* of the whole tensor                      */
    int64_t first_column; /* of this shard                            */
};
/* y <- initial values, computed at the *global* element index. y is a piece of the local tensor,
 * flat elements [offset, offset + numel); the local tensor is [outer, axis_local, inner], cut from
 * [outer, axis_global, inner] at axis_first. kind normal(mean, std), uniform[mean-std, mean+std),
 * or constant(mean). */
typedef enum gti_init_kind {
    GTI_INIT_CONSTANT = 0,
    GTI_INIT_NORMAL,
    GTI_INIT_UNIFORM
} gti_init_kind;
struct gti_init_args {
    gt_tensor y;
    gti_init_kind kind;
    float mean, std;
    uint64_t key, stream;
    int64_t offset, axis_local, inner, axis_global, axis_first;
};

/* out = combination of a and b, elementwise (collectives): SUM, MAX, MIN; any dtype; out f32 or the
 * dtype of b; a has out's dtype. Used to accumulate peers' chunks in rank order in f32. */
typedef enum gti_reduce_kind { GTI_REDUCE_SUM = 0, GTI_REDUCE_MAX, GTI_REDUCE_MIN } gti_reduce_kind;
struct gti_reduce_args {
    gt_tensor out, a, b;
    gti_reduce_kind kind;
};
/* acc f64[1] += factor * sum of x^2 (double accumulation, fixed order). A non-finite x makes it so.
 */
struct gti_sum_sq_args {
    gt_tensor acc, x;
    double factor;
};
/* index i64[1] = index of the first non-finite element of x, or -1. */
struct gti_find_nonfinite_args {
    gt_tensor index, x;
};

/* One pass over a flat shard. g = grad * grad_scale (unscale, clip and averaging in one factor);
 * l2: g += weight_decay*p; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
 * p -= lr * (m/c1) / (sqrt(v/c2) + eps) + (l2 ? 0 : lr*weight_decay*p), where a quotient by 0 is
 * 0; c1 = 1-b1^t, c2 = 1-b2^t given. master f32 (or the 16-bit remainder of a bf16 param, see
 * gt_master_split, as 2n bytes of u8 with master_is_remainder); param (float dtype) receives the
 * rounded value, may be absent or the same memory as master. grad float dtype. Moments (of every
 * optimizer) f32 or bf16; bf16 ones are rounded stochastically, by bits hashed from the element's
 * own values and `step`: so the draw depends on no index, and any sharding makes the same one. */
struct gti_adamw_args {
    gt_tensor param, master, m, v, grad;
    float lr, beta1, beta2, eps, weight_decay, grad_scale;
    double c1, c2;
    int64_t step;
    bool l2, master_is_remainder;
};
/* g = grad * grad_scale + weight_decay*p; v = momentum*v + (1-dampening)*g (first: v = g; v absent
 * when momentum is 0: v = g); p -= lr * (nesterov ? g + momentum*v : v). */
struct gti_sgd_args {
    gt_tensor param, master, v, grad;
    float lr, momentum, dampening, weight_decay, grad_scale;
    int64_t step;
    bool nesterov, first;
};
/* Chen et al. 2023: u = sign(b1 m + (1-b1) g); p -= lr*(u + weight_decay*p); m = b2 m + (1-b2) g.
 */
struct gti_lion_args {
    gt_tensor param, master, m, grad;
    float lr, beta1, beta2, weight_decay, grad_scale;
};
/* You et al. 2020, first half: moments as adamw, u = (m/c1)/(sqrt(v/c2)+eps) + weight_decay*p;
 * norms f64[2] += {sum p^2, sum u^2}. u f32. The caller all-reduces the norms per tensor. */
struct gti_lamb_update_args {
    gt_tensor u, m, v, norms, master, grad;
    float beta1, beta2, eps, weight_decay, grad_scale;
    double c1, c2;
    int64_t step;
};
/* Second half: p -= lr * trust * u. */
struct gti_lamb_apply_args {
    gt_tensor param, master, u;
    float lr, trust;
};
/* An f32 value x as its bf16 param, rounded to nearest, and the lower 16 bits of x (2n bytes of
 * u8), from which and the param x is had back exactly: see gt_master_split. */
struct gti_master_split_args {
    gt_tensor param, remainder, x;
};
struct gti_master_join_args {
    gt_tensor x, param, remainder;
};

typedef enum gti_op {
#define GTI_OP_ENUM(name, tensors) GTI_OP_##name,
    GTI_OPS(GTI_OP_ENUM)
#undef GTI_OP_ENUM
        GTI_OP_COUNT
} gti_op;

typedef struct gti_device gti_device; /* a backend's own state, one per context */

/* An operation's implementation. It runs (cpu) or enqueues (cuda) the work. `native` is the
 * backend's own stream. */
typedef gt_status (*gti_op_fn)(gti_device *device, void *native, const void *args);

/* A backend: how memory and streams are had, and one function per operation (NULL =
 * GT_ERR_UNSUPPORTED, answered by the dispatcher). host_address and the event functions may be
 * called from any thread, the others by one thread at a time. */
typedef struct gti_backend {
    const char *name;
    gt_device_type type;
    gt_status (*create)(gti_device **out, int index, int threads);
    void (*destroy)(gti_device *device);
    int (*threads)(const gti_device *device);   /* compute threads, at least 1 */
    size_t (*memory)(const gti_device *device); /* bytes there are in all */
    gt_status (*alloc)(gti_device *device, void **out, size_t bytes);
    void (*free)(gti_device *device, void *pointer);
    /* The address at which code of this library on the host (comm threads) may touch device
     * memory, or NULL if there is none. */
    void *(*host_address)(gti_device *device, const void *pointer);
    gt_status (*stream_create)(gti_device *device, void **native);
    void (*stream_destroy)(gti_device *device, void *native);
    gt_status (*stream_synchronize)(gti_device *device, void *native);
    /* Runs op(args) on the stream; args (size bytes, `tensors` leading tensors) is copied. */
    gt_status (*submit)(gti_device *device, void *native, gti_op op, const void *args, size_t size,
                        int tensors);
    gt_status (*event_create)(gti_device *device, void **event);
    void (*event_destroy)(gti_device *device, void *event);
    gt_status (*event_record)(gti_device *device, void *event, void *native);
    gt_status (*event_wait)(gti_device *device, void *event, void *native);
    gt_status (*event_query)(gti_device *device, void *event, bool *done);
    gt_status (*copy_to_host)(gti_device *device, void *native, void *host, const void *src,
                              size_t bytes); /* waits */
    gt_status (*copy_from_host)(gti_device *device, void *native, void *dst, const void *host,
                                size_t bytes); /* host bytes are taken before it returns */
    /* Waits on the host, from any thread. */
    gt_status (*event_synchronize)(gti_device *device, void *event);
    /* One function per operation, GTI_OP_COUNT of them. */
    const gti_op_fn *(*ops)(gti_device *device);
} gti_backend;

extern const gti_backend gti_backend_cpu;
extern const gti_backend gti_backend_guarded;

/* Looks the operation up, answers GT_ERR_UNSUPPORTED where the backend has none, submits it. stream
 * NULL = compute stream. Called as GTI_RUN(ctx, stream, layernorm_fwd, &args). */
gt_status gti_dispatch(gt_context *ctx, gt_stream *stream, gti_op op, const void *args, size_t size,
                       int tensors);
#define GTI_RUN(ctx, stream, name, args)                                                           \
    gti_dispatch((ctx), (stream), GTI_OP_##name, (args), sizeof(struct gti_##name##_args),         \
                 gti_op_tensors[GTI_OP_##name])
extern const int gti_op_tensors[GTI_OP_COUNT];
extern const char *const gti_op_names[GTI_OP_COUNT];

size_t gti_context_memory(const gt_context *ctx);

/* Host address of a tensor's data for the communication layer (identity on the cpu and for tensors
 * with device cpu). */
void *gti_host_address(gt_context *ctx, const gt_tensor *t);

#endif
