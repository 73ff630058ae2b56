/* model/archs/qwen3vl.c - Qwen3-VL, dense, the text model.
 *
 * As qwen3.c, but RoPE has sections whose pairs take turns (interleaved M-RoPE): time, height, width, time ...; and rows of
 * images have features of the encoder's inner layers added behind each of the first layers (DeepStack).
 * Source  arXiv:2511.21631.
 */
#include "base/error.h"
#include "model/blocks.h"

static rd_status read_config(const struct model_file *g, struct model_config *c, struct rd_error *err)
{
    rd_status st = config_u32_optional(g, c, "n_deepstack_layers", 0, 16, &c->n_deep, err);

    c->qk_norms = true;
    c->rope_sections_interleaved = true;
    if (st == RD_OK && c->n_deep >= c->n_layers)
        return error_set(err, RD_E_UNSUPPORTED,
                         "metadata \"%s.n_deepstack_layers\": %u, of %u layers; expected fewer than layers", c->arch,
                         c->n_deep, c->n_layers);
    return st == RD_OK ? config_rope_sections(g, c, err) : st;
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
        pass_deep(&p, l);
        pass_mlp(&p, l);
    }
    return pass_logits(&p, NULL, logits);
}

static const struct hub_family hub[] = {
    {.model_type = "qwen3_vl",
     .act_key = "hidden_act",
     .act = "silu",
     .n_heads = 32,
     .n_kv_heads = 32,
     .head_dim = 128,
     .n_ctx = 128000,
     .theta = 5e6,
     .qk_norms = true,
     .may_have_text_config = true,
     .sections = true,
     .sees = HUB_SEES_QWEN3},
};

const struct model_arch model_qwen3vl = {
    .names = {"qwen3vl"},
    .read_config = read_config,
    .weights = weights,
    .n_weights = sizeof(weights) / sizeof(weights[0]),
    .chat = "chatml",
    .hub = hub,
    .n_hub = sizeof(hub) / sizeof(hub[0]),
    .forward = forward,
};
