/* SPDX-License-Identifier: Apache-2.0
 * Rotary frequencies (Su et al. 2021) and their scaled variants for longer contexts: linear (Chen
 * et al. 2023), Llama 3's bands, YaRN (Peng et al. 2023). */
#include <math.h>
#include <string.h>

#include "nn/gpt.h"

typedef struct scaling {
    double factor, low, high, original, base;
    int64_t d;
} scaling;

static double or_default(float value, double fallback)
{
    return value > 0.0f ? (double)value : fallback;
}

/* Long waves are stretched, short ones kept, those between blended. */
static double llama3(const scaling *s, double f)
{
    double wave = 2.0 * M_PI / f;
    if (wave > s->original / s->low) {
        return f / s->factor;
    }
    if (wave < s->original / s->high) {
        return f;
    }
    double smooth = (s->original / wave - s->low) / (s->high - s->low);
    return (1.0 - smooth) * f / s->factor + smooth * f;
}

/* The pair that turns `rotations` times over the original context. */
static double yarn_pair(const scaling *s, double rotations)
{
    return (double)s->d * log(s->original / (rotations * 2.0 * M_PI)) / (2.0 * log(s->base));
}

static double yarn(const scaling *s, double f, int64_t i)
{
    double first = fmax(floor(yarn_pair(s, s->high)), 0.0);
    double last = fmin(ceil(yarn_pair(s, s->low)), (double)s->d - 1.0);
    if (last <= first) {
        last = first + 0.001;
    }
    double ramp = fmin(fmax(((double)i - first) / (last - first), 0.0), 1.0);
    return f / s->factor * ramp + f * (1.0 - ramp);
}

float gti_rope_scale(const gt_model_config *config)
{
    bool yarn_scaled = strcmp(config->rope_scaling, "yarn") == 0 && config->rope_factor > 1.0f;
    return yarn_scaled ? (float)(0.1 * log((double)config->rope_factor) + 1.0) : 1.0f;
}

void gti_rope_frequencies(const gt_model_config *config, int64_t head_size, float *freq)
{
    const char *kind = config->rope_scaling;
    bool is_yarn = strcmp(kind, "yarn") == 0, is_llama3 = strcmp(kind, "llama3") == 0;
    scaling s = {.factor = or_default(config->rope_factor, 1.0),
                 .low = or_default(config->rope_low, 1.0),
                 .high = or_default(config->rope_high, is_yarn ? 32.0 : 4.0),
                 .original = config->rope_original_seq > 0 ? (double)config->rope_original_seq
                                                           : (double)config->seq,
                 .base = or_default(config->rope_base, 10000.0),
                 .d = head_size};
    for (int64_t i = 0; i < head_size / 2; i++) {
        double f = pow(s.base, -2.0 * (double)i / (double)head_size);
        if (strcmp(kind, "linear") == 0) {
            f /= s.factor;
        } else if (is_llama3) {
            f = llama3(&s, f);
        } else if (is_yarn) {
            f = yarn(&s, f, i);
        }
        freq[i] = (float)f;
    }
}
