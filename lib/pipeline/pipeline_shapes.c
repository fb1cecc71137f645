/* SPDX-License-Identifier: Apache-2.0
 * Shapes at the stage boundaries: agreed once, by all ranks, with one and the same error. */
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "pipeline/executor.h"

/* What a rank tells of one chunk. */
typedef struct stage_note {
    gt_bundle in, out;
} stage_note;

static const char *port_text(const gt_bundle *b, int port, char text[160])
{
    if (port >= b->ports) {
        return "nothing";
    }
    const gt_shape *s = &b->shape[port];
    int n = snprintf(text, 160, "%s [", gt_dtype_name(s->dtype));
    for (int i = 0; i < s->ndim; i++) {
        n += snprintf(text + n, 160 - (size_t)n, "%s%lld", i ? ", " : "", (long long)s->dims[i]);
    }
    snprintf(text + n, 160 - (size_t)n, "]%s", b->no_gradient[port] ? " without gradient" : "");
    return text;
}

static bool same_port(const gt_bundle *a, int i, const gt_bundle *b, int k)
{
    const gt_shape *x = &a->shape[i], *y = &b->shape[k];
    if (x->dtype != y->dtype || x->ndim != y->ndim || a->no_gradient[i] != b->no_gradient[k]) {
        return false;
    }
    for (int d = 0; d < x->ndim; d++) {
        if (x->dims[d] != y->dims[d]) {
            return false;
        }
    }
    return true;
}

/* The ports that `stage` takes are those of the stages before it, one after the other. */
static gt_status check_stage(const gt_schedule *s, const stage_note *notes, int stage)
{
    const gt_bundle *in = &notes[stage].in;
    int port = 0;
    char takes[160], gives[160];
    for (int i = 0; i < s->previous_count[stage]; i++) {
        int from = s->previous[stage * GT_MAX_PORTS + i];
        const gt_bundle *out = &notes[from].out;
        for (int k = 0; k < out->ports; k++, port++) {
            if (port >= in->ports || !same_port(in, port, out, k)) {
                return GT_FAIL(
                    GT_ERR_SHAPE,
                    "port %d of stage %d (rank %d) takes %s, but stage %d (rank %d) gives "
                    "%s",
                    port, stage, s->stage_rank[stage], port_text(in, port, takes), from,
                    s->stage_rank[from], port_text(out, k, gives));
            }
        }
    }
    if (port != in->ports) {
        return GT_FAIL(GT_ERR_SHAPE,
                       "stage %d (rank %d) takes %d ports, the stages before it give %d", stage,
                       s->stage_rank[stage], in->ports, port);
    }
    if (s->next[stage] < 0 && notes[stage].out.ports) {
        return GT_FAIL(GT_ERR_SHAPE, "stage %d (rank %d) is the last one and gives %d ports", stage,
                       s->stage_rank[stage], notes[stage].out.ports);
    }
    return GT_OK;
}

/* notes of all stages, from the ranks that hold them. */
static gt_status exchange(const gt_pipeline *pl, stage_note *mine, stage_note *all)
{
    const gt_schedule *s = pl->schedule;
    size_t bytes = (size_t)pl->chunks * sizeof(*mine);
    if (s->ranks == 1) {
        memcpy(all, mine, bytes);
        return GT_OK;
    }
    const int64_t n = (int64_t)bytes, total = n * s->ranks;
    gt_tensor in = {0}, out = {0};
    gt_status st = gt_tensor_alloc(pl->ctx, &in, GT_MEM_OTHER, GT_U8, 1, &n);
    if (st == GT_OK) {
        st = gt_tensor_alloc(pl->ctx, &out, GT_MEM_OTHER, GT_U8, 1, &total);
    }
    st = gt_comm_agree(pl->comm, st);
    if (st == GT_OK) {
        st = gt_copy_from_host(pl->ctx, &in, mine, NULL);
        if (st == GT_OK) {
            st = gt_all_gather(pl->comm, &out, &in, NULL, NULL);
        }
        if (st == GT_OK) {
            st = gt_copy_to_host(pl->ctx, all, &out, NULL);
        }
        gt_comm_fail(pl->comm, st); /* the others are in the exchange or beyond it */
    }
    gt_tensor_free(pl->ctx, &in);
    gt_tensor_free(pl->ctx, &out);
    return st;
}

static void place_ports(gt_pipeline *pl, const stage_note *by_stage)
{
    const gt_schedule *s = pl->schedule;
    for (int c = 0; c < pl->chunks; c++) {
        gti_stage_info *info = &pl->stages[c];
        for (int i = 0; i < info->previous_count; i++) {
            int from = s->previous[info->stage * GT_MAX_PORTS + i];
            info->first_port[i + 1] = info->first_port[i] + by_stage[from].out.ports;
        }
    }
}

gt_status gti_pipeline_agree_shapes(gt_pipeline *pl)
{
    const gt_schedule *s = pl->schedule;
    stage_note *mine = calloc((size_t)pl->chunks, sizeof(*mine));
    stage_note *all = calloc((size_t)s->stages, sizeof(*all));
    stage_note *by_stage = calloc((size_t)s->stages, sizeof(*by_stage));
    gt_status st = GT_OK;
    if (!mine || !all || !by_stage) {
        st = GT_FAIL(GT_ERR_MEMORY, "no memory for the shapes of %d stages", s->stages);
    }
    st = pl->comm ? gt_comm_agree(pl->comm, st) : st;
    if (st == GT_OK) {
        for (int c = 0; c < pl->chunks; c++) {
            mine[c].in = pl->stages[c].in;
            mine[c].out = pl->stages[c].out;
        }
        st = exchange(pl, mine, all);
    }
    for (int i = 0; st == GT_OK && i < s->stages; i++) {
        by_stage[s->stage[i]] = all[i];
    }
    for (int stage = 0; st == GT_OK && stage < s->stages; stage++) {
        st = check_stage(s, by_stage, stage);
    }
    if (st == GT_OK) {
        place_ports(pl, by_stage);
    }
    free(mine);
    free(all);
    free(by_stage);
    return st;
}
