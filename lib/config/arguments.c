/* SPDX-License-Identifier: Apache-2.0
 * A command line as a series of overrides. */
#include <stdio.h>
#include <string.h>

#include <geektrain/config.h>

#include "core/fail.h"

static const char *const options[][3] = {
    {"--config", "", "FILE         JSON configuration, read first"},
    {"--data", "data.path",
     "PATH           token files: text, llm.c, Megatron, .npy, .bin; globs, ':'"},
    {"--steps", "train.steps", "N             optimizer steps"},
    {"--dtype", "dtype", "T             f32, bf16, or f16 with loss scaling"},
    {"--zero", "zero_optimization.stage", "N              ZeRO stage, 0 to 3"},
    {"--tp", "mesh.tp", "N                tensor-parallel ranks"},
    {"--pp", "mesh.pp", "N                pipeline stages"},
    {"--cp", "mesh.cp",
     "N                context-parallel ranks; the rest of the world is data-parallel"},
    {"--run-dir", "train.run_dir", "DIR         for metrics.jsonl and config.json"},
    {"--set", NULL, "KEY=VALUE       any key of the configuration; may be repeated"},
};
enum { OPTIONS = sizeof options / sizeof options[0] };

static int find(const char *name)
{
    int i = 0;
    while (i < OPTIONS && strcmp(options[i][0], name) != 0) {
        i++;
    }
    return i;
}

static gt_status set_pair(gt_config *config, gt_context *ctx, const char *pair)
{
    char key[256];
    size_t n = strcspn(pair, "=");
    if (pair[n] != '=' || n >= sizeof key) {
        return GT_FAIL(GT_ERR_ARGUMENT, "--set %.60s is not KEY=VALUE", pair);
    }
    memcpy(key, pair, n);
    key[n] = '\0';
    return gt_config_set(config, ctx, key, pair + n + 1);
}

gt_status gt_config_arguments(gt_config *config, gt_context *ctx, int argc, char *const *argv)
{
    gt_config c = *config;
    for (int i = 1; i < argc; i += 2) {
        if (find(argv[i]) == OPTIONS) {
            return GT_FAIL(GT_ERR_ARGUMENT, "%.60s is not an option; see --help", argv[i]);
        }
        if (i + 1 == argc) {
            return GT_FAIL(GT_ERR_ARGUMENT, "option %s lacks its value", argv[i]);
        }
        if (find(argv[i]) == 0) {
            GT_TRY(gt_config_load(&c, ctx, argv[i + 1]));
        }
    }
    for (int i = 1; i < argc; i += 2) {
        const char *key = options[find(argv[i])][1];
        if (key == NULL) {
            GT_TRY(set_pair(&c, ctx, argv[i + 1]));
        } else if (key[0] != '\0') {
            GT_TRY(gt_config_set(&c, ctx, key, argv[i + 1]));
        }
    }
    *config = c;
    return GT_OK;
}

void gt_config_arguments_help(FILE *stream)
{
    for (int i = 0; i < OPTIONS; i++) {
        fprintf(stream, "  %s %s\n", options[i][0], options[i][2]);
    }
}
