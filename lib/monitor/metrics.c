/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/metrics.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <string.h>

#include "core/fail.h"
#include "core/file.h"

gt_status gti_metrics_open(gti_metrics *m, const char *directory, bool append)
{
    int n = snprintf(m->path, sizeof m->path, "%s/metrics.jsonl", directory);
    if (n < 0 || (size_t)n >= sizeof m->path) {
        return GT_FAIL(GT_ERR_IO, "the run directory's name has more than %zu bytes",
                       sizeof m->path);
    }
    m->file = gti_fopen(m->path, append ? "a" : "w");
    if (m->file == NULL) {
        return GT_FAIL(GT_ERR_IO, "cannot write %s: %s", m->path, strerror(errno));
    }
    return GT_OK;
}

/* JSON knows no NaN. */
static void number(FILE *f, const char *name, double value)
{
    if (isfinite(value)) {
        fprintf(f, ", \"%s\": %.9g", name, value);
    } else {
        fprintf(f, ", \"%s\": null", name);
    }
}

static void string(FILE *f, const char *name, const char *text)
{
    fprintf(f, ", \"%s\": \"", name);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\' || c < 0x20) {
            fprintf(f, "\\u%04x", c);
        } else {
            fputc(c, f);
        }
    }
    fputc('"', f);
}

static void write_step(FILE *f, int64_t step, const gt_step_result *r)
{
    static const char *const outcomes[] = {"applied", "overflow", "nonfinite", "no_tokens"};
    fprintf(f, "{\"step\": %lld", (long long)step);
    number(f, "loss", r->loss);
    fprintf(f, ", \"tokens\": %lld", (long long)r->tokens);
    number(f, "gradient_norm", r->gradient_norm);
    number(f, "clip_factor", r->clip_factor);
    number(f, "loss_scale", r->loss_scale);
    string(f, "scaler", gt_scaler_event_name(r->scaler_event));
    number(f, "learning_rate", r->learning_rate);
    string(f, "outcome", (unsigned)r->outcome < 4 ? outcomes[r->outcome] : "unknown");
    if (r->offender[0] != '\0') {
        string(f, "offender", r->offender);
        fprintf(f, ", \"offender_rank\": %d", r->offender_rank);
    }
    fprintf(f, ", \"applied\": %lld, \"skipped\": %lld", (long long)r->applied,
            (long long)r->skipped);
    number(f, "seconds", r->seconds);
    number(f, "compute_s", r->compute_s);
    number(f, "exposed_comm_s", r->exposed_comm_s);
    number(f, "comm_busy_s", r->comm_busy_s);
    number(f, "optimizer_s", r->optimizer_s);
    number(f, "data_s", r->data_s);
    fputs("}\n", f);
}

/* The line is out when this returns, or it is an error. */
static gt_status flush(gti_metrics *m)
{
    errno = 0;
    if (fflush(m->file) != 0 || ferror(m->file)) {
        return GT_FAIL(GT_ERR_IO, "cannot write %s: %s", m->path, strerror(errno));
    }
    return GT_OK;
}

gt_status gti_metrics_step(gti_metrics *m, int64_t step, const gt_step_result *r)
{
    if (m->file == NULL) {
        return GT_OK;
    }
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c_locale == (locale_t)0) {
        return GT_FAIL(GT_ERR_MEMORY, "no memory for a locale");
    }
    locale_t before = uselocale(c_locale);
    write_step(m->file, step, r);
    uselocale(before);
    freelocale(c_locale);
    return flush(m);
}

gt_status gti_metrics_evaluation(gti_metrics *m, int64_t step, double loss, int64_t tokens)
{
    if (m->file == NULL) {
        return GT_OK;
    }
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c_locale == (locale_t)0) {
        return GT_FAIL(GT_ERR_MEMORY, "no memory for a locale");
    }
    locale_t before = uselocale(c_locale);
    fprintf(m->file, "{\"step\": %lld", (long long)step);
    number(m->file, "validation_loss", loss);
    fprintf(m->file, ", \"validation_tokens\": %lld}\n", (long long)tokens);
    uselocale(before);
    freelocale(c_locale);
    return flush(m);
}

void gti_metrics_close(gti_metrics *m)
{
    if (m->file != NULL) {
        fclose(m->file);
        m->file = NULL;
    }
}
