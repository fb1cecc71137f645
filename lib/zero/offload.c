/* SPDX-License-Identifier: Apache-2.0
 *
 * Optimizer states outside device memory: in host memory, or in a memory-mapped file.
 *
 * A device that shares the host's memory (cpu) works on the mapping itself: the kernel reads ahead
 * (the next bucket is announced while one is updated) and writes back behind us, which is the
 * double buffering. Any other device gets copies of one bucket's states in staging memory. The file
 * is unlinked as soon as it is open, so that nothing is left behind, whatever happens.
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

gt_status gti_zero_offload_open(gt_zero *zero, struct zero_mapping *m, size_t bytes)
{
    int fd = -1;
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
    *m = (struct zero_mapping){.data = map, .bytes = bytes};
    return GT_OK;
}

void gti_zero_offload_close(struct zero_mapping *m)
{
    if (m->data != NULL) {
        munmap(m->data, m->bytes);
        *m = (struct zero_mapping){0};
    }
}

gt_status gti_zero_state_alloc(gt_zero *zero, struct zero_mapping *m, gt_tensor *out,
                               gt_dtype dtype, int64_t count)
{
    if (m->data == NULL) {
        GT_TRY(gt_tensor_alloc(zero->ctx, out, GT_MEM_OPTIMIZER, dtype, 1, &count));
        return gt_fill(zero->ctx, out, 0.0, NULL);
    }
    size_t at = (m->used + 63) / 64 * 64;
    *out = gt_tensor_1d((char *)m->data + at, dtype, count); /* fresh mappings are zero */
    m->used = at + gt_tensor_bytes(out);
    GT_ASSERT(m->used <= m->bytes);
    return GT_OK;
}

static bool on_host(const gt_zero *zero)
{
    return gt_context_device(zero->ctx).type == GT_DEVICE_CPU;
}

static bool in_file(const gt_zero *zero, const struct zero_bucket *b)
{
    return b->offload.data != NULL && zero->params.offload_optimizer == GT_OFFLOAD_FILE;
}

static void read_ahead(const struct zero_bucket *b)
{
    if (b->offload.data != NULL) {
        (void)madvise(b->offload.data, b->offload.bytes, MADV_WILLNEED);
    }
}

/* Written back soon, and out of this process's memory now. */
static void write_behind(const struct zero_bucket *b)
{
    (void)msync(b->offload.data, b->offload.bytes, MS_ASYNC);
    (void)madvise(b->offload.data, b->offload.bytes, MADV_DONTNEED);
}

/* The tensors of a bucket's states that lie in its mapping; returns how many places there are. */
static int mapped_states(const gt_zero *zero, struct zero_states *s, gt_tensor *out[])
{
    int n = 0;
    if (gti_zero_separate_master(zero)) {
        out[n++] = &s->master;
    }
    for (int i = 0; i < zero->elementwise; i++) {
        out[n++] = &s->state[i];
    }
    return n;
}

/* Staging memory grows to the largest bucket and is then kept. */
static gt_status stage_in(gt_zero *zero, gt_tensor *staging, gt_tensor *state)
{
    if (gt_tensor_bytes(staging) < gt_tensor_bytes(state) || staging->data == NULL) {
        gt_tensor_free(zero->ctx, staging);
        int64_t bytes = (int64_t)gt_tensor_bytes(state);
        GT_TRY(gt_tensor_alloc(zero->ctx, staging, GT_MEM_WORKSPACE, GT_U8, 1, &bytes));
    }
    const void *host = state->data;
    state->data = staging->data;
    state->device = staging->device;
    return gt_copy_from_host(zero->ctx, state, host, NULL);
}

gt_status gti_zero_offload_begin(gt_zero *zero, struct zero_bucket *b, struct zero_states *out)
{
    *out = b->states;
    if (b->offload.data == NULL) {
        return GT_OK;
    }
    if (on_host(zero)) {
        struct zero_unit *next = b->unit + 1;
        if (in_file(zero, b) && next < zero->units + zero->count) {
            read_ahead(&next->bucket[GTI_TRAINED]);
        }
        return GT_OK;
    }
    gt_tensor *states[1 + GT_OPTIMIZER_STATES];
    int n = mapped_states(zero, out, states);
    for (int i = 0; i < n; i++) {
        GT_TRY(stage_in(zero, &zero->staging[i], states[i]));
    }
    return GT_OK;
}

gt_status gti_zero_offload_end(gt_zero *zero, struct zero_bucket *b, struct zero_states *states)
{
    if (b->offload.data == NULL) {
        return GT_OK;
    }
    if (on_host(zero)) {
        if (in_file(zero, b)) {
            write_behind(b);
        }
        return GT_OK;
    }
    gt_tensor *staged[1 + GT_OPTIMIZER_STATES], *hosts[1 + GT_OPTIMIZER_STATES];
    int n = mapped_states(zero, states, staged);
    (void)mapped_states(zero, &b->states, hosts);
    for (int i = 0; i < n; i++) {
        GT_TRY(gt_copy_to_host(zero->ctx, hosts[i]->data, staged[i], NULL));
    }
    return GT_OK;
}
