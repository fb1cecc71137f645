/* SPDX-License-Identifier: Apache-2.0
 * The guarded device: the cpu's operations, run late and on the second mapping. */
#include <stdlib.h>
#include <string.h>

#include "backend/guarded/guarded.h"
#include "core/env.h"
#include "core/fail.h"
#include "core/tensor.h"

#define MAX_QUEUES 16
#define DELAY_US 40

struct gti_device {
    gti_device *cpu; /* whose operations run */
    void *cpu_stream;
    int index; /* of the name guarded:N; seeds the delays */
    uint32_t delay_us;
    gti_guarded_map map;
    gti_guarded_board board;
    gti_guarded_queue *queues[MAX_QUEUES];
    pthread_mutex_t error_lock;
    gt_status late; /* first error of a stream that nobody has been told */
    char late_text[GTI_ERROR_MAX];
};

static const gti_backend *const cpu = &gti_backend_cpu;

static char empty_data; /* what tensors without elements point to */

/* ---- late errors ------------------------------------------------------------------------------*/
static void keep_error(gti_device *device, gt_status st)
{
    pthread_mutex_lock(&device->error_lock);
    if (device->late == GT_OK) {
        device->late = st;
        gti_error_copy(device->late_text);
    }
    pthread_mutex_unlock(&device->error_lock);
}

static gt_status take_error(gti_device *device)
{
    pthread_mutex_lock(&device->error_lock);
    gt_status st = device->late;
    if (st != GT_OK) {
        gti_fail_text(st, device->late_text);
        device->late = GT_OK;
    }
    pthread_mutex_unlock(&device->error_lock);
    return st;
}

/* ---- the device -------------------------------------------------------------------------------*/
static gt_status read_delay(uint32_t *delay_us)
{
    const char *text = gti_env(GTI_ENV_GUARDED_DELAY);
    *delay_us = DELAY_US;
    if (text != NULL) {
        char *end;
        unsigned long value = strtoul(text, &end, 10);
        if (*end != '\0' || value > 1000000) {
            return GT_FAIL(GT_ERR_ARGUMENT,
                           "GEEKTRAIN_GUARDED_DELAY is \"%s\", want 0 to 1000000 microseconds",
                           text);
        }
        *delay_us = (uint32_t)value;
    }
    return GT_OK;
}

static gt_status guarded_create(gti_device **out, int index, int threads)
{
    uint32_t delay_us;
    GT_TRY(read_delay(&delay_us));
    gti_device *device = calloc(1, sizeof *device);
    if (device == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "out of host memory for a device");
    }
    gt_status st = cpu->create(&device->cpu, 0, threads);
    if (st != GT_OK) {
        goto err_free;
    }
    st = cpu->stream_create(device->cpu, &device->cpu_stream);
    if (st != GT_OK) {
        goto err_destroy_cpu;
    }
    device->index = index;
    device->delay_us = delay_us;
    gti_guarded_map_init(&device->map);
    gti_guarded_board_init(&device->board);
    pthread_mutex_init(&device->error_lock, NULL);
    *out = device;
    return GT_OK;

err_destroy_cpu:
    cpu->destroy(device->cpu);
err_free:
    free(device);
    return st;
}

static void guarded_destroy(gti_device *device)
{
    gti_guarded_map_close(&device->map);
    gti_guarded_board_close(&device->board);
    pthread_mutex_destroy(&device->error_lock);
    cpu->stream_destroy(device->cpu, device->cpu_stream);
    cpu->destroy(device->cpu);
    free(device);
}

static int guarded_threads(const gti_device *device)
{
    return cpu->threads(device->cpu);
}

static size_t guarded_memory(const gti_device *device)
{
    return cpu->memory(device->cpu);
}

static const gti_op_fn *guarded_ops(gti_device *device)
{
    return cpu->ops(device->cpu);
}

static gt_status guarded_alloc(gti_device *device, void **out, size_t bytes)
{
    return gti_guarded_map_alloc(&device->map, out, bytes);
}

/* What is enqueued may still use the memory. */
static void guarded_free(gti_device *device, void *pointer)
{
    for (int i = 0; i < MAX_QUEUES; i++) {
        if (device->queues[i] != NULL) {
            gti_guarded_queue_drain(device->queues[i]);
        }
    }
    gti_guarded_map_free(&device->map, pointer);
}

static void *guarded_host_address(gti_device *device, const void *pointer)
{
    size_t left;
    return gti_guarded_map_find(&device->map, pointer, &left);
}

/* ---- streams ----------------------------------------------------------------------------------*/
static gt_status guarded_stream_create(gti_device *device, void **native)
{
    for (int i = 0; i < MAX_QUEUES; i++) {
        if (device->queues[i] == NULL) {
            uint64_t seed = (uint64_t)device->index << 8 | (uint64_t)i;
            GT_TRY(gti_guarded_queue_create(&device->queues[i], device, seed, device->delay_us));
            *native = device->queues[i];
            return GT_OK;
        }
    }
    return GT_FAIL(GT_ERR_UNSUPPORTED, "the guarded device has %d streams at most", MAX_QUEUES);
}

static void guarded_stream_destroy(gti_device *device, void *native)
{
    gti_guarded_queue_destroy(native);
    for (int i = 0; i < MAX_QUEUES; i++) {
        if (device->queues[i] == native) {
            device->queues[i] = NULL;
        }
    }
}

static gt_status guarded_stream_synchronize(gti_device *device, void *native)
{
    gti_guarded_queue_drain(native);
    return take_error(device);
}

/* ---- operations -------------------------------------------------------------------------------*/
typedef struct op_task {
    gti_guarded_task task;
    gti_op op;
    int tensors;
    size_t size;
    max_align_t args[];
} op_task;

static void run_op(gti_guarded_task *raw, gti_device *device)
{
    op_task *t = (op_task *)raw;
    gt_status st =
        cpu->submit(device->cpu, device->cpu_stream, t->op, t->args, t->size, t->tensors);
    if (st != GT_OK) {
        keep_error(device, st);
    }
    free(t);
}

static gt_status rewrite(gti_device *device, gt_tensor *t, gti_op op, int number)
{
    if (t->data == NULL) {
        return GT_OK;
    }
    size_t bytes = gt_tensor_bytes(t), left = 0;
    void *address = bytes == 0 ? &empty_data : gti_guarded_map_find(&device->map, t->data, &left);
    char text[GTI_TENSOR_TEXT];
    if (address == NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s: tensor %d, %s, is no memory of this context",
                       gti_op_names[op], number, gti_tensor_text(text, t));
    }
    if (bytes > left) {
        return GT_FAIL(GT_ERR_ARGUMENT, "%s: tensor %d, %s, ends %zu bytes after its allocation",
                       gti_op_names[op], number, gti_tensor_text(text, t), bytes - left);
    }
    t->data = address;
    t->device = (gt_device){.type = GT_DEVICE_CPU};
    return GT_OK;
}

static gt_status guarded_submit(gti_device *device, void *native, gti_op op, const void *args,
                                size_t size, int tensors)
{
    GT_TRY(take_error(device));
    op_task *task = malloc(sizeof *task + size);
    if (task == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "out of host memory to enqueue %s", gti_op_names[op]);
    }
    *task = (op_task){
        .task = {.run = run_op, .slow = true}, .op = op, .tensors = tensors, .size = size};
    memcpy(task->args, args, size);
    gt_tensor *t = (gt_tensor *)(void *)task->args;
    for (int i = 0; i < tensors; i++) {
        gt_status st = rewrite(device, &t[i], op, i);
        if (st != GT_OK) {
            free(task);
            return st;
        }
    }
    gti_guarded_queue_push(native, &task->task);
    return GT_OK;
}

/* ---- copies -----------------------------------------------------------------------------------*/
typedef struct copy_task {
    gti_guarded_task task;
    void *dst;
    const void *src;
    size_t bytes;
    char taken[]; /* the host's bytes, when they are the source */
} copy_task;

static void run_copy(gti_guarded_task *raw, gti_device *device)
{
    copy_task *t = (copy_task *)raw;
    memcpy(t->dst, t->src, t->bytes);
    free(t);
}

static gt_status new_copy(gti_device *device, copy_task **task, void **address, const void *pointer,
                          size_t bytes, size_t room)
{
    GT_TRY(take_error(device));
    size_t left = 0;
    void *found = gti_guarded_map_find(&device->map, pointer, &left);
    if (found == NULL || left < bytes) {
        return GT_FAIL(GT_ERR_ARGUMENT,
                       "a copy of %zu bytes at %p: %zu bytes there are this context's", bytes,
                       pointer, left);
    }
    copy_task *t = malloc(sizeof *t + room);
    if (t == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "out of host memory to copy %zu bytes", bytes);
    }
    *t = (copy_task){.task = {.run = run_copy, .slow = true}, .bytes = bytes};
    *task = t;
    *address = found;
    return GT_OK;
}

static gt_status guarded_copy_to_host(gti_device *device, void *native, void *host, const void *src,
                                      size_t bytes)
{
    if (bytes > 0) {
        copy_task *task;
        void *address;
        GT_TRY(new_copy(device, &task, &address, src, bytes, 0));
        task->src = address;
        task->dst = host;
        gti_guarded_queue_push(native, &task->task);
    }
    return guarded_stream_synchronize(device, native);
}

static gt_status guarded_copy_from_host(gti_device *device, void *native, void *dst,
                                        const void *host, size_t bytes)
{
    if (bytes == 0) {
        return GT_OK;
    }
    copy_task *task;
    void *address;
    GT_TRY(new_copy(device, &task, &address, dst, bytes, bytes));
    memcpy(task->taken, host, bytes);
    task->src = task->taken;
    task->dst = address;
    gti_guarded_queue_push(native, &task->task);
    return GT_OK;
}

/* ---- events -----------------------------------------------------------------------------------*/
typedef struct ticket_task {
    gti_guarded_task task;
    gti_guarded_ticket *ticket;
} ticket_task;

static void run_complete(gti_guarded_task *raw, gti_device *device)
{
    gti_guarded_complete(&device->board, ((ticket_task *)raw)->ticket);
    free(raw);
}

static void run_await(gti_guarded_task *raw, gti_device *device)
{
    gti_guarded_await(&device->board, ((ticket_task *)raw)->ticket);
    free(raw);
}

static gt_status guarded_event_create(gti_device *device, void **event)
{
    gti_guarded_event *e = calloc(1, sizeof *e);
    if (e == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "out of host memory for an event");
    }
    *event = e;
    return GT_OK;
}

static void guarded_event_destroy(gti_device *device, void *event)
{
    gti_guarded_event *e = event;
    gti_guarded_drop(&device->board, e->last);
    free(e);
}

static gt_status guarded_event_record(gti_device *device, void *event, void *native)
{
    ticket_task *task = malloc(sizeof *task);
    gti_guarded_ticket *ticket = task != NULL ? gti_guarded_record(&device->board, event) : NULL;
    if (ticket == NULL) {
        free(task);
        return GT_FAIL(GT_ERR_MEMORY, "out of host memory to record an event");
    }
    *task = (ticket_task){.task.run = run_complete, .ticket = ticket};
    gti_guarded_queue_push(native, &task->task);
    return GT_OK;
}

static gt_status guarded_event_wait(gti_device *device, void *event, void *native)
{
    ticket_task *task = malloc(sizeof *task);
    if (task == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "out of host memory to wait for an event");
    }
    gti_guarded_ticket *ticket = gti_guarded_hold(&device->board, event);
    if (ticket == NULL) {
        free(task);
        return GT_OK;
    }
    *task = (ticket_task){.task.run = run_await, .ticket = ticket};
    gti_guarded_queue_push(native, &task->task);
    return GT_OK;
}

static gt_status guarded_event_query(gti_device *device, void *event, bool *done)
{
    *done = gti_guarded_is_done(&device->board, event);
    return GT_OK;
}

static gt_status guarded_event_synchronize(gti_device *device, void *event)
{
    gti_guarded_ticket *ticket = gti_guarded_hold(&device->board, event);
    if (ticket != NULL) {
        gti_guarded_await(&device->board, ticket);
    }
    return GT_OK;
}

const gti_backend gti_backend_guarded = {
    .name = "guarded",
    .type = GT_DEVICE_GUARDED,
    .create = guarded_create,
    .destroy = guarded_destroy,
    .threads = guarded_threads,
    .memory = guarded_memory,
    .alloc = guarded_alloc,
    .free = guarded_free,
    .host_address = guarded_host_address,
    .stream_create = guarded_stream_create,
    .stream_destroy = guarded_stream_destroy,
    .stream_synchronize = guarded_stream_synchronize,
    .submit = guarded_submit,
    .event_create = guarded_event_create,
    .event_destroy = guarded_event_destroy,
    .event_record = guarded_event_record,
    .event_wait = guarded_event_wait,
    .event_query = guarded_event_query,
    .event_synchronize = guarded_event_synchronize,
    .copy_to_host = guarded_copy_to_host,
    .copy_from_host = guarded_copy_from_host,
    .ops = guarded_ops,
};
