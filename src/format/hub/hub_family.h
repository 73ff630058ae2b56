/* format/hub/hub_family.h - what an architecture says about config.json: a column of its row (model/model_arch.h).
 *
 * One row for each "model_type". The numbers are those of transformers' configuration classes, for keys that are absent.
 * Thread  any: constants.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* What a model sees with, if it sees: how its vision_config and its tensors are read (hf_vision.c). */
enum hub_sees { HUB_SEES_NOTHING, HUB_SEES_GEMMA3, HUB_SEES_QWEN2, HUB_SEES_QWEN25, HUB_SEES_QWEN3 };

struct hub_family {
    const char *model_type;
    const char *act_key, *act;                     /* the key that names the activation, and the only value known */
    uint32_t n_heads, n_kv_heads, head_dim, n_ctx; /* 0: as many as heads, hidden / heads */
    double theta;                                  /* RoPE's base */
    bool tied;                                     /* the head is the embedding, unless config.json says otherwise */
    bool in_text_config;                           /* the text model is a part: its keys are in text_config */
    bool may_have_text_config;                     /* the same, where there is a text_config; else they are outside */
    enum hub_sees sees;
    bool sections;             /* M-RoPE: mrope_section must be there */
    bool half_split;           /* the architecture interleaves, rows of wq and wk do not: ARCH.rope.half_split */
    bool norms_plus_one;       /* norms are stored as w, and are (1 + w) */
    bool qk_norms, qkv_biases; /* q and k are normed per head; q, k, v have biases */
    bool post_norms;           /* post_attention_layernorm is of attention's output; else it is the MLP's norm */
    uint32_t window, pattern;  /* local layers: every pattern-th is global; 0: the architecture has none */
    bool query_scalar;         /* query_pre_attn_scalar is there; attention to later tokens may be */
    bool softcaps;             /* logits are capped unless config.json says null */
    bool local_theta;          /* local layers have a base of their own */
    bool window_is_on;         /* a sliding_window counts even where use_sliding_window is absent */
};

/* Every architecture's rows. at: row i and its general.architecture; NULL: there are no more. */
struct hub_families {
    const struct hub_family *(*at)(uint32_t i, const char **arch);
};
