/* tests/model/hub_make.c - see hub_make.h. */
#include "format/gguf/gguf.h"
#include "hub_make.h"
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "model/model.h"
#include "tensor/dtype.h"
#include "test.h"

bool hub_write(const char *dir, const char *name, const void *data, size_t n)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return file_write_all(path, data, n, NULL) == RD_OK;
}

void hub_remove(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    char path[512];

    while (d && (e = readdir(d))) {
        snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    if (d) closedir(d);
    rmdir(dir);
}

/* ---- names and layouts back ---- */

static bool is_gemma(const struct model_config *c)
{
    return !strncmp(c->arch, "gemma", 5);
}

/* "" where the hub has no such tensor. */
static void hub_name(const struct model_config *c, const struct hub_options *o, struct model_str gguf, char *out,
                     size_t cap)
{
    static const char *const rows[][2] = {
        {"attn_q.", "self_attn.q_proj."},
        {"attn_k.", "self_attn.k_proj."},
        {"attn_v.", "self_attn.v_proj."},
        {"attn_output.", "self_attn.o_proj."},
        {"attn_q_norm.", "self_attn.q_norm."},
        {"attn_k_norm.", "self_attn.k_norm."},
        {"attn_norm.", "input_layernorm."},
        {"ffn_gate.", "mlp.gate_proj."},
        {"ffn_up.", "mlp.up_proj."},
        {"ffn_down.", "mlp.down_proj."},
        {"post_attention_norm.", "post_attention_layernorm."},
        {"post_ffw_norm.", "post_feedforward_layernorm."},
    };
    const char *prefix = o->in_text_config ? "language_model.model." : "model.", *found = NULL;
    char name[96], rest[64];
    unsigned layer;

    snprintf(name, sizeof(name), "%.*s", (int)gguf.n, gguf.s);
    *out = 0;
    if (!strcmp(name, "token_embd.weight")) snprintf(out, cap, "%sembed_tokens.weight", prefix);
    if (!strcmp(name, "output_norm.weight")) snprintf(out, cap, "%snorm.weight", prefix);
    if (!strcmp(name, "output.weight")) snprintf(out, cap, "lm_head.weight");
    if (sscanf(name, "blk.%u.%63s", &layer, rest) != 2) return;
    if (!strncmp(rest, "ffn_norm.", 9))
        found = is_gemma(c) ? "pre_feedforward_layernorm." : "post_attention_layernorm.";
    for (size_t i = 0; !found && i < sizeof(rows) / sizeof(rows[0]); i++)
        if (!strncmp(rest, rows[i][0], strlen(rows[i][0]))) found = rows[i][1];
    if (found) snprintf(out, cap, "%slayers.%u.%s%s", prefix, layer, found, strrchr(rest, '.') + 1);
}

/* Rows of each head from interleaved to half-split order; Gemma's norms without their 1. */
static void put_data(const struct model_config *c, const struct model_tensor *t, struct buf *out)
{
    const float *from = (const float *)t->data;
    bool is_q = t->name.n > 14 && !memcmp(t->name.s + t->name.n - 14, ".attn_q.weight", 14);
    bool is_k = t->name.n > 14 && !memcmp(t->name.s + t->name.n - 14, ".attn_k.weight", 14);
    bool is_norm = t->name.n > 11 && !memcmp(t->name.s + t->name.n - 11, "norm.weight", 11);
    uint32_t half = c->head_dim / 2;

    if (!strcmp(c->arch, "llama") && (is_q || is_k)) {
        for (uint64_t row = 0; row < t->dims[1]; row++) {
            uint64_t head = row / c->head_dim, i = row % c->head_dim;
            uint64_t source = head * c->head_dim + (i < half ? 2 * i : 2 * (i - half) + 1);

            buf_append(out, from + source * t->dims[0], t->dims[0] * sizeof(float));
        }
    } else if (is_gemma(c) && is_norm) {
        for (uint64_t i = 0; i < t->dims[0]; i++) {
            float v = from[i] - 1;

            buf_append(out, &v, sizeof(v));
        }
    } else {
        buf_append(out, from, t->n_bytes);
    }
}

/* What one tensor becomes: name.weight, and for groups name.scales and name.biases. */
struct entry {
    char name[128];
    const char *type;
    uint32_t n_dims;
    uint64_t dims[2];
    struct buf data;
};

static void quantise_row(const float *x, uint64_t n, uint32_t bits, struct entry e[3], float *opened)
{
    const uint32_t top = (1u << bits) - 1;
    uint8_t stream[512] = {0};

    for (uint64_t g = 0; g < n; g += 32) {
        float low = x[g], high = x[g], scale, bias;
        uint16_t halves[2];

        for (int i = 0; i < 32; i++) {
            low = fminf(low, x[g + (uint64_t)i]);
            high = fmaxf(high, x[g + (uint64_t)i]);
        }
        halves[0] = float_to_half((high - low) / (float)top);
        halves[1] = float_to_half(low);
        scale = half_to_float(halves[0]);
        bias = half_to_float(halves[1]);
        buf_append(&e[1].data, &halves[0], 2);
        buf_append(&e[2].data, &halves[1], 2);
        for (uint64_t i = g; i < g + 32; i++) {
            float q = roundf((x[i] - bias) / scale);
            uint32_t v = q < 0 ? 0 : q > (float)top ? top : (uint32_t)q;

            opened[i] = scale * (float)v + bias;
            for (uint32_t b = 0; b < bits; b++)
                stream[(i * bits + b) / 8] |= (uint8_t)((v >> b & 1) << ((i * bits + b) % 8));
        }
    }
    buf_append(&e[0].data, stream, n * bits / 8);
}

static void quantise_entry(uint32_t bits, bool as_opened, struct entry e[3])
{
    const uint64_t n_in = e[0].dims[1], n_out = e[0].dims[0];
    struct buf plain = e[0].data, opened = {0};
    float row[512];

    e[0].data = (struct buf){0};
    for (uint64_t r = 0; r < n_out; r++) {
        quantise_row((const float *)(const void *)plain.data + r * n_in, n_in, bits, e, row);
        buf_append(&opened, row, n_in * sizeof(float));
    }
    buf_deinit(&plain);
    if (as_opened) {
        for (int i = 0; i < 3; i++) buf_deinit(&e[i].data);
        e[0].data = opened;
        return;
    }
    buf_deinit(&opened);
    e[0].type = "U32";
    e[0].dims[1] = n_in * bits / 32;
    for (int i = 1; i < 3; i++) {
        e[i].type = "F16";
        e[i].n_dims = 2;
        e[i].dims[0] = n_out;
        e[i].dims[1] = n_in / 32;
        memcpy(e[i].name, e[0].name, sizeof(e[i].name));
        snprintf(e[i].name + strlen(e[0].name) - 7, 8, "%s", i == 1 ? ".scales" : ".biases"); /* for ".weight" */
    }
}

static uint8_t nearest_e4m3(float x)
{
    uint8_t best = 0;

    for (int v = 1; v < 256; v++)
        if (v % 128 != 127 && fabsf(e4m3_to_float((uint8_t)v) - x) < fabsf(e4m3_to_float(best) - x)) best = (uint8_t)v;
    return best;
}

/* The block of weights from (row, col), and its scale, F32 for the whole matrix and BF16 else. */
static void quantise_fp8_block(struct entry e[2], const float *x, uint64_t row, uint64_t col, uint64_t n_rows,
                               uint64_t n_cols, uint16_t *opened)
{
    const uint64_t n_in = e[0].dims[1], n_out = e[0].dims[0];
    float top = 1e-6f, scale;
    uint16_t half;

    for (uint64_t r = row; r < row + n_rows && r < n_out; r++)
        for (uint64_t k = col; k < col + n_cols && k < n_in; k++) top = fmaxf(top, fabsf(x[r * n_in + k]));
    scale = top / 448;
    half = float_to_bf16(scale);
    if (!strcmp(e[1].type, "F32")) {
        buf_append(&e[1].data, &scale, 4);
    } else {
        buf_append(&e[1].data, &half, 2);
        scale = bf16_to_float(half);
    }
    for (uint64_t r = row; r < row + n_rows && r < n_out; r++)
        for (uint64_t k = col; k < col + n_cols && k < n_in; k++) {
            uint8_t v = nearest_e4m3(x[r * n_in + k] / scale);

            e[0].data.data[r * n_in + k] = (char)v;
            opened[r * n_in + k] = float_to_bf16(scale * e4m3_to_float(v));
        }
}

static void fp8_entry(const struct hub_options *o, struct entry e[2])
{
    const uint64_t n_in = e[0].dims[1], n_out = e[0].dims[0];
    const uint64_t rows = o->fp8 == HUB_FP8_BLOCKS ? HUB_FP8_OUT : o->fp8 == HUB_FP8_ROWS ? 1 : n_out;
    const uint64_t cols = o->fp8 == HUB_FP8_BLOCKS ? HUB_FP8_IN : n_in;
    uint16_t *opened = mem_alloc(n_in * n_out, sizeof(*opened));
    struct buf plain = e[0].data;

    e[0].data = (struct buf){0};
    buf_append(&e[0].data, plain.data, n_in * n_out);
    if (!opened || e[0].data.failed) return;
    e[0].type = "F8_E4M3";
    e[1].type = o->fp8 == HUB_FP8_ONE ? "F32" : "BF16";
    e[1].n_dims = o->fp8 == HUB_FP8_ONE ? 1 : 2;
    e[1].dims[0] = (n_out + rows - 1) / rows;
    e[1].dims[1] = (n_in + cols - 1) / cols;
    memcpy(e[1].name, e[0].name, sizeof(e[1].name));
    strncat(e[1].name, o->fp8 == HUB_FP8_BLOCKS ? "_scale_inv" : "_scale", sizeof(e[1].name) - 1 - strlen(e[0].name));
    for (uint64_t r = 0; r < n_out; r += rows)
        for (uint64_t k = 0; k < n_in; k += cols)
            quantise_fp8_block(e, (const float *)(const void *)plain.data, r, k, rows, cols, opened);
    buf_deinit(&plain);
    if (o->fp8_opened) {
        for (int i = 0; i < 2; i++) buf_deinit(&e[i].data);
        e[0].data = (struct buf){0};
        e[1].data = (struct buf){0};
        e[0].type = "BF16";
        buf_append(&e[0].data, opened, n_in * n_out * sizeof(*opened));
    }
    mem_free(opened);
}

static void put_entry(const struct entry *e, const char *file, struct buf *head, struct buf *data, struct buf *index)
{
    size_t begin = data->n;

    buf_append(data, e->data.data, e->data.n);
    buf_printf(head, ", \"%s\": {\"dtype\": \"%s\", \"shape\": [", e->name, e->type);
    if (e->n_dims == 2) buf_printf(head, "%llu, ", (unsigned long long)e->dims[0]);
    buf_printf(head, "%llu], \"data_offsets\": [%zu, %zu]}", (unsigned long long)e->dims[1], begin, data->n);
    if (index) buf_printf(index, "%s\n\"%s\": \"%s\"", index->n > 20 ? "," : "", e->name, file);
}

static bool write_shard(const struct model_file *g, const struct model_config *c, const struct hub_options *o,
                        const char *dir, const char *file, uint32_t shard, struct buf *index)
{
    struct buf head = {0}, data = {0}, all = {0};
    bool ok;

    buf_puts(&head, "{\"__metadata__\": {\"format\": \"pt\"}");
    if (o->in_text_config && shard == 0) { /* of a part that is left out */
        buf_puts(&head, ", \"vision_tower.x\": {\"dtype\": \"I64\", \"shape\": [1], \"data_offsets\": [0, 8]}");
        buf_append(&data, "8 bytes.", 8);
    }
    for (uint64_t i = shard; i < model_file_n_tensors(g); i += o->n_shards ? o->n_shards : 1) {
        const struct model_tensor *t = model_file_tensor(g, i);
        struct entry e[3] = {{.type = "F32", .n_dims = t->n_dims, .dims = {t->dims[1], t->dims[0]}}};

        hub_name(c, o, t->name, e[0].name, sizeof(e[0].name));
        if (!e[0].name[0]) continue;
        put_data(c, t, &e[0].data);
        if (o->mlx_bits && t->n_dims == 2) quantise_entry(o->mlx_bits, o->mlx_opened, e);
        if (o->fp8 && t->n_dims == 2 && strstr(e[0].name, ".layers.")) fp8_entry(o, e);
        for (int k = 0; k < 3; k++) {
            if (e[k].data.n) put_entry(&e[k], file, &head, &data, index);
            buf_deinit(&e[k].data);
        }
    }
    buf_putc(&head, '}');
    while (head.n % 8) buf_putc(&head, ' ');
    uint64_t n = head.n;
    buf_append(&all, &n, sizeof(n));
    buf_append(&all, head.data, head.n);
    buf_append(&all, data.data, data.n);
    ok = !all.failed && hub_write(dir, file, all.data, all.n);
    buf_deinit(&head);
    buf_deinit(&data);
    buf_deinit(&all);
    return ok;
}

static bool write_shards(const struct model_file *g, const struct model_config *c, const struct hub_options *o,
                         const char *dir)
{
    struct buf index = {0};
    bool ok = true;

    if (o->n_shards < 2) return write_shard(g, c, o, dir, "model.safetensors", 0, NULL);
    buf_puts(&index, "{\"weight_map\": {");
    for (uint32_t i = 0; ok && i < o->n_shards; i++) {
        char file[64];

        snprintf(file, sizeof(file), "model-%05u-of-%05u.safetensors", i + 1, o->n_shards);
        ok = write_shard(g, c, o, dir, file, i, &index);
    }
    buf_puts(&index, "}}");
    ok = ok && !index.failed && hub_write(dir, "model.safetensors.index.json", index.data, index.n);
    buf_deinit(&index);
    return ok;
}

/* ---- config.json ---- */

static void put_rope(const struct model_file *g, const struct model_config *c, const struct hub_options *o,
                     struct buf *b)
{
    char type[160] = "\"rope_type\": \"default\"", theta[48];
    bool local = !strcmp(c->arch, "gemma3");

    if (c->yarn_factor > 0)
        snprintf(type, sizeof(type),
                 "\"rope_type\": \"yarn\", \"factor\": %g, \"original_max_position_embeddings\": %u",
                 (double)c->yarn_factor, c->yarn_n_ctx_orig);
    else if (c->rope_linear_factor != 1)
        snprintf(type, sizeof(type), "\"rope_type\": \"linear\", \"factor\": %g", (double)c->rope_linear_factor);
    else if (model_file_find_tensor(g, "rope_freqs.weight")) /* tests/golden/make_tiny_models.py, llama31 */
        snprintf(type, sizeof(type),
                 "\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, "
                 "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 32");
    snprintf(theta, sizeof(theta), "\"rope_theta\": %.9g", (double)c->rope_base);
    if (o->old_rope) {
        buf_printf(b, ", %s", theta);
        if (!strstr(type, "default"))
            buf_printf(b, ", \"rope_scaling\": {%s}", type);
        else
            buf_puts(b, ", \"rope_scaling\": null");
        if (local) buf_printf(b, ", \"rope_local_base_freq\": %.9g", (double)c->rope_base_local);
    } else if (local) {
        buf_printf(b,
                   ", \"rope_parameters\": {\"full_attention\": {%s, %s}, \"sliding_attention\": "
                   "{\"rope_type\": \"default\", \"rope_theta\": %.9g}}",
                   type, theta, (double)c->rope_base_local);
    } else {
        buf_printf(b, ", \"rope_parameters\": {%s, %s}", type, theta);
    }
}

static void put_gemma(const struct model_config *c, struct buf *b)
{
    buf_printf(b,
               ", \"hidden_activation\": \"gelu_pytorch_tanh\", \"query_pre_attn_scalar\": %g, \"sliding_window\": %u",
               round(1 / ((double)c->attn_scale * (double)c->attn_scale)), c->window);
    if (c->attn_softcap > 0)
        buf_printf(b, ", \"attn_logit_softcapping\": %g", (double)c->attn_softcap);
    else
        buf_puts(b, ", \"attn_logit_softcapping\": null");
    if (c->final_softcap > 0) buf_printf(b, ", \"final_logit_softcapping\": %g", (double)c->final_softcap);
    buf_puts(b, ", \"layer_types\": [");
    for (uint32_t i = 0; i < c->n_layers; i++)
        buf_printf(b, "%s\"%s\"", i ? ", " : "", (i + 1) % c->window_pattern ? "sliding_attention" : "full_attention");
    buf_puts(b, "]");
}

static bool write_config(const struct model_file *g, const struct model_config *c, const struct hub_options *o,
                         const char *dir)
{
    bool gemma3 = !strcmp(c->arch, "gemma3"), ok;
    struct buf b = {0};

    buf_puts(&b, "{");
    if (o->in_text_config) buf_puts(&b, "\"model_type\": \"gemma3\", \"text_config\": {");
    buf_printf(&b, "\"model_type\": \"%s%s\", \"num_hidden_layers\": %u, \"hidden_size\": %u", c->arch,
               gemma3 ? "_text" : "", c->n_layers, c->hidden);
    buf_printf(&b, ", \"intermediate_size\": %u, \"num_attention_heads\": %u, \"num_key_value_heads\": %u", c->ffn,
               c->n_heads, c->n_kv_heads);
    buf_printf(&b, ", \"max_position_embeddings\": %u, \"rms_norm_eps\": %.9g, \"vocab_size\": %u", c->n_ctx_train,
               (double)c->norm_eps, c->n_vocab);
    if (c->head_dim != c->hidden / c->n_heads || gemma3 || !strcmp(c->arch, "qwen3") || is_gemma(c))
        buf_printf(&b, ", \"head_dim\": %u", c->head_dim);
    buf_printf(&b, ", \"tie_word_embeddings\": %s", c->tied_head ? "true" : "false");
    put_rope(g, c, o, &b);
    if (is_gemma(c)) put_gemma(c, &b);
    if (o->in_text_config) buf_puts(&b, "}");
    if (o->mlx_bits && !o->mlx_opened)
        buf_printf(&b, ", \"quantization\": {\"group_size\": 32, \"bits\": %u}", o->mlx_bits);
    if (o->fp8 == HUB_FP8_BLOCKS && !o->fp8_opened && !o->fp8_unsaid)
        buf_printf(&b,
                   ", \"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"activation_scheme\": "
                   "\"dynamic\", \"weight_block_size\": [%u, %u]}",
                   HUB_FP8_OUT, HUB_FP8_IN);
    else if (o->fp8 && !o->fp8_opened && !o->fp8_unsaid)
        buf_printf(&b,
                   ", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": "
                   "\"float-quantized\", \"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 8, \"type\": "
                   "\"float\", "
                   "\"strategy\": \"%s\"}}}}",
                   o->fp8 == HUB_FP8_ROWS ? "channel" : "tensor");
    if (o->config_extra) buf_puts(&b, o->config_extra);
    buf_puts(&b, "}");
    ok = !b.failed && hub_write(dir, "config.json", b.data, b.n);
    buf_deinit(&b);
    return ok;
}

/* The tiny models' tokens: characters, one merge, an end (tests/golden/make_tiny_models.py). */
static bool write_tokenizer(const char *dir)
{
    static const char config[] = "{\"eos_token\": \"<|end|>\", \"bos_token\": null, "
                                 "\"chat_template\": \"{{ messages[0]['content'] }}\"}";
    static const char generation[] = "{\"eos_token_id\": [95, 7]}";
    struct buf b = {0};
    bool ok;

    buf_puts(&b, "{\"added_tokens\": [{\"id\": 95, \"content\": \"<|end|>\", \"special\": true}], \"pre_tokenizer\": "
                 "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}, \"decoder\": {\"type\": "
                 "\"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"merges\": [\"t h\"], \"vocab\": {\"\\u0120\": 0");
    for (char ch = 0x21; ch < 0x7e; ch++)
        buf_printf(&b, ", \"%s%c\": %d", ch == '"' || ch == '\\' ? "\\" : "", ch, ch - 0x20);
    buf_puts(&b, ", \"th\": 94}}}");
    ok = !b.failed && hub_write(dir, "tokenizer.json", b.data, b.n) &&
         hub_write(dir, "tokenizer_config.json", config, sizeof(config) - 1) &&
         hub_write(dir, "generation_config.json", generation, sizeof(generation) - 1);
    buf_deinit(&b);
    return ok;
}

bool hub_make(const char *gguf_path, const struct hub_options *o, char dir[64])
{
    struct rd_error err = {RD_OK, ""};
    struct model_config c;
    struct model_file *g = NULL;
    bool ok;

    snprintf(dir, 64, "/tmp/radish-hub-XXXXXX");
    ok = mkdtemp(dir) && gguf_open(gguf_path, &g, &err) == RD_OK && model_read_config(g, &c, &err) == RD_OK &&
         write_config(g, &c, o, dir) && write_shards(g, &c, o, dir) && write_tokenizer(dir);
    if (!ok) test_note("%s: %s", gguf_path, err.text);
    model_file_close(g);
    return ok;
}
