/* SPDX-License-Identifier: Apache-2.0
 *
 * Layouts that nobody thought of: random models (one head, one layer, width 2, vocabulary 1, ...)
 * in random layouts, each compared with one rank. What the library refuses it must refuse on every
 * rank with a sentence; everything else must give the losses of one rank.
 *
 *     test_random_layouts [CASES [SEED]]     the case that fails is printed
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <geektrain/geektrain.h>

#include "ranks.h"

enum { STEPS = 3, SPREADS = 4, MAX_RANKS = 8, MAX_TOKENS = 4096 };

struct random_case {
    gt_config config;
    int ranks;
    int first_status; /* of rank 0 */
    double loss[STEPS], norm[STEPS], evaluation;
    int32_t sampled[3];
    char text[640], refusal[400];
};

static uint64_t state;

static int64_t draw(int64_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((state >> 33) % (uint64_t)n);
}

#define ONE_OF(...)                                                                                \
    ((const int64_t[]){                                                                            \
        __VA_ARGS__})[draw((int64_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))]

/* Mostly heads that tp divides, so that most cases train. */
static void draw_model(gt_model_config *m, int tp)
{
    bool llama = draw(2);
    snprintf(m->type, sizeof(m->type), "%s", llama ? "llama" : "gpt2");
    m->layers = ONE_OF(1, 2, 3, 4, 5, 8);
    m->heads = draw(12) ? tp * ONE_OF(1, 1, 2, 3) : ONE_OF(1, 2, 3, 5);
    m->width = m->heads * (llama && draw(12) ? ONE_OF(2, 4, 6, 8) : ONE_OF(1, 2, 3, 8));
    m->kv_heads = draw(2) ? 0 : ONE_OF(1, 1, 2, m->heads, m->heads / 2);
    m->ffn = ONE_OF(0, 1, 3, 5, 17, 32);
    m->vocab = ONE_OF(1, 2, 3, 7, 61, 130);
    m->seq = ONE_OF(1, 2, 3, 4, 5, 6, 8, 12, 12, 12, 16);
    m->dropout = draw(3) ? 0.0f : 0.2f;
    m->untied = draw(2);
    m->recompute = draw(3) == 0;
    m->label_smoothing = draw(4) ? 0.0f : 0.1f;
    m->z_loss = draw(4) ? 0.0f : 1e-3f;
}

static void draw_mesh(gt_mesh_config *m)
{
    do {
        m->pp = (int)ONE_OF(1, 1, 1, 2, 2, 3, 4);
        m->dp = (int)ONE_OF(1, 1, 2, 2, 3, 5, 7);
        m->cp = (int)ONE_OF(1, 1, 1, 1, 2, 3);
        m->tp = (int)ONE_OF(1, 1, 1, 2, 2, 3, 4);
    } while (m->pp * m->dp * m->cp * m->tp > MAX_RANKS || m->pp * m->dp * m->cp * m->tp == 1);
    m->sequence_parallel = draw(2);
    static const char *const names[] = {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2", "zb-v"};
    snprintf(m->schedule, sizeof(m->schedule), "%s", names[draw(6)]);
    m->chunks = (int)ONE_OF(0, 0, 0, 2);
    static const char *const cuts[] = {"cost", "parameters", "uniform"};
    snprintf(m->partition, sizeof(m->partition), "%s", cuts[draw(3)]);
}

static void draw_case(struct random_case *r)
{
    gt_config *c = &r->config;
    memset(r, 0, sizeof(*r));
    gt_config_init(c);
    draw_mesh(&c->mesh);
    draw_model(&c->model, c->mesh.tp);
    r->ranks = c->mesh.pp * c->mesh.dp * c->mesh.cp * c->mesh.tp;
    c->micro_batch = ONE_OF(1, 1, 2, 3);
    c->grad_accum = ONE_OF(1, 1, 2, 3, 4, 5);
    c->train_batch = 0;
    c->dtype = (gt_dtype)ONE_OF(GT_F32, GT_F32, GT_F32, GT_BF16, GT_F16);
    c->communication_dtype = c->dtype;
    c->scaler.enabled = c->dtype == GT_F16;
    c->scaler.initial_power = 8;
    c->seed = 5;
    c->optimizer.type =
        (gt_optimizer_type)ONE_OF(GT_ADAMW, GT_ADAMW, GT_ADAM, GT_SGD, GT_LION, GT_LAMB);
    c->optimizer.lr = c->optimizer.type == GT_SGD ? 0.1 : 3e-3;
    c->optimizer.momentum = c->optimizer.type == GT_SGD ? 0.9 * (double)draw(2) : 0.0;
    c->optimizer.weight_decay = 0.1;
    c->optimizer.eps = 1e-5;
    c->optimizer.master_remainder = c->dtype == GT_BF16 && c->optimizer.type <= GT_ADAM && draw(2);
    c->zero.stage = (int)draw(4);
    c->zero.persistence_threshold = ONE_OF(0, 50, 100000);
    c->zero.hpz_partition_size = draw(3) || c->mesh.dp % 2 ? 1 : 2;
    c->zero.offload_optimizer = (gt_offload)ONE_OF(0, 0, 0, 1, 2);
    snprintf(c->zero.offload_path, sizeof(c->zero.offload_path), "/tmp");
}

static void describe(struct random_case *r)
{
    const gt_config *c = &r->config;
    snprintf(r->text, sizeof(r->text),
             "%s L%d W%d H%d kv%d F%d V%d T%d drop%g %s%s ls%g z%g | pp%d dp%d cp%d tp%d%s %s/%d "
             "%s | micro%d accum%d %s opt%d%s zero%d thr%d hpz%d off%d",
             c->model.type, (int)c->model.layers, (int)c->model.width, (int)c->model.heads,
             (int)c->model.kv_heads, (int)c->model.ffn, (int)c->model.vocab, (int)c->model.seq,
             (double)c->model.dropout, c->model.untied ? "untied " : "",
             c->model.recompute ? "recompute " : "", (double)c->model.label_smoothing,
             (double)c->model.z_loss, c->mesh.pp, c->mesh.dp, c->mesh.cp, c->mesh.tp,
             c->mesh.sequence_parallel ? " sp" : "", c->mesh.schedule, c->mesh.chunks,
             c->mesh.partition, (int)c->micro_batch, (int)c->grad_accum, gt_dtype_name(c->dtype),
             (int)c->optimizer.type, c->optimizer.master_remainder ? " remainder" : "",
             c->zero.stage, (int)c->zero.persistence_threshold, c->zero.hpz_partition_size,
             (int)c->zero.offload_optimizer);
}

static void fill_batch(gt_batch *b, int32_t *tokens, int32_t *targets, const gt_config *c, int step,
                       int dp_rank, int dp)
{
    int64_t each = c->train_batch / dp, first = step * c->train_batch + dp_rank * each;
    int64_t seq = c->model.seq, vocab = c->model.vocab;
    for (int64_t s = 0; s < each; s++) {
        for (int64_t i = 0; i < seq; i++) {
            int64_t g = first + s;
            tokens[s * seq + i] = (int32_t)((g * 7 + i * i * 3 + i) % vocab);
            targets[s * seq + i] =
                (g * 3 + i) % 4 == 1 ? -100 : (int32_t)((g * 5 + (i + 1) * 3) % vocab);
        }
    }
    *b = (gt_batch){each, seq, tokens, targets, first};
}

static void train(struct random_case *r, gt_trainer *t, bool keep)
{
    static _Thread_local int32_t tokens[MAX_TOKENS], targets[MAX_TOKENS];
    const gt_config *c = &r->config;
    int dp_rank = gt_mesh_index(gt_trainer_mesh(t), GT_AXIS_DP);
    double evaluation;
    int32_t sampled[3], prompt[1] = {0};
    gt_batch b;
    gt_step_result result = GT_STEP_RESULT_INIT;
    for (int step = 0; step < STEPS; step++) {
        fill_batch(&b, tokens, targets, c, step, dp_rank, c->mesh.dp);
        TH_OK(gt_trainer_step(t, &b, &result));
        if (keep) {
            r->loss[step] = result.loss;
            r->norm[step] = result.gradient_norm;
        }
    }
    fill_batch(&b, tokens, targets, c, STEPS, dp_rank, c->mesh.dp);
    TH_OK(gt_trainer_evaluate(t, &b, &evaluation, NULL));
    TH_OK(gt_trainer_generate(t, prompt, 1, 3, 0.0f, 1, sampled));
    if (keep) {
        r->evaluation = evaluation;
        memcpy(r->sampled, sampled, sizeof(sampled));
    }
}

static void one_rank(gt_comm *world, gt_context *ctx, void *user)
{
    struct random_case *r = user;
    bool root = gt_comm_rank(world) == 0;
    gt_model *model = NULL;
    gt_trainer *t = NULL;
    gt_status st = gt_model_create(&model);
    st = st == GT_OK ? gt_model_add_gpt(model, &r->config.model) : st;
    st = st == GT_OK ? gt_trainer_create(&t, ctx, world, model, &r->config) : st;
    if (st == GT_OK) {
        train(r, t, root);
    } else {
        TH_TRUE(st == GT_ERR_CONFIG || st == GT_ERR_UNSUPPORTED || st == GT_ERR_PEER ||
                st == GT_ERR_ARGUMENT || st == GT_ERR_SHAPE);
        TH_TRUE(strlen(gt_last_error()) > 20);
    }
    if (root) {
        r->first_status = st;
        snprintf(r->refusal, sizeof(r->refusal), "%s", st == GT_OK ? "" : gt_last_error());
    }
    gt_trainer_destroy(&t);
    gt_model_destroy(&model);
}

static void alone(struct random_case *r)
{
    th h = {0};
    gt_comm *world = NULL;
    gt_comm_params params = GT_COMM_PARAMS_INIT;
    params.transport = "self";
    th_open(&h, "cpu");
    TH_OK(gt_comm_create(&world, h.ctx, &params));
    one_rank(world, h.ctx, r);
    gt_comm_destroy(&world);
    th_close(&h);
}

/* The same training by one rank, in f32, stage 0. */
static struct random_case reference_of(const struct random_case *r)
{
    struct random_case one = *r;
    gt_config *c = &one.config;
    one.ranks = 1;
    c->grad_accum = 1;
    c->micro_batch = c->train_batch;
    c->mesh.pp = c->mesh.dp = c->mesh.cp = c->mesh.tp = 1;
    c->mesh.sequence_parallel = false;
    c->mesh.chunks = 0;
    snprintf(c->mesh.schedule, sizeof(c->mesh.schedule), "1f1b");
    c->model.recompute = false;
    c->dtype = c->communication_dtype = GT_F32;
    c->scaler.enabled = false;
    c->optimizer.master_remainder = false;
    memset(&c->zero, 0, sizeof(c->zero));
    return one;
}

/* ---- comparing --------------------------------------------------------------------------------*/

/* What a run may differ by: a part of each figure, and the same for all steps. */
struct allowance {
    double relative, loss, norm;
};

/* Of a width of 2 a norm makes +1 and -1: when the two are nearly equal, the last bit decides which
 * is which, and no fixed tolerance is right. So a run that misses the dtype's is measured by what
 * rounding alone does to this model: one rank, in the layout's dtype, in two orders of summation.
 */
static void add_spread(struct allowance *a, const struct random_case *r, int64_t micro,
                       const struct random_case *want)
{
    struct random_case own = reference_of(r);
    gt_config *c = &own.config;
    c->dtype = c->communication_dtype = r->config.dtype;
    c->scaler.enabled = r->config.scaler.enabled;
    c->optimizer.master_remainder = r->config.optimizer.master_remainder;
    c->micro_batch = micro;
    c->grad_accum = c->train_batch / micro;
    alone(&own);
    for (int i = 0; i < STEPS; i++) {
        a->loss = fmax(a->loss, SPREADS * fabs(own.loss[i] - want->loss[i]));
        a->norm = fmax(a->norm, SPREADS * fabs(own.norm[i] - want->norm[i]));
    }
    a->loss = fmax(a->loss, SPREADS * fabs(own.evaluation - want->evaluation));
}

static bool same(const struct random_case *r, const char *what, double got, double want,
                 double allowed, bool print)
{
    bool good = fabs(got - want) <= allowed;
    if (!good && print) {
        th_fail(__FILE__, __LINE__, "%s\n    %s is %.9g, on one rank %.9g, may differ by %.2g",
                r->text, what, got, want, allowed);
    }
    return good;
}

static bool all_same(const struct random_case *r, const struct random_case *one,
                     const struct allowance *a, bool print)
{
    double relative = a->relative;
    bool good = same(r, "evaluation", r->evaluation, one->evaluation,
                     a->loss + relative * (1e-2 + fabs(one->evaluation)), print);
    for (int i = 0; i < STEPS; i++) {
        double loss = a->loss + relative * (1e-2 + fabs(one->loss[i]));
        double norm = a->norm + 20 * relative * (1e-2 + fabs(one->norm[i]));
        good &= same(r, "loss", r->loss[i], one->loss[i], loss, print);
        good &= same(r, "norm", r->norm[i], one->norm[i], norm, print);
    }
    return good;
}

static int ill_conditioned; /* cases that were judged by their spread */

static void compare(const struct random_case *r)
{
    struct random_case one = reference_of(r);
    gt_dtype dtype = r->config.dtype;
    struct allowance a = {.relative = dtype == GT_F32 ? 2e-5 : dtype == GT_F16 ? 1e-2 : 3e-2};
    a.relative *= r->config.optimizer.type == GT_LION ? 20 : 1; /* it takes signs of tiny numbers */
    alone(&one);
    if (!all_same(r, &one, &a, false)) {
        add_spread(&a, r, 1, &one);
        add_spread(&a, r, one.config.train_batch, &one);
        ill_conditioned++;
        printf("%s\n    judged by one rank's own spread: loss %.2g, norm %.2g\n", r->text, a.loss,
               a.norm);
        (void)all_same(r, &one, &a, true);
    }
}

/* ---- cases ------------------------------------------------------------------------------------*/

static bool run_case(struct random_case *r, bool print)
{
    if (print) {
        printf("%s\n", r->text);
        fflush(stdout);
    }
    gt_status st = gt_config_resolve(&r->config, r->ranks);
    if (st != GT_OK) {
        if (print) {
            printf("    refused: %s\n", gt_last_error());
        }
        return false;
    }
    if (r->config.train_batch * r->config.model.seq > MAX_TOKENS) {
        return false;
    }
    gti_run_ranks(r->ranks, one_rank, "cpu", r);
    if (r->first_status != GT_OK) {
        if (print) {
            printf("    refused: %s\n", r->refusal);
        }
        return false;
    }
    compare(r);
    return true;
}

static int cases = 25;

static void random_layouts(void **unused)
{
    int ran = 0;
    for (int i = 0; i < cases; i++) {
        struct random_case r;
        draw_case(&r);
        describe(&r);
        ran += run_case(&r, cases != 25);
    }
    printf("%d of %d layouts trained, %d judged by one rank's spread\n", ran, cases,
           ill_conditioned);
    assert_true(ill_conditioned <= 1 + ran / 20);
    assert_true(ran > cases / 8);
    (void)unused;
}

int main(int argc, char **argv)
{
    cases = argc > 1 ? atoi(argv[1]) : cases;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_layouts)};
    return cmocka_run_group_tests_name("random layouts", tests, NULL, NULL);
}
