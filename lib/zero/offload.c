/* SPDX-License-Identifier: Apache-2.0
 *
 * Optimizer states outside device memory: in host memory, or in a memory-mapped file.
 *
 * A device that shares the host's memory (cpu) works on the mapping itself: the kernel reads ahead
 * (the next unit is announced while one is updated) and writes back behind us, which is the double
 * buffering. Any other device gets copies of one unit's states in staging memory. The file is
 * unlinked as soon as it is open, so that nothing is left behind, whatever happens.
 */
#include "zero/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/fail.h"
#include "core/file.h"

static gt_status open_file(gt_zero *zero, size_t bytes, int *out)
{
    char path[GT_PATH_MAX + 64];
    const char *dir = zero->offload_path[0] ? zero->offload_path : ".";
    snprintf(path, sizeof(path), "%s/geektrain-optimizer-XXXXXX", dir);
    int fd = gti_descriptor(mkostemp(path, O_CLOEXEC));
    if (fd < 0) {
        return GT_FAIL(GT_ERR_IO, "cannot create a file for the optimizer state in %s: %s", dir,
                       strerror(errno));
    }
    unlink(path);
    int error = posix_fallocate(fd, 0, (off_t)bytes);
    if (error != 0) {
        close(fd);
        return GT_FAIL(GT_ERR_IO, "%s has no room for %zu bytes of optimizer state: %s", dir, bytes,
                       strerror(error));
    }
    *out = fd;
    return GT_OK;
}

gt_status gti_zero_offload_open(gt_zero *zero, size_t bytes)
{
    int fd = -1;
    bytes = bytes ? bytes : 1;
    if (zero->params.offload_optimizer == GT_OFFLOAD_FILE) {
        GT_TRY(open_file(zero, bytes, &fd));
    }
    int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    int error = errno;
    if (fd >= 0) {
        close(fd);
    }
    if (map == MAP_FAILED) {
        return GT_FAIL(GT_ERR_MEMORY, "cannot map %zu bytes of optimizer state: %s", bytes,
                       strerror(error));
    }
    zero->offload = map;
    zero->offload_bytes = bytes;
    return GT_OK;
}

void gti_zero_offload_close(gt_zero *zero)
{
    for (int i = 0; i < GTI_MAX_STATES; i++) {
        gt_tensor_free(zero->ctx, &zero->staging[i]);
    }
    if (zero->offload != NULL) {
        munmap(zero->offload, zero->offload_bytes);
        zero->offload = NULL;
    }
}

gt_status gti_zero_state_alloc(gt_zero *zero, gt_tensor *out, gt_dtype dtype, int64_t count)
{
    if (zero->offload == NULL) {
        GT_TRY(gt_tensor_alloc(zero->ctx, out, GT_MEM_OPTIMIZER, dtype, 1, &count));
        return gt_fill(zero->ctx, out, 0.0, NULL);
    }
    size_t at = (zero->offload_used + 63) / 64 * 64;
    *out = gt_tensor_1d((char *)zero->offload + at, dtype, count); /* fresh mappings are zero */
    zero->offload_used = at + gt_tensor_bytes(out);
    GT_ASSERT(zero->offload_used <= zero->offload_bytes);
    return GT_OK;
}

static bool reachable(const gt_zero *zero)
{
    return zero->offload == NULL || gt_context_device(zero->ctx).type == GT_DEVICE_CPU;
}

static void advise(const gt_tensor *t, int advice)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)t->data / page * page;
    uintptr_t end = (uintptr_t)t->data + gt_tensor_bytes(t);
    (void)madvise((void *)first, end - first, advice);
}

static void states_of(const struct zero_unit *u, bool separate_master, gt_tensor out[])
{
    out[0] = separate_master ? u->master : (gt_tensor){0};
    out[1] = u->moment[0];
    out[2] = u->moment[1];
}

/* Staging memory grows to the largest unit and is then kept. */
static gt_status stage_in(gt_zero *zero, const gt_tensor *host, gt_tensor *staging, gt_tensor *out)
{
    if (gt_tensor_bytes(staging) < gt_tensor_bytes(host) || staging->data == NULL) {
        gt_tensor_free(zero->ctx, staging);
        int64_t bytes = (int64_t)gt_tensor_bytes(host);
        GT_TRY(gt_tensor_alloc(zero->ctx, staging, GT_MEM_WORKSPACE, GT_U8, 1, &bytes));
    }
    *out = *host;
    out->data = staging->data;
    out->device = staging->device;
    return gt_copy_from_host(zero->ctx, out, host->data, NULL);
}

gt_status gti_zero_offload_begin(gt_zero *zero, struct zero_unit *u,
                                 gt_tensor states[GTI_MAX_STATES])
{
    bool separate = zero->params.dtype != GT_F32;
    states_of(u, separate, states);
    if (reachable(zero)) {
        struct zero_unit *next = u + 1;
        if (zero->params.offload_optimizer == GT_OFFLOAD_FILE && next < zero->units + zero->count) {
            gt_tensor ahead[GTI_MAX_STATES];
            states_of(next, separate, ahead);
            for (int i = 0; i < GTI_MAX_STATES; i++) {
                if (ahead[i].data != NULL) {
                    advise(&ahead[i], MADV_WILLNEED);
                }
            }
        }
    } else {
        for (int i = 0; i < GTI_MAX_STATES; i++) {
            if (states[i].data != NULL) {
                gt_tensor host = states[i];
                GT_TRY(stage_in(zero, &host, &zero->staging[i], &states[i]));
            }
        }
    }
    if (!separate) {
        states[0] = u->own;
    }
    return GT_OK;
}

gt_status gti_zero_offload_end(gt_zero *zero, struct zero_unit *u, gt_tensor states[GTI_MAX_STATES])
{
    if (zero->offload == NULL) {
        return GT_OK;
    }
    gt_tensor hosts[GTI_MAX_STATES];
    states_of(u, zero->params.dtype != GT_F32, hosts);
    for (int i = 0; i < GTI_MAX_STATES; i++) {
        if (hosts[i].data == NULL) {
            continue;
        }
        if (!reachable(zero)) {
            GT_TRY(gt_copy_to_host(zero->ctx, hosts[i].data, &states[i], NULL));
        } else if (zero->params.offload_optimizer == GT_OFFLOAD_FILE) {
            size_t page = (size_t)sysconf(_SC_PAGESIZE);
            uintptr_t first = ((uintptr_t)hosts[i].data + page - 1) / page * page;
            uintptr_t end = ((uintptr_t)hosts[i].data + gt_tensor_bytes(&hosts[i])) / page * page;
            if (end > first) { /* written back soon, and out of this process's memory now */
                (void)msync((void *)first, end - first, MS_ASYNC);
                (void)madvise((void *)first, end - first, MADV_DONTNEED);
            }
        }
    }
    return GT_OK;
}
