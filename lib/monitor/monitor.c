/* SPDX-License-Identifier: Apache-2.0 */
#include <geektrain/monitor.h>

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/env.h"
#include "core/fail.h"
#include "core/file.h"
#include "core/params.h"
#include "monitor/metrics.h"
#include "monitor/progress.h"

struct gt_monitor {
    gt_monitor_params p;
    FILE *stream;
    bool interactive, color, line_shown;
    gti_metrics metrics;
    gti_progress progress;
    double step_s, tokens_per_step, weight; /* running means, and their weight */
    double drawn_at;
};

void gt_monitor_params_init(gt_monitor_params *params, size_t size)
{
    gti_params_init(params, size);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

gt_status gt_make_directory(const char *path)
{
    char part[GT_PATH_MAX];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part) {
        return GT_FAIL(GT_ERR_IO, "a directory's name has %zu bytes, wanted 1 to %zu", n,
                       sizeof part - 1);
    }
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0') {
            continue;
        }
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST) {
            return GT_FAIL(GT_ERR_IO, "cannot make the directory %s: %s", part, strerror(errno));
        }
    }
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        return GT_FAIL(GT_ERR_IO, "%s exists and is not a directory", path);
    }
    return access(path, W_OK) == 0
               ? GT_OK
               : GT_FAIL(GT_ERR_IO, "cannot write into %s: %s", path, strerror(errno));
}

static gt_status write_config(const char *directory, const gt_config *config)
{
    char path[GT_PATH_MAX + 16], *json = NULL;
    GT_TRY(gt_config_to_json(config, &json));
    snprintf(path, sizeof path, "%s/config.json", directory);
    errno = 0;
    FILE *f = gti_fopen(path, "w");
    bool good = f != NULL && fprintf(f, "%s\n", json) > 0;
    good = f != NULL && fclose(f) == 0 && good;
    free(json);
    return good ? GT_OK : GT_FAIL(GT_ERR_IO, "cannot write %s: %s", path, strerror(errno));
}

static gt_status open_run(gt_monitor *m)
{
    const char *directory = m->p.run_dir;
    if (directory == NULL || directory[0] == '\0') {
        return GT_OK;
    }
    GT_TRY(gt_make_directory(directory));
    if (m->p.config != NULL) {
        GT_TRY(write_config(directory, m->p.config));
    }
    return gti_metrics_open(&m->metrics, directory, m->p.first_step > 0);
}

/* mpirun gives its ranks a terminal without a size, also where its own output goes to a file. Where
 * /proc shows what the launcher writes to, that decides; COLUMNS says yes and TERM=dumb no
 * in any case. */
static bool is_terminal(FILE *stream)
{
    const char *term = gti_env(GTI_ENV_TERM);
    struct winsize size = {0};
    struct stat launcher;
    char path[64];
    if (isatty(fileno(stream)) == 0 || (term != NULL && strcmp(term, "dumb") == 0)) {
        return false;
    }
    snprintf(path, sizeof path, "/proc/%d/fd/1", (int)getppid());
    bool own = ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return own || gti_env(GTI_ENV_COLUMNS) != NULL || stat(path, &launcher) != 0 ||
           S_ISCHR(launcher.st_mode);
}

gt_status gt_monitor_create(gt_monitor **out, const gt_monitor_params *params)
{
    gt_monitor_params p;
    GT_TRY(GTI_PARAMS_COPY(&p, params, gt_monitor_params));
    gt_monitor *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no memory for a monitor");
    }
    m->p = p;
    m->stream = p.stream != NULL ? p.stream : stderr;
    bool terminal = is_terminal(m->stream);
    m->interactive = p.interactive > 0 || (p.interactive == 0 && terminal);
    m->color = p.color > 0 || (p.color == 0 && terminal && gti_env(GTI_ENV_NO_COLOR) == NULL);
    m->p.print_interval = p.print_interval > 0 ? p.print_interval : 10;
    m->progress.step = p.first_step;
    m->progress.total = p.total_steps;
    m->progress.color = m->color;
    gt_status st = open_run(m);
    m->p.config = NULL; /* borrowed only for this call */
    m->p.run_dir = NULL;
    if (st != GT_OK) {
        gt_monitor_destroy(&m);
        return st;
    }
    *out = m;
    return GT_OK;
}

static int width_of(const gt_monitor *m)
{
    struct winsize size;
    if (m->p.width > 0) {
        return m->p.width;
    }
    if (ioctl(fileno(m->stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
        return size.ws_col;
    }
    const char *columns = gti_env(GTI_ENV_COLUMNS); /* mpirun's terminals have no size */
    int width = columns != NULL ? atoi(columns) : 0;
    return width > 0 ? width : 80;
}

static void wipe(gt_monitor *m)
{
    if (m->line_shown) {
        fputs("\r\x1b[2K", m->stream);
        m->line_shown = false;
    }
}

static void draw(gt_monitor *m)
{
    char line[GTI_PROGRESS_MAX];
    if (m->interactive) {
        wipe(m);
        gti_progress_line(&m->progress, width_of(m), line);
        fputs(line, m->stream);
        m->line_shown = true;
    } else {
        gti_progress_plain(&m->progress, line);
        fprintf(m->stream, "%s\n", line);
    }
    fflush(m->stream);
}

/* Running means that forget after about twenty steps; the first step is often slow. */
static void take_in(gt_monitor *m, const gt_step_result *r)
{
    enum { MEMORY = 20 };
    gti_progress *p = &m->progress;
    double keep = p->step <= m->p.first_step + 1 ? 0 : 1 - 1.0 / MEMORY;
    m->weight = keep * m->weight + 1;
    m->step_s += ((r->seconds > 0 ? r->seconds : 0) - m->step_s) / m->weight;
    m->tokens_per_step += ((double)r->tokens - m->tokens_per_step) / m->weight;
    p->loss = r->loss;
    p->gradient_norm = r->gradient_norm;
    p->learning_rate = r->learning_rate;
    p->tokens_per_s = m->step_s > 0 ? m->tokens_per_step / m->step_s : 0;
    double rate = m->step_s > 0 ? m->p.flops_per_step / m->step_s : 0;
    if (m->p.peak_flops > 0 && rate > m->p.peak_flops) {
        m->p.peak_flops = rate; /* was measured in a slow moment: no ceiling */
    }
    p->flops_share = m->p.peak_flops > 0 ? rate / m->p.peak_flops : 0;
    p->seconds_left = p->total > 0 ? m->step_s * (double)(p->total - p->step) : -1;
}

gt_status gt_monitor_step(gt_monitor *m, const gt_step_result *result)
{
    m->progress.step++;
    take_in(m, result);
    int64_t step = m->progress.step;
    bool last = step == m->progress.total, first = step == m->p.first_step + 1;
    if (m->interactive) {
        double time = now();
        if (first || last || time - m->drawn_at > 0.05) {
            draw(m);
            m->drawn_at = time;
        }
    } else if (first || last || step % m->p.print_interval == 0) {
        draw(m);
    }
    if (result->outcome != GT_STEP_APPLIED) {
        static const char *const why[] = {"", "overflow", "non-finite gradients",
                                          "no valid tokens"};
        gt_monitor_message(m, "step %lld skipped: %s%s%s, loss scale %g", (long long)step,
                           (unsigned)result->outcome < 4 ? why[result->outcome] : "?",
                           result->offender[0] != '\0' ? " in " : "", result->offender,
                           result->loss_scale);
    }
    return gti_metrics_step(&m->metrics, step, result);
}

gt_status gt_monitor_evaluation(gt_monitor *m, double loss, int64_t tokens)
{
    gt_monitor_message(m, "step %lld  validation loss %.4f over %lld tokens",
                       (long long)m->progress.step, loss, (long long)tokens);
    return gti_metrics_evaluation(&m->metrics, m->progress.step, loss, tokens);
}

void gt_monitor_message(gt_monitor *m, const char *format, ...)
{
    bool redraw = m->line_shown;
    wipe(m);
    va_list args;
    va_start(args, format);
    vfprintf(m->stream, format, args);
    va_end(args);
    fputc('\n', m->stream);
    if (redraw) {
        draw(m);
    }
    fflush(m->stream);
}

void gt_monitor_destroy(gt_monitor **monitor)
{
    if (monitor == NULL || *monitor == NULL) {
        return;
    }
    gt_monitor *m = *monitor;
    if (m->line_shown) {
        fputc('\n', m->stream);
        fflush(m->stream);
    }
    gti_metrics_close(&m->metrics);
    free(m);
    *monitor = NULL;
}
