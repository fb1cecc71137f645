/* SPDX-License-Identifier: Apache-2.0
 *
 * Status codes and the error sentence.
 *
 * Every fallible function of libgeektrain returns a gt_status: GT_OK (0) or one of the negative,
 * pinned values below. The place where an error arises writes one sentence saying what was got and
 * what was wanted; gt_last_error() returns it. Outputs are written only on success. The library
 * never exits, aborts or throws.
 */
#ifndef GEEKTRAIN_STATUS_H
#define GEEKTRAIN_STATUS_H

#include <stddef.h>

#if defined(_WIN32)
#define GT_API
#else
#define GT_API __attribute__((visibility("default")))
#endif

/* Start of every params struct, whose first field is its size; the rest is zero: defaults. */
#ifdef __cplusplus
template <class params> inline params gt_params_of_size()
{
    params p = params();
    p.struct_size = sizeof(params);
    return p;
}
/* The same for those with other defaults. */
template <class params> inline params gt_params_by(void (*init)(params *, size_t))
{
    params p = params();
    init(&p, sizeof(params));
    return p;
}
#define GT_PARAMS_INIT(type) gt_params_of_size<type>()
#else
#define GT_PARAMS_INIT(type)                                                                       \
    {                                                                                              \
        .struct_size = sizeof(type)                                                                \
    }
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum gt_status {
    GT_OK = 0,
    GT_ERR_ARGUMENT = -1,    /* a null pointer, a value out of range                              */
    GT_ERR_SHAPE = -2,       /* tensors whose shapes do not fit together                          */
    GT_ERR_DTYPE = -3,       /* a dtype the operation does not take                               */
    GT_ERR_MEMORY = -4,      /* an allocation failed                                              */
    GT_ERR_UNSUPPORTED = -5, /* the device or this build has no such operation                    */
    GT_ERR_IO = -6,          /* open, read, write, sync or rename failed                          */
    GT_ERR_FORMAT = -7,      /* a file is not what it should be: magic, version, length, token id */
    GT_ERR_CONFIG = -8,      /* a configuration key or value                                      */
    GT_ERR_COMM = -9,        /* the transport failed                                              */
    GT_ERR_MISMATCH = -10,   /* ranks disagree: configuration, files, collective or its count     */
    GT_ERR_PEER = -11,       /* another rank failed; the sentence holds its rank and its sentence */
    GT_ERR_TIMEOUT = -12,    /* a peer did not answer within the communicator's time limit        */
    GT_ERR_STATE = -13,      /* called in the wrong order                                         */
    GT_ERR_DEVICE = -14,     /* the device reported an error                                      */
    GT_ERR_INTERNAL = -99    /* a defect of this library                                          */
} gt_status;

/* The name of a code, "GT_ERR_SHAPE" for instance; never NULL. */
GT_API const char *gt_status_name(gt_status status);

/* The sentence of the last error on the calling thread; "" if there was none. The pointer stays
 * valid until the next failing call on this thread. */
GT_API const char *gt_last_error(void);

/* Sets the calling thread's sentence (printf format, at most 1023 characters are kept) and returns
 * `status`: for functions of yours that the library calls, such as those of a block, and for a rank
 * that fails outside the library before gt_comm_agree() or gt_comm_fail(). */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
GT_API gt_status
gt_set_error(gt_status status, const char *format, ...);

#ifdef __cplusplus
}
#endif
#endif
