/* SPDX-License-Identifier: Apache-2.0
 *
 * Configuration: a DeepSpeed-style JSON file, with sections of our own: mesh, model, data, train,
 * and keys of our own in checkpoint.
 *
 * DeepSpeed's keys keep their names, meaning and defaults unless docs/config.md says otherwise;
 * comments, trailing commas and integers written as 5e8 are read. An unknown key is an error that
 * names its path and the nearest known key; a known key that this library has no use for gets one
 * info line; a key that asks for something unsupported is an error.
 */
#ifndef GEEKTRAIN_CONFIG_H
#define GEEKTRAIN_CONFIG_H

#include <stdio.h>

#include <geektrain/context.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GT_NAME_MAX 64
#define GT_PATH_MAX 1024

typedef enum gt_optimizer_type {
    GT_ADAMW = 0,
    GT_ADAM, /* L2 decay: "Adam" with "adam_w_mode": false */
    GT_SGD,
    GT_LION,
    GT_LAMB
} gt_optimizer_type;

typedef enum gt_schedule_type {
    GT_LR_CONSTANT = 0,  /* no scheduler                                                         */
    GT_LR_WARMUP,        /* WarmupLR: warm-up, then constant                                     */
    GT_LR_WARMUP_DECAY,  /* WarmupDecayLR: then linear to 0 at total                             */
    GT_LR_WARMUP_COSINE, /* WarmupCosineLR                                                       */
    GT_LR_WSD            /* warm-up, stable, linear decay over the last decay_num_steps          */
} gt_schedule_type;

typedef enum gt_offload { GT_OFFLOAD_NONE = 0, GT_OFFLOAD_CPU, GT_OFFLOAD_FILE } gt_offload;

#define GT_MAX_GROUPS 16
#define GT_PATTERN_MAX 128
#define GT_MAX_FROZEN 32

enum { /* what a group gives; of lr and lr_scale, and of the other two, one at most */
       GT_GROUP_LR = 1,
       GT_GROUP_LR_SCALE = 2,
       GT_GROUP_WEIGHT_DECAY = 4,
       GT_GROUP_DECAY_SCALE = 8
};

/* Parameters by name pattern (fnmatch). Where several groups match, a later one changes what it
 * gives and leaves the rest. Decay that a group gives holds also for biases and norms, which have
 * none otherwise. */
typedef struct gt_param_group {
    char pattern[GT_PATTERN_MAX];
    unsigned given;          /* GT_GROUP_* | ...                                              */
    double lr, weight_decay; /* in place of the optimizer's, whose schedule goes on           */
    double lr_scale, decay_scale; /* times the optimizer's                                     */
} gt_param_group;

typedef struct gt_optimizer_config {
    gt_optimizer_type type;
    double lr, beta1, beta2, eps, weight_decay, momentum, dampening;
    double max_coeff, min_coeff; /* LAMB: bounds of the trust ratio                            */
    bool nesterov;
    gt_dtype moments_dtype; /* f32, or bf16                                                    */
    bool master_remainder;  /* bf16 parameters + 16-bit remainder in place of the f32 master;
                               AdamW and Adam                                                  */
    int groups;
    gt_param_group group[GT_MAX_GROUPS];
} gt_optimizer_config;

typedef struct gt_scheduler_config {
    gt_schedule_type type;
    double min_lr, max_lr; /* max_lr < 0: the optimizer's lr                                    */
    int64_t warmup_steps, total_steps, decay_steps;
    bool warmup_log; /* DeepSpeed's default warm-up: ln(t+1)/ln(N)                          */
    double cos_min_ratio, warmup_min_ratio;
} gt_scheduler_config;

typedef struct gt_scaler_config {
    bool enabled;        /* exactly when dtype is f16                                            */
    double static_scale; /* 0: dynamic                                                           */
    int initial_power;   /* 16                                                                   */
    int window;          /* 1000                                                                 */
    int hysteresis;      /* 2                                                                    */
    bool consecutive;    /* consecutive_hysteresis                                               */
    double min_scale;    /* 1                                                                    */
} gt_scaler_config;

typedef struct gt_zero_config {
    int stage;
    int64_t reduce_bucket_size;    /* not used                                                  */
    int64_t persistence_threshold; /* stage 3: parameters of a unit smaller than it stay gathered */
    int hpz_partition_size;        /* stage 3: parameters held inside groups of this many ranks */
    gt_offload offload_optimizer;
    char offload_path[GT_PATH_MAX];
} gt_zero_config;

typedef struct gt_mesh_config {
    int pp, dp, cp, tp; /* dp 0: the rest of the world */
    bool sequence_parallel;
    bool no_overlap; /* tensor-parallel collectives are waited for at once, to see what overlap is
                        worth */
    char schedule[GT_NAME_MAX];  /* "1f1b" (default), "gpipe", "interleaved", "zb-h1", "zb-h2",
                                    "zb-v", or the path of a CSV file */
    int chunks;                  /* pipeline stages per rank; 0: the schedule's own       */
    char partition[GT_NAME_MAX]; /* "cost" (default), "parameters", "uniform", or "6,6,5,7"  */
} gt_mesh_config;

typedef struct gt_model_config {
    char type[GT_NAME_MAX]; /* "gpt2" or "llama"                                          */
    int64_t layers, width, heads, kv_heads; /* kv_heads 0: heads */
    int64_t ffn;                            /* 0: 4*width (gpt2) or 8/3 (llama) */
    int64_t vocab, seq;
    float dropout;
    float norm_eps;                 /* 0: 1e-5                                                    */
    float rope_base;                /* 10000                                                      */
    char rope_scaling[GT_NAME_MAX]; /* "none", "linear", "llama3", "yarn" */
    float rope_factor;
    int64_t rope_original_seq;
    float rope_low, rope_high; /* llama3: low/high frequency factors; yarn: beta_slow, beta_fast */
    bool untied;               /* head of its own                                            */
    bool recompute;            /* activation recomputation per block                         */
    float label_smoothing, z_loss;
    float init_std; /* 0: 0.02                                                    */
} gt_model_config;

typedef struct gt_data_config {
    char path[GT_PATH_MAX];       /* may hold several paths separated by ':' or a glob            */
    char validation[GT_PATH_MAX]; /* "": the last validation_fraction of path                     */
    char format[GT_NAME_MAX];     /* "auto", "bytes", "llmc", "megatron"                          */
    double validation_fraction;   /* 0.05                                                         */
    bool shuffle;                 /* true                                                         */
} gt_data_config;

typedef struct gt_train_config {
    int64_t steps;
    int64_t eval_interval, eval_batches; /* 0: only at the end                                    */
    char run_dir[GT_PATH_MAX];
    int64_t sample_tokens;
    float temperature;
} gt_train_config;

typedef struct gt_checkpoint_config {
    char directory[GT_PATH_MAX]; /* "": none are written                                          */
    int64_t interval;   /* steps between checkpoints; 0: not by steps                     */
    double minutes;     /* between checkpoints; 0: not by time                            */
    int64_t keep;       /* the newest so many stay; 0: all                                */
    int64_t keep_every; /* those of steps that it divides stay too; 0: none               */
    bool async;         /* written while training goes on                                 */
} gt_checkpoint_config;

typedef struct gt_config {
    size_t struct_size;
    int64_t train_batch, micro_batch, grad_accum; /* 0 = to be derived (gt_config_resolve) */
    double gradient_clipping; /* 0 = off                                                    */
    int64_t steps_per_print;
    gt_dtype dtype;               /* from fp16/bf16 sections; f32 when neither                   */
    gt_dtype communication_dtype; /* of gradients; default f32 for f32, else dtype              */
    gt_dtype accum_dtype;         /* of gradient shards; f32                                     */
    uint64_t seed;                /* initial values, dropout; order of samples (gt_loader_params) */
    double communication_timeout_s; /* how long a rank waits for another; 0: 600                  */
    int64_t max_skipped_steps;      /* in a row, then a step is an error; 0: no limit             */
    int frozen_count;
    char frozen[GT_MAX_FROZEN][GT_PATTERN_MAX]; /* names (fnmatch) of parameters that stay        */
    gt_optimizer_config optimizer;
    gt_scheduler_config scheduler;
    gt_scaler_config scaler;
    gt_zero_config zero;
    gt_mesh_config mesh;
    gt_model_config model;
    gt_data_config data;
    gt_train_config train;
    gt_checkpoint_config checkpoint;
} gt_config;

/* Every default. */
GT_API void gt_config_init(gt_config *config);
/* Reads a file / a text over the defaults. ctx carries the log for info and warning lines; may be
 * NULL. Errors: GT_ERR_IO; GT_ERR_CONFIG with path of the key, or line and column for bad syntax.
 */
GT_API gt_status gt_config_load(gt_config *out, gt_context *ctx, const char *path);
GT_API gt_status gt_config_parse(gt_config *out, gt_context *ctx, const char *text, size_t length);
/* Sets one value by path as a command line does: "zero_optimization.stage", "3". */
GT_API gt_status gt_config_set(gt_config *config, gt_context *ctx, const char *path,
                               const char *value);
/* Reads a command line over *config: --config FILE, then in their order the options that
 * gt_config_arguments_help() prints. argv[0] is passed over. Errors: as gt_config_load and
 * gt_config_set; GT_ERR_ARGUMENT for an unknown option. */
GT_API gt_status gt_config_arguments(gt_config *config, gt_context *ctx, int argc,
                                     char *const *argv);
GT_API void gt_config_arguments_help(FILE *stream);
/* Fits mesh and batch sizes to the world: derives dp and the missing batch sizes, checks ranges and
 * that everything multiplies out. Errors: GT_ERR_CONFIG printing the numbers. */
GT_API gt_status gt_config_resolve(gt_config *config, int world_size);
/* The configuration as JSON text that gt_config_parse reads back to the same values; free() it. */
GT_API gt_status gt_config_to_json(const gt_config *config, char **out);

#ifdef __cplusplus
}
#endif
#endif
