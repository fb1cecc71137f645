/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GTI_OPS_REDUCE_H
#define GTI_OPS_REDUCE_H

#include "backend/backend.h"

/* out = a (+, max, min) b elementwise; a has out's dtype, b that or (out f32) a 16-bit float. out
 * may be a. For data on a device; host memory: backend/host_reduce.h. */
gt_status gti_reduce(gt_context *ctx, gt_tensor *out, const gt_tensor *a, const gt_tensor *b,
                     gti_reduce_kind kind, gt_stream *stream);

#endif
