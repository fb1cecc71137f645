/* SPDX-License-Identifier: Apache-2.0
 * Real DeepSpeed configurations: what the reader says of each. argv[1] is their folder. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <geektrain/config.h>

static const char *folder;
static char log_text[8192];
static gt_context *ctx;

static void keep_log(void *user, gt_log_level level, const char *message)
{
    size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof log_text - used, "%d: %s\n", level, message);
}

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

#pragma GCC diagnostic ignored "-Wmissing-field-initializers" /* rows end where nothing follows */

/* What each file gives: the sentence's parts when refused, else the log's parts and the batch of a
 * world. */
static const struct {
    const char *file;
    const char *refused[4]; /* first NULL: accepted */
    const char *logged[3];
    int world; /* resolve for it; 0: no */
    int64_t train, micro, accum;
    const char *unresolved; /* in the sentence of gt_config_resolve */
} rows[] = {
    {"01-z0-stage-only", {NULL}, {NULL}, 1, .unresolved = "no batch size"},
    {"03-gas3-odd-bucket", {NULL}, {"allgather_bucket_size"}, 2, 48, 8, 3, NULL},
    {"05-legacy-disable-allgather",
     {NULL},
     {"1: disable_allgather is an old key"},
     4,
     16,
     4,
     1,
     NULL},
    {"07-z3-template", {NULL}, {"sub_group_size"}, 1, .unresolved = "no batch size"},
    {"09-pipeline-basic", {NULL}, {NULL}, 8, 256, 8, 4, NULL},
    {"09-pipeline-basic",
     {NULL},
     {NULL},
     3,
     .unresolved = "train_batch_size 256 is not micro 8 x accumulation 10 x data ranks 3 = 240"},
    {"11-lamb-64k-sparse",
     {"sparse_attention", "which is not supported", "optimizer.params.bias_correction is false"}},
    {"13-crlf-glue", {NULL}, {NULL}, 32, 32, 1, 1, NULL},
    {"13-crlf-glue", {NULL}, {NULL}, 1, 32, 1, 32, NULL},
    {"15-invalid-shell-placeholder",
     {"line 24: zero_optimization.stage is \"${zero_stage},\", wanted an integer",
      "tensor_parallel.autotp_size is \"${autotp_size}\""}},
    {"17-z3-nvme-offload", {"zero_optimization.offload_param.device", "not supported"}},
    {"19-invalid-template",
     {"line 2: train_batch_size is \"CONFIG_BATCH_SIZE,\", wanted an integer"}},
    {"21-two-batch-keys", {NULL}, {NULL}, 8, 256, 16, 2, NULL},
    {"21-two-batch-keys", {NULL}, {NULL}, 16, 256, 16, 1, NULL},
    {"21-two-batch-keys",
     {NULL},
     {NULL},
     32,
     .unresolved = "train_batch_size 256 is not micro 16 x accumulation 1 x data ranks 32 = 512"},
    {"23-stage-is-a-list",
     {"line 73: zero_optimization.stage is a list, wanted an integer",
      "pipe-parallel-size is not a known key", "nearest: mesh.pp", "more"}},
    {"25-z3-all-auto",
     {NULL},
     {"\"auto\" means the default for: train_batch_size"},
     1,
     .unresolved = "no batch size"},
    {"27-z3-unprefixed-keys-zero-values",
     {NULL},
     {"max_live_parameters", "gather_16bit_weights_on_model_save"}},
    {"29-bfloat16-alias", {NULL}, {"amp.opt_level"}},
    {"31-z3-2e10", {NULL}, {"stage3_max_live_parameters"}},
    {"33-z3-1e12-decay", {NULL}, {"sub_group_size", "scheduler.params.total_num_steps"}},
    {"35-z3-zeropp-flags", {NULL}, {NULL}},
    {"37-fp16-offload-auto", {NULL}, {NULL}},
    {"39-read-the-docs-key", {NULL}, {"comms_logger.verbose"}, 1, 64, 16, 4, NULL},
    {"41-batch-20000-maxgradnorm",
     {"line 6: max_grad_norm is not a known key; nearest: gradient_clipping"}},
    {"43-invalid-unquoted-path-trailing-comma",
     {"line 18: checkpointing is not a known key; nearest: checkpoint"}},
    {"45-numbers-as-strings-1e14", {"zero_optimization.offload_param.device", "not supported"}},
    {"47-impossible-batch-4-gas-16",
     {"train_batch_size 4 is less than gradient_accumulation_steps 16, for any number of ranks",
      "zero_optimization.offload_param.device"}},
    {"49-z2-with-offload-param",
     {NULL},
     {"1: zero_optimization.offload_param.device has no effect below ZeRO stage 3", "backend"},
     2,
     32,
     2,
     8,
     NULL},
    {"51-curriculum-cpu-offload",
     {"curriculum_learning.enabled is true, which is not supported"},
     {"1: zero_optimization.cpu_offload is an old key"}},
    {"53-scale-power-15-window-500", {NULL}, {NULL}, 4, 64, 16, 1, NULL},
    {"55-jsonc-line-comments-pipeline", {NULL}, {NULL}, 2, 1, 1, 1, NULL},
};

static gt_status load(gt_config *c, const char *file)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s.json", folder, file);
    log_text[0] = '\0';
    return gt_config_load(c, ctx, path);
}

static void contains(const char *file, const char *text, const char *part)
{
    if (part != NULL && strstr(text, part) == NULL) {
        fail_msg("%s says: %s\n  wanted: %s", file, text, part);
    }
}

static void every_file_as_expected(void **state)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        gt_config c;
        gt_status st = load(&c, rows[i].file);
        if ((st == GT_OK) != (rows[i].refused[0] == NULL)) {
            fail_msg("%s: %s %s", rows[i].file, gt_status_name(st), gt_last_error());
        }
        for (int k = 0; k < 4; k++) {
            contains(rows[i].file, gt_last_error(), st == GT_OK ? NULL : rows[i].refused[k]);
        }
        for (int k = 0; k < 3; k++) {
            contains(rows[i].file, log_text, rows[i].logged[k]);
        }
        if (rows[i].world == 0) {
            continue;
        }
        st = gt_config_resolve(&c, rows[i].world);
        if ((st == GT_OK) != (rows[i].unresolved == NULL)) {
            fail_msg("%s: %s %s", rows[i].file, gt_status_name(st), gt_last_error());
        }
        if (st != GT_OK) {
            contains(rows[i].file, gt_last_error(), rows[i].unresolved);
            continue;
        }
        assert_int_equal(c.train_batch, rows[i].train);
        assert_int_equal(c.micro_batch, rows[i].micro);
        assert_int_equal(c.grad_accum, rows[i].accum);
    }
}

static void values_arrive(void **state)
{
    gt_config c;
    assert_int_equal(load(&c, "03-gas3-odd-bucket"), GT_OK);
    assert_true(c.zero.reduce_bucket_size == 7000000 && c.dtype == GT_F16 && c.scaler.enabled);
    assert_int_equal(load(&c, "27-z3-unprefixed-keys-zero-values"), GT_OK);
    assert_true(c.zero.stage == 3 && c.dtype == GT_BF16 && c.communication_dtype == GT_BF16);
    assert_int_equal(load(&c, "29-bfloat16-alias"), GT_OK);
    assert_true(c.dtype == GT_BF16 && c.zero.offload_optimizer == GT_OFFLOAD_CPU);
    assert_true(c.gradient_clipping == 0.1);
    assert_int_equal(load(&c, "33-z3-1e12-decay"), GT_OK);
    assert_true(c.steps_per_print == 100000 && c.scheduler.type == GT_LR_WARMUP_DECAY);
    assert_int_equal(load(&c, "35-z3-zeropp-flags"), GT_OK);
    assert_true(c.zero.offload_optimizer == GT_OFFLOAD_NONE && c.dtype == GT_F32);
    assert_int_equal(load(&c, "37-fp16-offload-auto"), GT_OK);
    assert_true(c.dtype == GT_F16 && c.scheduler.warmup_log && c.scheduler.type == GT_LR_WARMUP);
    assert_int_equal(load(&c, "39-read-the-docs-key"), GT_OK);
    assert_true(c.gradient_clipping == 5.0 && c.dtype == GT_BF16);
    assert_int_equal(load(&c, "49-z2-with-offload-param"), GT_OK);
    assert_true(c.optimizer.beta2 == 0.95 && c.optimizer.lr == 6e-4 &&
                c.optimizer.weight_decay == 1e-2);
    assert_int_equal(load(&c, "53-scale-power-15-window-500"), GT_OK);
    assert_true(!c.scaler.enabled && c.scaler.initial_power == 15 && c.scaler.window == 500);
    assert_true(c.optimizer.beta1 == 0.8 && c.scheduler.max_lr == 0.001 &&
                c.optimizer.type == GT_ADAMW);
    assert_int_equal(load(&c, "55-jsonc-line-comments-pipeline"), GT_OK);
    assert_true(c.mesh.pp == 2 && c.optimizer.type == GT_ADAMW);
}

static void load_repaired(gt_config *c, const char *file, const char *from, const char *to)
{
    char path[512], text[4096], out[4096];
    snprintf(path, sizeof path, "%s/%s.json", folder, file);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    char *at = strstr(text, from);
    assert_non_null(at);
    int n = snprintf(out, sizeof out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    if (gt_config_parse(c, ctx, out, (size_t)n) != GT_OK) {
        fail_msg("%s: %s", file, gt_last_error());
    }
}

/* What is refused for one key is read well otherwise. */
static void repaired_files_load(void **state)
{
    gt_config c;
    load_repaired(&c, "41-batch-20000-maxgradnorm", "max_grad_norm", "gradient_clipping");
    assert_true(c.gradient_clipping == 0.5);
    assert_int_equal(gt_config_resolve(&c, 8), GT_ERR_CONFIG);
    contains("41", gt_last_error(), "= 16000");
    assert_int_equal(gt_config_resolve(&c, 10), GT_OK);
    load_repaired(&c, "43-invalid-unquoted-path-trailing-comma", "\"checkpointing\"",
                  "\"_checkpointing\"");
    assert_int_equal(c.scaler.initial_power, 12);
    assert_int_equal(gt_config_resolve(&c, 4), GT_OK);
    load_repaired(&c, "45-numbers-as-strings-1e14", "\"offload_param\"", "\"_offload_param\"");
    assert_true(c.zero.reduce_bucket_size == 1 && c.zero.persistence_threshold == 0);
    load_repaired(&c, "17-z3-nvme-offload", "offload_param",
                  "offload_optimizer\": {\"device\": \"nvme\", "
                  "\"nvme_path\": \"/x\"}, \"_");
    assert_true(c.zero.offload_optimizer == GT_OFFLOAD_FILE);
    load_repaired(&c, "51-curriculum-cpu-offload", "\"curriculum_learning\"", "\"_curriculum\"");
    assert_true(c.zero.offload_optimizer == GT_OFFLOAD_CPU);
}

/* Field case 37: settings in the wrong place or misspelt. */
static void misplaced_keys_are_named(void **state)
{
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"{optimizer: {type: Adam\n lr: 1, params: {}}}",
         "optimizer.lr is not a known key; nearest: optimizer.params.lr"},
        {"{optimizer: {eps: 1e-6}}", "nearest: optimizer.params.eps"},
        {"{cpu_offload_params: true}", "nearest: zero_optimization.cpu_offload_params"},
        {"{stage: 3}", "nearest: zero_optimization.stage"},
        {"{step_per_print: 3}", "nearest: steps_per_print"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        gt_config c;
        assert_int_equal(gt_config_parse(&c, ctx, wrong[i].text, strlen(wrong[i].text)),
                         GT_ERR_CONFIG);
        contains(wrong[i].text, gt_last_error(), wrong[i].says);
    }
}

static uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* Damage at random: accepted or refused with a sentence; what is accepted is written and read back.
 */
static void mutated_files_are_read_or_refused(void **state)
{
    uint32_t r = 4711;
    int accepted = 0, refused = 0;
    for (int round = 0; round < 4000; round++) {
        char path[512], text[4096];
        snprintf(path, sizeof path, "%s/%s.json", folder,
                 rows[next_random(&r) % (sizeof rows / sizeof rows[0])].file);
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        size_t n = fread(text, 1, sizeof text - 64, f);
        fclose(f);
        for (int hits = (int)(next_random(&r) % 4); hits > 0; hits--) {
            static const char spice[] = "{}[]\",:#/*\\\n0123456789eE+-.tfn\xff\x80";
            size_t at = next_random(&r) % n, length = next_random(&r) % 20;
            switch (next_random(&r) % 4) {
            case 0: /* one byte */
                text[at] = spice[next_random(&r) % (sizeof spice)];
                break;
            case 1: /* a cut */
                length = length < n - at ? length : n - at;
                memmove(text + at, text + at + length, n - at - length);
                n -= n > length ? length : 0;
                break;
            case 2: /* the end is missing */
                n = at + 1;
                break;
            default: /* a run is copied */
                length = length < n - at ? length : n - at;
                length = n + length < sizeof text ? length : 0;
                memmove(text + at + length, text + at, n - at);
                n += length;
            }
        }
        gt_config c, d;
        char *json;
        if (gt_config_parse(&c, ctx, text, n) != GT_OK) {
            assert_true(strlen(gt_last_error()) > 10);
            refused++;
            continue;
        }
        accepted++;
        assert_int_equal(gt_config_to_json(&c, &json), GT_OK);
        if (gt_config_parse(&d, ctx, json, strlen(json)) != GT_OK) {
            fail_msg("%s\n%s", json, gt_last_error());
        }
        assert_memory_equal(&c, &d, sizeof c);
        free(json);
    }
    print_message("%d accepted, %d refused\n", accepted, refused);
    assert_true(accepted > 100 && refused > 1000);
}

int main(int argc, char **argv)
{
    folder = argc > 1 ? argv[1] : "tests/unit/ds-configs";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_file_as_expected),
        cmocka_unit_test(values_arrive),
        cmocka_unit_test(repaired_files_load),
        cmocka_unit_test(misplaced_keys_are_named),
        cmocka_unit_test(mutated_files_are_read_or_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
