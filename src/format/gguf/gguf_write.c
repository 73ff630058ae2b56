/* format/gguf/gguf_write.c - the bytes of metadata entries. */
#include "format/gguf/gguf_write.h"
#include <string.h>
#include "format/model_file_inside.h"

static void put_u32(struct buf *b, uint32_t v)
{
    buf_append(b, &v, sizeof(v));
}
static void put_u64(struct buf *b, uint64_t v)
{
    buf_append(b, &v, sizeof(v));
}

static void put_text(struct buf *b, const char *s, size_t n)
{
    put_u64(b, n);
    if (n) buf_append(b, s, n);
}

static void begin(struct gguf_writer *w, const char *key, enum meta_type type)
{
    put_text(&w->kv, key, strlen(key));
    put_u32(&w->kv, type);
    w->n_kv++;
}

void gguf_add_u32(struct gguf_writer *w, const char *key, uint32_t v)
{
    begin(w, key, META_U32);
    put_u32(&w->kv, v);
}

void gguf_add_f32(struct gguf_writer *w, const char *key, double v)
{
    float f = (float)v;

    begin(w, key, META_F32);
    buf_append(&w->kv, &f, sizeof(f));
}

void gguf_add_bool(struct gguf_writer *w, const char *key, bool v)
{
    begin(w, key, META_BOOL);
    buf_putc(&w->kv, v);
}

void gguf_add_str(struct gguf_writer *w, const char *key, const char *s, size_t n)
{
    begin(w, key, META_STRING);
    put_text(&w->kv, s, n);
}

void gguf_add_array(struct gguf_writer *w, const char *key, enum meta_type type, const void *values, uint64_t n)
{
    begin(w, key, META_ARRAY);
    put_u32(&w->kv, type);
    put_u64(&w->kv, n);
    if (n) buf_append(&w->kv, values, n * meta_type_bytes(type));
}

void gguf_add_strings(struct gguf_writer *w, const char *key, uint64_t n)
{
    begin(w, key, META_ARRAY);
    put_u32(&w->kv, META_STRING);
    put_u64(&w->kv, n);
}

void gguf_add_string(struct gguf_writer *w, const char *s, size_t n)
{
    put_text(&w->kv, s, n);
}

void gguf_add_copy(struct gguf_writer *w, const struct model_meta *kv)
{
    enum meta_type element = kv->type == META_ARRAY ? kv->array_type : kv->type;
    const uint8_t *end = kv->data;

    put_text(&w->kv, kv->key.s, kv->key.n);
    put_u32(&w->kv, kv->type);
    if (kv->type == META_ARRAY) {
        put_u32(&w->kv, kv->array_type);
        put_u64(&w->kv, kv->n);
    }
    for (uint64_t i = 0, n = kv->type == META_ARRAY ? kv->n : 1; i < n; i++)
        end += element == META_STRING ? 8 + meta_u64_of(end) : meta_type_bytes(element);
    if (end > kv->data) buf_append(&w->kv, kv->data, (size_t)(end - kv->data));
    w->n_kv++;
}

void gguf_write_header(const struct gguf_writer *w, uint64_t n_tensors, struct buf *out)
{
    buf_append(out, "GGUF", 4);
    put_u32(out, 3);
    put_u64(out, n_tensors);
    put_u64(out, w->n_kv);
    if (w->kv.n) buf_append(out, w->kv.data, w->kv.n);
    if (w->kv.failed) out->failed = true;
}

void gguf_writer_deinit(struct gguf_writer *w)
{
    buf_deinit(&w->kv);
    w->n_kv = 0;
}
