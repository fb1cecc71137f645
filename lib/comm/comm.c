/* SPDX-License-Identifier: Apache-2.0
 *
 * The public entries: check the arguments, then submit.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/world.h"
#include "backend/backend.h"

int gt_comm_rank(const gt_comm *comm)
{
    return comm->rank;
}

int gt_comm_size(const gt_comm *comm)
{
    return comm->size;
}

const char *gt_comm_transport(const gt_comm *comm)
{
    return comm->world->transport->ops->name;
}

gt_context *gt_comm_context(const gt_comm *comm)
{
    return comm->world->ctx;
}

/* ---- arguments ---------------------------------------------------------------------------------
 */
static gt_status check_comm(const gt_comm *comm)
{
    if (comm == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "the communicator is NULL");
    }
    return gti_world_check(comm->world);
}

/* The address at which the engine finds the tensor. */
static gt_status address(const gt_comm *comm, gti_comm_op op, const char *name, const gt_tensor *t,
                         unsigned char **host)
{
    const char *call = gti_comm_op_names[op];
    *host = NULL;
    if (t == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s: %s is NULL", call, name);
    }
    if (gt_dtype_size(t->dtype) == 0) {
        return GT_FAIL(GT_ERR_DTYPE, "%s: %s has no valid dtype (%d)", call, name, (int)t->dtype);
    }
    if (gt_tensor_numel(t) == 0) {
        return GT_OK;
    }
    if (t->data == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s: %s has %lld elements but no data", call, name,
                       (long long)gt_tensor_numel(t));
    }
    *host = gti_host_address(comm->world->ctx, t);
    if (*host == NULL) {
        return GT_FAIL(GT_ERR_UNSUPPORTED, "%s: the transport cannot reach the memory of %s", call,
                       name);
    }
    return GT_OK;
}

static gt_status check_root(const gt_comm *comm, gti_comm_op op, const char *name, int rank)
{
    if (rank < 0 || rank >= comm->size) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s: %s is %d, the communicator has ranks 0 to %d",
                       gti_comm_op_names[op], name, rank, comm->size - 1);
    }
    return GT_OK;
}

static gt_status check_reduction(gti_comm_op op, gt_dtype dtype, gt_reduce_op reduce)
{
    if (reduce != GT_SUM && reduce != GT_MAX && reduce != GT_MIN) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s: %d is no reduction", gti_comm_op_names[op],
                       (int)reduce);
    }
    if (dtype == GT_U8 && reduce == GT_SUM) {
        return GT_FAIL(GT_ERR_DTYPE, "%s: u8 has max and min, no sum", gti_comm_op_names[op]);
    }
    return GT_OK;
}

/* `many` has P times the elements of `one`, and (unless any_dtype) its dtype. */
static gt_status check_slices(const gt_comm *comm, gti_comm_op op, const gt_tensor *many,
                              const char *many_name, const gt_tensor *one, const char *one_name,
                              bool any_dtype)
{
    const char *call = gti_comm_op_names[op];
    int64_t has = gt_tensor_numel(many), want = gt_tensor_numel(one) * comm->size;
    if (has != want) {
        return GT_FAIL(GT_ERR_SHAPE, "%s: %s has %lld elements, wanted %d times the %lld of %s",
                       call, many_name, (long long)has, comm->size, (long long)gt_tensor_numel(one),
                       one_name);
    }
    if (!any_dtype && many->dtype != one->dtype) {
        return GT_FAIL(GT_ERR_DTYPE, "%s: %s is %s, %s is %s", call, many_name,
                       gt_dtype_name(many->dtype), one_name, gt_dtype_name(one->dtype));
    }
    return GT_OK;
}

/* ---- submitting ----------------------------------------------------------------------------- */
/* A work, and memory for it. A rank that has none cannot take part, so all ranks are told. */
static gt_status begin(gt_work **out, gt_comm *comm, gti_comm_op op, size_t bytes)
{
    gt_status st = comm->size > 1 ? gti_plan_reserve(comm, op, bytes) : GT_OK;
    if (st == GT_OK) {
        st = gti_work_take(out, comm, op);
    }
    return st == GT_OK || comm->size == 1 ? st : gt_comm_fail(comm, st);
}

static bool is_host(const gt_tensor *t)
{
    return t != NULL && t->device.type == GT_DEVICE_CPU;
}

/* Host tensors beside a device that the host cannot reach: no stream knows of them. */
static bool beside_device(const gt_context *ctx, const gt_tensor *out, const gt_tensor *in)
{
    return is_host(out) && is_host(in) && gt_context_device(ctx).type != GT_DEVICE_CPU;
}

/* A group of one: the stream does what there is to do. */
static gt_status run_alone(gt_comm *comm, gti_comm_op op, const gt_tensor *out, const gt_tensor *in,
                           gt_stream *stream)
{
    gt_context *ctx = comm->world->ctx;
    if (in == NULL || gt_tensor_numel(in) == 0) {
        return GT_OK;
    }
    if (op == GTI_COMM_REDUCE_SCATTER_ADD) {
        struct gti_axpby_args args = {.y = *out, .x = *in, .alpha = 1, .beta = 1};
        return GTI_RUN(ctx, stream, axpby, &args);
    }
    if (in->data != out->data && beside_device(ctx, out, in)) {
        memcpy(out->data, in->data, gt_tensor_bytes(in));
    } else if (in->data != out->data) {
        struct gti_copy_args args = {.y = *out, .x = *in};
        return GTI_RUN(ctx, stream, copy, &args);
    }
    return GT_OK;
}

/* Collectives. `count` elements of `out` or, when in is given, per slice. */
static gt_status submit(gt_comm *comm, gti_comm_op op, const gt_tensor *out, const gt_tensor *in,
                        int64_t count, gt_reduce_op reduce, int root, gt_stream *stream,
                        gt_work **handle)
{
    unsigned char *to = NULL, *from = NULL;
    GT_TRY(address(comm, op, "out", out, &to));
    if (in != NULL) {
        GT_TRY(address(comm, op, "in", in, &from));
    }
    gt_dtype dtype = in != NULL ? in->dtype : out->dtype;
    if (comm->size == 1) {
        GT_TRY(run_alone(comm, op, out, in, stream));
    }
    gt_work *work = NULL;
    GT_TRY(begin(&work, comm, op, (size_t)count * gt_dtype_size(dtype)));
    work->header.dtype = (uint8_t)dtype;
    work->header.reduce = (uint8_t)reduce;
    work->header.root = root;
    work->header.count = count;
    work->in = from;
    work->out = to;
    work->on_stream = comm->size == 1;
    GT_TRY(gti_work_submit(work, stream, handle));
    if (handle == NULL && comm->size == 1 && is_host(out) &&
        gt_context_device(comm->world->ctx).type != GT_DEVICE_CPU) {
        return gt_stream_synchronize(
            stream ? stream : gt_context_stream(comm->world->ctx, GT_STREAM_COMPUTE));
    }
    return GT_OK;
}

gt_status gt_all_reduce(gt_comm *comm, gt_tensor *inout, gt_reduce_op op, gt_stream *stream,
                        gt_work **work)
{
    GT_TRY(check_comm(comm));
    if (inout == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "all_reduce: inout is NULL");
    }
    GT_TRY(check_reduction(GTI_COMM_ALL_REDUCE, inout->dtype, op));
    return submit(comm, GTI_COMM_ALL_REDUCE, inout, NULL, gt_tensor_numel(inout), op, 0, stream,
                  work);
}

static gt_status reduce_scatter(gt_comm *comm, gti_comm_op which, gt_tensor *out,
                                const gt_tensor *in, gt_reduce_op op, gt_stream *stream,
                                gt_work **work)
{
    GT_TRY(check_comm(comm));
    if (out == NULL || in == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s: %s is NULL", gti_comm_op_names[which],
                       out == NULL ? "out" : "in");
    }
    bool add = which == GTI_COMM_REDUCE_SCATTER_ADD;
    GT_TRY(check_reduction(which, in->dtype, op));
    GT_TRY(check_slices(comm, which, in, "in", out, "out", add));
    if (add && (out->dtype != GT_F32 ||
                (in->dtype != GT_F32 && in->dtype != GT_F16 && in->dtype != GT_BF16))) {
        return GT_FAIL(GT_ERR_DTYPE,
                       "reduce_scatter_add: wanted f32 out and f32, f16 or bf16 in, got %s and %s",
                       gt_dtype_name(out->dtype), gt_dtype_name(in->dtype));
    }
    return submit(comm, which, out, in, gt_tensor_numel(out), op, 0, stream, work);
}

gt_status gt_reduce_scatter(gt_comm *comm, gt_tensor *out, const gt_tensor *in, gt_reduce_op op,
                            gt_stream *stream, gt_work **work)
{
    return reduce_scatter(comm, GTI_COMM_REDUCE_SCATTER, out, in, op, stream, work);
}

gt_status gt_reduce_scatter_add(gt_comm *comm, gt_tensor *out, const gt_tensor *in,
                                gt_stream *stream, gt_work **work)
{
    return reduce_scatter(comm, GTI_COMM_REDUCE_SCATTER_ADD, out, in, GT_SUM, stream, work);
}

gt_status gt_all_gather(gt_comm *comm, gt_tensor *out, const gt_tensor *in, gt_stream *stream,
                        gt_work **work)
{
    GT_TRY(check_comm(comm));
    if (out == NULL || in == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "all_gather: %s is NULL", out == NULL ? "out" : "in");
    }
    GT_TRY(check_slices(comm, GTI_COMM_ALL_GATHER, out, "out", in, "in", false));
    return submit(comm, GTI_COMM_ALL_GATHER, out, in, gt_tensor_numel(in), GT_SUM, 0, stream, work);
}

gt_status gt_broadcast(gt_comm *comm, gt_tensor *inout, int root, gt_stream *stream, gt_work **work)
{
    GT_TRY(check_comm(comm));
    GT_TRY(check_root(comm, GTI_COMM_BROADCAST, "root", root));
    int64_t count = inout != NULL ? gt_tensor_numel(inout) : 0;
    return submit(comm, GTI_COMM_BROADCAST, inout, NULL, count, GT_SUM, root, stream, work);
}

gt_status gt_all_to_all(gt_comm *comm, gt_tensor *out, const gt_tensor *in, gt_stream *stream,
                        gt_work **work)
{
    GT_TRY(check_comm(comm));
    if (out == NULL || in == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "all_to_all: %s is NULL", out == NULL ? "out" : "in");
    }
    int64_t n = gt_tensor_numel(in);
    if (n % comm->size != 0 || gt_tensor_numel(out) != n || out->dtype != in->dtype) {
        return GT_FAIL(GT_ERR_SHAPE,
                       "all_to_all: in is %s[%lld], out %s[%lld], wanted the same, a multiple of "
                       "the %d ranks",
                       gt_dtype_name(in->dtype), (long long)n, gt_dtype_name(out->dtype),
                       (long long)gt_tensor_numel(out), comm->size);
    }
    return submit(comm, GTI_COMM_ALL_TO_ALL, out, in, n / comm->size, GT_SUM, 0, stream, work);
}

static gt_status transfer(gt_comm *comm, gti_comm_op op, const gt_tensor *t, int peer, int tag,
                          gt_stream *stream, gt_work **handle)
{
    unsigned char *data = NULL;
    GT_TRY(check_comm(comm));
    GT_TRY(check_root(comm, op, "peer", peer));
    GT_TRY(address(comm, op, "t", t, &data));
    if (tag < 0 || tag >= GTI_TAGS) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s: tag is %d, wanted 0 to %d", gti_comm_op_names[op], tag,
                       GTI_TAGS - 1);
    }
    gt_work *work = NULL;
    gt_status st = gti_work_take(&work, comm, op);
    if (st != GT_OK) {
        return comm->size == 1 ? st : gt_comm_fail(comm, st); /* the peer waits for this rank */
    }
    work->header.dtype = (uint8_t)t->dtype;
    work->header.root = peer;
    work->header.tag = tag;
    work->header.count = gt_tensor_numel(t);
    work->peer = comm->ranks[peer];
    work->in = data;
    work->out = data;
    return gti_work_submit(work, stream, handle);
}

gt_status gt_send(gt_comm *comm, const gt_tensor *t, int peer, int tag, gt_stream *stream,
                  gt_work **work)
{
    return transfer(comm, GTI_COMM_SEND, t, peer, tag, stream, work);
}

gt_status gt_recv(gt_comm *comm, gt_tensor *t, int peer, int tag, gt_stream *stream, gt_work **work)
{
    return transfer(comm, GTI_COMM_RECV, t, peer, tag, stream, work);
}

gt_status gt_barrier(gt_comm *comm)
{
    GT_TRY(check_comm(comm));
    return gti_comm_hello(comm, GTI_COMM_BARRIER, 0);
}

gt_status gti_comm_hello(gt_comm *comm, gti_comm_op op, int64_t count)
{
    if (comm->size == 1) {
        return GT_OK;
    }
    gt_work *work = NULL;
    GT_TRY(begin(&work, comm, op, 0));
    work->header.count = count;
    return gti_work_submit(work, NULL, NULL);
}

/* ---- handles -----------------------------------------------------------------------------------
 */
gt_status gt_work_wait(gt_work **work, gt_stream *stream)
{
    if (work == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "work_wait: the address of the handle is NULL");
    }
    if (*work == NULL) {
        return GT_OK;
    }
    gt_work *done = *work;
    *work = NULL;
    gt_status st = GT_OK;
    if (done->on_stream) {
        gt_context *ctx = done->comm->world->ctx;
        st =
            gt_event_wait(done->event, stream ? stream : gt_context_stream(ctx, GT_STREAM_COMPUTE));
    }
    gt_status finished = gti_work_finish(done);
    return st != GT_OK ? st : finished;
}

gt_status gt_work_test(gt_work *work, bool *done)
{
    if (work == NULL || done == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "work_test: %s is NULL", work == NULL ? "work" : "done");
    }
    *done = gti_work_test(work);
    return GT_OK;
}
