/* SPDX-License-Identifier: Apache-2.0
 * A schedule as an SVG picture: a lane per rank, colour by kind, shade by chunk, a legend. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "core/fail.h"
#include "core/file.h"
#include "schedule/schedule.h"

#define LANE 30        /* height of a rank's lane                        */
#define BOX 24         /* height of an action                            */
#define LEFT 64        /* room for the ranks' names                      */
#define TOP 40         /* room for the title                             */
#define NARROWEST 22.0 /* pixels of the shortest action             */
#define WIDEST 24000.0 /* pixels of the whole timeline              */

static const struct {
    const char *name;
    int red, green, blue; /* of chunk 0 */
} looks[] = {{"forward", 91, 141, 217},
             {"backward", 96, 175, 110},
             {"backward, input part", 86, 190, 180},
             {"backward, weight part", 232, 163, 66}};

/* Later chunks are lighter. */
static void colour(char text[16], gt_action_kind kind, int chunk, int chunks)
{
    double light = chunks > 1 ? 0.55 * chunk / (chunks - 1) : 0;
    snprintf(text, 16, "#%02x%02x%02x", (int)(looks[kind].red + (255 - looks[kind].red) * light),
             (int)(looks[kind].green + (255 - looks[kind].green) * light),
             (int)(looks[kind].blue + (255 - looks[kind].blue) * light));
}

static double pixels_per_unit(const gti_play *p, double *end, bool *used)
{
    double least = INFINITY;
    *end = 0;
    for (int r = 0; r < p->s->ranks; r++) {
        for (int i = 0; i < p->s->lists[r].count; i++) {
            double length = p->end[r][i] - p->start[r][i];
            gt_action_kind kind = p->s->lists[r].items[i].kind;
            *end = fmax(*end, p->end[r][i]);
            if (gti_action_is_compute(kind)) {
                used[kind] = true;
                least = length > 0 ? fmin(least, length) : least;
            }
        }
    }
    double scale = isfinite(least) ? NARROWEST / least : 1;
    return *end * scale > WIDEST ? WIDEST / *end : scale;
}

static void draw_action(FILE *f, const gti_play *p, int rank, int i, double scale)
{
    gt_action a = p->s->lists[rank].items[i];
    double x = LEFT + p->start[rank][i] * scale;
    double w = (p->end[rank][i] - p->start[rank][i]) * scale;
    int y = TOP + rank * LANE;
    char fill[16];
    if (a.kind == GT_ACTION_REDUCE) {
        fprintf(f,
                "<path d=\"M%.2f %d l-4 7 h8 z\" fill=\"#b04070\"><title>reduce of chunk %d</title>"
                "</path>\n",
                LEFT + p->end[rank][i] * scale, y + BOX - 6, a.chunk);
    }
    if (!gti_action_is_compute(a.kind)) {
        return;
    }
    colour(fill, a.kind, a.chunk, p->s->chunks);
    fprintf(f,
            "<g><title>rank %d, stage %d: %s of microbatch %d, %g to %g</title><rect x=\"%.2f\" "
            "y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" stroke=\"#fff\"/>",
            rank, gti_schedule_stage_of(p->s, rank, a), gt_action_name(a.kind), a.microbatch,
            p->start[rank][i], p->end[rank][i], x, y, w, BOX, fill);
    if (w >= 12) {
        fprintf(f, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">%d</text>", x + w / 2,
                y + BOX / 2 + 4, a.microbatch);
    }
    fputs("</g>\n", f);
}

static void draw_legend(FILE *f, const gt_schedule *s, const bool *used, int y)
{
    int x = LEFT;
    for (int k = 0; k < 4; k++) {
        for (int c = 0; used[k] && c < s->chunks && (c == 0 || s->chunks <= 4); c++) {
            char fill[16];
            colour(fill, (gt_action_kind)k, c, s->chunks);
            fprintf(f, "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" fill=\"%s\"/>\n", x, y,
                    fill);
            x += 18;
        }
        if (used[k]) {
            fprintf(f, "<text x=\"%d\" y=\"%d\">%s</text>\n", x, y + 12, looks[k].name);
            x += 24 + 7 * (int)strlen(looks[k].name);
        }
    }
    fprintf(
        f,
        "<path d=\"M%d %d l-5 9 h10 z\" fill=\"#b04070\"/><text x=\"%d\" y=\"%d\">gradients of a "
        "chunk complete</text>\n",
        x + 5, y + 2, x + 16, y + 12);
}

static void draw(FILE *f, const gti_play *p)
{
    const gt_schedule *s = p->s;
    bool used[4] = {false, false, false, false};
    double end = 0, scale = pixels_per_unit(p, &end, used), busy = 0;
    int height = TOP + s->ranks * LANE + 40;
    double width = fmax(LEFT + end * scale + 20, 900);
    for (int r = 0; r < s->ranks; r++) {
        for (int i = 0; i < s->lists[r].count; i++) {
            busy += p->end[r][i] - p->start[r][i];
        }
    }
    fprintf(
        f,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%d\" font-family=\""
        "sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
        width, height);
    fprintf(
        f,
        "<text x=\"%d\" y=\"24\" font-size=\"15\">%d ranks, %d microbatches, %d chunk%s per rank: "
        "time %g, %.1f %% idle</text>\n",
        LEFT, s->ranks, s->microbatches, s->chunks, s->chunks > 1 ? "s" : "", end,
        end > 0 ? 100 * (1 - busy / (s->ranks * end)) : 0);
    for (int r = 0; r < s->ranks; r++) {
        fprintf(f,
                "<text x=\"8\" y=\"%d\">rank %d</text><rect x=\"%d\" y=\"%d\" width=\"%.2f\" "
                "height=\"%d\" fill=\"#eee\"/>\n",
                TOP + r * LANE + BOX / 2 + 4, r, LEFT, TOP + r * LANE, end * scale, BOX);
        for (int i = 0; i < s->lists[r].count; i++) {
            draw_action(f, p, r, i, scale);
        }
    }
    draw_legend(f, s, used, TOP + s->ranks * LANE + 10);
    fputs("</svg>\n", f);
}

gt_status gt_schedule_write_svg(const gt_schedule *s, const gt_stage_cost *cost, int costs,
                                const char *path)
{
    if (!path) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_schedule_write_svg: path is NULL");
    }
    gti_play play;
    GT_TRY(gti_play_finished(&play, s, cost, costs));
    FILE *f = gti_fopen(path, "w");
    gt_status st = GT_OK;
    if (!f) {
        st = GT_FAIL(GT_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    } else {
        draw(f, &play);
        bool failed = ferror(f);
        if (fclose(f) || failed) {
            st = GT_FAIL(GT_ERR_IO, "writing %s failed: %s", path, strerror(errno));
        }
    }
    gti_play_clear(&play);
    return st;
}
