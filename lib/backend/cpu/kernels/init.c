/* SPDX-License-Identifier: Apache-2.0
 *
 * Initial values at global element indices. The values are those of core/philox.h's scalar
 * functions, on every instruction set; mean + std * z is formed in double, where it is exact up to
 * one rounding whether or not the compiler fuses it.
 */
#include "backend/cpu/kernels/range.h"
#include "core/philox.h"

static float scaled(double mean, double std, float z)
{
    return (float)(mean + std * (double)z);
}

/* Four values at global elements 4*block ... */
static void four(const struct gti_init_args *a, float out[4], uint64_t block)
{
    if (a->kind == GTI_INIT_NORMAL) {
        gti_philox_normal4(out, a->key, a->stream, block);
    } else {
        gti_philox_block r = gti_philox4(a->key, a->stream, block);
        for (int k = 0; k < 4; k++) {
            out[k] = 2.0f * gti_uniform_of_bits(r.lane[k]) - 1.0f;
        }
    }
    for (int k = 0; k < 4; k++) {
        out[k] = scaled((double)a->mean, (double)a->std, out[k]);
    }
}

/* y[n] <- values at consecutive global elements from `global` on. */
static void run(const struct gti_init_args *a, float *y, uint64_t global, size_t n)
{
    float values[4];
    for (size_t i = 0; i < n;) {
        uint64_t skip = global % 4;
        four(a, values, global / 4);
        for (uint64_t k = skip; k < 4 && i < n; k++, i++) {
            y[i] = values[k];
        }
        global += 4 - skip;
    }
}

/* The global index of an element of the local tensor, and how many follow it contiguously. */
static uint64_t global_of(const struct gti_init_args *a, int64_t local, size_t *contiguous)
{
    int64_t stripe = a->axis_local * a->inner;
    int64_t outer = local / stripe, within = local % stripe;
    *contiguous = (size_t)(stripe - within);
    return (uint64_t)((outer * a->axis_global + a->axis_first) * a->inner + within);
}

static void init_range(const void *args, size_t first, size_t count)
{
    const struct gti_init_args *a = args;
    float buffer[GTI_CHUNK];
    GTI_FOR_CHUNKS(i, c, first, count)
    {
        float *y = a->y.dtype == GT_F32 ? (float *)a->y.data + i : buffer;
        for (size_t done = 0; done < c;) {
            size_t contiguous;
            uint64_t global = global_of(a, a->offset + (int64_t)(i + done), &contiguous);
            size_t n = contiguous < c - done ? contiguous : c - done;
            run(a, y + done, global, n);
            done += n;
        }
        if (y == buffer) {
            gti_store_f32(a->y.data, buffer, a->y.dtype, i, c);
        }
    }
}

static void constant_range(const void *args, size_t first, size_t count)
{
    const struct gti_init_args *a = args;
    float buffer[GTI_CHUNK];
    for (size_t k = 0; k < GTI_CHUNK; k++) {
        buffer[k] = a->mean;
    }
    GTI_FOR_CHUNKS(i, c, first, count)
    {
        gti_store_f32(a->y.data, buffer, a->y.dtype, i, c);
    }
}

gt_status GTI_KERNEL(init)
{
    const struct gti_init_args *a = raw;
    size_t n = (size_t)gt_tensor_numel(&a->y);
    gti_for_ranges(device, n, a->kind == GTI_INIT_CONSTANT ? constant_range : init_range, a);
    return GT_OK;
}
