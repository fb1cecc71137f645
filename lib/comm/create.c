/* SPDX-License-Identifier: Apache-2.0
 *
 * Making, splitting and destroying communicators.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/world.h"
#include "core/log.h"
#include "core/params.h"

#define TIMEOUT_DEFAULT 600.0

#ifdef NDEBUG
#define CHECK_DEFAULT false
#else
#define CHECK_DEFAULT true
#endif

void gt_comm_params_init(gt_comm_params *params, size_t size)
{
    gti_params_init(params, size);
}

static gt_status make_transport(gti_transport **out, const gt_comm_params *p)
{
    const char *name = p->transport != NULL ? p->transport : "auto";
    if (strcmp(name, "auto") == 0) {
        name = p->local_world != NULL                    ? "local"
               : p->mpi_comm != NULL || gti_mpi_wanted() ? "mpi"
                                                         : "self";
    }
    if (strcmp(name, "self") == 0) {
        return gti_self_transport(out);
    }
    if (strcmp(name, "local") == 0) {
        return gti_local_transport(out, p->local_world, p->local_rank);
    }
    if (strcmp(name, "mpi") == 0) {
        return gti_mpi_transport(out, p->mpi_comm, p->timeout_s);
    }
    return GT_FAIL(GT_ERR_ARGUMENT, "transport \"%s\" is unknown; there are self, local, mpi, auto",
                   name);
}

static gt_status make_world_comm(gt_comm **out, gti_world *w, bool check)
{
    int *ranks = malloc((size_t)w->size * sizeof *ranks);
    if (ranks == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no memory for a world of %d ranks", w->size);
    }
    for (int r = 0; r < w->size; r++) {
        ranks[r] = r;
    }
    gt_status st = gti_comm_new(out, w, 0, w->rank, w->size, ranks, check);
    free(ranks);
    return st;
}

/* After the first hello everybody is there, and checks or does not: who is said to have left has
 * left an earlier world of these ranks. Nobody leaves this one before all know that, hence the
 * second. They count as one operation. */
static gt_status meet(gt_comm *comm, bool check)
{
    gti_world *w = comm->world;
    GT_TRY(gti_comm_hello(comm, GTI_COMM_CREATE, check));
    gti_world_created(w);
    GT_TRY(gti_comm_hello(comm, GTI_COMM_CREATE, check));
    pthread_mutex_lock(&w->lock);
    comm->sequence = comm->numbers = w->stats.operations = comm->size > 1;
    pthread_mutex_unlock(&w->lock);
    return GT_OK;
}

/* No world could be made of the transport, whose other ranks wait for this one. */
static void give_up(gti_transport *t, gt_status st)
{
    gti_notice notice = {.kind = GTI_NOTICE_FAILURE, .rank = t->rank, .status = st};
    gti_error_copy(notice.text);
    t->ops->notify(t, &notice);
    t->ops->destroy(t, true);
    gti_fail_text(st, notice.text);
}

gt_status gt_comm_create(gt_comm **out, gt_context *ctx, const gt_comm_params *params)
{
    gt_comm_params p;
    if (out == NULL || ctx == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "comm_create: %s is NULL", out == NULL ? "out" : "ctx");
    }
    GT_TRY(GTI_PARAMS_COPY(&p, params, gt_comm_params));
    if (!(p.timeout_s >= 0)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "timeout_s is %g, wanted 0 or more", p.timeout_s);
    }
    if (p.timeout_s == 0) {
        p.timeout_s = TIMEOUT_DEFAULT;
    }
    gti_transport *t = NULL;
    GT_TRY(make_transport(&t, &p));
    gti_world *w = NULL;
    gt_status st = gti_world_create(&w, ctx, t, p.timeout_s);
    if (st != GT_OK) {
        give_up(t, st);
        return st;
    }
    bool check = p.check > 0 || (p.check == 0 && CHECK_DEFAULT);
    gt_comm *comm = NULL;
    st = make_world_comm(&comm, w, check);
    if (st != GT_OK) {
        gti_world_fail(w, st);
        gti_world_release(w);
        return st;
    }
    st = meet(comm, check);
    if (st != GT_OK) {
        gti_world_fail(w, st);
        gt_comm_destroy(&comm);
        return st;
    }
    gt_context_set_rank(ctx, w->rank, w->size);
    if (!t->threaded && w->size > 1) {
        gti_log(ctx, GT_LOG_INFO,
                "MPI was initialised without MPI_THREAD_MULTIPLE: data moves only while a call "
                "waits");
    }
    *out = comm;
    return GT_OK;
}

void gt_comm_destroy(gt_comm **comm)
{
    if (comm != NULL && *comm != NULL) {
        gti_comm_free(*comm);
        *comm = NULL;
    }
}

/* ---- split -------------------------------------------------------------------------------------
 */
typedef struct split_entry {
    int32_t color, key;
    unsigned char ids[GTI_COMM_IDS / 8];
} split_entry;

/* The lowest id that no rank of the parent uses. Groups of other colors take the same: no rank is
 * in two of them. */
static int free_id(const split_entry *entries, int size)
{
    for (int id = 0; id < GTI_COMM_IDS; id++) {
        bool used = false;
        for (int r = 0; r < size; r++) {
            used = used || (entries[r].ids[id / 8] >> (id % 8) & 1);
        }
        if (!used) {
            return id;
        }
    }
    return -1;
}

/* World ranks of my color, ordered by key, then parent rank. */
static int members(const gt_comm *parent, const split_entry *entries, int *ranks, int *mine)
{
    int count = 0;
    const split_entry *me = &entries[parent->rank];
    for (int r = 0; r < parent->size; r++) {
        if (entries[r].color != me->color) {
            continue;
        }
        int before = 0;
        for (int s = 0; s < parent->size; s++) {
            before +=
                entries[s].color == me->color &&
                (entries[s].key < entries[r].key || (entries[s].key == entries[r].key && s < r));
        }
        ranks[before] = parent->ranks[r];
        if (r == parent->rank) {
            *mine = before;
        }
        count++;
    }
    return count;
}

static gt_status make_group(gt_comm **out, gt_comm *parent, const split_entry *entries)
{
    int id = free_id(entries, parent->size), rank = 0;
    if (id < 0) {
        return GT_FAIL(GT_ERR_STATE, "a world has at most %d communicators at a time",
                       GTI_COMM_IDS);
    }
    if (entries[parent->rank].color < 0) {
        return GT_OK;
    }
    int *ranks = malloc((size_t)parent->size * sizeof *ranks);
    if (ranks == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no memory to split %d ranks", parent->size);
    }
    int size = members(parent, entries, ranks, &rank);
    gt_status st = gti_comm_new(out, parent->world, id, rank, size, ranks, parent->check);
    free(ranks);
    return st;
}

gt_status gt_comm_split(gt_comm **out, gt_comm *parent, int color, int key)
{
    if (out == NULL || parent == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "comm_split: %s is NULL", out == NULL ? "out" : "parent");
    }
    GT_TRY(gti_world_check(parent->world));
    split_entry *entries = calloc((size_t)parent->size + 1, sizeof *entries);
    if (entries == NULL) { /* the others wait for this rank's entry */
        return gt_comm_fail(parent,
                            GT_FAIL(GT_ERR_MEMORY, "no memory to split %d ranks", parent->size));
    }
    split_entry *mine = &entries[parent->size];
    mine->color = color < 0 ? -1 : color;
    mine->key = key;
    memcpy(mine->ids, parent->world->ids, sizeof mine->ids);
    gt_tensor in = gt_tensor_1d(mine, GT_U8, (int64_t)sizeof *mine);
    gt_tensor all = gt_tensor_1d(entries, GT_U8, (int64_t)sizeof *mine * parent->size);
    gt_status st = gt_all_gather(parent, &all, &in, NULL, NULL);
    gt_comm *group = NULL;
    if (st == GT_OK) {
        st = gt_comm_agree(parent, make_group(&group, parent, entries));
    }
    free(entries);
    if (st != GT_OK) {
        gt_comm_destroy(&group);
        return st;
    }
    *out = group;
    return GT_OK;
}
