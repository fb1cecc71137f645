/* SPDX-License-Identifier: Apache-2.0
 *
 * Agreement on errors and on equal bytes, failure, statistics, ledger.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "comm/world.h"

static gt_status gather_bytes(gt_comm *comm, void *all, const void *mine, size_t size)
{
    gt_tensor in = gt_tensor_1d((void *)mine, GT_U8, (int64_t)size);
    gt_tensor out = gt_tensor_1d(all, GT_U8, (int64_t)size * comm->size);
    return gt_all_gather(comm, &out, &in, NULL, NULL);
}

/* What a rank tells of its error. */
typedef struct verdict {
    int64_t status;
    uint64_t sentence; /* hash */
} verdict;

/* GT_ERR_PEER only passes on what another rank has said. */
static bool is_own(const verdict *v)
{
    return v->status != GT_OK && v->status != GT_ERR_PEER;
}

/* The lowest rank that failed by itself, else the lowest that failed; `size` when none did. */
static int first_failed(const verdict *all, int size)
{
    int first = size;
    for (int r = size - 1; r >= 0; r--) {
        if (is_own(&all[r]) ||
            (all[r].status != GT_OK && (first == size || !is_own(&all[first])))) {
            first = r;
        }
    }
    return first;
}

/* " (rank 3 failed too)" for the lowest rank that failed by itself with another sentence. */
static void name_another(const verdict *all, int size, uint64_t sentence, char *text, size_t room)
{
    text[0] = '\0';
    for (int r = 0; r < size; r++) {
        if (is_own(&all[r]) && all[r].sentence != sentence) {
            snprintf(text, room, " (rank %d failed too)", r);
            return;
        }
    }
}

/* Everybody's verdict is known: `first` tells its sentence. */
static gt_status share_sentence(gt_comm *comm, const verdict *all, int first, const char *text)
{
    const verdict *mine = &all[comm->rank];
    bool keep = mine->status != GT_OK && (is_own(mine) || !is_own(&all[first]));
    char theirs[GTI_ERROR_MAX], another[48];
    snprintf(theirs, sizeof theirs, "%s", text);
    gt_tensor t = gt_tensor_1d(theirs, GT_U8, GTI_ERROR_MAX);
    GT_TRY(gt_broadcast(comm, &t, first, NULL, NULL));
    theirs[GTI_ERROR_MAX - 1] = '\0';
    name_another(all, comm->size, keep ? mine->sentence : all[first].sentence, another,
                 sizeof another);
    if (keep) {
        return GT_FAIL((gt_status)mine->status, "%.960s%s", text, another);
    }
    return GT_FAIL(GT_ERR_PEER, "rank %d: %.940s%s", first, theirs, another);
}

gt_status gt_comm_agree(gt_comm *comm, gt_status mine)
{
    char text[GTI_ERROR_MAX];
    snprintf(text, sizeof text, "%s", mine != GT_OK ? gt_last_error() : "");
    if (comm == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "comm_agree: the communicator is NULL");
    }
    verdict *all = calloc((size_t)comm->size, sizeof *all);
    if (all == NULL) {
        return gt_comm_fail(
            comm, mine != GT_OK
                      ? gti_fail_text(mine, text)
                      : GT_FAIL(GT_ERR_MEMORY, "no memory to agree with %d ranks", comm->size));
    }
    verdict own = {.status = mine, .sentence = XXH3_64bits(text, strlen(text))};
    gt_status st = gather_bytes(comm, all, &own, sizeof own);
    int first = st == GT_OK ? first_failed(all, comm->size) : comm->size;
    if (first < comm->size) {
        st = share_sentence(comm, all, first, text);
    }
    free(all);
    return st;
}

void gti_world_fail(gti_world *w, gt_status status)
{
    char text[GTI_ERROR_MAX];
    snprintf(text, sizeof text, "%s", gt_last_error());
    gti_world_drive(w);
    gti_world_break(w, status, text, true);
    gti_world_give_up(w);
    gti_world_let_go(w);
    gti_fail_text(status, text);
}

gt_status gt_comm_fail(gt_comm *comm, gt_status mine)
{
    if (comm != NULL && mine != GT_OK) {
        gti_world_fail(comm->world, mine);
    }
    return mine;
}

gt_status gt_comm_check_equal(gt_comm *comm, const char *what, const void *bytes, size_t size)
{
    typedef struct digest {
        uint64_t size, low, high;
    } digest;
    if (comm == NULL || what == NULL || (bytes == NULL && size > 0)) {
        return GT_FAIL(GT_ERR_ARGUMENT, "comm_check_equal: a pointer is NULL");
    }
    XXH128_hash_t hash = XXH3_128bits(bytes, size);
    digest mine = {size, hash.low64, hash.high64};
    digest *all = calloc((size_t)comm->size, sizeof *all);
    if (all == NULL) {
        return gt_comm_fail(
            comm, GT_FAIL(GT_ERR_MEMORY, "no memory to compare with %d ranks", comm->size));
    }
    gt_status st = gather_bytes(comm, all, &mine, sizeof mine);
    for (int r = 1; st == GT_OK && r < comm->size; r++) {
        if (memcmp(&all[0], &all[r], sizeof mine) != 0) {
            st = GT_FAIL(GT_ERR_MISMATCH,
                         "%s differs between ranks: rank 0 has %llu bytes with hash %016llx, rank "
                         "%d has %llu with %016llx",
                         what, (unsigned long long)all[0].size, (unsigned long long)all[0].low, r,
                         (unsigned long long)all[r].size, (unsigned long long)all[r].low);
        }
    }
    free(all);
    return st;
}

void gt_comm_get_stats(const gt_comm *comm, gt_comm_stats *out)
{
    gti_world *w = comm->world;
    pthread_mutex_lock(&w->lock);
    *out = w->stats;
    if (w->active > 0) {
        out->busy_s += gti_now() - w->busy_since;
    }
    pthread_mutex_unlock(&w->lock);
}

void gt_comm_reset_stats(gt_comm *comm)
{
    gti_world *w = comm->world;
    pthread_mutex_lock(&w->lock);
    w->stats = (gt_comm_stats){0};
    w->busy_since = gti_now();
    pthread_mutex_unlock(&w->lock);
}

int gt_comm_ledger(const gt_comm *comm, gt_ledger_entry *out, int max)
{
    gti_world *w = comm->world;
    pthread_mutex_lock(&w->lock);
    uint64_t known = comm->numbers < GTI_LEDGER_SIZE ? comm->numbers : GTI_LEDGER_SIZE;
    int n = max < (int)known ? max : (int)known;
    for (int i = 0; i < n; i++) {
        out[i] = comm->ledger[(comm->numbers - 1 - (uint64_t)i) % GTI_LEDGER_SIZE];
    }
    pthread_mutex_unlock(&w->lock);
    return n < 0 ? 0 : n;
}
