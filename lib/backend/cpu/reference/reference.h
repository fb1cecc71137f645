/* SPDX-License-Identifier: Apache-2.0
 *
 * Oracles: every operation as plain loops in double, for tests. Not part of the shipped library.
 *
 * Row-major dense arrays of double; optional arguments may be NULL; arguments in the order outputs,
 * inputs, sizes. Formulas are those of include/geektrain/ops.h, written the direct way, not the way
 * the kernels compute them.
 */
#ifndef GTI_CPU_REFERENCE_H
#define GTI_CPU_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

void gti_ref_bias_grad(double *db, const double *dy, int64_t n, int64_t c);

void gti_ref_layernorm_fwd(double *y, double *mean, double *rstd, const double *s,
                           const double *gamma, const double *beta, int64_t n, int64_t c,
                           double eps);
/* Takes rstd as stored, the mean from x itself (a stored mean is rounded). */
void gti_ref_layernorm_bwd(double *dx, double *dgamma, double *dbeta, const double *dy,
                           const double *dresidual, const double *x, const double *gamma,
                           const double *rstd, int64_t n, int64_t c);
void gti_ref_rmsnorm_fwd(double *y, double *rstd, const double *s, const double *gamma, int64_t n,
                         int64_t c, double eps);
void gti_ref_rmsnorm_bwd(double *dx, double *dgamma, const double *dy, const double *dresidual,
                         const double *x, const double *gamma, const double *rstd, int64_t n,
                         int64_t c);

double gti_ref_gelu(double x);
double gti_ref_gelu_grad(double x);
double gti_ref_silu(double x);
double gti_ref_silu_grad(double x);

/* table holds rows [first, first + table_rows). */
void gti_ref_embedding_fwd(double *y, const double *table, const double *positions,
                           const double *ids, const double *rows, int64_t n, int64_t c,
                           int64_t first, int64_t table_rows, int64_t seq);
void gti_ref_embedding_bwd(double *dtable, double *dpositions, const double *dy, const double *ids,
                           const double *rows, int64_t n, int64_t c, int64_t first,
                           int64_t table_rows, int64_t seq);

struct gti_ref_xent {
    double grad_scale, label_smoothing, z_loss;
    int64_t ignore_index;
};
/* Loss of one row. */
double gti_ref_xent_row(const double *logits, int64_t v, int64_t target,
                        const struct gti_ref_xent *p);
/* grad[n,v]; losses[n]; stats[2] +=. */
void gti_ref_xent(double *grad, double *losses, double *stats, const double *logits,
                  const double *targets, int64_t n, int64_t v, const struct gti_ref_xent *p);

#endif
