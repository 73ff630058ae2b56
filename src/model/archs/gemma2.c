/* model/archs/gemma2.c - Gemma 2.
 *
 *     x = sqrt(hidden) * embedding[token]
 *     per layer:
 *         n = rmsnorm(x) * attn_norm
 *         q, k, v = wq n, wk n, wv n
 *         q, k = rope(q), rope(k), pairs (i, i + n_rot/2)
 *         a = wo softmax(cap(scale * q k^T)) v                    cap(s) = 50 tanh(s / 50)
 *         x = x + rmsnorm(a) * post_attn_norm
 *         n = rmsnorm(x) * ffn_norm
 *         x = x + rmsnorm(down(gelu(gate n) * (up n))) * post_ffn_norm
 *     logits = 30 tanh(output (rmsnorm(x) * output_norm) / 30),  output = embedding
 *
 * Unlike llama.c: scaled embedding; norms also after each block; layers 0, 2, 4 .. see the window (4096 tokens) only;
 * soft caps; gelu in its tanh form; half-split RoPE. scale = 1/sqrt(head_dim), but 1/sqrt(hidden / n_heads) in the 27B
 * model (46 layers), or attention.scale where it is there. The file's norms have Gemma's + 1 in them already.
 * Source  arXiv:2408.00118.
 */
#include <math.h>
#include "base/limits.h"
#include "model/blocks.h"

static rd_status read_config(const struct model_file *g, struct model_config *c, struct rd_error *err)
{
    const uint32_t n_layers_27b = 46;
    rd_status st;

    c->embed_scale = sqrtf((float)c->hidden);
    c->act = ACT_GELU_TANH;
    c->post_norms = true;
    c->window = 4096;
    c->window_pattern = 2;
    c->attn_softcap = 50;
    c->final_softcap = 30;
    if (c->n_layers == n_layers_27b) c->attn_scale = 1 / sqrtf((float)c->hidden / (float)c->n_heads);
    if ((st = config_u32_optional(g, c, "attention.sliding_window", 1, LIMIT_CONTEXT, &c->window, err)) != RD_OK)
        return st;
    if ((st = config_u32_optional(g, c, "attention.sliding_window_pattern", 1, LIMIT_N_LAYERS, &c->window_pattern,
                                  err)) != RD_OK)
        return st;
    if ((st = config_f32_optional(g, c, "attention.scale", 1e-6, 1e3, &c->attn_scale, err)) != RD_OK) return st;
    if ((st = config_f32_optional(g, c, "attn_logit_softcapping", 1e-3, 1e6, &c->attn_softcap, err)) != RD_OK)
        return st;
    return config_f32_optional(g, c, "final_logit_softcapping", 1e-3, 1e6, &c->final_softcap, err);
}

static const struct tensor_spec weights[] = {
    COMMON_WEIGHTS,
    LAYER_VECTOR(post_attn_norm, "post_attention_norm.weight", DIM_HIDDEN),
    LAYER_VECTOR(post_ffn_norm, "post_ffw_norm.weight", DIM_HIDDEN),
};

static rd_status forward(struct model *m, struct kv_storage *kv, const struct model_batch *b, float *logits)
{
    const struct weight *post_ffn_norm = NULL; /* of the layer before */
    struct attention_kind kind = attention_global(m);
    struct pass p = pass_begin(m, kv, b);

    for (uint32_t l = 0; l < m->config.n_layers; l++) {
        kind.window = layer_is_global(&m->config, l) ? 0 : m->config.window;
        pass_norm(&p, post_ffn_norm, &m->layers[l].attn_norm);
        pass_attention(&p, l, &kind);
        pass_norm(&p, &m->layers[l].post_attn_norm, &m->layers[l].ffn_norm);
        pass_mlp(&p, l);
        post_ffn_norm = &m->layers[l].post_ffn_norm;
    }
    return pass_logits(&p, post_ffn_norm, logits);
}

static const struct hub_family hub[] = {
    {.model_type = "gemma2",
     .act_key = "hidden_activation",
     .act = "gelu_pytorch_tanh",
     .n_heads = 8,
     .n_kv_heads = 4,
     .head_dim = 256,
     .n_ctx = 8192,
     .theta = 1e4,
     .tied = true,
     .norms_plus_one = true,
     .post_norms = true,
     .window = 4096,
     .pattern = 2,
     .query_scalar = true,
     .softcaps = true},
};

const struct model_arch model_gemma2 = {
    .names = {"gemma2"},
    .read_config = read_config,
    .weights = weights,
    .n_weights = sizeof(weights) / sizeof(weights[0]),
    .chat = "gemma",
    .hub = hub,
    .n_hub = sizeof(hub) / sizeof(hub[0]),
    .forward = forward,
};
