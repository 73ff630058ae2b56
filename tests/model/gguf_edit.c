/* tests/model/gguf_edit.c - see gguf_edit.h. */
#include "gguf_edit.h"
#include <string.h>
#include "base/checked.h"

#define ALIGNMENT 32u

static void put_u32(struct buf *b, uint32_t v)
{
    buf_append(b, &v, sizeof(v));
}
static void put_u64(struct buf *b, uint64_t v)
{
    buf_append(b, &v, sizeof(v));
}

static void put_str(struct buf *b, const char *s, size_t n)
{
    put_u64(b, n);
    buf_append(b, s, n);
}

static void pad(struct buf *b)
{
    while (b->n % ALIGNMENT && !b->failed) buf_putc(b, 0);
}

static bool is_named(const struct gguf_edit *e, struct model_str name)
{
    return strlen(e->name) == name.n && !memcmp(e->name, name.s, name.n);
}

static bool edits_tensor(const struct gguf_edit *e)
{
    return e->kind >= EDIT_DROP_TENSOR;
}

static uint64_t scalar_bytes(enum meta_type t)
{
    switch (t) {
    case META_U8:
    case META_I8:
    case META_BOOL:
        return 1;
    case META_U16:
    case META_I16:
        return 2;
    case META_U64:
    case META_I64:
    case META_F64:
        return 8;
    default:
        return 4;
    }
}

static void copy_kv(struct buf *b, const struct model_meta *kv)
{
    struct meta_strings it;
    struct model_str s;

    put_str(b, kv->key.s, kv->key.n);
    put_u32(b, kv->type);
    if (kv->type == META_STRING) {
        memcpy(&s.n, kv->data, sizeof(uint64_t));
        buf_append(b, kv->data, 8 + s.n);
    } else if (kv->type != META_ARRAY) {
        buf_append(b, kv->data, scalar_bytes(kv->type));
    } else {
        put_u32(b, kv->array_type);
        put_u64(b, kv->n);
        if (kv->array_type != META_STRING) {
            buf_append(b, kv->data, kv->n * scalar_bytes(kv->array_type));
        } else {
            meta_strings_of(kv, &it);
            while (meta_next_string(&it, &s)) put_str(b, s.s, s.n);
        }
    }
}

static void put_edited_kv(struct buf *b, const struct gguf_edit *e)
{
    put_str(b, e->name, strlen(e->name));
    if (e->kind == EDIT_SET_U32) {
        put_u32(b, META_U32);
        put_u32(b, e->number);
    } else if (e->kind == EDIT_SET_BOOL) {
        put_u32(b, META_BOOL);
        buf_putc(b, (char)e->number);
    } else if (e->kind == EDIT_SET_F32) {
        put_u32(b, META_F32);
        buf_append(b, &e->real, sizeof(e->real));
    } else {
        put_u32(b, META_STRING);
        put_str(b, e->text, strlen(e->text));
    }
}

static uint64_t put_kvs(struct buf *b, const struct model_file *g, const struct gguf_edit *edits, uint32_t n_edits)
{
    uint64_t n = 0;

    for (uint64_t i = 0; i < model_file_n_meta(g); i++) {
        const struct model_meta *kv = model_file_meta(g, i);
        bool replaced = false;

        for (uint32_t k = 0; k < n_edits; k++) replaced |= !edits_tensor(&edits[k]) && is_named(&edits[k], kv->key);
        if (replaced) continue;
        copy_kv(b, kv);
        n++;
    }
    for (uint32_t k = 0; k < n_edits; k++)
        if (!edits_tensor(&edits[k]) && edits[k].kind != EDIT_DROP_KEY) {
            put_edited_kv(b, &edits[k]);
            n++;
        }
    return n;
}

/* The tensor as it shall be; false: dropped. */
static bool edited_tensor(const struct model_tensor *old, const struct gguf_edit *edits, uint32_t n_edits,
                          struct model_tensor *t)
{
    *t = *old;
    for (uint32_t k = 0; k < n_edits; k++) {
        const struct gguf_edit *e = &edits[k];

        if (!edits_tensor(e) || !is_named(e, old->name)) continue;
        if (e->kind == EDIT_DROP_TENSOR) return false;
        if (e->kind == EDIT_RENAME_TENSOR) t->name = (struct model_str){e->text, strlen(e->text)};
        if (e->kind == EDIT_RETYPE_TENSOR) t->dtype = (enum dtype)e->number;
        if (e->kind == EDIT_RESHAPE_TENSOR) {
            t->n_dims = e->dims[1] ? 2 : 1;
            t->dims[0] = e->dims[0];
            t->dims[1] = e->dims[1] ? e->dims[1] : 1;
        }
    }
    dtype_row_bytes(t->dtype, t->dims[0], &t->n_bytes);
    t->n_bytes *= t->dims[1] * t->dims[2] * t->dims[3];
    return true;
}

rd_status gguf_rewrite(const struct model_file *g, const struct gguf_edit *edits, uint32_t n_edits, struct buf *out)
{
    uint64_t n_tensors = 0, n_kv, offset = 0;
    struct model_tensor t;

    buf_init(out);
    buf_puts(out, "GGUF");
    put_u32(out, 3);
    put_u64(out, 0); /* both counts are filled in below */
    put_u64(out, 0);
    n_kv = put_kvs(out, g, edits, n_edits);
    for (uint64_t i = 0; i < model_file_n_tensors(g); i++) {
        if (!edited_tensor(model_file_tensor(g, i), edits, n_edits, &t)) continue;
        put_str(out, t.name.s, t.name.n);
        put_u32(out, t.n_dims);
        for (uint32_t d = 0; d < t.n_dims; d++) put_u64(out, t.dims[d]);
        put_u32(out, (uint32_t)t.dtype);
        put_u64(out, offset);
        offset += t.n_bytes + (ALIGNMENT - t.n_bytes % ALIGNMENT) % ALIGNMENT;
        n_tensors++;
    }
    pad(out);
    for (uint64_t i = 0; i < model_file_n_tensors(g); i++) {
        const struct model_tensor *old = model_file_tensor(g, i);

        if (!edited_tensor(old, edits, n_edits, &t)) continue;
        buf_append(out, old->data, u64_min(old->n_bytes, t.n_bytes));
        for (uint64_t k = old->n_bytes; k < t.n_bytes && !out->failed; k++) buf_putc(out, 0);
        pad(out);
    }
    if (out->failed) {
        buf_deinit(out);
        return RD_E_NOMEM;
    }
    memcpy(out->data + 8, &n_tensors, sizeof(n_tensors));
    memcpy(out->data + 16, &n_kv, sizeof(n_kv));
    return RD_OK;
}
