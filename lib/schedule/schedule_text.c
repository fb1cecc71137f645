/* SPDX-License-Identifier: Apache-2.0
 * A schedule as a text timeline: one line per rank, time from left to right. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "schedule/schedule.h"

#define WIDEST 100000

/* "F3", with several chunks "F3a": chunk a, b, ... */
static int label_of(const gt_schedule *s, gt_action a, char text[24])
{
    static const char letters[] = {'F', 'B', 'I', 'W'};
    if (s->chunks == 1) {
        return snprintf(text, 24, "%c%d", letters[a.kind], a.microbatch);
    }
    if (s->chunks <= 26) {
        return snprintf(text, 24, "%c%d%c", letters[a.kind], a.microbatch, 'a' + a.chunk);
    }
    return snprintf(text, 24, "%c%d.%d", letters[a.kind], a.microbatch, a.chunk);
}

/* Columns per unit of time at which every label fits with a blank after it, and the end of time. */
static double natural_scale(const gti_play *p, double *end)
{
    double scale = 0;
    char text[24];
    *end = 0;
    for (int r = 0; r < p->s->ranks; r++) {
        for (int i = 0; i < p->s->lists[r].count; i++) {
            double length = p->end[r][i] - p->start[r][i];
            *end = fmax(*end, p->end[r][i]);
            if (gti_action_is_compute(p->s->lists[r].items[i].kind) && length > 0) {
                scale = fmax(scale, (label_of(p->s, p->s->lists[r].items[i], text) + 1) / length);
            }
        }
    }
    return scale;
}

static void draw_rank(const gti_play *p, int rank, double scale, char *line, int width)
{
    memset(line, '.', (size_t)width);
    for (int i = 0; i < p->s->lists[rank].count; i++) {
        gt_action a = p->s->lists[rank].items[i];
        if (!gti_action_is_compute(a.kind)) {
            continue;
        }
        char text[24];
        int n = label_of(p->s, a, text);
        int from = (int)lround(p->start[rank][i] * scale),
            to = (int)lround(p->end[rank][i] * scale);
        for (int x = from; x < to && x < width; x++) {
            line[x] = x - from < n ? text[x - from] : ' ';
        }
    }
    line[width] = 0;
}

static gt_status draw(const gti_play *p, int width, FILE *to)
{
    double end = 0, scale = natural_scale(p, &end);
    if (width > 0 && end > 0) {
        scale = width / end;
    }
    if (!(scale * end < WIDEST)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the timeline is over %d columns wide; give a width",
                       WIDEST);
    }
    int columns = (int)lround(end * scale), digits = snprintf(NULL, 0, "%d", p->s->ranks - 1);
    char *line = gti_schedule_calloc((size_t)columns + 1, 1, "a timeline");
    if (!line) {
        return GT_ERR_MEMORY;
    }
    for (int r = 0; r < p->s->ranks; r++) {
        draw_rank(p, r, scale, line, columns);
        fprintf(to, "rank %*d |%s|\n", digits, r, line);
    }
    free(line);
    return ferror(to) ? GT_FAIL(GT_ERR_IO, "writing the timeline failed") : GT_OK;
}

gt_status gt_schedule_print(const gt_schedule *s, const gt_stage_cost *cost, int costs, int width,
                            FILE *to)
{
    if (!to || width < 0 || width > WIDEST) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_schedule_print: no file, or width %d not in 0..%d",
                       width, WIDEST);
    }
    gti_play play;
    GT_TRY(gti_play_finished(&play, s, cost, costs));
    gt_status st = draw(&play, width, to);
    gti_play_clear(&play);
    return st;
}
