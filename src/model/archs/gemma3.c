/* model/archs/gemma3.c - Gemma 3, text.
 *
 *     x = sqrt(hidden) * embedding[token]
 *     per layer:
 *         n = rmsnorm(x) * attn_norm
 *         q, k, v = wq n, wk n, wv n
 *         q, k = rope(rmsnorm(q) * q_norm), rope(rmsnorm(k) * k_norm), each head by itself, pairs (i, i + n_rot/2)
 *         x = x + rmsnorm(wo softmax(scale * q k^T) v) * post_attn_norm
 *         n = rmsnorm(x) * ffn_norm
 *         x = x + rmsnorm(down(gelu(gate n) * (up n))) * post_ffn_norm
 *     logits = output (rmsnorm(x) * output_norm),  output = embedding
 *
 * Unlike llama.c: as gemma2.c, but q and k norms in place of the soft caps, and two kinds of layers: every sixth is
 * global, with RoPE base 10^6 and the file's linear scaling; the others see the window only, with base 10^4 and no
 * scaling. scale = 1/sqrt(head_dim), but 1/sqrt(hidden / n_heads) in the 27B model (62 layers), or
 * attention.scale where it is there. Source
 * arXiv:2503.19786.
 */
#include <math.h>
#include "base/limits.h"
#include "model/blocks.h"

static rd_status read_config(const struct model_file *g, struct model_config *c, struct rd_error *err)
{
    const uint32_t n_layers_27b = 62;
    rd_status st;

    c->embed_scale = sqrtf((float)c->hidden);
    c->act = ACT_GELU_TANH;
    c->post_norms = c->qk_norms = true;
    c->window_pattern = 6;
    c->rope_base_local = 10000;
    if (c->n_layers == n_layers_27b) c->attn_scale = 1 / sqrtf((float)c->hidden / (float)c->n_heads);
    if ((st = config_u32(g, c, "attention.sliding_window", 0, LIMIT_CONTEXT, &c->window, err)) != RD_OK) return st;
    if ((st = config_u32_optional(g, c, "attention.sliding_window_pattern", 1, LIMIT_N_LAYERS, &c->window_pattern,
                                  err)) != RD_OK)
        return st;
    if ((st = config_f32_optional(g, c, "attention.scale", 1e-6, 1e3, &c->attn_scale, err)) != RD_OK) return st;
    if ((st = config_f32_optional(g, c, "rope.freq_base_swa", 1.001, 1e12, &c->rope_base_local, err)) != RD_OK)
        return st;
    return config_f32_optional(g, c, "final_logit_softcapping", 1e-3, 1e6, &c->final_softcap, err);
}

static const struct tensor_spec weights[] = {
    COMMON_WEIGHTS,
    LAYER_VECTOR(q_norm, "attn_q_norm.weight", DIM_HEAD),
    LAYER_VECTOR(k_norm, "attn_k_norm.weight", DIM_HEAD),
    LAYER_VECTOR(post_attn_norm, "post_attention_norm.weight", DIM_HIDDEN),
    LAYER_VECTOR(post_ffn_norm, "post_ffw_norm.weight", DIM_HIDDEN),
};

static rd_status forward(struct model *m, struct kv_storage *kv, const struct model_batch *b, float *logits)
{
    const struct attention_kind global = attention_global(m);
    const struct attention_kind local = {&m->inv_freq_local, 1, m->config.window};
    const struct weight *post_ffn_norm = NULL; /* of the layer before */
    struct pass p = pass_begin(m, kv, b);

    for (uint32_t l = 0; l < m->config.n_layers; l++) {
        pass_norm(&p, post_ffn_norm, &m->layers[l].attn_norm);
        pass_attention(&p, l, layer_is_global(&m->config, l) ? &global : &local);
        pass_norm(&p, &m->layers[l].post_attn_norm, &m->layers[l].ffn_norm);
        pass_mlp(&p, l);
        post_ffn_norm = &m->layers[l].post_ffn_norm;
    }
    return pass_logits(&p, post_ffn_norm, logits);
}

#define HUB_GEMMA3                                                                                                     \
    .act_key = "hidden_activation", .act = "gelu_pytorch_tanh", .n_heads = 8, .n_kv_heads = 4, .head_dim = 256,        \
    .n_ctx = 131072, .theta = 1e6, .tied = true, .norms_plus_one = true, .qk_norms = true, .post_norms = true,         \
    .window = 4096, .pattern = 6, .query_scalar = true, .local_theta = true
static const struct hub_family hub[] = {
    {.model_type = "gemma3_text", HUB_GEMMA3},
    {.model_type = "gemma3", HUB_GEMMA3, .in_text_config = true, .sees = HUB_SEES_GEMMA3},
};

static const struct kv_loss kv_losses[] = {{256, 9, 0.1}};

const struct model_arch model_gemma3 = {
    .names = {"gemma3"},
    .read_config = read_config,
    .weights = weights,
    .n_weights = sizeof(weights) / sizeof(weights[0]),
    .chat = "gemma",
    .hub = hub,
    .n_hub = sizeof(hub) / sizeof(hub[0]),
    .kv_losses = kv_losses,
    .n_kv_losses = sizeof(kv_losses) / sizeof(kv_losses[0]),
    .forward = forward,
};
