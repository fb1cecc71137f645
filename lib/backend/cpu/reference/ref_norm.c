/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/cpu/reference/reference.h"

#include <math.h>
#include <stddef.h>

static double mean_of(const double *x, int64_t c)
{
    double sum = 0;
    for (int64_t i = 0; i < c; i++) {
        sum += x[i];
    }
    return sum / (double)c;
}

void gti_ref_bias_grad(double *db, const double *dy, int64_t n, int64_t c)
{
    for (int64_t i = 0; i < n * c; i++) {
        db[i % c] += dy[i];
    }
}

void gti_ref_layernorm_fwd(double *y, double *mean, double *rstd, const double *s,
                           const double *gamma, const double *beta, int64_t n, int64_t c,
                           double eps)
{
    for (int64_t r = 0; r < n; r++) {
        const double *x = s + r * c;
        double m = mean_of(x, c), var = 0;
        for (int64_t i = 0; i < c; i++) {
            var += (x[i] - m) * (x[i] - m) / (double)c;
        }
        double k = 1 / sqrt(var + eps);
        for (int64_t i = 0; i < c; i++) {
            y[r * c + i] = (x[i] - m) * k * gamma[i] + beta[i];
        }
        if (mean != NULL) {
            mean[r] = m;
        }
        if (rstd != NULL) {
            rstd[r] = k;
        }
    }
}

void gti_ref_layernorm_bwd(double *dx, double *dgamma, double *dbeta, const double *dy,
                           const double *dresidual, const double *x, const double *gamma,
                           const double *rstd, int64_t n, int64_t c)
{
    for (int64_t r = 0; r < n; r++) {
        double m = mean_of(x + r * c, c), g1 = 0, gh = 0;
        for (int64_t i = 0; i < c; i++) {
            double h = (x[r * c + i] - m) * rstd[r], g = dy[r * c + i] * gamma[i];
            g1 += g / (double)c;
            gh += g * h / (double)c;
            if (dgamma != NULL) {
                dgamma[i] += dy[r * c + i] * h;
            }
            if (dbeta != NULL) {
                dbeta[i] += dy[r * c + i];
            }
        }
        for (int64_t i = 0; dx != NULL && i < c; i++) {
            double h = (x[r * c + i] - m) * rstd[r], g = dy[r * c + i] * gamma[i];
            dx[r * c + i] =
                rstd[r] * (g - g1 - h * gh) + (dresidual != NULL ? dresidual[r * c + i] : 0);
        }
    }
}

void gti_ref_rmsnorm_fwd(double *y, double *rstd, const double *s, const double *gamma, int64_t n,
                         int64_t c, double eps)
{
    for (int64_t r = 0; r < n; r++) {
        double squares = 0;
        for (int64_t i = 0; i < c; i++) {
            squares += s[r * c + i] * s[r * c + i] / (double)c;
        }
        double k = 1 / sqrt(squares + eps);
        for (int64_t i = 0; i < c; i++) {
            y[r * c + i] = s[r * c + i] * k * gamma[i];
        }
        if (rstd != NULL) {
            rstd[r] = k;
        }
    }
}

void gti_ref_rmsnorm_bwd(double *dx, double *dgamma, const double *dy, const double *dresidual,
                         const double *x, const double *gamma, const double *rstd, int64_t n,
                         int64_t c)
{
    for (int64_t r = 0; r < n; r++) {
        double gh = 0;
        for (int64_t i = 0; i < c; i++) {
            double h = x[r * c + i] * rstd[r];
            gh += dy[r * c + i] * gamma[i] * h / (double)c;
            if (dgamma != NULL) {
                dgamma[i] += dy[r * c + i] * h;
            }
        }
        for (int64_t i = 0; dx != NULL && i < c; i++) {
            double h = x[r * c + i] * rstd[r];
            dx[r * c + i] = rstd[r] * (dy[r * c + i] * gamma[i] - h * gh) +
                            (dresidual != NULL ? dresidual[r * c + i] : 0);
        }
    }
}
