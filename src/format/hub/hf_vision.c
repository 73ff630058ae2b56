/* format/hub/hf_vision.c - a struct model_file inside a directory's, with tables of its own over the same shards. */
#include "format/hub/hf_vision.h"
#include <stdio.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"

#define NAME_BYTES 256
#define MAX_LAYERS 128

/* ---- names ---- */

struct vision_name {
    const char *hf, *gguf;
};

/* clang-format off */
static const struct vision_name outer[] = {
    {"patch_embed.proj", "v.patch_embd"},
    {"pos_embed", "v.position_embd"},
    {"merger.ln_q", "v.post_ln"}, {"merger.norm", "v.post_ln"},
    {"merger.mlp.0", "mm.0"}, {"merger.linear_fc1", "mm.0"},
    {"merger.mlp.2", "mm.2"}, {"merger.linear_fc2", "mm.2"},
    {"embeddings.patch_embedding", "v.patch_embd"},
    {"embeddings.position_embedding", "v.position_embd"},
    {"post_layernorm", "v.post_ln"},
    {"mm_soft_emb_norm", "mm.soft_emb_norm"},
    {"self_attention.out_proj", "pointer.attn_out"}, {"layer_norm", "pointer.norm"},
    {"projection_enc.0", "pointer.enc.0"}, {"projection_enc.2", "pointer.enc.2"},
    {"projection_dec.0", "pointer.dec.0"}, {"projection_dec.2", "pointer.dec.2"},
};
static const struct vision_name inner[] = {
    {"norm1", "ln1"}, {"norm2", "ln2"}, {"layer_norm1", "ln1"}, {"layer_norm2", "ln2"},
    {"attn.qkv", "attn_qkv"}, {"attn.proj", "attn_out"},
    {"self_attn.q_proj", "attn_q"}, {"self_attn.k_proj", "attn_k"}, {"self_attn.v_proj", "attn_v"},
    {"self_attn.out_proj", "attn_out"},
    {"mlp.fc1", "ffn_up"}, {"mlp.fc2", "ffn_down"}, {"mlp.linear_fc1", "ffn_up"}, {"mlp.linear_fc2", "ffn_down"},
    {"mlp.gate_proj", "ffn_gate"}, {"mlp.up_proj", "ffn_up"}, {"mlp.down_proj", "ffn_down"},
};
static const struct vision_name deep[] = {{"norm", "norm"}, {"linear_fc1", "fc1"}, {"linear_fc2", "fc2"}};
/* clang-format on */
#define N_OF(rows) (sizeof(rows) / sizeof((rows)[0]))

static const char *find(const struct vision_name *rows, size_t n_rows, const char *s, size_t n)
{
    for (size_t i = 0; i < n_rows; i++)
        if (strlen(rows[i].hf) == n && !memcmp(rows[i].hf, s, n)) return rows[i].gguf;
    return NULL;
}

static bool starts(const char **s, const char *with)
{
    size_t n = strlen(with);

    if (strncmp(*s, with, n) != 0) return false;
    *s += n;
    return true;
}

static bool skip_part(const char **s)
{
    starts(s, "model.");
    if (starts(s, "visual.") || starts(s, "multi_modal_projector.")) return true;
    if (starts(s, "multi_patch_pointer_head.") || starts(s, "pointer_head.")) return true; /* GUI-Actor's */
    if (!starts(s, "vision_tower.")) return false;
    starts(s, "vision_model.");
    return true;
}

/* The layer behind which the i-th merger of DeepStack is. */
static uint32_t deep_layer(const struct hf_dir *dir, uint64_t i)
{
    const json_t *v = json_object_get(json_object_get(dir->config, "vision_config"), "deepstack_visual_indexes");

    return (uint32_t)json_integer_value(json_array_get(v, (size_t)i));
}

bool hf_vision_name(const struct hf_dir *dir, const char *name, char *out, size_t cap, bool *plus_one)
{
    const char *s = name, *end, *dot, *gguf;
    bool is_deep;
    uint64_t i;

    *plus_one = false;
    if (!skip_part(&s)) return false;
    snprintf(out, cap, "%s", name);
    if (!strcmp(s, "mm_input_projection_weight")) snprintf(out, cap, "mm.input_projection.weight");
    if (!strcmp(s, "self_attention.in_proj_weight")) snprintf(out, cap, "pointer.attn_in.weight");
    if (!strcmp(s, "self_attention.in_proj_bias")) snprintf(out, cap, "pointer.attn_in.bias");
    end = strrchr(s, '.');
    if (!end) return true;
    *plus_one = !strcmp(s, "mm_soft_emb_norm.weight");
    gguf = find(outer, N_OF(outer), s, (size_t)(end - s));
    if (gguf) {
        snprintf(out, cap, "%s%s", gguf, end);
        return true;
    }
    is_deep = starts(&s, "deepstack_merger_list.");
    if (!is_deep && !starts(&s, "blocks.") && !starts(&s, "encoder.layers.")) return true;
    dot = strchr(s, '.');
    if (!dot || dot >= end || !parse_u64(s, (size_t)(dot - s), &i)) return true;
    gguf = is_deep ? find(deep, N_OF(deep), dot + 1, (size_t)(end - dot - 1))
                   : find(inner, N_OF(inner), dot + 1, (size_t)(end - dot - 1));
    if (gguf && is_deep) snprintf(out, cap, "v.deepstack.%u.%s%s", deep_layer(dir, i), gguf, end);
    if (gguf && !is_deep) snprintf(out, cap, "v.blk.%llu.%s%s", (unsigned long long)i, gguf, end);
    return true;
}

/* ---- keys ---- */

struct vision_keys {
    const json_t *vision;
    struct gguf_writer w;
    struct rd_error *err;
};

/* The first of these keys that is there, else fallback; 0: it must be there. */
static rd_status get(struct vision_keys *k, const char *key, const char *other, uint32_t fallback, uint32_t *out)
{
    const json_t *v = json_object_get(k->vision, key);

    if (!v && other) v = json_object_get(k->vision, other);
    *out = fallback;
    if (!v && fallback) return RD_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > 1 << 20)
        return error_set(k->err, RD_E_FORMAT, "config.json: \"vision_config\": \"%s\" is %s, expected 1 .. %u", key,
                         v ? "something else" : "missing", 1u << 20);
    *out = (uint32_t)json_integer_value(v);
    return RD_OK;
}

static rd_status expect(struct vision_keys *k, const char *key, uint32_t value)
{
    uint32_t found;
    rd_status st = get(k, key, NULL, value, &found);

    if (st != RD_OK || found == value) return st;
    return error_set(k->err, RD_E_UNSUPPORTED, "config.json: \"vision_config\": \"%s\" is %u, only %u is supported",
                     key, found, value);
}

static rd_status expect_act(struct vision_keys *k, const char *act)
{
    const json_t *v = json_object_get(k->vision, "hidden_act");
    char quoted[64];

    if (!v || (json_is_string(v) && !strcmp(json_string_value(v), act))) return RD_OK;
    return error_set(
        k->err, RD_E_UNSUPPORTED, "config.json: \"vision_config\": \"hidden_act\" is %s, only %s is supported",
        json_is_string(v) ? error_quote(quoted, sizeof(quoted), json_string_value(v), json_string_length(v))
                          : "of another type",
        act);
}

static void put(struct vision_keys *k, const char *key, uint32_t v)
{
    gguf_add_u32(&k->w, key, v);
}

/* "mm_tokens_per_image" tells how many patches are pooled. */
static rd_status put_pooling(struct vision_keys *k, const json_t *config, uint32_t image, uint32_t patch)
{
    const json_t *v = json_object_get(config, "mm_tokens_per_image");
    json_int_t n = v ? json_integer_value(v) : 256;
    uint32_t side = 1, grid = image / patch;

    while (side < grid && (json_int_t)side * side < n) side++;
    if ((json_int_t)side * side != n || grid % side)
        return error_set(k->err, RD_E_UNSUPPORTED,
                         "config.json: \"mm_tokens_per_image\" is %lld, expected a square that divides %u x %u patches",
                         (long long)n, grid, grid);
    put(k, "clip.vision.projector.scale_factor", grid / side);
    return RD_OK;
}

static rd_status put_full_layers(struct vision_keys *k)
{
    static const uint32_t usual[] = {7, 15, 23, 31};
    const json_t *v = json_object_get(k->vision, "fullatt_block_indexes"), *item;
    uint32_t layers[MAX_LAYERS], n = 0, window;
    size_t i;
    rd_status st = get(k, "window_size", NULL, 112, &window);

    if (st != RD_OK) return st;
    put(k, "clip.vision.window_size", window);
    if (json_array_size(v) > MAX_LAYERS)
        return error_set(k->err, RD_E_FORMAT, "config.json: \"fullatt_block_indexes\" of more than %u layers",
                         MAX_LAYERS);
    json_array_foreach((json_t *)(uintptr_t)v, i, item) layers[n++] = (uint32_t)json_integer_value(item);
    gguf_add_array(&k->w, "clip.vision.fullatt_block_indexes", META_U32, v ? layers : usual, v ? n : N_OF(usual));
    return RD_OK;
}

static rd_status put_deep_layers(struct vision_keys *k, uint32_t n_layers)
{
    const json_t *v = json_object_get(k->vision, "deepstack_visual_indexes"), *item;
    uint8_t is_deep[MAX_LAYERS] = {0};
    json_int_t last = -1;
    size_t i;

    json_array_foreach((json_t *)(uintptr_t)v, i, item)
    {
        if (!json_is_integer(item) || json_integer_value(item) <= last || json_integer_value(item) >= n_layers)
            return error_set(k->err, RD_E_FORMAT,
                             "config.json: \"deepstack_visual_indexes\": expected layers below %u, rising", n_layers);
        last = json_integer_value(item);
        is_deep[last] = 1;
    }
    gguf_add_array(&k->w, "clip.vision.is_deepstack_layers", META_BOOL, is_deep, n_layers);
    return RD_OK;
}

static rd_status put_keys(struct vision_keys *k, const struct hf_dir *dir)
{
    static const char *const projectors[] = {[HUB_SEES_GEMMA3] = "gemma3",
                                             [HUB_SEES_QWEN2] = "qwen2vl_merger",
                                             [HUB_SEES_QWEN25] = "qwen2.5vl_merger",
                                             [HUB_SEES_QWEN3] = "qwen3vl_merger"};
    static const char *const acts[] = {[HUB_SEES_GEMMA3] = "gelu_pytorch_tanh",
                                       [HUB_SEES_QWEN2] = "quick_gelu",
                                       [HUB_SEES_QWEN25] = "silu",
                                       [HUB_SEES_QWEN3] = "gelu_pytorch_tanh"};
    const enum hub_sees sees = dir->model.family->sees;
    const bool is_gemma = sees == HUB_SEES_GEMMA3;
    uint32_t hidden, heads, layers, patch, image = 0, merge = 0, speed;
    double eps = 1e-6;
    rd_status st;

    gguf_add_str(&k->w, "general.architecture", "clip", 4);
    gguf_add_bool(&k->w, "clip.has_vision_encoder", true);
    gguf_add_str(&k->w, "clip.projector_type", projectors[sees], strlen(projectors[sees]));
    st = get(k, sees == HUB_SEES_QWEN2 ? "embed_dim" : "hidden_size", NULL,
             sees == HUB_SEES_QWEN2    ? 1280
             : sees == HUB_SEES_QWEN25 ? 3584
             : is_gemma                ? 768
                                       : 1152,
             &hidden);
    if (st == RD_OK) st = get(k, "num_heads", "num_attention_heads", is_gemma ? 12 : 16, &heads);
    if (st == RD_OK)
        st = get(k, "depth", "num_hidden_layers", is_gemma ? 12 : sees == HUB_SEES_QWEN3 ? 27 : 32, &layers);
    if (st == RD_OK) st = get(k, "patch_size", NULL, sees == HUB_SEES_QWEN3 || is_gemma ? 16 : 14, &patch);
    if (st == RD_OK && is_gemma) st = get(k, "image_size", NULL, 224, &image);
    if (st == RD_OK && !is_gemma) st = get(k, "spatial_merge_size", NULL, 2, &merge);
    if (st == RD_OK && !is_gemma) st = expect(k, "temporal_patch_size", 2);
    if (st == RD_OK) st = expect(k, "in_channels", 3);
    if (st == RD_OK) st = expect(k, "num_channels", 3);
    if (st == RD_OK) st = expect_act(k, acts[sees]);
    if (st != RD_OK) return st;
    if (layers > MAX_LAYERS)
        return error_set(k->err, RD_E_LIMIT, "config.json: \"vision_config\": %u layers, at most %u", layers,
                         MAX_LAYERS);
    put(k, "clip.vision.embedding_length", hidden);
    put(k, "clip.vision.attention.head_count", heads);
    put(k, "clip.vision.block_count", layers);
    put(k, "clip.vision.patch_size", patch);
    if (is_gemma && json_is_number(json_object_get(k->vision, "layer_norm_eps")))
        eps = json_number_value(json_object_get(k->vision, "layer_norm_eps"));
    gguf_add_f32(&k->w, "clip.vision.attention.layer_norm_epsilon", eps);
    if (image) put(k, "clip.vision.image_size", image);
    if (merge) put(k, "clip.vision.spatial_merge_size", merge);
    if (sees == HUB_SEES_GEMMA3) st = put_pooling(k, dir->config, image, patch);
    if (sees == HUB_SEES_QWEN25) st = put_full_layers(k);
    if (sees == HUB_SEES_QWEN25 && st == RD_OK) st = get(k, "tokens_per_second", NULL, 4, &speed);
    if (sees == HUB_SEES_QWEN25 && st == RD_OK) put(k, "clip.vision.tokens_per_second", speed);
    if (sees == HUB_SEES_QWEN3) st = put_deep_layers(k, layers);
    return st;
}

/* ---- the file ---- */

static uint32_t no_maps(const struct model_file *g)
{
    (void)g;
    return 0;
}

static const struct file_map *no_map(const struct model_file *g, uint32_t i)
{
    (void)g;
    (void)i;
    return NULL;
}

/* The shards are the directory's, which says whether they are broken. */
static const struct model_file_kind kind_vision = {.n_maps = no_maps, .map_at = no_map};

static rd_status make_head(struct hf_dir *dir, struct gguf_writer *w, struct rd_error *err)
{
    struct buf head = {0};
    size_t n = 0;

    gguf_write_header(w, 0, &head);
    dir->vision_head = (uint8_t *)buf_take(&head, &n);
    buf_deinit(&head);
    if (!dir->vision_head) return error_set(err, RD_E_NOMEM, "out of memory for the metadata");
    dir->vision->data = dir->vision_head;
    dir->vision->n_bytes = n;
    return gguf_parse(dir->vision, err);
}

static bool sees(const struct hf_dir *dir)
{
    char name[NAME_BYTES];
    bool plus_one;

    for (size_t i = 0; dir->model.family->sees && i < dir->table.n; i++)
        if (hf_vision_name(dir, dir->table.tensors[i].name, name, sizeof(name), &plus_one)) return true;
    return false;
}

static rd_status open_part(struct hf_dir *dir, struct rd_error *err)
{
    struct vision_keys k = {.vision = json_object_get(dir->config, "vision_config"), .err = err};
    rd_status st;

    if (!json_is_object(k.vision)) return error_set(err, RD_E_FORMAT, "config.json: \"vision_config\" is missing");
    dir->vision = mem_zalloc(1, sizeof(*dir->vision));
    if (!dir->vision) return error_set(err, RD_E_NOMEM, "out of memory");
    dir->vision->kind = &kind_vision;
    dir->vision->own = dir;
    dir->vision->keys = &dir->keys;
    st = put_keys(&k, dir);
    if (st == RD_OK) st = make_head(dir, &k.w, err);
    gguf_writer_deinit(&k.w);
    return st == RD_OK ? hf_add_vision_tensors(dir->vision, err) : st;
}

rd_status hf_open_vision(struct model_file *g, struct rd_error *err)
{
    struct hf_dir *dir = g->own;
    struct rd_error why = {RD_OK, ""};
    rd_status st;

    if (!sees(dir)) return RD_OK;
    st = open_part(dir, &why);
    if (st == RD_OK) return RD_OK;
    if (st == RD_E_NOMEM) return error_set(err, st, "%s", why.text);
    log_warn("images are not taken: %s", why.text);
    model_file_close(dir->vision);
    dir->vision = NULL;
    return RD_OK;
}
