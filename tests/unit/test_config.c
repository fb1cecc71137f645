/* SPDX-License-Identifier: Apache-2.0
 * The configuration reader: values, names, syntax, overrides, writing. */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <locale.h>
#include <cmocka.h>

#include <geektrain/config.h>

#include "config/keys.h"
#include "config/param_names.h"

static char log_text[8192];

static void keep_log(void *user, gt_log_level level, const char *message)
{
    size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof log_text - used, "%d: %s\n", level, message);
}

static gt_context *ctx;

static int set_up(void **state)
{
    gt_context_params p = GT_CONTEXT_PARAMS_INIT;
    p.log = keep_log;
    return gt_context_create(&ctx, &p) == GT_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    gt_context_destroy(&ctx);
    return 0;
}

static gt_status parse(gt_config *c, const char *text)
{
    log_text[0] = '\0';
    return gt_config_parse(c, ctx, text, strlen(text));
}

static void accept(gt_config *c, const char *text)
{
    if (parse(c, text) != GT_OK) {
        fail_msg("%s\n  refused: %s", text, gt_last_error());
    }
}

/* Refused, config untouched, and the sentence holds every part. */
static void refuse(const char *text, const char *a, const char *b)
{
    gt_config c, before;
    memset(&c, 0x5a, sizeof c);
    memcpy(&before, &c, sizeof c);
    gt_status st = parse(&c, text);
    if (st != GT_ERR_CONFIG) {
        fail_msg("%s\n  gave %s, wanted GT_ERR_CONFIG", text, gt_status_name(st));
    }
    if (strstr(gt_last_error(), a) == NULL || (b != NULL && strstr(gt_last_error(), b) == NULL)) {
        fail_msg("%s\n  says: %s\n  wanted: %s ... %s", text, gt_last_error(), a,
                 b != NULL ? b : "");
    }
    assert_memory_equal(&c, &before, sizeof c);
}

static void parse_empty_gives_defaults(void **state)
{
    gt_config c, d;
    accept(&c, "{}");
    gt_config_init(&d);
    assert_memory_equal(&c, &d, sizeof c);
    assert_true(c.gradient_clipping == 1.0 && c.optimizer.lr == 1e-3 &&
                c.scaler.initial_power == 16);
}

/* Numbers as the field writes them. */
static void integers_in_every_spelling(void **state)
{
    static const struct {
        const char *text;
        int64_t want; /* -1: refused */
    } rows[] = {
        {"5e8", 500000000},
        {"500000000.0", 500000000},
        {"15099494.4", -1},
        {"\"10\"", 10},
        {"\"5e8\"", 500000000},
        {"-1", -1},
        {"0", -1},
        {"true", -1},
        {"NaN", -1},
        {"1e400", -1},
        {"1e14", 100000000000000},
        {"2e10", 20000000000},
        {"1e19", -1},
        {"9223372036854775808", -1},
        {"[1]", -1},
        {"{}", -1},
        {"\"ten\"", -1},
        {"\"\"", -1},
        {"\"0x10\"", -1},
        {"1e-400", -1},
        {"\" 10\"", -1},
        {"1e17", 100000000000000000},
        {"Infinity", -1},
        {"2147483648", 2147483648},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[160];
        gt_config c;
        snprintf(text, sizeof text, "{\"zero_optimization\": {\"reduce_bucket_size\": %s}}",
                 rows[i].text);
        if (rows[i].want < 0) {
            refuse(text, "zero_optimization.reduce_bucket_size is", "wanted");
        } else {
            accept(&c, text);
            assert_int_equal(c.zero.reduce_bucket_size, rows[i].want);
        }
    }
}

static void unused_integers_are_checked_in_64_bits(void **state)
{
    gt_config c;
    accept(&c, "{zero_optimization: {stage3_max_live_parameters: 2e10, sub_group_size: 1e14}}");
    assert_non_null(strstr(log_text, "stage3_max_live_parameters"));
    refuse("{zero_optimization: {stage3_max_live_parameters: 1e400}}",
           "stage3_max_live_parameters is", "integer");
    refuse("{zero_optimization: {sub_group_size: NaN}}", "sub_group_size is \"NaN\"", "integer");
}

/* A locale with a decimal comma, compiled here (the C library remembers a locale it did not find,
 * so that this comes first), or else the machine's. */
static bool use_comma_locale(char *directory)
{
    char command[200];
    if (mkdtemp(directory) == NULL) {
        return false;
    }
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 2>/dev/null",
             directory);
    if (system(command) == 0) {
        setenv("LOCPATH", directory, 1);
    }
    return setlocale(LC_ALL, "de_DE.UTF-8") != NULL &&
           strcmp(localeconv()->decimal_point, ",") == 0;
}

static void numbers_do_not_depend_on_the_locale(void **state)
{
    gt_config c;
    char *json, directory[] = "/tmp/geektrain-locale-XXXXXX", command[100];
    if (!use_comma_locale(directory)) {
        print_message("no locale with a decimal comma here\n");
    }
    accept(&c, "{\"gradient_clipping\": 2.5, \"optimizer\": {\"params\": {\"lr\": \"1.5e-3\"}}}");
    assert_true(c.gradient_clipping == 2.5 && c.optimizer.lr == 1.5e-3);
    assert_int_equal(gt_config_to_json(&c, &json), GT_OK);
    assert_non_null(strstr(json, "2.5"));
    free(json);
    setlocale(LC_ALL, "C");
    snprintf(command, sizeof command, "rm -rf %s", directory);
    assert_int_equal(system(command), 0);
}

/* Field case 11. */
static void clip_values(void **state)
{
    gt_config c;
    accept(&c, "{gradient_clipping: 0}");
    assert_true(c.gradient_clipping == 0);
    accept(&c, "{gradient_clipping: Infinity}");
    assert_true(isinf(c.gradient_clipping));
    refuse("{gradient_clipping: -1}", "gradient_clipping is -1", "at least 0");
    refuse("{gradient_clipping: NaN}", "gradient_clipping is \"NaN\"", "number");
    refuse("{gradient_clipping: -Infinity}", "gradient_clipping is", "number");
    refuse("{gradient_clipping: 1e400}", "gradient_clipping is 1e400", "finite");
    gt_config_init(&c);
    c.train_batch = 1;
    c.gradient_clipping = NAN;
    assert_int_equal(gt_config_resolve(&c, 1), GT_ERR_CONFIG);
    c.gradient_clipping = -1;
    assert_int_equal(gt_config_resolve(&c, 1), GT_ERR_CONFIG);
}

/* Field case 3. */
static void scaler_defaults(void **state)
{
    gt_config c;
    accept(&c, "{\"fp16\":{\"enabled\":true}}");
    assert_true(c.scaler.enabled && c.dtype == GT_F16 && c.communication_dtype == GT_F16);
    assert_int_equal(c.scaler.initial_power, 16);
    accept(&c, "{\"fp16\":{\"enabled\":true, \"initial_scale_power\": 32}}");
    assert_int_equal(c.scaler.initial_power, 32);
    accept(&c, "{\"fp16\":{\"enabled\":true, \"initial_scale_power\": 0, min_loss_scale: 0.5}}");
    assert_int_equal(c.scaler.initial_power, 0);
    assert_true(c.scaler.min_scale == 0.5);
    accept(&c, "{dtype: f16\n}");
    assert_true(c.scaler.enabled && c.dtype == GT_F16);
    assert_int_equal(gt_config_set(&c, ctx, "dtype", "bf16"), GT_OK);
    assert_true(!c.scaler.enabled && c.dtype == GT_BF16 && c.communication_dtype == GT_BF16);
    refuse("{dtype: bf16\n fp16: {enabled: true}}", "dtype is bf16, but fp16.enabled is true",
           NULL);
    refuse("{fp16: {enabled: true}, bf16: {enabled: true}}", "fp16.enabled and bf16.enabled",
           "both");
}

static void unknown_keys_name_their_neighbours(void **state)
{
    static const char *const rows[][3] = {
        {"{\"step_per_print\": 1}", "step_per_print is not a known key",
         "nearest: steps_per_print"},
        {"{\"max_grad_norm\": 1}", "max_grad_norm", "nearest: gradient_clipping"},
        {"{optimizer: {type: Adam\n eps: 1}}", "optimizer.eps", "nearest: optimizer.params.eps"},
        {"{lr: 1}", "lr is not", "nearest: optimizer.params.lr"},
        {"{zero_optimisation: {stage: 3}}", "zero_optimisation", "nearest: zero_optimization"},
        {"{zero_optimization: {stge: 3}}", "zero_optimization.stge",
         "nearest: zero_optimization.stage"},
        {"{checkpointing: {enabled: true}}", "checkpointing", "nearest: checkpoint"},
        {"{\"hidden-size\": 8}", "hidden-size", "nearest: model.width"},
        {"{model: {layer: 8}}", "model.layer", "nearest: model.layers"},
        {"{mesh: {pipeline: 8}}", "mesh.pipeline", "known"},
        {"{\"fp16.enabled\": true}", "fp16.enabled is not a known key", NULL},
        {"{qqqqqqqq: 8}", "qqqqqqqq is not a known key", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        refuse(rows[i][0], rows[i][1], rows[i][2]);
    }
}

static void every_problem_is_told_with_its_line(void **state)
{
    refuse("{\n \"foo\": 1,\n \"zero_optimization\": {\n  \"stage\": [0, 1]},\n \"bar\": 2}",
           "line 4: zero_optimization.stage is a list, wanted an integer; line 2: foo is not",
           "line 5: bar is not");
}

static void duplicate_keys_are_refused(void **state)
{
    refuse("{\"seed\": 1,\n \"seed\": 2}", "line 2: seed is given twice, first on line 1", NULL);
    refuse("{fp16: {enabled: true}, fp16: {enabled: false}}", "fp16 is given twice", NULL);
    refuse("{bf16: {enabled: true}, bfloat16: {enabled: false}}",
           "bfloat16.enabled and bf16.enabled", "differently");
    refuse("{pipeline: {stages: 2}, mesh: {pp: 4}}", "mesh.pp and pipeline.stages", "differently");
    gt_config c;
    accept(&c, "{pipeline: {stages: 2}, mesh: {pp: 2}, model: {layers: 3}, train: {steps: 3}}");
    assert_int_equal(c.mesh.pp, 2);
}

static void hjson_liberties(void **state)
{
    gt_config c;
    accept(
        &c,
        "\xef\xbb\xbf# one\r\n{\r\n // two\r\n \"seed\": 7, /* three */ \"train\": {\r\n"
        "  run_dir: a//b#c,d\r\n  steps: 5 # four\r\n  \"temperature\": 0.5,\r\n },\r\n}\r\n# end");
    assert_int_equal(c.seed, 7);
    assert_int_equal(c.train.steps, 5);
    assert_true(c.train.temperature == 0.5f);
    assert_string_equal(c.train.run_dir, "a//b#c,d");
    accept(&c, "{\"data\": {\"path\": \"http://x//y # z\"}, \"_note\": {\"a\": [1, 2,]}}");
    assert_string_equal(c.data.path, "http://x//y # z");
    accept(&c, "{'data': {path: 'a\\'b\"c\\\\'}, train: {run_dir: \"it's\"}, seed: 3}");
    assert_string_equal(c.data.path, "a'b\"c\\");
    assert_string_equal(c.train.run_dir, "it's");
    assert_int_equal(c.seed, 3);
    accept(&c, "{optimizer: {params: {betas: [0.5\n 0.25\n]}}}");
    assert_true(c.optimizer.beta1 == 0.5 && c.optimizer.beta2 == 0.25);
    accept(&c,
           "{seed: null, optimizer: null, fp16: {enabled: auto\n}, gradient_clipping: \"auto\"}");
    assert_non_null(strstr(log_text, "fp16.enabled, gradient_clipping"));
    assert_true(c.seed == 1234 && c.gradient_clipping == 1.0);
}

static void bad_syntax_names_line_and_column(void **state)
{
    static const char *const rows[][2] = {
        {"", "line 1, column 1: got the end, wanted '{'"},
        {"[1]", "wanted '{'"},
        {"{\"seed\" 1}", "line 1, column 9: got '1', wanted ':'"},
        {"{\"seed\": 1 \"fp16\": {}}", "got the end, wanted ',' or '}'"},
        {"{\n\"seed: 1}", "line 2, column 1: got '\"', wanted the closing"},
        {"{\"seed\": 1,, \"fp16\": {}}", "wanted a key"},
        {"{\"seed\": }", "wanted a value"},
        {"{'seed: 1}", "line 1, column 2: got ''', wanted the closing '"},
        {"{model: {type: gpt2, layers: 2}}",
         "got the end, wanted ',' or '}' (a string without quotes goes to the end of its line: "
         "\"gpt2, layers: 2}}\")"},
        {"{\"seed\": 1", "got the end, wanted ',' or '}'"},
        {"{\"seed\": 1} 2", "wanted the end"},
        {"{/* seed: 1}", "wanted the end of this comment"},
        {"{\"data\": {\"path\": \"a\\qb\"}}", "invalid"},
        {"{\"data\": {\"path\": \"a\\u0000b\"}}", "data.path is a string of 3 bytes"},
        {"{\"data\": {\"path\": \"\xff\xfe\"}}", "invalid"},
        {"{\"s\\u0065ed\": 1}", "a key without escapes"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        refuse(rows[i][0], rows[i][1], NULL);
    }
    char deep[200] = "{a:";
    memset(deep + 3, '[', 150);
    deep[153] = '\0';
    refuse(deep, "less deep nesting", NULL);
}

static void wrong_types_are_named(void **state)
{
    refuse("{zero_optimization: true}", "zero_optimization is true, wanted a section", NULL);
    refuse("{fp16: {enabled: 1}}", "fp16.enabled is 1, wanted true or false", NULL);
    refuse("{optimizer: {type: 3}}", "optimizer.type is 3, wanted one of: AdamW", NULL);
    refuse("{optimizer: {type: OneBitAdam\n}}", "\"OneBitAdam\", wanted one of", "Lamb");
    refuse("{optimizer: {params: {betas: [0.9]}}}", "betas is a list, wanted a list of two", NULL);
    refuse("{optimizer: {params: {betas: [0.9, 1.0]}}}", "betas is 1.0, wanted from 0 to below 1",
           NULL);
    refuse("{optimizer: {params: {lr: NaN\n}}}", "optimizer.params.lr is \"NaN\"", "number");
    refuse("{optimizer: {params: {lr: -1}}}", "optimizer.params.lr is -1, wanted at least 0", NULL);
    refuse("{model: {layers: 0}}", "model.layers is 0, wanted at least 1", NULL);
    refuse("{model: {seq: 3000000000}}", "model.seq is 3000000000, wanted at most 2147483647",
           NULL);
    refuse("{model: {dropout: 1}}", "model.dropout is 1, wanted from 0 to below 1", NULL);
    refuse("{zero_optimization: {stage: 4}}", "stage is 4, wanted from 0 to 3", NULL);
    refuse("{communication_data_type: i32\n}", "communication_data_type is \"i32\"", "fp32");
    refuse("{data: {path: [a\n]}}", "data.path is a list, wanted a string", NULL);
    refuse("{mesh: {tp: 0}}", "mesh.tp is 0, wanted at least 1", NULL);
    refuse("{mesh: {tp: 4294967297}}", "mesh.tp is 4294967297", NULL);
}

static void unsupported_features_are_refused_only_when_on(void **state)
{
    gt_config c;
    accept(&c,
           "{amp: {enabled: false, opt_level: O2\n}, curriculum_learning: {enabled: false, x: 1}}");
    accept(&c, "{zero_optimization: {stage: 3, zero_quantized_weights: false, mics_shard_size: -1,"
               "offload_param: {device: \"none\"}}}");
    refuse("{amp: {enabled: true}}", "amp.enabled is true, which is not supported", NULL);
    refuse("{curriculum_learning: {enabled: true}}", "curriculum_learning.enabled",
           "not supported");
    refuse("{sparse_attention: {mode: fixed\n}}", "sparse_attention", "not supported");
    refuse("{zero_optimization: {stage: 3, offload_param: {device: cpu\n}}}",
           "zero_optimization.offload_param.device", "not supported");
    refuse("{optimizer: {params: {amsgrad: true}}}", "amsgrad", "not supported");
    accept(&c,
           "{zero_optimization: {stage: 3, offload_optimizer: {device: nvme\n nvme_path: /x\n}}}");
    assert_int_equal(c.zero.offload_optimizer, GT_OFFLOAD_FILE);
    assert_string_equal(c.zero.offload_path, "/x");
}

static void optimizer_names_follow_deepspeed(void **state)
{
    gt_config c;
    accept(&c, "{optimizer: {type: \"Adam\"}}");
    assert_int_equal(c.optimizer.type, GT_ADAMW);
    accept(&c, "{optimizer: {params: {adam_w_mode: false}, type: \"adam\"}}");
    assert_int_equal(c.optimizer.type, GT_ADAM);
    accept(&c, "{optimizer: {type: \"AdamW\", params: {adam_w_mode: false}}}");
    assert_int_equal(c.optimizer.type, GT_ADAMW);
    accept(&c, "{optimizer: {type: \"Lion\"}}");
    assert_true(c.optimizer.type == GT_LION && c.optimizer.beta2 == 0.99);
}

static void scales(const gt_config *c, const char *name, bool no_decay, double lr, double decay)
{
    float got_lr = -1, got_decay = -1;
    gti_config_group_scales(c, name, no_decay, &got_lr, &got_decay);
    if (fabs((double)got_lr - lr) > 1e-6 || fabs((double)got_decay - decay) > 1e-6) {
        fail_msg("%s: lr %g, decay %g; wanted %g, %g", name, (double)got_lr, (double)got_decay, lr,
                 decay);
    }
}

static void groups_change_what_they_give(void **state)
{
    gt_config c;
    accept(&c, "{optimizer: {params: {groups: [{pattern: \"*.bias\", weight_decay: 0.05},"
               "{pattern: \"blocks.1.*\", lr_scale: 0.1}, {pattern: \"blocks.1.attn.*\", "
               "decay_scale: 3}, {pattern: \"head.*\", lr: 0.02, weight_decay: 0}],"
               "lr: 0.01, weight_decay: 0.1}}}");
    assert_int_equal(c.optimizer.groups, 4);
    scales(&c, "embed.tokens", false, 1, 1);
    scales(&c, "norm.weight", true, 1, 0);
    scales(&c, "blocks.0.mlp.bias", true, 1, 0.5);
    scales(&c, "blocks.1.mlp.bias", true, 0.1, 0.5);
    scales(&c, "blocks.1.mlp.weight", false, 0.1, 1);
    scales(&c, "blocks.1.attn.weight", false, 0.1, 3);
    scales(&c, "blocks.1.attn.bias", true, 0.1, 3);
    scales(&c, "head.weight", false, 2, 0);
    assert_int_equal(gt_config_set(&c, ctx, "optimizer.params.lr", "0.04"), GT_OK);
    scales(&c, "head.weight", false, 0.5, 0); /* its own rate stays 0.02 */
}

static void lamb_bounds_of_the_trust_ratio(void **state)
{
    gt_config c;
    accept(&c, "{}");
    assert_true(c.optimizer.max_coeff == 10 && c.optimizer.min_coeff == 0.01);
    accept(&c, "{optimizer: {type: \"Lamb\", params: {max_coeff: 0.3, min_coeff: 0}}}");
    assert_true(c.optimizer.max_coeff == 0.3 && c.optimizer.min_coeff == 0);
    refuse("{optimizer: {type: \"Lamb\", params: {max_coeff: 0.3, min_coeff: 0.4}}}",
           "min_coeff 0.4 is above optimizer.params.max_coeff 0.3", NULL);
}

static void groups_that_cannot_be(void **state)
{
    static const char *const rows[][2] = {
        {"{pattern: \"x\", weight_decay: 1}", "groups[0].weight_decay is 1, but"},
        {"{patern: \"x\"}", "groups[0].patern is not known"},
        {"{lr: 1}", "groups[0] has no pattern"},
        {"{pattern: \"x\"}", "groups[0] changes nothing"},
        {"{pattern: \"x\", lr: 1, lr_scale: 1}", "groups[0] has both lr and lr_scale"},
        {"{pattern: \"x\", weight_decay: 0, decay_scale: 1}", "both weight_decay and decay_scale"},
        {"{pattern: \"x\", lr_scale: -1}", "groups[0].lr_scale is -1, wanted"},
        {"7", "[0] is not {pattern"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[200];
        snprintf(text, sizeof text, "{optimizer: {params: {groups: [%s]}}}", rows[i][0]);
        refuse(text, rows[i][1], NULL);
    }
    gt_config c;
    gt_config_init(&c);
    c.train_batch = 1;
    assert_int_equal(gt_config_resolve(&c, 1), GT_OK);
    c.optimizer.groups = 1000;
    assert_int_equal(gt_config_resolve(&c, 1), GT_ERR_CONFIG);
    c.optimizer.groups = 1;
    c.optimizer.group[0] =
        (gt_param_group){.pattern = "*", .given = GT_GROUP_LR_SCALE, .lr_scale = NAN};
    assert_int_equal(gt_config_resolve(&c, 1), GT_ERR_CONFIG);
}

static const char *const names[] = {"embed.tokens", "blocks.0.attn.qkv.weight",
                                    "blocks.0.attn.qkv.bias", "blocks.0.mlp.up.weight",
                                    "head.norm.weight"};

static const char *name_of(const void *list, int index)
{
    return ((const char *const *)list)[index];
}

static void frozen_names(void **state)
{
    gt_config c;
    gt_config_init(&c);
    assert_false(gti_config_is_frozen(&c, "embed.tokens"));
    accept(&c, "{frozen: [\"embed.*\", \"*.bias\"]}");
    assert_true(gti_config_is_frozen(&c, "embed.tokens"));
    assert_true(gti_config_is_frozen(&c, "blocks.0.attn.qkv.bias"));
    assert_false(gti_config_is_frozen(&c, "blocks.0.attn.qkv.weight"));
}

static void patterns_without_a_match_name_what_is_near(void **state)
{
    static const struct {
        const char *pattern, *near; /* near NULL: matches; "": nothing is near */
    } rows[] = {
        {"embed.*", NULL},
        {"*", NULL},
        {"*.qkv.bias", NULL},
        {"embd.*", "near: embed.tokens"},
        {"blocks.0.attn.qvk.weight", "near: blocks.0.attn.qkv.weight"},
        {"*.biass", "near: blocks.0.attn.qkv.bias"},
        {"h?ad.norm.wieght", "near: head.norm.weight"},
        {"Embed.*", "near: embed.tokens"},
        {"zzzzzzzzzzzz", ""},
    };
    int count = sizeof names / sizeof names[0];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int group = 0; group < 2; group++) {
            gt_config c;
            gt_config_init(&c);
            snprintf(group ? c.optimizer.group[0].pattern : c.frozen[0], GT_PATTERN_MAX, "%s",
                     rows[i].pattern);
            *(group ? &c.optimizer.groups : &c.frozen_count) = 1;
            gt_status st = gti_config_unmatched_pattern(&c, name_of, names, count);
            assert_int_equal(st, rows[i].near == NULL ? GT_OK : GT_ERR_CONFIG);
            if (st != GT_OK) {
                const char *says = gt_last_error();
                assert_non_null(strstr(says, rows[i].pattern));
                assert_non_null(strstr(says, group ? "optimizer.params.groups[0]" : "frozen[0]"));
                assert_non_null(strstr(says, rows[i].near));
                assert_true(rows[i].near[0] != '\0' || strstr(says, "near") == NULL);
            }
        }
    }
}

static void frozen_is_a_list_of_patterns(void **state)
{
    gt_config c;
    accept(&c, "{frozen: [\"embed.*\", \"*.bias\"]}");
    assert_int_equal(c.frozen_count, 2);
    assert_string_equal(c.frozen[0], "embed.*");
    assert_string_equal(c.frozen[1], "*.bias");
    assert_int_equal(gt_config_set(&c, ctx, "frozen", "[\"head\"]"), GT_OK);
    assert_int_equal(c.frozen_count, 1);
    assert_string_equal(c.frozen[0], "head");
    assert_string_equal(c.frozen[1], "");
    assert_int_equal(gt_config_set(&c, ctx, "frozen", "[]"), GT_OK);
    assert_int_equal(c.frozen_count, 0);
    refuse("{frozen: \"embed.*\"}", "frozen is \"embed.*\", wanted a list", NULL);
    refuse("{frozen: [3]}", "frozen[0] is 3, wanted a string", NULL);
    refuse("{frozen: [\"a\", \"\"]}", "frozen[1] is empty", NULL);
    char many[600] = "{frozen: [\"a\"";
    for (int i = 0; i < GT_MAX_FROZEN; i++) {
        strcat(many, ", \"a\"");
    }
    refuse(strcat(many, "]}"), "wanted a list of at most 32", NULL);
}

static void limits_and_checkpoints(void **state)
{
    gt_config c;
    accept(&c, "{}");
    assert_true(c.communication_timeout_s == 600 && c.max_skipped_steps == 100);
    assert_true(c.checkpoint.keep == 2 && c.checkpoint.directory[0] == '\0');
    accept(&c, "{communication_timeout_s: 2.5, max_skipped_steps: 0, checkpoint: {directory: "
               "\"runs/a\", interval: 1000, minutes: 0.5, keep: 3, keep_every: 5000, async: true, "
               "tag_validation: \"Warn\", load_universal: false}}");
    assert_true(c.communication_timeout_s == 2.5 && c.max_skipped_steps == 0);
    assert_string_equal(c.checkpoint.directory, "runs/a");
    assert_true(c.checkpoint.interval == 1000 && c.checkpoint.minutes == 0.5);
    assert_true(c.checkpoint.keep == 3 && c.checkpoint.keep_every == 5000 && c.checkpoint.async);
    assert_non_null(strstr(log_text, "checkpoint.tag_validation, checkpoint.load_universal"));
    refuse("{communication_timeout_s: -1}", "communication_timeout_s is -1, wanted", NULL);
    refuse("{max_skipped_steps: 1.5}", "max_skipped_steps is 1.5, wanted an integer", NULL);
    refuse("{checkpoint: {minutes: Infinity\n}}", "checkpoint.minutes is", "wanted");
    refuse("{checkpoint: {keep: -1}}", "checkpoint.keep is -1, wanted at least 0", NULL);
}

static void set_overrides_one_value(void **state)
{
    gt_config c;
    gt_config_init(&c);
    static const char *const good[][2] = {
        {"zero_optimization.stage", "3"},    {"optimizer.params.betas", "[0.8, 0.9]"},
        {"mesh.partition", "6,6,5,7"},       {"mesh.schedule", "1f1b"},
        {"train.run_dir", "a \"b\" \\c//d"}, {"bf16.enabled", "true"},
        {"optimizer.params.lr", "3e-4"},     {"data.format", "auto"},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        if (gt_config_set(&c, ctx, good[i][0], good[i][1]) != GT_OK) {
            fail_msg("%s=%s: %s", good[i][0], good[i][1], gt_last_error());
        }
    }
    assert_int_equal(c.zero.stage, 3);
    assert_true(c.optimizer.beta1 == 0.8 && c.optimizer.lr == 3e-4);
    assert_string_equal(c.mesh.partition, "6,6,5,7");
    assert_string_equal(c.train.run_dir, "a \"b\" \\c//d");
    assert_true(c.dtype == GT_BF16 && c.communication_dtype == GT_BF16);
    gt_config before = c;
    assert_int_equal(gt_config_set(&c, ctx, "zero_optimization.stage", "5"), GT_ERR_CONFIG);
    assert_int_equal(gt_config_set(&c, ctx, "zero.stage", "1"), GT_ERR_CONFIG);
    assert_int_equal(gt_config_set(&c, ctx, "..", "1"), GT_ERR_CONFIG);
    assert_int_equal(gt_config_set(&c, ctx, "a\"b", "1"), GT_ERR_CONFIG);
    assert_int_equal(gt_config_set(&c, ctx, "seed", "1\n2"), GT_ERR_CONFIG);
    assert_memory_equal(&c, &before, sizeof c);
    assert_int_equal(gt_config_set(&c, ctx, "bf16.enabled", "false"), GT_OK);
    assert_true(c.dtype == GT_F32 && c.communication_dtype == GT_F32);
}

static void command_lines_override(void **state)
{
    static const struct {
        char *argv[8];
        gt_status want;
        const char *says;
    } rows[] = {
        {{"p", "--steps", "7", "--zero", "2", "--set", "optimizer.params.lr=3e-4"}, GT_OK, NULL},
        {{"p", "--dtype", "bf16", "--set", "data.path=a=b"}, GT_OK, NULL},
        {{"p"}, GT_OK, NULL},
        {{"p", "--steps"}, GT_ERR_ARGUMENT, "--steps lacks its value"},
        {{"p", "--stpes", "7"}, GT_ERR_ARGUMENT, "--stpes is not an option"},
        {{"p", "--set", "seed"}, GT_ERR_ARGUMENT, "not KEY=VALUE"},
        {{"p", "--set", "sed=1"}, GT_ERR_CONFIG, "nearest: seed"},
        {{"p", "--tp", "two"}, GT_ERR_CONFIG, "mesh.tp is \"two\""},
        {{"p", "--dtype", "f8"}, GT_ERR_CONFIG, "dtype is \"f8\""},
        {{"p", "--config", "/nowhere.json"}, GT_ERR_IO, "/nowhere.json"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int argc = 0;
        gt_config c, before;
        gt_config_init(&c);
        before = c;
        while (argc < 8 && rows[i].argv[argc] != NULL) {
            argc++;
        }
        assert_int_equal(gt_config_arguments(&c, ctx, argc, rows[i].argv), rows[i].want);
        if (rows[i].want != GT_OK) {
            assert_memory_equal(&c, &before, sizeof c);
            assert_non_null(strstr(gt_last_error(), rows[i].says));
        } else if (i == 0) {
            assert_true(c.train.steps == 7 && c.zero.stage == 2 && c.optimizer.lr == 3e-4);
        } else if (i == 1) {
            assert_true(c.dtype == GT_BF16 && strcmp(c.data.path, "a=b") == 0);
        }
    }
}

static void json_reads_back_to_the_same_values(void **state)
{
    static const char *const texts[] = {
        "{}",
        "{train_batch_size: 8, fp16: {enabled: true, loss_scale: 128}, optimizer: {type: Adam\n"
        " params: {adam_w_mode: false, lr: 0.1, betas: [0.123456789012345678, 0.5], weight_decay: "
        "0.1,"
        " groups: [{pattern: \"*.bias\", lr_scale: 0.1}]}}, gradient_clipping: Infinity\n}",
        "{bf16: {enabled: true}, communication_data_type: fp32\n scheduler: {type: WSD\n params: {"
        "warmup_type: linear\n total_num_steps: 1000}}, zero_optimization: {stage: 2, "
        "offload_optimizer:"
        " {device: nvme\n nvme_path: /a b\n}}, mesh: {pp: 2, tp: 3, sequence_parallel: true},"
        " model: {layers: 7, dropout: 0.1, type: llama\n}, data: {path: \"a:b*\"}, train: {steps: "
        "9}, frozen: [\"a.*\", \"b\"], max_skipped_steps: 7, communication_timeout_s: 0.1,"
        "checkpoint: {directory: \"c\", minutes: 1.5, async: true}}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        gt_config c, d;
        char *json, *again;
        accept(&c, texts[i]);
        assert_int_equal(gt_config_to_json(&c, &json), GT_OK);
        accept(&d, json);
        assert_memory_equal(&c, &d, sizeof c);
        assert_int_equal(gt_config_to_json(&d, &again), GT_OK);
        assert_string_equal(json, again);
        free(json);
        free(again);
    }
}

static void load_reports_the_file(void **state)
{
    gt_config c;
    assert_int_equal(gt_config_load(&c, ctx, "/no/such/file.json"), GT_ERR_IO);
    assert_non_null(strstr(gt_last_error(), "/no/such/file.json: No such file"));
    assert_int_equal(gt_config_load(&c, ctx, "/"), GT_ERR_IO);
}

/* The table itself: every alias leads to a used key, no path twice, every field inside the struct.
 */
static void key_table_is_consistent(void **state)
{
    for (size_t i = 0; i < gti_key_count; i++) {
        const gti_key *k = &gti_keys[i];
        assert_ptr_equal(gti_key_find(k->path), k);
        assert_true(k->offset + k->size <= sizeof(gt_config));
        assert_true(k->type != NULL || k->status == GTI_KEY_ALIAS);
        if (k->status == GTI_KEY_ALIAS) {
            assert_non_null(gti_key_find(k->target));
            assert_int_equal(gti_key_find(k->target)->status, GTI_KEY_USED);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parse_empty_gives_defaults),
        cmocka_unit_test(integers_in_every_spelling),
        cmocka_unit_test(unused_integers_are_checked_in_64_bits),
        cmocka_unit_test(numbers_do_not_depend_on_the_locale),
        cmocka_unit_test(clip_values),
        cmocka_unit_test(scaler_defaults),
        cmocka_unit_test(unknown_keys_name_their_neighbours),
        cmocka_unit_test(every_problem_is_told_with_its_line),
        cmocka_unit_test(duplicate_keys_are_refused),
        cmocka_unit_test(hjson_liberties),
        cmocka_unit_test(bad_syntax_names_line_and_column),
        cmocka_unit_test(wrong_types_are_named),
        cmocka_unit_test(unsupported_features_are_refused_only_when_on),
        cmocka_unit_test(optimizer_names_follow_deepspeed),
        cmocka_unit_test(groups_change_what_they_give),
        cmocka_unit_test(lamb_bounds_of_the_trust_ratio),
        cmocka_unit_test(groups_that_cannot_be),
        cmocka_unit_test(frozen_names),
        cmocka_unit_test(patterns_without_a_match_name_what_is_near),
        cmocka_unit_test(frozen_is_a_list_of_patterns),
        cmocka_unit_test(limits_and_checkpoints),
        cmocka_unit_test(set_overrides_one_value),
        cmocka_unit_test(command_lines_override),
        cmocka_unit_test(json_reads_back_to_the_same_values),
        cmocka_unit_test(load_reports_the_file),
        cmocka_unit_test(key_table_is_consistent),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
