/* model/archs/qwen2vl.c - Qwen2-VL and Qwen2.5-VL, the text model.
 *
 * As qwen2.c, but RoPE has sections (M-RoPE): the pairs of a head turn by a row's time, the next ones by its height, the
 * last by its width; of text all three are the position. Rows of images come from the encoder (vision/qwen_vit.c).
 * Source  arXiv:2409.12191, arXiv:2502.13923.
 */
#include "model/blocks.h"

static rd_status read_config(const struct model_file *g, struct model_config *c, struct rd_error *err)
{
    c->qkv_bias = true;
    return config_rope_sections(g, c, err);
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

#define HUB_QWEN_VL                                                                                                    \
    .act_key = "hidden_act", .act = "silu", .n_ctx = 32768, .theta = 1e6, .qkv_biases = true,                          \
    .may_have_text_config = true, .sections = true
static const struct hub_family hub[] = {
    {.model_type = "qwen2_vl", .n_heads = 64, .n_kv_heads = 8, .sees = HUB_SEES_QWEN2, HUB_QWEN_VL},
    {.model_type = "qwen2_5_vl", .n_heads = 64, .n_kv_heads = 8, .sees = HUB_SEES_QWEN25, HUB_QWEN_VL},
};

static const struct kv_loss kv_losses[] = {{128, 14000, 126}};

const struct model_arch model_qwen2vl = {
    .names = {"qwen2vl"},
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
