/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void gti_format_count(double value, char *out, size_t size)
{
    static const char units[] = " kMGT";
    int unit = 0;
    while (fabs(value) >= 999.5 && unit < 4) {
        value /= 1000;
        unit++;
    }
    int digits = fabs(value) < 9.995 ? 2 : fabs(value) < 99.95 ? 1 : 0;
    if (unit == 0) {
        snprintf(out, size, "%.*f", digits > 0 && value != floor(value) ? digits : 0, value);
    } else {
        snprintf(out, size, "%.*f%c", digits, value, units[unit]);
    }
}

void gti_format_duration(double seconds, char *out, size_t size)
{
    if (!(seconds >= 0) || seconds > 1e9) {
        snprintf(out, size, "?");
        return;
    }
    long s = lround(seconds);
    if (s < 3600) {
        snprintf(out, size, "%ld:%02ld", s / 60, s % 60);
    } else if (s < 86400) {
        snprintf(out, size, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    } else {
        snprintf(out, size, "%ldd %02ldh", s / 86400, s / 3600 % 24);
    }
}

static int digits_of(int64_t n)
{
    int digits = 1;
    while (n >= 10) {
        n /= 10;
        digits++;
    }
    return digits;
}

typedef struct field {
    char text[48];
} field;

static int make_fields(const gti_progress *p, field f[8])
{
    int n = 0;
    char number[32];
    if (p->total > 0) {
        snprintf(f[n++].text, sizeof f[0].text, "step %*lld/%lld", digits_of(p->total),
                 (long long)p->step, (long long)p->total);
    } else {
        snprintf(f[n++].text, sizeof f[0].text, "step %6lld", (long long)p->step);
    }
    snprintf(f[n++].text, sizeof f[0].text, "loss %7.4f", p->loss);
    if (p->tokens_per_s > 0) {
        gti_format_count(p->tokens_per_s, number, sizeof number);
        snprintf(f[n++].text, sizeof f[0].text, "%6s tok/s", number);
    }
    if (p->seconds_left >= 0) {
        gti_format_duration(p->seconds_left, number, sizeof number);
        snprintf(f[n++].text, sizeof f[0].text, "%7s left", number);
    }
    if (p->flops_share > 0) {
        snprintf(f[n++].text, sizeof f[0].text, "%3.0f%% of gemm", 100 * p->flops_share);
    }
    snprintf(f[n++].text, sizeof f[0].text, "norm %8.3g", p->gradient_norm);
    snprintf(f[n++].text, sizeof f[0].text, "lr %8.2e", p->learning_rate);
    return n;
}

void gti_progress_plain(const gti_progress *p, char out[GTI_PROGRESS_MAX])
{
    field f[8];
    int n = make_fields(p, f);
    out[0] = '\0';
    for (int i = 0; i < n; i++) {
        size_t used = strlen(out);
        snprintf(out + used, GTI_PROGRESS_MAX - used, "%s%s", i > 0 ? "  " : "", f[i].text);
    }
}

/* "[====>    ]" of `cells` between the brackets. */
static size_t draw_bar(const gti_progress *p, int cells, char *out, size_t size)
{
    double part = p->total > 0 ? (double)p->step / (double)p->total : 0;
    int full = (int)((part < 1 ? part : 1) * cells);
    size_t n = 0;
    n += (size_t)snprintf(out + n, size - n, "[%s", p->color ? "\x1b[32m" : "");
    for (int i = 0; i < cells; i++) {
        out[n++] = i < full ? '=' : i == full ? '>' : ' ';
    }
    n += (size_t)snprintf(out + n, size - n, "%s]", p->color ? "\x1b[0m" : "");
    return n;
}

void gti_progress_line(const gti_progress *p, int width, char out[GTI_PROGRESS_MAX])
{
    enum { BAR_MIN = 12, BAR_MAX = 40 };
    field f[8];
    int n = make_fields(p, f), room = width - 1 < 240 ? width - 1 : 240;
    int bar = p->total > 0 && room >= 60 ? BAR_MIN : 0, used = bar > 0 ? bar + 2 : 0, shown = 0;
    while (shown < n) {
        int more = (int)strlen(f[shown].text) + (used > 0 ? 2 : 0);
        if (used + more > room) {
            break;
        }
        used += more;
        shown++;
    }
    if (bar > 0) {
        bar += room - used < BAR_MAX - BAR_MIN ? room - used : BAR_MAX - BAR_MIN;
    }
    size_t at = bar > 0 ? draw_bar(p, bar, out, GTI_PROGRESS_MAX) : 0;
    out[at] = '\0';
    for (int i = 0; i < shown; i++) {
        at += (size_t)snprintf(out + at, GTI_PROGRESS_MAX - at, "%s%s", at > 0 ? "  " : "",
                               f[i].text);
    }
}
