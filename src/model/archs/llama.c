/* model/archs/llama.c - Llama 1, 2, 3 and what shares their layer (SmolLM, Mistral, DeepSeek-R1 distills of Llama).
 *
 *     x = embedding[token]
 *     per layer:
 *         n = rmsnorm(x) * attn_norm                              arXiv:1910.07467
 *         q, k, v = wq n, wk n, wv n                          (+ biases where the file has them)
 *         q, k = rope(q), rope(k), pairs (2i, 2i+1)           arXiv:2104.09864; files hold wq, wk permuted for this,
 *                                                             except those of the hub: pairs (i, i + n_rot/2)
 *         x = x + wo softmax(q k^T / sqrt(head_dim)) v        grouped KV heads, arXiv:2305.13245
 *         n = rmsnorm(x) * ffn_norm
 *         x = x + down(silu(gate n) * (up n))                 SwiGLU, arXiv:2002.05202
 *     logits = output (rmsnorm(x) * output_norm)
 *
 * RoPE frequencies are divided by rope_freqs.weight where the file has it (Llama 3.1 and later).
 * Source  arXiv:2302.13971, arXiv:2307.09288, arXiv:2407.21783.
 */
#include "model/blocks.h"

static rd_status read_config(const struct model_file *g, struct model_config *c, struct rd_error *err)
{
    (void)err;
    c->rope_layout = config_flag(g, c, "rope.half_split") ? ROPE_HALF_SPLIT : ROPE_INTERLEAVED;
    return RD_OK;
}

static const struct tensor_spec weights[] = {
    COMMON_WEIGHTS,
    OUTER_WEIGHT(rope_freqs, "rope_freqs.weight", true, WEIGHT_VECTOR, DIM_ONE, DIM_HALF_ROT),
    LAYER_VECTOR_OPTIONAL(bq, "attn_q.bias", DIM_Q),
    LAYER_VECTOR_OPTIONAL(bk, "attn_k.bias", DIM_KV),
    LAYER_VECTOR_OPTIONAL(bv, "attn_v.bias", DIM_KV),
};

static rd_status forward(struct model *m, struct kv_storage *kv, const struct model_batch *b, float *logits)
{
    const struct attention_kind kind = attention_global(m);
    struct pass p = pass_begin(m, kv, b);

    for (uint32_t l = 0; l < m->config.n_layers; l++) {
        pass_norm(&p, NULL, &m->layers[l].attn_norm);
        pass_attention(&p, l, &kind);
        pass_norm(&p, NULL, &m->layers[l].ffn_norm);
        pass_mlp(&p, l);
    }
    return pass_logits(&p, NULL, logits);
}

static const struct hub_family hub[] = {
    {.model_type = "llama",
     .act_key = "hidden_act",
     .act = "silu",
     .n_heads = 32,
     .n_ctx = 2048,
     .theta = 1e4,
     .half_split = true},
    {.model_type = "mistral",
     .act_key = "hidden_act",
     .act = "silu",
     .n_heads = 32,
     .n_kv_heads = 8,
     .n_ctx = 131072,
     .theta = 1e4,
     .half_split = true,
     .window_is_on = true},
};

static const struct kv_loss kv_losses[] = {{64, 3.3, 0.4}};

const struct model_arch model_llama = {
    .names = {"llama"},
    .read_config = read_config,
    .weights = weights,
    .n_weights = sizeof(weights) / sizeof(weights[0]),
    .hub = hub,
    .n_hub = sizeof(hub) / sizeof(hub[0]),
    .kv_losses = kv_losses,
    .n_kv_losses = sizeof(kv_losses) / sizeof(kv_losses[0]),
    .interleaves = true,
    .forward = forward,
};
