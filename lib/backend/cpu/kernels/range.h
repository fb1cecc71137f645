/* SPDX-License-Identifier: Apache-2.0
 *
 * Flat work over the compute threads: [0, n) is cut into one contiguous range per thread, in
 * multiples of GTI_CHUNK elements, and small work stays on the calling thread.
 */
#ifndef GTI_CPU_RANGE_H
#define GTI_CPU_RANGE_H

#include <omp.h>

#include "backend/cpu/kernels/convert.h"
#include "backend/cpu/kernels/kernel.h"

#define GTI_RANGE_GRAIN ((size_t)16384) /* elements for which a second thread pays */

typedef void (*gti_range_fn)(const void *args, size_t first, size_t count);

static inline void gti_for_ranges(const gti_device *device, size_t n, gti_range_fn fn,
                                  const void *args)
{
    size_t threads = (size_t)gti_cpu_threads(device);
    threads = threads > n / GTI_RANGE_GRAIN ? n / GTI_RANGE_GRAIN : threads;
    if (threads <= 1) {
        if (n > 0) {
            fn(args, 0, n);
        }
        return;
    }
#pragma omp parallel num_threads((int)threads)
    {
        size_t parts = (size_t)omp_get_num_threads(), part = (size_t)omp_get_thread_num();
        size_t chunks = (n + GTI_CHUNK - 1) / GTI_CHUNK;
        size_t first = chunks * part / parts * GTI_CHUNK;
        size_t end = chunks * (part + 1) / parts * GTI_CHUNK;
        end = end > n ? n : end;
        if (first < end) {
            fn(args, first, end - first);
        }
    }
}

/* for each chunk [i, i + c) of [first, first + count) */
#define GTI_FOR_CHUNKS(i, c, first, count)                                                         \
    for (size_t i = (first), end_ = (first) + (count), c;                                          \
         i < end_ && (c = end_ - i < GTI_CHUNK ? end_ - i : GTI_CHUNK, true); i += GTI_CHUNK)

#endif
