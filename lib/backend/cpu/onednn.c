/* SPDX-License-Identifier: Apache-2.0
 *
 * A oneDNN primitive is code generated for one shape. A list keeps those made so far; a training
 * run has a few dozen. Primitives with user-managed scratch memory may run on several threads at
 * once, so ranks as threads share the list.
 */
#include "backend/cpu/onednn.h"

#include <cpuid.h>
#include <dnnl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/scratch.h"
#include "core/fail.h"

/* What a primitive depends on. */
struct key {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t trans_a, trans_b, accumulate, wide, bias;
};

struct entry {
    struct key key;
    dnnl_primitive_t primitive;
    dnnl_memory_desc_t a, b, c, bias, scratch;
    struct entry *next;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *entries;
static dnnl_engine_t engine;
static bool usable, preferred;

#define TRY(call)                                                                                  \
    do {                                                                                           \
        dnnl_status_t try_status_ = (call);                                                        \
        if (try_status_ != dnnl_success) {                                                         \
            return try_status_;                                                                    \
        }                                                                                          \
    } while (0)

static bool has_amx_bf16(void)
{
    unsigned a, b, c, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1);
}

static void start(void)
{
    __builtin_cpu_init();
    usable = __builtin_cpu_supports("avx512bf16") &&
             dnnl_engine_create(&engine, dnnl_cpu, 0) == dnnl_success;
    preferred = usable && (__builtin_cpu_is("amd") || has_amx_bf16());
}

bool gti_onednn_usable(void)
{
    pthread_once(&once, start);
    return usable;
}

bool gti_onednn_preferred(void)
{
    pthread_once(&once, start);
    return preferred;
}

static struct key key_of(const struct gti_gemm_args *g)
{
    struct key k;
    memset(&k, 0, sizeof(k)); /* compared as bytes */
    k.m = g->m;
    k.n = g->n;
    k.k = g->k;
    k.lda = g->lda;
    k.ldb = g->ldb;
    k.ldc = g->ldc;
    k.trans_a = g->trans_a;
    k.trans_b = g->trans_b;
    k.accumulate = g->beta != 0.0f;
    k.wide = g->c.dtype == GT_F32;
    k.bias = g->bias.data == NULL ? 0 : g->bias.dtype == GT_F32 ? 1 : 2;
    return k;
}

static dnnl_status_t describe(dnnl_memory_desc_t *md, int64_t rows, int64_t columns,
                              dnnl_data_type_t type, int64_t ld, bool transposed)
{
    const dnnl_dims_t dims = {rows, columns};
    const dnnl_dims_t strides = {transposed ? 1 : ld, transposed ? ld : 1};
    return dnnl_memory_desc_init_by_strides(md, 2, dims, type, strides);
}

static dnnl_status_t describe_all(struct entry *e)
{
    const struct key *k = &e->key;
    TRY(describe(&e->a, k->m, k->k, dnnl_bf16, k->lda, k->trans_a));
    TRY(describe(&e->b, k->k, k->n, dnnl_bf16, k->ldb, k->trans_b));
    TRY(describe(&e->c, k->m, k->n, k->wide ? dnnl_f32 : dnnl_bf16, k->ldc, false));
    if (k->bias) {
        TRY(describe(&e->bias, 1, k->n, k->bias == 1 ? dnnl_f32 : dnnl_bf16, k->n, false));
    }
    return dnnl_success;
}

static dnnl_status_t make_attributes(dnnl_primitive_attr_t *out, bool accumulate)
{
    TRY(dnnl_primitive_attr_create(out));
    TRY(dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user));
    if (!accumulate) {
        return dnnl_success;
    }
    dnnl_post_ops_t post;
    TRY(dnnl_post_ops_create(&post));
    dnnl_status_t st = dnnl_post_ops_append_sum(post, 1.0f);
    if (st == dnnl_success) {
        st = dnnl_primitive_attr_set_post_ops(*out, post);
    }
    dnnl_post_ops_destroy(post);
    return st;
}

static dnnl_status_t make_primitive(struct entry *e)
{
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t pd = NULL;
    TRY(describe_all(e));
    TRY(dnnl_matmul_desc_init(&desc, &e->a, &e->b, e->key.bias ? &e->bias : NULL, &e->c));
    dnnl_status_t st = make_attributes(&attributes, e->key.accumulate);
    if (st == dnnl_success) {
        st = dnnl_primitive_desc_create(&pd, &desc, attributes, engine, NULL);
    }
    if (st == dnnl_success) {
        e->scratch = *dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
        st = dnnl_primitive_create(&e->primitive, pd);
    }
    dnnl_primitive_desc_destroy(pd);
    dnnl_primitive_attr_destroy(attributes);
    return st;
}

/* The primitive of a shape, made now if it is the first time. NULL: out of memory or refused. */
static const struct entry *find(const struct key *key)
{
    pthread_mutex_lock(&lock);
    struct entry *e = entries;
    while (e != NULL && memcmp(&e->key, key, sizeof(*key)) != 0) {
        e = e->next;
    }
    if (e == NULL) {
        e = calloc(1, sizeof(*e));
        if (e != NULL) {
            e->key = *key;
            if (make_primitive(e) == dnnl_success) {
                e->next = entries;
                entries = e;
            } else {
                free(e);
                e = NULL;
            }
        }
    }
    pthread_mutex_unlock(&lock);
    return e;
}

static dnnl_status_t execute(const struct entry *e, const struct gti_gemm_args *g, void *scratch)
{
    const int slots[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD,
                         DNNL_ARG_BIAS};
    const dnnl_memory_desc_t *descs[] = {&e->a, &e->b, &e->c, &e->scratch, &e->bias};
    void *data[] = {g->a.data, g->b.data, g->c.data, scratch, g->bias.data};
    dnnl_exec_arg_t args[5];
    dnnl_stream_t stream = NULL;
    int count = e->key.bias ? 5 : 4, made = 0;
    dnnl_status_t st = dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
    while (st == dnnl_success && made < count) {
        args[made].arg = slots[made];
        st = dnnl_memory_create(&args[made].memory, descs[made], engine, data[made]);
        made += st == dnnl_success;
    }
    if (st == dnnl_success) {
        st = dnnl_primitive_execute(e->primitive, stream, count, args);
    }
    if (st == dnnl_success) {
        st = dnnl_stream_wait(stream);
    }
    for (int i = 0; i < made; i++) {
        dnnl_memory_destroy(args[i].memory);
    }
    dnnl_stream_destroy(stream);
    return st;
}

gt_status gti_onednn_gemm(const struct gti_gemm_args *g)
{
    const struct key key = key_of(g);
    const struct entry *e = find(&key);
    if (e == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "oneDNN cannot make a product of %lld x %lld x %lld",
                       (long long)g->m, (long long)g->n, (long long)g->k);
    }
    size_t bytes = dnnl_memory_desc_get_size(&e->scratch);
    void *scratch = gti_cpu_scratch(GTI_SCRATCH_SHARED, bytes ? bytes : 64);
    if (scratch == NULL) {
        return GT_FAIL(GT_ERR_MEMORY, "no memory for %zu bytes of oneDNN scratch", bytes);
    }
    dnnl_status_t st = execute(e, g, scratch);
    if (st != dnnl_success) {
        return GT_FAIL(GT_ERR_DEVICE,
                       "oneDNN failed with status %d on a product of %lld x %lld x %lld", (int)st,
                       (long long)g->m, (long long)g->n, (long long)g->k);
    }
    return GT_OK;
}
