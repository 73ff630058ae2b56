/* model/archs/qwen3.c - Qwen 3, dense.
 *
 *     x = embedding[token]
 *     per layer:
 *         n = rmsnorm(x) * attn_norm
 *         q, k, v = wq n, wk n, wv n
 *         q, k = rope(rmsnorm(q) * q_norm), rope(rmsnorm(k) * k_norm), each head by itself, pairs (i, i + n_rot/2)
 *         x = x + wo softmax(q k^T / sqrt(head_dim)) v
 *         n = rmsnorm(x) * ffn_norm
 *         x = x + down(silu(gate n) * (up n))
 *     logits = output (rmsnorm(x) * output_norm)
 *
 * Unlike llama.c: q and k are normed per head before RoPE; half-split RoPE; head_dim is not hidden / n_heads; YaRN in
 * some files. Source  arXiv:2505.09388.
 */
#include "model/blocks.h"

static rd_status read_config(const struct model_file *g, struct model_config *c, struct rd_error *err)
{
    (void)g;
    (void)err;
    c->qk_norms = true;
    return RD_OK;
}

static const struct tensor_spec weights[] = {
    COMMON_WEIGHTS,
    LAYER_VECTOR(q_norm, "attn_q_norm.weight", DIM_HEAD),
    LAYER_VECTOR(k_norm, "attn_k_norm.weight", DIM_HEAD),
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
    {.model_type = "qwen3",
     .act_key = "hidden_act",
     .act = "silu",
     .n_heads = 32,
     .n_kv_heads = 32,
     .head_dim = 128,
     .n_ctx = 32768,
     .theta = 1e4,
     .qk_norms = true},
};

const struct model_arch model_qwen3 = {
    .names = {"qwen3"},
    .read_config = read_config,
    .weights = weights,
    .n_weights = sizeof(weights) / sizeof(weights[0]),
    .chat = "chatml",
    .hub = hub,
    .n_hub = sizeof(hub) / sizeof(hub[0]),
    .forward = forward,
};
