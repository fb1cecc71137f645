/* SPDX-License-Identifier: Apache-2.0
 *
 * What every CPU kernel file includes. The files of this folder are compiled once per instruction
 * set (meson.build here); GTI_ISA names it, and GTI_KERNEL(gelu_fwd) becomes
 * gti_cpu_gelu_fwd_avx512 and so on. Kernels are plain C that the compiler vectorises ("#pragma omp
 * simd"), with intrinsics only where it does not; static helpers are free to use both.
 */
#ifndef GTI_CPU_KERNEL_H
#define GTI_CPU_KERNEL_H

#include "backend/backend.h"
#include "core/fail.h"

#define GTI_JOIN_(a, b) a##_##b
#define GTI_JOIN(a, b) GTI_JOIN_(a, b)
#define GTI_KERNEL_NAME(name) GTI_JOIN(gti_cpu_##name, GTI_ISA)

#define GTI_DECLARE_KERNEL(name, tensors)                                                          \
    gt_status GTI_KERNEL_NAME(name)(gti_device * device, void *native, const void *args);
GTI_OPS(GTI_DECLARE_KERNEL)
#undef GTI_DECLARE_KERNEL

/* gt_status GTI_KERNEL(gelu_fwd) { const struct gti_gelu_fwd_args *a = raw; … } */
#define GTI_KERNEL(name)                                                                           \
    GTI_KERNEL_NAME(name)                                                                          \
    (gti_device * device __attribute__((unused)), void *native __attribute__((unused)),            \
     const void *raw)

/* Compute threads of the device: use "#pragma omp parallel for
 * num_threads(gti_cpu_threads(device))", and run small work on one thread. */
int gti_cpu_threads(const gti_device *device);

/* Whether bf16 matrix products should use AVX512_BF16's products of pairs. */
bool gti_cpu_bf16_pairs(const gti_device *device);

#endif
