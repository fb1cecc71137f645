/* SPDX-License-Identifier: Apache-2.0
 * Schedules as files: one line per rank, cells "<stage><kind><microbatch>" as PyTorch writes them.
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/file.h"
#include "schedule/schedule.h"

static const char *const cell_kinds[GT_ACTION_KIND_COUNT] = {
    "F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "REDUCE_GRAD"};

typedef struct row {
    int rank, stage, microbatch;
    gt_action_kind kind;
} row;

typedef struct sheet {
    const char *path;
    row *rows;
    size_t count, capacity;
    int ranks, stages, microbatches;
} sheet;

static gt_status bad_cell(const sheet *t, const char *cell)
{
    return GT_FAIL(
        GT_ERR_FORMAT,
        "%s: rank %d has the cell \"%.40s\"; want <stage><kind><microbatch> with kind F, "
        "B, I, W, SEND_F, RECV_F, SEND_B, RECV_B or REDUCE_GRAD",
        t->path, t->ranks, cell);
}

static bool number(const char **at, int *out)
{
    char *end = NULL;
    if (!isdigit((unsigned char)**at)) {
        return false;
    }
    errno = 0;
    long n = strtol(*at, &end, 10);
    if (errno || n > 1000000) {
        return false;
    }
    *at = end;
    *out = (int)n;
    return true;
}

/* The longest kind that the text starts with; KIND_COUNT: none. */
static gt_action_kind kind_at(const char *text)
{
    gt_action_kind best = GT_ACTION_KIND_COUNT;
    for (int k = 0; k < GT_ACTION_KIND_COUNT; k++) {
        size_t n = strlen(cell_kinds[k]);
        if (!strncmp(text, cell_kinds[k], n) &&
            (best == GT_ACTION_KIND_COUNT || n > strlen(cell_kinds[best]))) {
            best = (gt_action_kind)k;
        }
    }
    return best;
}

static gt_status keep(sheet *t, row r)
{
    if (t->count == t->capacity) {
        size_t capacity = t->capacity ? 2 * t->capacity : 256;
        row *rows = realloc(t->rows, capacity * sizeof(*rows));
        if (!rows) {
            return GT_FAIL(GT_ERR_MEMORY, "no memory for %zu cells of %s", capacity, t->path);
        }
        t->rows = rows;
        t->capacity = capacity;
    }
    t->rows[t->count++] = r;
    t->stages = r.stage + 1 > t->stages ? r.stage + 1 : t->stages;
    t->microbatches = r.microbatch + 1 > t->microbatches ? r.microbatch + 1 : t->microbatches;
    return GT_OK;
}

static gt_status read_cell(sheet *t, char *cell)
{
    const char *at = cell;
    row r = {.rank = t->ranks};
    if (!number(&at, &r.stage)) {
        return bad_cell(t, cell);
    }
    if (!strncmp(at, "UNSHARD", 7) || !strncmp(at, "RESHARD", 7)) {
        return GT_OK; /* where parameters are gathered is the sharding's affair here */
    }
    r.kind = kind_at(at);
    if (r.kind == GT_ACTION_KIND_COUNT) {
        return bad_cell(t, cell);
    }
    at += strlen(cell_kinds[r.kind]);
    if (!number(&at, &r.microbatch) && r.kind != GT_ACTION_REDUCE) {
        return bad_cell(t, cell);
    }
    if (*at) {
        return bad_cell(t, cell);
    }
    if (r.kind == GT_ACTION_REDUCE) {
        r.microbatch = 0;
    }
    return keep(t, r);
}

/* Takes white space and quotes off both ends. */
static char *strip(char *text)
{
    while (isspace((unsigned char)*text) || *text == '"') {
        text++;
    }
    size_t n = strlen(text);
    while (n && (isspace((unsigned char)text[n - 1]) || text[n - 1] == '"')) {
        text[--n] = 0;
    }
    return text;
}

static gt_status read_line(sheet *t, char *line)
{
    char *text = strip(line), *rest = NULL;
    if (!*text || *text == '#') {
        return GT_OK;
    }
    for (char *cell = strtok_r(text, ",", &rest); cell; cell = strtok_r(NULL, ",", &rest)) {
        cell = strip(cell);
        if (*cell) {
            GT_TRY(read_cell(t, cell));
        }
    }
    t->ranks++;
    return GT_OK;
}

static gt_status read_sheet(sheet *t)
{
    FILE *f = gti_fopen(t->path, "r");
    if (!f) {
        return GT_FAIL(GT_ERR_IO, "cannot open the schedule %s: %s", t->path, strerror(errno));
    }
    char *line = NULL;
    size_t size = 0;
    gt_status st = GT_OK;
    while (st == GT_OK && getline(&line, &size, f) >= 0) {
        st = read_line(t, line);
    }
    if (st == GT_OK && ferror(f)) {
        st = GT_FAIL(GT_ERR_IO, "cannot read the schedule %s", t->path);
    }
    free(line);
    fclose(f);
    return st;
}

static gt_status check_wanted(const sheet *t, const gt_schedule_params *p)
{
    if (!t->ranks || !t->count || t->stages % t->ranks) {
        return GT_FAIL(GT_ERR_FORMAT,
                       "%s has %d ranks (lines) and %d stages; want a whole number of "
                       "stages per rank",
                       t->path, t->ranks, t->stages);
    }
    int chunks = t->stages / t->ranks;
    if ((p->ranks && p->ranks != t->ranks) || (p->chunks && p->chunks != chunks) ||
        (p->microbatches && p->microbatches != t->microbatches)) {
        return GT_FAIL(
            GT_ERR_CONFIG,
            "%s is for %d ranks, %d chunks, %d microbatches; wanted are %d, %d, %d (0: any)",
            t->path, t->ranks, chunks, t->microbatches, p->ranks, p->chunks, p->microbatches);
    }
    return GT_OK;
}

/* stages[rank*chunks + chunk], chunks in ascending stage order; -1 in rank_of: seen nowhere. */
static gt_status place_stages(const sheet *t, int *rank_of, int *stages, int *used)
{
    int chunks = t->stages / t->ranks;
    for (int i = 0; i < t->stages; i++) {
        rank_of[i] = -1;
    }
    for (size_t i = 0; i < t->count; i++) {
        const row *r = &t->rows[i];
        if (rank_of[r->stage] >= 0 && rank_of[r->stage] != r->rank) {
            return GT_FAIL(GT_ERR_FORMAT, "%s: stage %d is on the lines of rank %d and rank %d",
                           t->path, r->stage, rank_of[r->stage], r->rank);
        }
        rank_of[r->stage] = r->rank;
    }
    for (int i = 0; i < t->stages; i++) {
        int rank = rank_of[i];
        if (rank < 0 || used[rank] == chunks) {
            return GT_FAIL(GT_ERR_FORMAT, "%s: %s stage %d; want %d stages on each line", t->path,
                           rank < 0 ? "no line has" : "too many stages on the line with", i,
                           chunks);
        }
        stages[rank * chunks + used[rank]++] = i;
    }
    return GT_OK;
}

static gt_status build(gt_schedule *s, const sheet *t)
{
    for (size_t i = 0; i < t->count; i++) {
        const row *r = &t->rows[i];
        GT_TRY(gti_schedule_add(s, r->rank, r->kind, r->microbatch, s->stage_chunk[r->stage]));
    }
    return gti_schedule_finish(s);
}

gt_status gti_schedule_read(gt_schedule **out, const gt_schedule_params *params)
{
    sheet t = {.path = params->name};
    gt_schedule *s = NULL;
    int *numbers = NULL;
    gt_status st = read_sheet(&t);
    if (st == GT_OK) {
        st = check_wanted(&t, params);
    }
    if (st == GT_OK) {
        numbers = gti_schedule_calloc(3 * (size_t)t.stages, sizeof(int), "stages");
        st = numbers ? place_stages(&t, numbers, numbers + t.stages, numbers + 2 * t.stages)
                     : GT_ERR_MEMORY;
    }
    if (st == GT_OK) {
        st = gti_schedule_new(&s, t.path, t.ranks, t.microbatches, t.stages / t.ranks,
                              numbers + t.stages, params->next);
    }
    if (st == GT_OK) {
        st = build(s, &t);
    }
    free(numbers);
    free(t.rows);
    if (st != GT_OK) {
        gt_schedule_destroy(&s);
        return st;
    }
    *out = s;
    return GT_OK;
}

static void write_rank(FILE *f, const gt_schedule *s, int rank, bool with_transfers)
{
    bool first = true;
    for (int i = 0; i < s->lists[rank].count; i++) {
        gt_action a = s->lists[rank].items[i];
        if (!with_transfers && !gti_action_is_compute(a.kind)) {
            continue;
        }
        fprintf(f, "%s%d%s", first ? "" : ",", gti_schedule_stage_of(s, rank, a),
                cell_kinds[a.kind]);
        if (a.kind != GT_ACTION_REDUCE) {
            fprintf(f, "%d", a.microbatch);
        }
        first = false;
    }
    fputc('\n', f);
}

gt_status gt_schedule_write_csv(const gt_schedule *s, const char *path, bool with_transfers)
{
    if (!s || !path) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_schedule_write_csv: schedule or path is NULL");
    }
    FILE *f = gti_fopen(path, "w");
    if (!f) {
        return GT_FAIL(GT_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    }
    for (int r = 0; r < s->ranks; r++) {
        write_rank(f, s, r, with_transfers);
    }
    bool failed = ferror(f);
    if (fclose(f) || failed) {
        return GT_FAIL(GT_ERR_IO, "writing %s failed: %s", path, strerror(errno));
    }
    return GT_OK;
}
