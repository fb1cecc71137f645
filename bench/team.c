/* SPDX-License-Identifier: Apache-2.0 */
#include "team.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

struct member {
    team *team;
    int rank;
    pthread_t thread;
    gt_context *ctx;
    gt_comm *world;
    gt_model *model;
    gt_trainer *trainer;
    int32_t *tokens, *targets;
    gt_batch batch;
    gt_step_result result;
    int64_t step;
};

struct team {
    gt_config config;
    int ranks, threads;
    gt_local_world *world;
    struct member *members;
    pthread_barrier_t start, end;
    int quit;
};

void team_gpt2(gt_config *c)
{
    gt_config_init(c);
    snprintf(c->model.type, sizeof(c->model.type), "gpt2");
    c->model.layers = 12;
    c->model.width = 768;
    c->model.heads = 12;
    c->model.kv_heads = 12;
    c->model.ffn = 4 * 768;
    c->model.vocab = 50257;
    c->model.seq = 256;
    c->model.dropout = 0.0f;
    c->train_batch = 4;
    c->gradient_clipping = 1.0;
    c->optimizer.lr = 1e-4;
    c->optimizer.weight_decay = 0.1;
}

static void make_batch(struct member *m)
{
    int64_t seq = m->team->config.model.seq, vocab = m->team->config.model.vocab;
    int dp = gt_mesh_size(gt_trainer_mesh(m->trainer), GT_AXIS_DP);
    int index = gt_mesh_index(gt_trainer_mesh(m->trainer), GT_AXIS_DP);
    int64_t each = m->team->config.train_batch / dp;
    m->tokens = malloc((size_t)(each * seq) * sizeof(int32_t));
    m->targets = malloc((size_t)(each * seq) * sizeof(int32_t));
    for (int64_t i = 0; i < each * seq; i++) {
        uint64_t x = (uint64_t)(index * each * seq + i) * 2654435761u;
        m->tokens[i] = (int32_t)(x % (uint64_t)vocab);
        m->targets[i] = (int32_t)((x + 2654435761u) % (uint64_t)vocab);
    }
    m->batch = (gt_batch){.samples = each,
                          .seq = seq,
                          .tokens = m->tokens,
                          .targets = m->targets,
                          .first_sample = index * each};
}

static void open_member(struct member *m)
{
    gt_context_params p = GT_CONTEXT_PARAMS_INIT;
    p.threads = m->team->threads;
    p.seed = 1;
    p.log_level = GT_LOG_WARN;
    p.log_level_set = true;
    BENCH_OK(gt_context_create(&m->ctx, &p));
    gt_comm_params c = GT_COMM_PARAMS_INIT;
    c.transport = m->team->ranks == 1 ? "self" : "local";
    c.local_world = m->team->world;
    c.local_rank = m->rank;
    BENCH_OK(gt_comm_create(&m->world, m->ctx, &c));
    BENCH_OK(gt_model_create(&m->model));
    BENCH_OK(gt_model_add_gpt(m->model, &m->team->config.model));
    BENCH_OK(gt_trainer_create(&m->trainer, m->ctx, m->world, m->model, &m->team->config));
    make_batch(m);
}

static void close_member(struct member *m)
{
    gt_trainer_destroy(&m->trainer);
    gt_model_destroy(&m->model);
    gt_comm_destroy(&m->world);
    gt_context_destroy(&m->ctx);
    free(m->tokens);
    free(m->targets);
}

static void *live(void *user)
{
    struct member *m = user;
    open_member(m);
    pthread_barrier_wait(&m->team->end);
    for (;;) {
        pthread_barrier_wait(&m->team->start);
        if (m->team->quit) {
            break;
        }
        m->result.struct_size = sizeof(m->result);
        BENCH_OK(gt_trainer_step(m->trainer, &m->batch, &m->result));
        pthread_barrier_wait(&m->team->end);
    }
    close_member(m);
    return NULL;
}

team *team_create(int ranks, int threads, const gt_config *config)
{
    team *t = calloc(1, sizeof(*t));
    t->config = *config;
    t->ranks = ranks;
    t->threads = threads;
    t->members = calloc((size_t)ranks, sizeof(*t->members));
    BENCH_OK(gt_config_resolve(&t->config, ranks));
    if (ranks > 1) {
        BENCH_OK(gt_local_world_create(&t->world, ranks));
    }
    pthread_barrier_init(&t->start, NULL, (unsigned)ranks + 1);
    pthread_barrier_init(&t->end, NULL, (unsigned)ranks + 1);
    for (int r = 0; r < ranks; r++) {
        t->members[r] = (struct member){.team = t, .rank = r};
        pthread_create(&t->members[r].thread, NULL, live, &t->members[r]);
    }
    pthread_barrier_wait(&t->end);
    return t;
}

void team_step(void *user)
{
    team *t = user;
    pthread_barrier_wait(&t->start);
    pthread_barrier_wait(&t->end);
}

void team_destroy(team *t)
{
    if (t == NULL) {
        return;
    }
    t->quit = 1;
    pthread_barrier_wait(&t->start);
    for (int r = 0; r < t->ranks; r++) {
        pthread_join(t->members[r].thread, NULL);
    }
    gt_local_world_destroy(&t->world);
    pthread_barrier_destroy(&t->start);
    pthread_barrier_destroy(&t->end);
    free(t->members);
    free(t);
}

double team_flops(const team *t)
{
    return gt_trainer_step_flops(t->members[0].trainer);
}

const gt_step_result *team_result(const team *t, int r)
{
    return &t->members[r].result;
}

void team_memory(const team *t, int r, gt_memory_stats *out)
{
    gt_memory_get_stats(t->members[r].ctx, out);
}

void team_state_bytes(const team *t, int r, gt_zero_bytes *out)
{
    gt_zero_formula(gt_trainer_zero(t->members[r].trainer), out);
}

void team_reset_peaks(team *t)
{
    for (int r = 0; r < t->ranks; r++) {
        gt_memory_reset_peak(t->members[r].ctx);
    }
}

int64_t team_parameters(const team *t)
{
    return gt_trainer_parameters(t->members[0].trainer);
}
