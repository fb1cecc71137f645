/* SPDX-License-Identifier: Apache-2.0
 * What an unknown key may have meant: the same name in another section, a slip of the pen, or
 * another framework's word for it. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "config/keys.h"

const gti_key *gti_key_find(const char *path)
{
    for (size_t i = 0; i < gti_key_count; i++) {
        if (strcmp(gti_keys[i].path, path) == 0) {
            return &gti_keys[i];
        }
    }
    /* "section.*", the longest that fits */
    const gti_key *best = NULL;
    size_t best_length = 0;
    for (size_t i = 0; i < gti_key_count; i++) {
        size_t n = strlen(gti_keys[i].path);
        if (gti_keys[i].path[n - 1] == '*' && strncmp(gti_keys[i].path, path, n - 1) == 0 &&
            n > best_length) {
            best = &gti_keys[i];
            best_length = n;
        }
    }
    return best;
}

bool gti_key_is_section(const char *path)
{
    size_t n = strlen(path);
    for (size_t i = 0; i < gti_key_count; i++) {
        if (strncmp(gti_keys[i].path, path, n) == 0 && gti_keys[i].path[n] == '.') {
            return true;
        }
    }
    return false;
}

static const char *const foreign[][2] = {
    {"max_grad_norm", "gradient_clipping"},
    {"clip_grad_norm", "gradient_clipping"},
    {"grad_clip", "gradient_clipping"},
    {"learning_rate", "optimizer.params.lr"},
    {"batch_size", "train_batch_size"},
    {"micro_batch_size", "train_micro_batch_size_per_gpu"},
    {"num_layers", "model.layers"},
    {"n_layer", "model.layers"},
    {"hidden_size", "model.width"},
    {"n_embd", "model.width"},
    {"num_attention_heads", "model.heads"},
    {"n_head", "model.heads"},
    {"vocab_size", "model.vocab"},
    {"seq_length", "model.seq"},
    {"block_size", "model.seq"},
    {"hidden_dropout", "model.dropout"},
    {"max_steps", "train.steps"},
    {"train_iters", "train.steps"},
    {"model_parallel_size", "mesh.tp"},
    {"pipe_parallel_size", "mesh.pp"},
    {"tensor_parallel_size", "mesh.tp"},
    {"pipeline_parallel_size", "mesh.pp"},
    {"checkpoint_activations", "model.recompute"},
};

static const char *leaf_of(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot != NULL ? dot + 1 : path;
}

static int fold(char c)
{
    return c == '-' ? '_' : tolower((unsigned char)c);
}

static bool same(const char *a, const char *b)
{
    while (*a != '\0' && fold(*a) == fold(*b)) {
        a++;
        b++;
    }
    return *a == *b;
}

/* Levenshtein's distance, case and -/_ folded; large for long names. */
static int distance(const char *a, const char *b)
{
    enum { MAX = 64 };
    size_t n = strlen(a), m = strlen(b);
    int row[MAX + 1];
    if (n > MAX || m > MAX) {
        return 1000;
    }
    for (size_t j = 0; j <= m; j++) {
        row[j] = (int)j;
    }
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int change = diagonal + (fold(a[i - 1]) != fold(b[j - 1]));
            diagonal = row[j];
            int gap = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);
            row[j] = change < gap ? change : gap;
        }
    }
    return row[m];
}

/* The part of key path `key` that a key in section `section` (length n, with its dot) would have.
 */
static bool child(const char *key, const char *section, size_t n, char *out, size_t size)
{
    if (strncmp(key, section, n) != 0) {
        return false;
    }
    size_t length = strcspn(key + n, ".");
    if (length >= size || key[n] == '*') {
        return false;
    }
    memcpy(out, key + n, length);
    out[length] = '\0';
    return true;
}

void gti_key_nearest(const char *path, char *out, size_t size)
{
    const char *leaf = leaf_of(path);
    size_t section = (size_t)(leaf - path);
    int best = (int)strlen(leaf) / 3 + 1;
    out[0] = '\0';
    for (size_t i = 0; i < gti_key_count; i++) { /* a slip within the section */
        char name[80];
        int d =
            child(gti_keys[i].path, path, section, name, sizeof name) ? distance(leaf, name) : 1000;
        if (d < best) {
            best = d;
            snprintf(out, size, "%.*s%s", (int)section, path, name);
        }
    }
    if (best <= 1 && out[0] != '\0') {
        return;
    }
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        if (same(leaf, foreign[i][0])) {
            snprintf(out, size, "%s", foreign[i][1]);
            return;
        }
    }
    for (size_t i = 0; i < gti_key_count; i++) { /* the right name in the wrong place */
        if (gti_keys[i].path[0] != '\0' && same(leaf, leaf_of(gti_keys[i].path)) &&
            strchr(leaf, '*') == NULL) {
            snprintf(out, size, "%s", gti_keys[i].path);
            return;
        }
    }
    for (size_t i = 0; i < gti_key_count && out[0] == '\0'; i++) { /* a slip in the wrong place */
        int d = distance(leaf, leaf_of(gti_keys[i].path));
        if (d <= 1 && strlen(leaf) > 4) {
            snprintf(out, size, "%s", gti_keys[i].path);
        }
    }
}
