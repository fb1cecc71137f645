/* SPDX-License-Identifier: Apache-2.0
 * How fast do collectives move data, against a plain copy, and how soon can a program begin?
 *
 * Two ranks (threads for local, processes for mpi; --ranks N for more), f32, from 8 bytes to 64
 * MiB. Above 16 KiB the figure is bus bandwidth, the bytes that each rank has to send per second,
 * 2 (P-1)/P n for all_reduce and (P-1)/P n for the others, over the rate at which all ranks at once
 * copy as many bytes; below, microseconds per call. The program starts itself under mpirun for the
 * mpi figures, where there is one. Median of the calls.
 *   startup_*      context and world of one (mpi: of all, MPI_Init apart), milliseconds
 *   library_size   what of the shared library is loaded
 */
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <geektrain/geektrain.h>

#include "bench.h"

typedef enum operation { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, COPY, OPERATIONS } operation;
static const char *const operation_names[] = {"all_reduce", "reduce_scatter", "all_gather",
                                              "memcpy"};

static const size_t sizes[] = {8, 4096, 65536, 1 << 20, 8 << 20, 64 << 20};
#define SIZES (sizeof sizes / sizeof *sizes)
#define SMALL 16384
#define MAX_CALLS 400

typedef struct rank {
    gt_comm *comm;
    gt_context *ctx;
    float *a, *b; /* the largest size each */
    double seconds[OPERATIONS][SIZES];
} rank;

/* ---- measuring ---------------------------------------------------------------------------------
 */
static void call(rank *r, operation op, size_t bytes)
{
    int64_t n = (int64_t)(bytes / sizeof(float)), p = gt_comm_size(r->comm);
    int64_t slice = n / p;
    gt_tensor whole = gt_tensor_1d(r->a, GT_F32, slice * p);
    gt_tensor part = gt_tensor_1d(r->a + gt_comm_rank(r->comm) * slice, GT_F32, slice);
    switch (op) {
    case ALL_REDUCE:
        BENCH_OK(gt_all_reduce(r->comm, &whole, GT_MAX, NULL, NULL));
        break;
    case REDUCE_SCATTER:
        BENCH_OK(gt_reduce_scatter(r->comm, &part, &whole, GT_MAX, NULL, NULL));
        break;
    case ALL_GATHER:
        BENCH_OK(gt_all_gather(r->comm, &whole, &part, NULL, NULL));
        break;
    default:
        memcpy(r->b, r->a, bytes);
        __asm__ volatile("" : : "r"(r->b) : "memory");
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double measure(rank *r, operation op, size_t bytes)
{
    static _Thread_local double times[MAX_CALLS];
    int calls = bytes <= 65536 ? MAX_CALLS : bytes <= (8 << 20) ? 60 : 20;
    for (int i = -2; i < calls; i++) {
        if (op == COPY || i == 0) {
            BENCH_OK(gt_barrier(r->comm)); /* copies at the same time, as collectives do */
        }
        double begin = bench_now();
        call(r, op, bytes);
        if (i >= 0) {
            times[i] = bench_now() - begin;
        }
    }
    qsort(times, (size_t)calls, sizeof *times, by_size);
    return times[calls / 2];
}

/* On every rank alike. */
static void measure_all(rank *r)
{
    size_t most = sizes[SIZES - 1];
    r->a = aligned_alloc(64, most);
    r->b = aligned_alloc(64, most);
    if (r->a == NULL || r->b == NULL) {
        BENCH_OK(gt_comm_fail(r->comm, GT_ERR_MEMORY));
    }
    memset(r->a, 0, most);
    memset(r->b, 0, most);
    for (size_t s = 0; s < SIZES; s++) {
        for (int op = 0; op < OPERATIONS; op++) {
            r->seconds[op][s] = measure(r, (operation)op, sizes[s]);
        }
    }
    free(r->a);
    free(r->b);
}

/* ---- figures -----------------------------------------------------------------------------------
 */
typedef struct figure {
    char name[64], unit[16];
    double value, ceiling;
} figure;

static figure figures[256];
static int figure_count;

static void add_figure(const char *name, double value, const char *unit, double ceiling)
{
    figure *f = &figures[figure_count++];
    snprintf(f->name, sizeof f->name, "%s", name);
    snprintf(f->unit, sizeof f->unit, "%s", unit);
    f->value = value;
    f->ceiling = ceiling;
}

static void add_figures(const rank *r)
{
    double p = gt_comm_size(r->comm);
    char name[64];
    for (int op = 0; op < COPY; op++) {
        for (size_t s = 0; s < SIZES; s++) {
            double moved = (double)sizes[s] * (op == ALL_REDUCE ? 2 : 1) * (p - 1) / p;
            const char *transport = gt_comm_transport(r->comm);
            bool large = sizes[s] >= 1 << 20;
            snprintf(name, sizeof name, "%s_%s_%zu%s", transport, operation_names[op],
                     large ? sizes[s] >> 20 : sizes[s], large ? "M" : "");
            if (sizes[s] < SMALL || p == 1) {
                add_figure(name, r->seconds[op][s] * 1e6, "us", 0);
            } else {
                add_figure(name, moved / r->seconds[op][s] / 1e9, "GB/s",
                           (double)sizes[s] / r->seconds[COPY][s] / 1e9);
            }
        }
    }
}

/* ---- worlds ------------------------------------------------------------------------------------
 */
static void open_rank(rank *r, const char *transport, gt_local_world *world, int index)
{
    gt_context_params cp = GT_CONTEXT_PARAMS_INIT;
    cp.threads = 1;
    cp.log_level = GT_LOG_WARN;
    gt_comm_params p = GT_COMM_PARAMS_INIT;
    p.transport = transport;
    p.local_world = world;
    p.local_rank = index;
    p.check = -1;
    BENCH_OK(gt_context_create(&r->ctx, &cp));
    BENCH_OK(gt_comm_create(&r->comm, r->ctx, &p));
}

static void close_rank(rank *r)
{
    gt_comm_destroy(&r->comm);
    gt_context_destroy(&r->ctx);
}

typedef struct local_rank {
    gt_local_world *world;
    int index;
} local_rank;

static void *run_local(void *user)
{
    const local_rank *l = user;
    rank r = {0};
    open_rank(&r, "local", l->world, l->index);
    measure_all(&r);
    if (l->index == 0) {
        add_figures(&r);
    }
    close_rank(&r);
    return NULL;
}

static void bench_local(int ranks)
{
    gt_local_world *world = NULL;
    pthread_t threads[64];
    local_rank l[64];
    BENCH_OK(gt_local_world_create(&world, ranks));
    for (int i = 0; i < ranks; i++) {
        l[i] = (local_rank){world, i};
        if (pthread_create(&threads[i], NULL, run_local, &l[i]) != 0) {
            perror("pthread_create");
            exit(1);
        }
    }
    for (int i = 0; i < ranks; i++) {
        pthread_join(threads[i], NULL);
    }
    gt_local_world_destroy(&world);
}

static double startup(const char *transport)
{
    rank r = {0};
    double begin = bench_now();
    open_rank(&r, transport, NULL, 0);
    double seconds = bench_now() - begin;
    close_rank(&r);
    return seconds;
}

static void bench_self(void)
{
    add_figure("startup_self", startup("self") * 1e3, "ms", 0);
    rank r = {0};
    open_rank(&r, "self", NULL, 0);
    measure_all(&r);
    add_figures(&r);
    close_rank(&r);
}

/* As a process of mpirun: figures go to the parent as lines. */
static int mpi_worker(void)
{
    rank r = {0};
    double first = startup("mpi");
    double begin = bench_now();
    open_rank(&r, "mpi", NULL, 0);
    double again = bench_now() - begin;
    measure_all(&r);
    if (gt_comm_rank(r.comm) == 0) {
        add_figures(&r);
        add_figure("startup_mpi_with_MPI_Init", first * 1e3, "ms", 0);
        add_figure("startup_mpi", again * 1e3, "ms", 0);
        for (int i = 0; i < figure_count; i++) {
            printf("figure %s %.9g %s %.9g\n", figures[i].name, figures[i].value, figures[i].unit,
                   figures[i].ceiling);
        }
    }
    close_rank(&r);
    return 0;
}

static void bench_mpi(const char *program, int ranks)
{
    char command[1024], line[256];
    snprintf(
        command, sizeof command,
        "command -v mpirun >/dev/null && exec mpirun --allow-run-as-root --oversubscribe -n %d "
        "'%s' --mpi-worker",
        ranks, program);
    FILE *pipe = popen(command, "r");
    while (pipe != NULL && fgets(line, sizeof line, pipe) != NULL) {
        figure f;
        if (sscanf(line, "figure %63s %lf %15s %lf", f.name, &f.value, f.unit, &f.ceiling) == 4) {
            add_figure(f.name, f.value, f.unit, f.ceiling);
        }
    }
    if (pipe != NULL && pclose(pipe) != 0) {
        fprintf(stderr, "bench_comm: no mpi figures\n");
    }
}

/* Bytes of the segments that are loaded. */
static double library_bytes(void)
{
    Dl_info info;
    Elf64_Ehdr header;
    double bytes = 0;
    FILE *file =
        dladdr((void *)(uintptr_t)gt_comm_create, &info) ? fopen(info.dli_fname, "rb") : NULL;
    if (file == NULL) {
        return 0;
    }
    if (fread(&header, sizeof header, 1, file) == 1) {
        for (int i = 0; i < header.e_phnum; i++) {
            Elf64_Phdr segment;
            fseek(file, (long)(header.e_phoff + (size_t)i * sizeof segment), SEEK_SET);
            if (fread(&segment, sizeof segment, 1, file) == 1 && segment.p_type == PT_LOAD) {
                bytes += (double)segment.p_filesz;
            }
        }
    }
    fclose(file);
    return bytes;
}

/* Takes --ranks N out of the arguments. */
static int take_ranks(int *argc, char **argv)
{
    int ranks = 2;
    for (int i = 1; i + 1 < *argc; i++) {
        if (strcmp(argv[i], "--ranks") == 0) {
            ranks = atoi(argv[i + 1]);
            memmove(&argv[i], &argv[i + 2], (size_t)(*argc - i - 1) * sizeof *argv);
            *argc -= 2;
            break;
        }
    }
    return ranks < 2 ? 2 : ranks > 64 ? 64 : ranks;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--mpi-worker") == 0) {
        return mpi_worker();
    }
    char self[512] = "";
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    int ranks = take_ranks(&argc, argv);
    bench *b = bench_open("bench_comm", argc, argv);
    bench_self();
    bench_local(ranks);
    if (length > 0) {
        bench_mpi(self, ranks);
    }
    add_figure("library_size", library_bytes() / 1048576.0, "MiB", 0);
    for (int i = 0; i < figure_count; i++) {
        bench_value(b, figures[i].name, figures[i].value, figures[i].unit, figures[i].ceiling);
    }
    return bench_close(b);
}
