/* SPDX-License-Identifier: Apache-2.0
 *
 * One description of an operation checks everything about it.
 *
 * An op_spec lists the operation's tensors (slots), how to call it, and its oracle in double. From
 * that op_check() derives, for every size in the standard list, every float dtype, every
 * instruction set that the machine has and the guarded device: values against the oracle, outputs
 * poisoned with NaN before, fences around every tensor, inputs unchanged after, pointers shifted by
 * one element, equal bits for 1, 2, 3 and 5 threads; and from `objective` the oracle's own
 * gradients against finite differences. Special cases go to op_check_case().
 */
#ifndef TESTS_OPS_TABLE_H
#define TESTS_OPS_TABLE_H

#include "harness.h"

#define OP_SLOTS 10

typedef enum op_role {
    OP_IN,       /* must not change                                   */
    OP_OUT,      /* overwritten                                       */
    OP_ADD,      /* added to: starts as random values                 */
    OP_REPLACED, /* read, then overwritten by the result              */
} op_role;

typedef enum op_type {
    OP_ACT,  /* the case's dtype                             */
    OP_GRAD, /* that or f32: op_case.grad_f32                */
    OP_F32,
    OP_F64,
    OP_I32,
    OP_I64,
} op_type;

/* Sizes by letter: N, C, V, T of the case, D = 2C, and digits. */
typedef struct op_slot {
    const char *name;
    op_role role;
    op_type type;
    char rows, columns;
} op_slot;

typedef struct op_case {
    int64_t n, c, v, t;
    double p[4]; /* the operation's scalars                                     */
    gt_dtype dtype;
    bool grad_f32;
    unsigned absent;         /* bit per slot: the optional tensor is not given       */
    int alias_out, alias_in; /* slot alias_out lies in alias_in's memory; equal: none */
    double factor;           /* on the dtype's tolerance; 0: 1                       */
    const char *label;
} op_case;

typedef struct op_spec {
    const char *name;
    int slots;
    op_slot slot[OP_SLOTS];
    double p[4];     /* scalars of the standard cases */
    unsigned absent; /* of the standard cases     */
    double factor;
    /* Makes inputs that are not just random (ids, targets, statistics) from those before it. */
    void (*prepare)(double **v, const op_case *c);
    gt_status (*run)(gt_context *ctx, gt_tensor *t, const op_case *c);
    /* Outputs from inputs; absent slots are NULL. */
    void (*oracle)(double **v, const op_case *c);
    /* A scalar function of the inputs, of which slot gradient[i].out is the derivative by slot
     * gradient[i].in. */
    double (*objective)(double **v, const op_case *c);
    struct {
        int out, in;
    } gradient[4];
    int gradients;
} op_spec;

/* Everything, over the standard sizes. */
void op_check(const op_spec *op);
/* One case, on every instruction set and on the guarded device. */
void op_check_case(const op_spec *op, const op_case *c);
/* The standard case of this op, to be changed. */
op_case op_case_of(const op_spec *op, int64_t n, int64_t c, gt_dtype dtype);
/* Elements of a slot. */
int64_t op_numel(const op_spec *op, int slot, const op_case *c);

#endif
