/* SPDX-License-Identifier: Apache-2.0
 * How errors are raised and passed on inside the library. */
#ifndef GTI_CORE_FAIL_H
#define GTI_CORE_FAIL_H

#include <geektrain/status.h>

/* At the origin of an error: return GT_FAIL(GT_ERR_SHAPE, "gamma has %lld, want C=%lld", …); */
/* (The value is repeated so that the compiler sees which paths fail.) */
#define GT_FAIL(status, ...) ((void)gti_fail((status), __VA_ARGS__), (gt_status)(status))

/* Straight-line code passes a failing status on unchanged. */
#define GT_TRY(call)                                                                               \
    do {                                                                                           \
        gt_status gti_try_status_ = (call);                                                        \
        if (gti_try_status_ != GT_OK) {                                                            \
            return gti_try_status_;                                                                \
        }                                                                                          \
    } while (0)

/* Our own invariants only; compiled out with NDEBUG. */
#include <assert.h>
#define GT_ASSERT(condition) assert(condition)

/* Formats the calling thread's error sentence and returns `status`. */
gt_status gti_fail(gt_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));
/* Puts "<format>: " before the sentence of a failure that is passed on; returns `status`. */
gt_status gti_fail_in(gt_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));
/* Sets the sentence from another thread's or rank's text. */
gt_status gti_fail_text(gt_status status, const char *text);

#define GTI_ERROR_MAX 1024 /* bytes of a sentence with its terminator */
/* Keeps the calling thread's sentence, which cleaning up might overwrite. */
void gti_error_copy(char text[GTI_ERROR_MAX]);

#endif
