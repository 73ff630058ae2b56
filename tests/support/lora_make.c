/* tests/support/lora_make.c - see lora_make.h. */
#include "lora_make.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/random.h"
#include "format/gguf/gguf.h"
#include "format/gguf/gguf_write.h"
#include "model/model.h"
#include "test.h"

#define MAX_PAIRS 256u
#define MAX_SIDE  1024u

static const char *const gguf_names[] = {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"};
static const char *const hub_names[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                                        "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};

/* B's rows stand as in the GGUF file. */
struct pair {
    uint32_t layer, which, n_in, n_out;
    uint64_t at; /* of the matrix, in the file */
    float *a, *b;
};

struct making {
    const struct lora_options *o;
    struct model_config c;
    uint32_t rank, n;
    double alpha;
    bool interleaves;
    struct pair pairs[MAX_PAIRS];
};

static bool put_file(const char *dir, const char *name, const void *data, size_t n)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return file_write_all(path, data, n, NULL) == RD_OK;
}

void lora_remove(const char *dir)
{
    static const char *const names[] = {"merged.gguf", "lora.gguf", "adapter_model.safetensors", "adapter_config.json"};
    char path[128];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

static float rounded(const struct lora_options *o, double v)
{
    return o->bf16 ? bf16_to_float(float_to_bf16((float)v)) : (float)v;
}

static float *draw(const struct making *m, struct random *r, uint32_t n)
{
    float *v = malloc(n * sizeof(*v));

    for (uint32_t i = 0; v && i < n; i++) v[i] = rounded(m->o, (random_unit(r) - 0.5) * 0.6);
    return v;
}

static bool draw_pairs(struct making *m, const struct model_file *g)
{
    struct random r;

    random_init(&r, m->o->seed + 1);
    for (uint32_t layer = 0; layer < m->c.n_layers; layer++)
        for (uint32_t k = 0; k < 7; k++) {
            struct pair *p = &m->pairs[m->n];
            const struct model_tensor *t;
            char name[64];

            if (m->o->matrices && !(m->o->matrices >> k & 1)) continue;
            snprintf(name, sizeof(name), "blk.%u.%s.weight", layer, gguf_names[k]);
            t = model_file_find_tensor(g, name);
            if (!t || t->dtype != DTYPE_F32 || m->n == MAX_PAIRS) return false;
            *p = (struct pair){layer, k, (uint32_t)t->dims[0], (uint32_t)t->dims[1], t->offset, NULL, NULL};
            p->a = draw(m, &r, m->rank * p->n_in);
            p->b = draw(m, &r, m->rank * p->n_out);
            m->n++;
            if (!p->a || !p->b) return false;
        }
    return true;
}

static bool write_merged(const struct making *m, const char *model, const char *dir)
{
    double scale = m->alpha / (m->o->by_root ? sqrt(m->rank) : m->rank);
    char *bytes = NULL;
    size_t n = 0;
    bool ok = file_read_all(model, 64u << 20, &bytes, &n, NULL) == RD_OK;

    for (uint32_t i = 0; ok && i < m->n; i++) {
        const struct pair *p = &m->pairs[i];

        for (uint32_t o = 0; o < p->n_out; o++)
            for (uint32_t k = 0; k < p->n_in; k++) {
                char *at = bytes + p->at + ((uint64_t)o * p->n_in + k) * sizeof(float);
                double sum = 0;
                float w;

                for (uint32_t j = 0; j < m->rank; j++)
                    sum += (double)p->b[o * m->rank + j] * (double)p->a[j * p->n_in + k];
                memcpy(&w, at, sizeof(w));
                w = (float)((double)w + scale * sum);
                memcpy(at, &w, sizeof(w));
            }
    }
    ok = ok && put_file(dir, "merged.gguf", bytes, n);
    mem_free(bytes);
    return ok;
}

static void put(const struct making *m, struct buf *out, const float *v, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint16_t half = float_to_bf16(v[i]);

        buf_append(out, m->o->bf16 ? (const void *)&half : (const void *)&v[i], m->o->bf16 ? 2 : 4);
    }
}

static void put_tensor(struct buf *out, const char *name, const uint64_t dims[2], uint32_t type, uint64_t offset)
{
    uint64_t n = strlen(name);
    uint32_t n_dims = 2;

    buf_append(out, &n, sizeof(n));
    buf_append(out, name, n);
    buf_append(out, &n_dims, sizeof(n_dims));
    buf_append(out, dims, 2 * sizeof(*dims));
    buf_append(out, &type, sizeof(type));
    buf_append(out, &offset, sizeof(offset));
}

static void pad(struct buf *b)
{
    while (b->n % 32) buf_putc(b, 0);
}

static bool write_gguf(const struct making *m, const char *dir)
{
    struct gguf_writer w = {0};
    struct buf out = {0}, data = {0};
    bool ok;

    gguf_add_str(&w, "general.type", "adapter", 7);
    gguf_add_str(&w, "general.architecture", m->c.arch, strlen(m->c.arch));
    gguf_add_str(&w, "adapter.type", "lora", 4);
    gguf_add_f32(&w, "adapter.lora.alpha", m->alpha);
    gguf_write_header(&w, 2 * m->n, &out);
    for (uint32_t i = 0; i < 2 * m->n; i++) {
        const struct pair *p = &m->pairs[i / 2];
        const uint64_t dims[2] = {i % 2 ? m->rank : p->n_in, i % 2 ? p->n_out : m->rank};
        char name[64];

        snprintf(name, sizeof(name), "blk.%u.%s.weight.lora_%c", p->layer, gguf_names[p->which], "ab"[i % 2]);
        put_tensor(&out, name, dims, m->o->bf16 ? DTYPE_BF16 : DTYPE_F32, data.n);
        put(m, &data, i % 2 ? p->b : p->a, dims[0] * dims[1]);
        pad(&data);
    }
    pad(&out);
    buf_append(&out, data.data, data.n);
    ok = !out.failed && put_file(dir, "lora.gguf", out.data, out.n);
    buf_deinit(&out);
    buf_deinit(&data);
    gguf_writer_deinit(&w);
    return ok;
}

/* B as PEFT has it: rows of wq and wk in halves. */
static void put_b(const struct making *m, struct buf *out, const struct pair *p)
{
    uint32_t half = m->c.head_dim / 2;

    for (uint32_t row = 0; row < p->n_out; row++) {
        uint32_t head = row / m->c.head_dim * m->c.head_dim, i = row % m->c.head_dim;
        uint32_t from = m->interleaves && p->which < 2 ? head + (i < half ? 2 * i : 2 * (i - half) + 1) : row;

        put(m, out, p->b + (uint64_t)from * m->rank, m->rank);
    }
}

static bool write_peft(const struct making *m, const char *dir)
{
    struct buf head = {0}, data = {0}, out = {0}, config = {0};
    uint64_t n_head;
    bool ok;

    buf_printf(
        &config,
        "{\"peft_type\": \"LORA\", \"r\": %u, \"lora_alpha\": %g, \"use_rslora\": %s, \"use_dora\": false, \"bias\": "
        "\"none\", \"modules_to_save\": null, \"alpha_pattern\": {}, \"base_model_name_or_path\": \"org/tiny\"%s}",
        m->rank, m->alpha, m->o->by_root ? "true" : "false", m->o->extra ? m->o->extra : "");
    buf_printf(&head, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (uint32_t i = 0; i < 2 * m->n; i++) {
        const struct pair *p = &m->pairs[i / 2];
        size_t begin = data.n;

        if (i % 2)
            put_b(m, &data, p);
        else
            put(m, &data, p->a, (uint64_t)m->rank * p->n_in);
        buf_printf(&head,
                   ",\"base_model.model.model.layers.%u.%s.lora_%c.weight\":{\"dtype\":\"%s\",\"shape\":[%u,%u],"
                   "\"data_offsets\":[%zu,%zu]}",
                   p->layer, hub_names[p->which], "AB"[i % 2], m -> o -> bf16 ? "BF16" : "F32",
                   i % 2 ? p->n_out : m->rank, i % 2 ? m->rank : p->n_in, begin, data.n);
    }
    buf_putc(&head, '}');
    n_head = head.n;
    buf_append(&out, &n_head, 8);
    buf_append(&out, head.data, head.n);
    buf_append(&out, data.data, data.n);
    ok = !out.failed && put_file(dir, "adapter_model.safetensors", out.data, out.n) &&
         put_file(dir, "adapter_config.json", config.data, config.n);
    buf_deinit(&head);
    buf_deinit(&data);
    buf_deinit(&out);
    buf_deinit(&config);
    return ok;
}

bool lora_make(const char *model, bool interleaves, const struct lora_options *o, char dir[64])
{
    struct making m = {
        .o = o, .rank = o->rank ? o->rank : 4, .alpha = o->alpha ? o->alpha : 8, .interleaves = interleaves};
    struct model_file *g = NULL;
    bool ok;

    snprintf(dir, 64, "/tmp/radish-lora-XXXXXX");
    if (!mkdtemp(dir)) return false;
    ok = model_file_open(model, model_hub_families(), &g, NULL) == RD_OK && model_read_config(g, &m.c, NULL) == RD_OK &&
         draw_pairs(&m, g) && write_merged(&m, model, dir) && write_gguf(&m, dir) && write_peft(&m, dir);
    if (!ok) test_note("no adapter could be made of %s", model);
    for (uint32_t i = 0; i < m.n; i++) {
        free(m.pairs[i].a);
        free(m.pairs[i].b);
    }
    model_file_close(g);
    return ok;
}
