/* SPDX-License-Identifier: Apache-2.0
 *
 * Trains a GPT on token files, alone or on many ranks:
 *
 *     train_gpt --config examples/configs/fortunes.json --data text.txt
 *     mpirun -n 4 train_gpt --config FILE --data FILE --tp 2 --zero 2
 *
 * A program to copy. Each phase of the set-up ends in gt_comm_agree(), so that an error on one rank
 * is an error on all, and nobody waits for a rank that gave up.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <geektrain/geektrain.h>

#define TRY(call)                                                                                  \
    do {                                                                                           \
        gt_status try_status = (call);                                                             \
        if (try_status != GT_OK) {                                                                 \
            return try_status;                                                                     \
        }                                                                                          \
    } while (0)

typedef struct app {
    int rank, argc;
    char **argv;
    gt_context *ctx;
    gt_comm *world;
    gt_config config;
    gt_tokens *tokens, *validation_tokens; /* validation_tokens NULL: the end of tokens */
    gt_model *model;
    gt_trainer *trainer;
    gt_loader *train, *validation; /* validation NULL: none */
    gt_monitor *monitor;           /* rank 0 */
} app;

/* ---- set-up -----------------------------------------------------------------------------------*/
static gt_status configure(app *a)
{
    TRY(gt_config_arguments(&a->config, a->ctx, a->argc, a->argv));
    return gt_config_resolve(&a->config, gt_comm_size(a->world));
}

static gt_status open_tokens(app *a, uint64_t hash[2])
{
    const gt_data_config *d = &a->config.data;
    TRY(gt_tokens_open(&a->tokens, d->path, d->format, a->config.model.vocab));
    hash[0] = gt_tokens_hash(a->tokens);
    if (d->validation[0] != '\0') {
        TRY(gt_tokens_open(&a->validation_tokens, d->validation, d->format, a->config.model.vocab));
        hash[1] = gt_tokens_hash(a->validation_tokens);
    }
    return GT_OK;
}

/* Validation is a stream of its own, or the end of the training stream. */
static gt_status create_loaders(app *a)
{
    const gt_mesh *mesh = gt_trainer_mesh(a->trainer);
    int64_t total = gt_tokens_count(a->tokens);
    int64_t held = (int64_t)((double)total * a->config.data.validation_fraction);
    bool own = a->validation_tokens != NULL, split = !own && held > a->config.model.seq;
    gt_loader_params p = GT_LOADER_PARAMS_INIT;
    p.seq = a->config.model.seq;
    p.batch = a->config.train_batch;
    p.rank = gt_mesh_index(mesh, GT_AXIS_DP);
    p.size = gt_mesh_size(mesh, GT_AXIS_DP);
    p.seed = a->config.seed;
    p.shuffle = a->config.data.shuffle;
    p.count = split ? total - held : total;
    TRY(gt_loader_create(&a->train, a->tokens, &p));
    p.first = split ? total - held : 0;
    p.count = 0;
    p.shuffle = false;
    return own || split
               ? gt_loader_create(&a->validation, own ? a->validation_tokens : a->tokens, &p)
               : GT_OK;
}

static gt_status create_monitor(app *a, double peak)
{
    const gt_config *c = &a->config;
    if (a->rank != 0) {
        return GT_OK;
    }
    gt_monitor_params p = GT_MONITOR_PARAMS_INIT;
    p.run_dir = c->train.run_dir;
    p.config = c;
    p.total_steps = c->train.steps;
    p.flops_per_step = gt_trainer_step_flops(a->trainer);
    p.peak_flops = peak;
    p.print_interval = c->steps_per_print;
    p.stream = stdout;
    TRY(gt_monitor_create(&a->monitor, &p));
    gt_memory_stats memory;
    gt_memory_get_stats(a->ctx, &memory);
    gt_monitor_message(a->monitor, "model   %s, %lld layers x %lld, %.2f M parameters, %s",
                       c->model.type, (long long)c->model.layers, (long long)c->model.width,
                       (double)gt_trainer_parameters(a->trainer) / 1e6, gt_dtype_name(c->dtype));
    gt_monitor_message(a->monitor,
                       "layout  %d ranks = pp %d x dp %d x cp %d x tp %d, ZeRO %d, %d threads each",
                       gt_comm_size(a->world), c->mesh.pp, c->mesh.dp, c->mesh.cp, c->mesh.tp,
                       c->zero.stage, gt_context_threads(a->ctx));
    gt_monitor_message(a->monitor, "data    %s, %.3f M tokens", gt_tokens_format(a->tokens),
                       (double)gt_tokens_count(a->tokens) / 1e6);
    gt_monitor_message(a->monitor, "batch   %lld samples of %lld tokens, %lld per epoch",
                       (long long)c->train_batch, (long long)c->model.seq,
                       (long long)gt_loader_samples(a->train));
    gt_monitor_message(a->monitor, "rank 0  %.1f MB, of which activations %.1f and optimizer %.1f",
                       (double)memory.live_total / 1e6,
                       (double)memory.live[GT_MEM_ACTIVATIONS] / 1e6,
                       (double)memory.live[GT_MEM_OPTIMIZER] / 1e6);
    return GT_OK;
}

static gt_status set_up(app *a)
{
    gt_comm *world = a->world;
    uint64_t hash[2] = {0, 0};
    double peak = 0;
    char *json = NULL;
    gt_tensor sum = gt_tensor_1d(&peak, GT_F64, 1);
    TRY(gt_comm_agree(world, configure(a)));
    TRY(gt_comm_agree(world, gt_config_to_json(&a->config, &json)));
    gt_status equal = gt_comm_check_equal(world, "configuration", json, strlen(json));
    free(json);
    TRY(equal);
    TRY(gt_comm_agree(world, open_tokens(a, hash)));
    TRY(gt_comm_check_equal(world, "content of the token files", hash, sizeof hash));
    TRY(gt_comm_agree(world, gt_model_create(&a->model)));
    TRY(gt_comm_agree(world, gt_model_add_gpt(a->model, &a->config.model)));
    TRY(gt_trainer_create(&a->trainer, a->ctx, world, a->model, &a->config));
    TRY(gt_comm_agree(world, create_loaders(a)));
    TRY(gt_comm_agree(world, gt_peak_flops(a->ctx, a->config.dtype, &peak)));
    TRY(gt_all_reduce(world, &sum, GT_SUM, NULL, NULL));
    return gt_comm_agree(world, create_monitor(a, peak));
}

/* ---- training ---------------------------------------------------------------------------------*/
/* An error that only this rank has must reach the others, who are in the next step already. */
static gt_status for_all(app *a, gt_status mine)
{
    return mine == GT_OK ? GT_OK : gt_comm_fail(a->world, mine);
}

static gt_status evaluate(app *a)
{
    if (a->validation == NULL) {
        return GT_OK;
    }
    int64_t batches = gt_loader_samples(a->validation) / a->config.train_batch, all_tokens = 0;
    batches = batches < a->config.train.eval_batches ? batches : a->config.train.eval_batches;
    double sum = 0;
    TRY(gt_loader_seek(a->validation, 0)); /* the same samples each time */
    for (int64_t i = 0; i < batches || i == 0; i++) {
        gt_batch batch;
        double loss;
        int64_t tokens;
        TRY(for_all(a, gt_loader_next(a->validation, &batch)));
        TRY(gt_trainer_evaluate(a->trainer, &batch, &loss, &tokens));
        sum += loss * (double)tokens;
        all_tokens += tokens;
    }
    return a->rank == 0
               ? for_all(a, gt_monitor_evaluation(a->monitor, sum / (double)all_tokens, all_tokens))
               : GT_OK;
}

static gt_status train(app *a)
{
    int64_t every = a->config.train.eval_interval, steps = a->config.train.steps;
    for (int64_t step = 1; step <= steps; step++) {
        gt_batch batch;
        gt_step_result result = GT_STEP_RESULT_INIT;
        TRY(for_all(a, gt_loader_next(a->train, &batch)));
        TRY(gt_trainer_step(a->trainer, &batch, &result));
        TRY(a->rank == 0 ? for_all(a, gt_monitor_step(a->monitor, &result)) : GT_OK);
        if (every > 0 && step % every == 0 && step < steps) {
            TRY(evaluate(a));
        }
    }
    return evaluate(a);
}

/* Continues tokens that training has not seen. */
static gt_status sample(app *a)
{
    enum { PROMPT = 16 };
    const gt_tokens *from = a->validation_tokens != NULL ? a->validation_tokens : a->tokens;
    int64_t count = a->config.train.sample_tokens, known = gt_tokens_count(from);
    int64_t given = known < PROMPT ? known : PROMPT;
    bool text = strcmp(gt_tokens_format(from), "bytes") == 0;
    int32_t prompt[PROMPT], *out;
    TRY(gt_comm_agree(a->world, gt_tokens_read(from, known - given, given, prompt)));
    out = calloc((size_t)count + 1, sizeof *out); /* NULL: generation says so, on all ranks */
    gt_status st = gt_trainer_generate(a->trainer, prompt, given, count,
                                       a->config.train.temperature, a->config.seed, out);
    for (int64_t i = 0; a->rank == 0 && st == GT_OK && i < given + count; i++) {
        int32_t token = i < given ? prompt[i] : out[i - given];
        printf(i == 0 ? "---- sample\n" : i == given ? "|" : "");
        printf(text ? "%c" : "%d ",
               text && token != '\n' && (token < ' ' || token > '~') ? '?' : token);
    }
    printf(a->rank == 0 && st == GT_OK ? "\n" : "");
    free(out);
    return st;
}

/* ---- program ----------------------------------------------------------------------------------*/
/* Warnings of every rank, remarks of rank 0. */
static void log_line(void *user, gt_log_level level, const char *message)
{
    if (((const app *)user)->rank == 0 || level <= GT_LOG_WARN) {
        fprintf(stderr, "%s\n", message);
    }
}

static gt_status run(app *a)
{
    gt_context_params p = GT_CONTEXT_PARAMS_INIT;
    p.log = log_line;
    p.log_user = a;
    gt_config_init(&a->config);
    TRY(gt_context_create(&a->ctx, &p));
    TRY(gt_comm_create(&a->world, a->ctx, NULL));
    a->rank = gt_comm_rank(a->world);
    TRY(set_up(a));
    TRY(train(a));
    return sample(a);
}

int main(int argc, char **argv)
{
    app a = {.argc = argc, .argv = argv};
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        puts("usage: train_gpt --config FILE [options]     (mpirun -n N in front for N ranks)");
        gt_config_arguments_help(stdout);
        return 0;
    }
    gt_status st = run(&a);
    gt_monitor_destroy(&a.monitor);
    if (st != GT_OK && a.rank == 0) { /* its sentence names the rank that failed */
        fprintf(stderr, "train_gpt: %s\n", gt_last_error());
    }
    gt_loader_destroy(&a.train);
    gt_loader_destroy(&a.validation);
    gt_trainer_destroy(&a.trainer);
    gt_model_destroy(&a.model);
    gt_tokens_close(&a.tokens);
    gt_tokens_close(&a.validation_tokens);
    gt_comm_destroy(&a.world);
    gt_context_destroy(&a.ctx);
    return st == GT_OK ? 0 : 1;
}
