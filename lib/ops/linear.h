/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GTI_OPS_LINEAR_H
#define GTI_OPS_LINEAR_H

#include <geektrain/ops.h>

/* gt_linear_backward, which adds to dw, or with `unset` writes it, whatever it holds. */
gt_status gti_linear_backward(gt_context *ctx, gt_tensor *dx, gt_tensor *dw, bool unset,
                              gt_tensor *dbias, const gt_tensor *dy, const gt_tensor *x,
                              const gt_tensor *w, gt_stream *stream);

#endif
