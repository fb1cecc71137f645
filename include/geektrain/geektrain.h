/* SPDX-License-Identifier: Apache-2.0
 *
 * libgeektrain: any layout gives the same training run.
 *
 * This header includes all others. Read them in this order:
 *   status.h   error codes and sentences          context.h  device, streams, memory
 *   tensor.h   views of memory                    ops.h      operations on tensors
 *   comm.h     collectives                        mesh.h     the world as pp x dp x cp x tp
 *   params.h   parameters                         block.h    blocks of a model, yours too
 *   model.h    GPT-2 and Llama blocks             optimizer.h  optimizers, yours too
 *   zero.h     sharded state                      optim.h    learning rate, loss scaler
 *   config.h   JSON configuration                 data.h     token files
 *   schedule.h pipeline schedules as data         pipeline.h their executor
 *   step.h     what a step reports                monitor.h  progress line, metrics.jsonl
 *   trainer.h  the step engine                    tensor_parallel.h  cut layers, as primitives
 * docs/ has a guide to each of the larger ones, and numerics.md on who sums what in which order.
 *
 * Conventions. Fallible calls return gt_status and write outputs only on success. gt_x_create gives
 * a handle that is yours; gt_x_destroy takes its address, accepts NULL and sets it to NULL.
 * Pointers returned by other calls are borrowed. Params structs begin with struct_size: initialise
 * them with GT_X_PARAMS_INIT (or gt_x_params_init from other languages); zero means the default.
 * Where NULL is taken for a stream it is the context's compute stream. "Collective" means that all
 * ranks of the communicator call it, in the same order.
 */
#ifndef GEEKTRAIN_GEEKTRAIN_H
#define GEEKTRAIN_GEEKTRAIN_H

#include <geektrain/status.h>
#include <geektrain/tensor.h>
#include <geektrain/context.h>
#include <geektrain/ops.h>
#include <geektrain/comm.h>
#include <geektrain/mesh.h>
#include <geektrain/params.h>
#include <geektrain/block.h>
#include <geektrain/config.h>
#include <geektrain/optim.h>
#include <geektrain/optimizer.h>
#include <geektrain/data.h>
#include <geektrain/model.h>
#include <geektrain/schedule.h>
#include <geektrain/pipeline.h>
#include <geektrain/tensor_parallel.h>
#include <geektrain/zero.h>
#include <geektrain/step.h>
#include <geektrain/monitor.h>
#include <geektrain/trainer.h>

#endif
