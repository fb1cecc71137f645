/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cpu/reference/reference.h"

#include <math.h>
#include <stddef.h>

#define ROOT_2_OVER_PI 0.79788456080286535588

double gti_ref_gelu(double x)
{
    /* 1 + tanh(u) = 2 / (1 + e^-2u): tanh itself would cancel for very negative u. */
    double u = ROOT_2_OVER_PI * (x + 0.044715 * x * x * x);
    return x / (1 + exp(-2 * u));
}

double gti_ref_gelu_grad(double x)
{
    double u = ROOT_2_OVER_PI * (x + 0.044715 * x * x * x);
    double du = ROOT_2_OVER_PI * (1 + 3 * 0.044715 * x * x);
    double sech = 1 / cosh(u);
    return 1 / (1 + exp(-2 * u)) + (sech > 0 ? 0.5 * x * sech * sech * du : 0);
}

double gti_ref_silu(double x)
{
    return x / (1 + exp(-x));
}

double gti_ref_silu_grad(double x)
{
    double s = 1 / (1 + exp(-x));
    return s + x * s * (1 - s);
}

void gti_ref_embedding_fwd(double *y, const double *table, const double *positions,
                           const double *ids, const double *rows, int64_t n, int64_t c,
                           int64_t first, int64_t table_rows, int64_t seq)
{
    for (int64_t r = 0; r < n; r++) {
        int64_t local = (int64_t)ids[r] - first;
        for (int64_t i = 0; i < c; i++) {
            double value = local >= 0 && local < table_rows ? table[local * c + i] : 0;
            y[r * c + i] =
                value + (positions != NULL ? positions[(int64_t)rows[r] % seq * c + i] : 0);
        }
    }
}

void gti_ref_embedding_bwd(double *dtable, double *dpositions, const double *dy, const double *ids,
                           const double *rows, int64_t n, int64_t c, int64_t first,
                           int64_t table_rows, int64_t seq)
{
    for (int64_t r = 0; r < n; r++) {
        int64_t local = (int64_t)ids[r] - first;
        for (int64_t i = 0; i < c; i++) {
            if (dtable != NULL && local >= 0 && local < table_rows) {
                dtable[local * c + i] += dy[r * c + i];
            }
            if (dpositions != NULL) {
                dpositions[(int64_t)rows[r] % seq * c + i] += dy[r * c + i];
            }
        }
    }
}
