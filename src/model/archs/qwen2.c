/* model/archs/qwen2.c - Qwen 2 and 2.5 (and DeepSeek-R1 distills of Qwen 2.5).
 *
 *     x = embedding[token]
 *     per layer:
 *         n = rmsnorm(x) * attn_norm
 *         q, k, v = wq n + bq, wk n + bk, wv n + bv
 *         q, k = rope(q), rope(k), pairs (i, i + n_rot/2)
 *         x = x + wo softmax(q k^T / sqrt(head_dim)) v
 *         n = rmsnorm(x) * ffn_norm
 *         x = x + down(silu(gate n) * (up n))
 *     logits = output (rmsnorm(x) * output_norm)
 *
 * Unlike llama.c: biases on q, k, v; half-split RoPE; YaRN in some files.
 * Source  arXiv:2407.10671, arXiv:2412.15115.
 */
#include "model/blocks.h"

static rd_status read_config(const struct model_file *g, struct model_config *c, struct rd_error *err)
{
    (void)g;
    (void)err;
    c->qkv_bias = true;
    return RD_OK;
}

static const struct tensor_spec weights[] = {
    COMMON_WEIGHTS,
    LAYER_VECTOR(bq, "attn_q.bias", DIM_Q),
    LAYER_VECTOR(bk, "attn_k.bias", DIM_KV),
    LAYER_VECTOR(bv, "attn_v.bias", DIM_KV),
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
    {.model_type = "qwen2",
     .act_key = "hidden_act",
     .act = "silu",
     .n_heads = 32,
     .n_kv_heads = 32,
     .n_ctx = 32768,
     .theta = 1e4,
     .qkv_biases = true},
};

static const struct kv_loss kv_losses[] = {{64, 31, 3.7}, {128, 14000, 126}};

const struct model_arch model_qwen2 = {
    .names = {"qwen2"},
    .read_config = read_config,
    .weights = weights,
    .n_weights = sizeof(weights) / sizeof(weights[0]),
    .chat = "chatml",
    .hub = hub,
    .n_hub = sizeof(hub) / sizeof(hub[0]),
    .kv_losses = kv_losses,
    .n_kv_losses = sizeof(kv_losses) / sizeof(kv_losses[0]),
    .forward = forward,
};
