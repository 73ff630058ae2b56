/* format/hub/hf_names.c - the table of names. */
#include "format/hub/hf_names.h"
#include <stdio.h>
#include <string.h>
#include "base/checked.h"

struct name_row {
    const char *hf, *gguf;
};

static const struct name_row layer_rows[] = {
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"input_layernorm", "attn_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
};

static const struct name_row outer_rows[] = {
    {"embed_tokens", "token_embd"},
    {"norm", "output_norm"},
    {"lm_head", "output"},
};

static const char *find(const struct name_row *rows, size_t n_rows, const char *s, size_t n)
{
    for (size_t i = 0; i < n_rows; i++)
        if (strlen(rows[i].hf) == n && !memcmp(rows[i].hf, s, n)) return rows[i].gguf;
    return NULL;
}

const char *hf_gguf_matrix(const char *name)
{
    return find(layer_rows, sizeof(layer_rows) / sizeof(layer_rows[0]), name, strlen(name));
}

const char *hf_module(const char *gguf)
{
    for (size_t i = 0; i < sizeof(layer_rows) / sizeof(layer_rows[0]); i++)
        if (strcmp(layer_rows[i].gguf, gguf) == 0) return layer_rows[i].hf;
    return NULL;
}

const char *hf_module_name(const char *gguf)
{
    const char *module = hf_module(gguf), *dot = module ? strrchr(module, '.') : NULL;

    return dot ? dot + 1 : module;
}

static bool starts(const char **s, const char *with)
{
    size_t n = strlen(with);

    if (strncmp(*s, with, n) != 0) return false;
    *s += n;
    return true;
}

/* The parts of models that see and hear. */
static bool is_other_part(const char *s)
{
    starts(&s, "model.");
    return starts(&s, "vision_tower.") || starts(&s, "multi_modal_projector.") || starts(&s, "audio_tower.") ||
           starts(&s, "visual.") || starts(&s, "multi_patch_pointer_head.") || starts(&s, "pointer_head.");
}

enum hf_use hf_gguf_name(const struct hf_model *m, const char *name, char *out, size_t cap)
{
    const char *s = name, *end, *gguf = NULL, *number, *known;
    bool norm;

    snprintf(out, cap, "%s", name);
    if (m->family->sees) {
        if (is_other_part(s)) return HF_SKIP;
        starts(&s, "language_model.");
    }
    starts(&s, "model.");
    if (m->family->sees) starts(&s, "language_model.");
    end = strrchr(s, '.');
    if (!end || (strcmp(end, ".weight") != 0 && strcmp(end, ".bias") != 0))
        return strstr(s, "rotary_emb.inv_freq") ? HF_SKIP : HF_TENSOR;
    if (m->tied && !strcmp(s, "lm_head.weight")) return HF_SKIP;
    norm = m->family->norms_plus_one && strlen(s) >= 11 && !strcmp(s + strlen(s) - 11, "norm.weight");
    if (!strncmp(s, "layers.", 7)) {
        uint64_t layer;

        number = s + 7;
        known = strchr(number, '.');
        if (!known || known >= end || !parse_u64(number, (size_t)(known - number), &layer)) return HF_TENSOR;
        known++;
        gguf = find(layer_rows, sizeof(layer_rows) / sizeof(layer_rows[0]), known, (size_t)(end - known));
        if (!strncmp(known, "post_attention_layernorm.", 25))
            gguf = m->family->post_norms ? "post_attention_norm" : "ffn_norm";
        if (gguf) snprintf(out, cap, "blk.%llu.%s%s", (unsigned long long)layer, gguf, end);
    } else {
        gguf = find(outer_rows, sizeof(outer_rows) / sizeof(outer_rows[0]), s, (size_t)(end - s));
        if (gguf) snprintf(out, cap, "%s%s", gguf, end);
    }
    return gguf && norm ? HF_NORM : HF_TENSOR;
}
