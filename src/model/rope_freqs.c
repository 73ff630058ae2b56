/* model/rope_freqs.c - RoPE frequencies of a config, with every scaling that changes them; computed once, in double,
 * when a model loads.
 *
 *     plain    f_i = base^(-2i / n_rot)                          arXiv:2104.09864
 *     factors  f_i / factor_i                                    rope_freqs.weight of a GGUF file
 *     linear   f_i / factor                                      arXiv:2306.15595
 *     llama3   wavelength 2 pi / f_i: beyond n_ctx_orig / low the frequency is divided by factor, below
 *              n_ctx_orig / high it is kept, between them it is blended linearly in n_ctx_orig / wavelength;
 *              Llama 3.1, arXiv:2407.21783
 *     M-RoPE   a pair turns by one of three positions of its row; arXiv:2409.12191; interleaved in Qwen3-VL, arXiv:2511.21631
 *     yarn     blend of f_i / factor and f_i by a ramp over i; cos and sin grow by 1 + 0.1 ln(factor);
 *              arXiv:2309.00071
 */
#include <math.h>
#include "model/model_arch.h"

static const double pi = 3.14159265358979323846;

static double plain_freq(double base, uint32_t i, uint32_t n_rot)
{
    return pow(base, -2.0 * i / n_rot);
}

static double llama3_freq(const struct model_config *c, double f)
{
    double turns = c->rope_n_ctx_orig * f / (2 * pi); /* how often the pair turns within the original context */
    double low = c->rope_llama3_low, high = c->rope_llama3_high, keep;

    if (turns <= low) return f / c->rope_llama3_factor;
    if (turns >= high) return f;
    keep = (turns - low) / (high - low);
    return (1 - keep) * f / c->rope_llama3_factor + keep * f;
}

/* The (real-valued) pair index whose frequency turns n_turns times within the original context. */
static double yarn_pair_of(const struct model_config *c, double n_turns)
{
    return c->n_rot * log(c->yarn_n_ctx_orig / (n_turns * 2 * pi)) / (2 * log(c->rope_base));
}

static double yarn_freq(const struct model_config *c, double f, uint32_t i)
{
    double low = fmax(0, floor(yarn_pair_of(c, c->yarn_beta_fast)));
    double high = fmin(c->n_rot - 1.0, ceil(yarn_pair_of(c, c->yarn_beta_slow)));
    double keep = 1 - fmin(1, fmax(0, (i - low) / fmax(0.001, high - low)));

    return (1 - keep) * f / c->yarn_factor + keep * f;
}

void rope_global_freqs(const struct model_config *c, const float *factors, float *out, float *mscale)
{
    for (uint32_t i = 0; i < c->n_rot / 2; i++) {
        double f = plain_freq(c->rope_base, i, c->n_rot);

        if (factors) f /= factors[i];
        if (c->rope_llama3_factor > 0) f = llama3_freq(c, f);
        if (c->yarn_factor > 0) f = yarn_freq(c, f, i);
        out[i] = (float)(f / c->rope_linear_factor);
    }
    *mscale = c->yarn_factor > 0 ? c->yarn_mscale * (float)(1 + 0.1 * log(c->yarn_factor)) : 1;
}

void rope_llama3_divisors(const struct model_config *c, float *out)
{
    for (uint32_t i = 0; i < c->n_rot / 2; i++) {
        double f = plain_freq(c->rope_base, i, c->n_rot);

        out[i] = (float)(f / llama3_freq(c, f));
    }
}

void rope_local_freqs(const struct model_config *c, float *out)
{
    for (uint32_t i = 0; i < c->n_rot / 2; i++) out[i] = (float)plain_freq(c->rope_base_local, i, c->n_rot);
}

void rope_axes_of_pairs(const struct model_config *c, uint8_t *out)
{
    const uint32_t *n = c->rope_sections;

    for (uint32_t i = 0; i < c->n_rot / 2; i++)
        if (c->rope_sections_interleaved)
            out[i] = i % 3 > 0 && i < 3 * n[i % 3] ? (uint8_t)(i % 3) : 0;
        else
            out[i] = i < n[0] ? 0 : i < n[0] + n[1] ? 1 : 2;
}
