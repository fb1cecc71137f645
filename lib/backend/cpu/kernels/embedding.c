/* SPDX-License-Identifier: Apache-2.0
 *
 * Token and position embedding. Backward adds rows of dy to rows of the gradients; rows of dy that
 * go to one gradient row are added in ascending order in f32 and rounded once: the order depends on
 * the ids only. To find them the (key, row) pairs are sorted by a stable radix sort, after which
 * every gradient row is one thread's.
 */
#include "backend/cpu/kernels/chunk.h"
#include "backend/cpu/scratch.h"

static gt_status check_ids(const gt_tensor *ids, int64_t rows, int64_t vocab)
{
    const int32_t *id = ids->data;
    for (int64_t n = 0; n < rows; n++) {
        if (id[n] < 0 || id[n] >= vocab) {
            return GT_FAIL(GT_ERR_ARGUMENT, "ids[%lld] is %d, wanted a token in [0, %lld)",
                           (long long)n, id[n], (long long)vocab);
        }
    }
    return GT_OK;
}

static int64_t position_of(const gt_tensor *rows, int64_t n, int64_t seq)
{
    return ((const int64_t *)rows->data)[n] % seq;
}

static gt_status check_positions(const gt_tensor *rows, const gt_tensor *table, int64_t count,
                                 int64_t seq)
{
    for (int64_t n = 0; n < count; n++) {
        int64_t row = ((const int64_t *)rows->data)[n];
        if (row < 0 || row % seq >= table->shape[0]) {
            return GT_FAIL(
                GT_ERR_ARGUMENT, "rows[%lld] is %lld: position %lld, wanted one in [0, %lld)",
                (long long)n, (long long)row, (long long)(row % seq), (long long)table->shape[0]);
        }
    }
    return GT_OK;
}

static void embed_chunk(const struct gti_embedding_fwd_args *a, int64_t n, int64_t c, int64_t m,
                        int64_t columns)
{
    float tbuf[GTI_CHUNK], pbuf[GTI_CHUNK], ybuf[GTI_CHUNK];
    int64_t local = ((const int32_t *)a->ids.data)[n] - a->first;
    float *y = gti_chunk_out(ybuf, &a->y, n * columns + c, false);
    if (local >= 0 && local < a->table.shape[0]) {
        const float *t = gti_chunk_in(tbuf, &a->table, local * columns + c, m);
        memcpy(y, t, (size_t)m * sizeof *y);
    } else {
        memset(y, 0, (size_t)m * sizeof *y);
    }
    if (a->positions.data != NULL) {
        int64_t at = position_of(&a->rows, n, a->seq) * columns + c;
        const float *p = gti_chunk_in(pbuf, &a->positions, at, m);
#pragma omp simd
        for (int64_t i = 0; i < m; i++) {
            y[i] += p[i];
        }
    }
    gti_chunk_done(&a->y, n * columns + c, m, y, false);
}

gt_status GTI_KERNEL(embedding_fwd)
{
    const struct gti_embedding_fwd_args *a = raw;
    int64_t rows, columns;
    gti_matrix(&a->y, &rows, &columns);
    GT_TRY(check_ids(&a->ids, rows, a->vocab));
    if (a->positions.data != NULL) {
        GT_TRY(check_positions(&a->rows, &a->positions, rows, a->seq));
    }
    int threads = gti_threads_for(device, rows * columns);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t n = 0; n < rows; n++) {
        for (int64_t c = 0; c < columns; c += GTI_CHUNK) {
            embed_chunk(a, n, c, gti_min(GTI_CHUNK, columns - c), columns);
        }
    }
    return GT_OK;
}

/* ---- backward ----------------------------------------------------------------------------------
 */

struct entry {
    int64_t key, row;
};

/* Stable, ascending by key >= 0; both arrays hold `count` entries; returns the sorted one. */
static struct entry *radix_sort(struct entry *from, struct entry *to, int64_t count)
{
    int64_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        largest = gti_max(largest, from[i].key);
    }
    for (int shift = 0; shift < 63 && (largest >> shift) != 0; shift += 8) {
        int64_t start[257] = {0};
        for (int64_t i = 0; i < count; i++) {
            start[((from[i].key >> shift) & 255) + 1]++;
        }
        for (int d = 0; d < 256; d++) {
            start[d + 1] += start[d];
        }
        for (int64_t i = 0; i < count; i++) {
            to[start[(from[i].key >> shift) & 255]++] = from[i];
        }
        struct entry *swap = from;
        from = to;
        to = swap;
    }
    return from;
}

/* grad[key] += sum of the rows of the run of entries that begins at `at`. */
static void add_run(const gt_tensor *grad, const gt_tensor *dy, const struct entry *sorted,
                    int64_t at, int64_t count, int64_t columns, int64_t c, int64_t m)
{
    float sum[GTI_CHUNK], buf[GTI_CHUNK];
    int64_t key = sorted[at].key;
    const float *first = gti_chunk_in(buf, dy, sorted[at].row * columns + c, m);
    memcpy(sum, first, (size_t)m * sizeof *sum);
    for (int64_t i = at + 1; i < count && sorted[i].key == key; i++) {
        const float *d = gti_chunk_in(buf, dy, sorted[i].row * columns + c, m);
#pragma omp simd
        for (int64_t j = 0; j < m; j++) {
            sum[j] += d[j];
        }
    }
    const float *old = gti_chunk_in(buf, grad, key * columns + c, m);
#pragma omp simd
    for (int64_t j = 0; j < m; j++) {
        sum[j] += old[j];
    }
    if (grad->dtype == GT_F32) {
        memcpy((float *)grad->data + key * columns + c, sum, (size_t)m * sizeof *sum);
    } else {
        gti_chunk_done(grad, key * columns + c, m, sum, false);
    }
}

#define SPLIT 256 /* columns of one unit of work, so that one frequent token is shared too */

static void scatter_add(const gt_tensor *grad, const gt_tensor *dy, struct entry *entries,
                        int64_t count, int64_t columns, int threads)
{
    const struct entry *sorted = radix_sort(entries, entries + count, count);
    int64_t tiles = (columns + SPLIT - 1) / SPLIT;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 16) if (threads > 1)
    for (int64_t unit = 0; unit < count * tiles; unit++) {
        int64_t at = unit / tiles, c = unit % tiles * SPLIT;
        if (at == 0 || sorted[at - 1].key != sorted[at].key) {
            add_run(grad, dy, sorted, at, count, columns, c, gti_min(SPLIT, columns - c));
        }
    }
}

gt_status GTI_KERNEL(embedding_bwd)
{
    const struct gti_embedding_bwd_args *a = raw;
    int64_t rows, columns, count = 0;
    gti_matrix(&a->dy, &rows, &columns);
    GT_TRY(check_ids(&a->ids, rows, a->vocab));
    if (a->dpositions.data != NULL) {
        GT_TRY(check_positions(&a->rows, &a->dpositions, rows, a->seq));
    }
    if (rows == 0 || columns == 0) {
        return GT_OK;
    }
    struct entry *entries = gti_cpu_scratch(GTI_SCRATCH_SUMS, (size_t)(2 * rows) * sizeof *entries);
    if (entries == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "embedding backward: no memory to sort %lld rows",
                       (long long)rows);
    }
    int threads = gti_threads_for(device, rows * columns);
    if (a->dtable.data != NULL) {
        for (int64_t n = 0; n < rows; n++) {
            int64_t local = ((const int32_t *)a->ids.data)[n] - a->first;
            if (local >= 0 && local < a->dtable.shape[0]) {
                entries[count++] = (struct entry){local, n};
            }
        }
        scatter_add(&a->dtable, &a->dy, entries, count, columns, threads);
    }
    if (a->dpositions.data != NULL) {
        for (int64_t n = 0; n < rows; n++) {
            entries[n] = (struct entry){position_of(&a->rows, n, a->seq), n};
        }
        scatter_add(&a->dpositions, &a->dy, entries, rows, columns, threads);
    }
    return GT_OK;
}
