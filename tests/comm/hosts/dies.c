/* SPDX-License-Identifier: Apache-2.0
 * A training-like loop in which rank 1 ends as argv[1] says: kill, exit, error, late. The others
 * must end too, and say why where they can. */
#include <signal.h>
#include <unistd.h>

#include "core/fail.h"
#include "host.h"

static int report(gt_comm **comm, gt_context **ctx, int rank)
{
    fprintf(stderr, "rank %d: %s\n", rank, gt_last_error());
    gt_comm_destroy(comm);
    gt_context_destroy(ctx);
    return 3;
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    gt_context *ctx = NULL;
    gt_comm *comm = NULL;
    gt_comm_params p = GT_COMM_PARAMS_INIT;
    p.timeout_s = strcmp(how, "late") == 0 ? 1 : 600;
    CHECK(gt_context_create(&ctx, NULL) == GT_OK);
    CHECK(gt_comm_create(&comm, ctx, &p) == GT_OK);
    int rank = gt_comm_rank(comm);
    static float data[1000000];
    gt_tensor t = gt_tensor_1d(data, GT_F32, 1000000);
    for (int step = 0; step < 5; step++) {
        if (step == 3 && rank == 1 && strcmp(how, "kill") == 0) {
            kill(getpid(), SIGKILL);
        } else if (step == 3 && rank == 1 && strcmp(how, "exit") == 0) {
            return 5;
        } else if (step == 3 && rank == 1 && strcmp(how, "late") == 0) {
            sleep(3);
        } else if (step == 3 && rank == 1 && strcmp(how, "error") == 0) {
            gt_comm_fail(comm, GT_FAIL(GT_ERR_IO, "cannot read shard 7"));
            return report(&comm, &ctx, rank);
        }
        if (gt_all_reduce(comm, &t, GT_SUM, NULL, NULL) != GT_OK) {
            return report(&comm, &ctx, rank);
        }
    }
    gt_comm_destroy(&comm);
    gt_context_destroy(&ctx);
    return 0;
}
