/* SPDX-License-Identifier: Apache-2.0
 * GPipe, 1F1B and interleaved 1F1B: order of the compute actions. */
#include <string.h>

#include "core/fail.h"
#include "schedule/schedule.h"

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Groups of microbatches that go through one chunk after the other: at least as many as ranks, so
 * that the pipeline stays full, and as even as can be, so that any number will do. */
static int groups(const gt_schedule *s)
{
    int n = s->microbatches / s->ranks;
    return n > 1 ? n : 1;
}

/* Microbatch and chunk of a rank's forward number q. The first groups may have one more. */
static void virtual_forward(const gt_schedule *s, int q, int *microbatch, int *chunk)
{
    int n = groups(s), size = s->microbatches / n, larger = s->microbatches % n;
    int first = 0, in_larger = larger * (size + 1) * s->chunks;
    if (q < in_larger) {
        size++;
    } else {
        q -= in_larger;
        first = larger * (size + 1);
    }
    int group = q / (size * s->chunks);
    q -= group * size * s->chunks;
    *chunk = q / size;
    *microbatch = first + group * size + q % size;
}

static gt_status add_forward(gt_schedule *s, int rank, int q)
{
    int microbatch, chunk;
    virtual_forward(s, q, &microbatch, &chunk);
    return gti_schedule_add(s, rank, GT_ACTION_FORWARD, microbatch, chunk);
}

static gt_status add_backward(gt_schedule *s, int rank, int q)
{
    int microbatch, chunk;
    virtual_forward(s, q, &microbatch, &chunk);
    return gti_schedule_add(s, rank, GT_ACTION_BACKWARD, microbatch, s->chunks - 1 - chunk);
}

/* `warmup` forwards, then a forward and a backward in turn, then the backwards that are left. */
static gt_status add_rank(gt_schedule *s, int rank, int warmup)
{
    int total = s->microbatches * s->chunks, forward = 0, backward = 0;
    while (forward < least(warmup, total)) {
        GT_TRY(add_forward(s, rank, forward++));
    }
    while (backward < total) {
        if (forward < total) {
            GT_TRY(add_forward(s, rank, forward++));
        }
        GT_TRY(add_backward(s, rank, backward++));
    }
    return GT_OK;
}

gt_status gti_generate_gpipe(gt_schedule *s)
{
    for (int r = 0; r < s->ranks; r++) {
        GT_TRY(add_rank(s, r, s->microbatches * s->chunks));
    }
    return GT_OK;
}

/* Stages from here to the last one. */
static int distance(const gt_schedule *s, int stage)
{
    int n = 0;
    while (s->next[stage] >= 0) {
        stage = s->next[stage];
        n++;
    }
    return n;
}

gt_status gti_generate_1f1b(gt_schedule *s)
{
    for (int r = 0; r < s->ranks; r++) {
        GT_TRY(add_rank(s, r, distance(s, s->stage[r])));
    }
    return GT_OK;
}

gt_status gti_generate_interleaved(gt_schedule *s)
{
    int p = s->ranks, n = groups(s), largest = (s->microbatches + n - 1) / n;
    int size = largest > p ? largest : p;
    for (int r = 0; r < p; r++) {
        int warmup = s->chunks == 1 ? p - 1 - r : 2 * (p - 1 - r) + (s->chunks - 1) * size;
        GT_TRY(add_rank(s, r, warmup));
    }
    return GT_OK;
}

/* In one order for all ranks: by groups of as many microbatches as ranks, by stage, by microbatch.
 */
static gt_status add_forwards(gt_schedule *s)
{
    for (int first = 0; first < s->microbatches; first += s->ranks) {
        int last = least(first + s->ranks, s->microbatches);
        for (int stage = 0; stage < s->stages; stage++) {
            for (int m = first; m < last; m++) {
                GT_TRY(gti_schedule_add(s, s->stage_rank[stage], GT_ACTION_FORWARD, m,
                                        s->stage_chunk[stage]));
            }
        }
    }
    return GT_OK;
}

gt_status gti_generate_forward(gt_schedule **out, const gt_schedule *like, int microbatches)
{
    gt_schedule *s = NULL;
    GT_TRY(gti_schedule_new(&s, "forward", like->ranks, microbatches, like->chunks, like->stage,
                            like->chunks == 1 ? like->next : NULL));
    s->forward_only = true;
    gt_status st = add_forwards(s);
    if (st == GT_OK) {
        st = gti_schedule_finish(s);
    }
    if (st != GT_OK) {
        gt_schedule_destroy(&s);
        return st;
    }
    *out = s;
    return GT_OK;
}

void gt_schedule_params_init(gt_schedule_params *params, size_t size)
{
    memset(params, 0, size);
    params->struct_size = size;
}

/* Copies what the caller's struct has, zeros for newer fields. */
static gt_schedule_params complete(const gt_schedule_params *given)
{
    gt_schedule_params p = GT_SCHEDULE_PARAMS_INIT;
    size_t size = given->struct_size < sizeof(p) ? given->struct_size : sizeof(p);
    memcpy(&p, given, size);
    p.name = p.name ? p.name : "1f1b";
    return p;
}

/* The schedules of plain lists, which all start from an empty schedule. */
static gt_status create_list(gt_schedule **out, const gt_schedule_params *p,
                             gt_status (*generate)(gt_schedule *), int least_chunks,
                             int most_chunks)
{
    int chunks = p->chunks ? p->chunks : least_chunks;
    if (chunks > most_chunks) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "schedule %s has at most %d chunk per rank, got %d (interleaved, gpipe and "
                       "zb-v take more)",
                       p->name, most_chunks, chunks);
    }
    gt_schedule *s = NULL;
    GT_TRY(gti_schedule_new(&s, p->name, p->ranks, p->microbatches, chunks, NULL, p->next));
    gt_status st = generate(s);
    if (st == GT_OK) {
        st = gti_schedule_finish(s);
    }
    if (st != GT_OK) {
        gt_schedule_destroy(&s);
        return st;
    }
    *out = s;
    return GT_OK;
}

static gt_status create_named(gt_schedule **out, const gt_schedule_params *p)
{
    if (!strcmp(p->name, "gpipe")) {
        return create_list(out, p, gti_generate_gpipe, 1, 256);
    }
    if (!strcmp(p->name, "1f1b")) {
        return create_list(out, p, gti_generate_1f1b, 1, 1);
    }
    if (p->next) {
        return GT_FAIL(GT_ERR_CONFIG,
                       "schedule %s is for a chain of stages; for a graph of stages "
                       "take gpipe or 1f1b",
                       p->name);
    }
    if (!strcmp(p->name, "interleaved")) {
        return create_list(out, p, gti_generate_interleaved, 2, 256);
    }
    bool h1 = !strcmp(p->name, "zb-h1"), h2 = !strcmp(p->name, "zb-h2");
    if (h1 || h2) {
        if (p->chunks > 1) {
            return GT_FAIL(GT_ERR_CONFIG, "schedule %s has 1 chunk per rank, got %d", p->name,
                           p->chunks);
        }
        return gti_generate_zero_bubble(out, p->ranks, p->microbatches, h1 ? 1 : 2, p->max_live,
                                        p->cost);
    }
    if (!strcmp(p->name, "zb-v")) {
        if (p->chunks != 0 && p->chunks != 2) {
            return GT_FAIL(GT_ERR_CONFIG, "schedule zb-v has 2 chunks per rank, got %d", p->chunks);
        }
        return gti_generate_zb_v(out, p->ranks, p->microbatches, p->cost);
    }
    return GT_FAIL(
        GT_ERR_ARGUMENT,
        "unknown schedule \"%s\"; known: gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, or "
        "the path of a .csv file",
        p->name);
}

gt_status gt_schedule_create_params(gt_schedule **out, const gt_schedule_params *params)
{
    if (!out || !params) {
        return GT_FAIL(GT_ERR_ARGUMENT, "gt_schedule_create_params: out or params is NULL");
    }
    gt_schedule_params p = complete(params);
    if (strchr(p.name, '.') || strchr(p.name, '/')) {
        return gti_schedule_read(out, &p);
    }
    p.ranks = p.ranks ? p.ranks : 1;
    p.microbatches = p.microbatches ? p.microbatches : 1;
    return create_named(out, &p);
}

gt_status gt_schedule_create(gt_schedule **out, const char *name_or_path, int ranks,
                             int microbatches, int chunks)
{
    gt_schedule_params p = GT_SCHEDULE_PARAMS_INIT;
    p.name = name_or_path;
    p.ranks = ranks;
    p.microbatches = microbatches;
    p.chunks = chunks;
    return gt_schedule_create_params(out, &p);
}
