/* SPDX-License-Identifier: Apache-2.0
 * The cpu: streams run at once, memory is host memory. */
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels/kernel.h"
#include "core/env.h"
#include "core/fail.h"
#include "core/machine.h"

#define HUGE_PAGE ((size_t)2 << 20)
#define HUGE_FROM (2 * HUGE_PAGE) /* allocations from here on are advised to use huge pages */

struct gti_device {
    const gti_op_fn *table;
    int threads;
    bool bf16_pairs;
};

static char the_stream; /* there is nothing to tell streams and events apart */
static char the_event;

#if defined(__x86_64__)
/* clang 14 has no name for it. */
static bool has_f16c(void)
{
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static bool has_avx512bf16(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}

/* AMD's does twice the work of a multiply-add per cycle, Intel's as much or (measured) half. */
static bool prefers_avx512bf16(void)
{
    return has_avx512bf16() && __builtin_cpu_is("amd");
}
#endif

static bool has_base(void)
{
    return true;
}

/* Best first; one that is not preferred must be asked for. */
static const struct isa {
    const char *name;
    const gti_op_fn *table;
    bool (*available)(void);
    bool (*preferred)(void);
    bool bf16_pairs;
} isas[] = {
#if defined(__x86_64__)
    {"avx512bf16", gti_cpu_table_avx512, has_avx512bf16, prefers_avx512bf16, true},
    {"avx512", gti_cpu_table_avx512, has_avx512, has_avx512, false},
    {"avx2", gti_cpu_table_avx2, has_avx2, has_avx2, false},
#endif
    {"base", gti_cpu_table_base, has_base, has_base, false},
};

static gt_status choose_isa(const struct isa **out)
{
    const char *wanted = gti_env(GTI_ENV_ISA);
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        if (wanted != NULL && strcmp(wanted, isas[i].name) != 0) {
            continue;
        }
        if (wanted != NULL ? isas[i].available() : isas[i].preferred()) {
            *out = &isas[i];
            return GT_OK;
        }
        if (wanted != NULL) {
            return GT_FAIL(GT_ERR_UNSUPPORTED, "GEEKTRAIN_ISA is %s, which this processor lacks",
                           wanted);
        }
    }
    return GT_FAIL(GT_ERR_ARGUMENT,
                   "GEEKTRAIN_ISA is \"%s\", want base, avx2, avx512 or avx512bf16", wanted);
}

/* What OpenMP would take; but ranks that mpirun started on this machine share its cores, since
 * threads that outnumber them spend their time waiting for each other. */
static int default_threads(void)
{
    const int threads = omp_get_max_threads();
    const char *local = gti_env(GTI_ENV_LOCAL_RANKS);
    const long ranks = local != NULL ? atol(local) : 1;
    if (ranks <= 1 || gti_env(GTI_ENV_OMP_NUM_THREADS) != NULL) {
        return threads;
    }
    const long share = sysconf(_SC_NPROCESSORS_ONLN) / ranks;
    return share < 1 ? 1 : share < threads ? (int)share : threads;
}

static gt_status cpu_create(gti_device **out, int index, int threads)
{
    if (index != 0) {
        return GT_FAIL(GT_ERR_ARGUMENT, "device is cpu:%d, want cpu or cpu:0", index);
    }
    const struct isa *isa;
    GT_TRY(choose_isa(&isa));
    gti_device *device = malloc(sizeof *device);
    if (device == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "out of host memory for a device");
    }
    device->table = isa->table;
    device->bf16_pairs = isa->bf16_pairs;
    device->threads = threads > 0 ? threads : default_threads();
    *out = device;
    return GT_OK;
}

static void cpu_destroy(gti_device *device)
{
    free(device);
}

int gti_cpu_threads(const gti_device *device)
{
    return device->threads;
}

bool gti_cpu_bf16_pairs(const gti_device *device)
{
    return device->bf16_pairs;
}

static int cpu_threads(const gti_device *device)
{
    return device->threads;
}

static size_t cpu_memory(const gti_device *device)
{
    return gti_machine_memory();
}

static gt_status cpu_alloc(gti_device *device, void **out, size_t bytes)
{
    size_t alignment = bytes >= HUGE_FROM ? HUGE_PAGE : 64;
    void *pointer;
    if (bytes > PTRDIFF_MAX - HUGE_PAGE ||
        posix_memalign(&pointer, alignment, bytes > 0 ? bytes : 1) != 0) {
        return GT_FAIL(GT_ERR_MEMORY, "out of host memory for %zu bytes", bytes);
    }
    if (bytes >= HUGE_FROM) {
        madvise(pointer, bytes & ~(HUGE_PAGE - 1), MADV_HUGEPAGE); /* advice: failing is fine */
    }
    *out = pointer;
    return GT_OK;
}

static void cpu_free(gti_device *device, void *pointer)
{
    free(pointer);
}

static void *cpu_host_address(gti_device *device, const void *pointer)
{
    return (void *)pointer;
}

static gt_status cpu_stream_create(gti_device *device, void **native)
{
    *native = &the_stream;
    return GT_OK;
}

static void cpu_handle_destroy(gti_device *device, void *handle)
{
}

static gt_status cpu_stream_synchronize(gti_device *device, void *native)
{
    return GT_OK;
}

/* BLAS libraries take the number of threads from the calling thread's setting; the caller's own is
 * put back. */
static gt_status cpu_submit(gti_device *device, void *native, gti_op op, const void *args,
                            size_t size, int tensors)
{
    int before = omp_get_max_threads();
    if (before != device->threads) {
        omp_set_num_threads(device->threads);
    }
    gt_status st = device->table[op](device, native, args);
    if (before != device->threads) {
        omp_set_num_threads(before);
    }
    return st;
}

static gt_status cpu_event_create(gti_device *device, void **event)
{
    *event = &the_event;
    return GT_OK;
}

static gt_status cpu_event_order(gti_device *device, void *event, void *native)
{
    return GT_OK;
}

static gt_status cpu_event_query(gti_device *device, void *event, bool *done)
{
    *done = true;
    return GT_OK;
}

static gt_status cpu_event_synchronize(gti_device *device, void *event)
{
    return GT_OK;
}

static gt_status cpu_copy_to_host(gti_device *device, void *native, void *host, const void *src,
                                  size_t bytes)
{
    if (bytes > 0) {
        memmove(host, src, bytes);
    }
    return GT_OK;
}

static gt_status cpu_copy_from_host(gti_device *device, void *native, void *dst, const void *host,
                                    size_t bytes)
{
    if (bytes > 0) {
        memmove(dst, host, bytes);
    }
    return GT_OK;
}

static const gti_op_fn *cpu_ops(gti_device *device)
{
    return device->table;
}

const gti_backend gti_backend_cpu = {
    .name = "cpu",
    .type = GT_DEVICE_CPU,
    .create = cpu_create,
    .destroy = cpu_destroy,
    .threads = cpu_threads,
    .memory = cpu_memory,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .host_address = cpu_host_address,
    .stream_create = cpu_stream_create,
    .stream_destroy = cpu_handle_destroy,
    .stream_synchronize = cpu_stream_synchronize,
    .submit = cpu_submit,
    .event_create = cpu_event_create,
    .event_destroy = cpu_handle_destroy,
    .event_record = cpu_event_order,
    .event_wait = cpu_event_order,
    .event_query = cpu_event_query,
    .event_synchronize = cpu_event_synchronize,
    .copy_to_host = cpu_copy_to_host,
    .copy_from_host = cpu_copy_from_host,
    .ops = cpu_ops,
};
