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

gt_status gt_comm_agree(gt_comm *comm, gt_status mine)
{
    char text[GTI_ERROR_MAX];
    snprintf(text, sizeof text, "%s", mine != GT_OK ? gt_last_error() : "");
    if (comm == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "comm_agree: the communicator is NULL");
    }
    int32_t *statuses = calloc((size_t)comm->size, sizeof *statuses);
    if (statuses == NULL) {
        return gt_comm_fail(comm,
                            GT_FAIL(GT_ERR_MEMORY, "no memory to agree with %d ranks", comm->size));
    }
    int32_t own = mine;
    gt_status st = gather_bytes(comm, statuses, &own, sizeof own);
    int failed = 0;
    while (st == GT_OK && failed < comm->size && statuses[failed] == GT_OK) {
        failed++;
    }
    free(statuses);
    if (st != GT_OK || failed == comm->size) {
        return st;
    }
    char theirs[GTI_ERROR_MAX];
    memcpy(theirs, text, sizeof theirs);
    gt_tensor t = gt_tensor_1d(theirs, GT_U8, GTI_ERROR_MAX);
    GT_TRY(gt_broadcast(comm, &t, failed, NULL, NULL));
    if (mine != GT_OK) {
        return gti_fail_text(mine, text);
    }
    theirs[GTI_ERROR_MAX - 1] = '\0';
    return GT_FAIL(GT_ERR_PEER, "rank %d: %s", failed, theirs);
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
