/* tests/rooms/toy_arch.c - an architecture of one file: Llama's layer under another name (archs/llama.c). */
#include "model/blocks.h"

static rd_status read_config(const struct model_file *g, struct model_config *c, struct rd_error *err)
{
    (void)g;
    (void)err;
    c->rope_layout = ROPE_INTERLEAVED;
    return RD_OK;
}

static const struct tensor_spec weights[] = {COMMON_WEIGHTS};

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

static const struct hub_family hub[] = {{.model_type = "toy", .act_key = "hidden_act", .act = "silu", .n_heads = 4}};

extern const struct model_arch model_toyla;
const struct model_arch model_toyla = {
    .names = {"toyla"},
    .read_config = read_config,
    .weights = weights,
    .n_weights = sizeof(weights) / sizeof(weights[0]),
    .forward = forward,
    .chat = "zephyr",
    .hub = hub,
    .n_hub = sizeof(hub) / sizeof(hub[0]),
};
