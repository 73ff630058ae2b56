/* tests/format/gguf_make.c - the writers, and the sample file. */
#include "gguf_make.h"
#include <string.h>

void gguf_put_u32(struct buf *b, uint32_t v)
{
    buf_append(b, &v, sizeof(v));
}

void gguf_put_u64(struct buf *b, uint64_t v)
{
    buf_append(b, &v, sizeof(v));
}

void gguf_put_str(struct buf *b, const char *s)
{
    gguf_put_u64(b, strlen(s));
    buf_puts(b, s);
}

void gguf_put_header(struct buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    buf_puts(b, "GGUF");
    gguf_put_u32(b, version);
    gguf_put_u64(b, n_tensors);
    gguf_put_u64(b, n_kv);
}

void gguf_put_kv_u32(struct buf *b, const char *key, uint32_t v)
{
    gguf_put_str(b, key);
    gguf_put_u32(b, META_U32);
    gguf_put_u32(b, v);
}

void gguf_put_kv_str(struct buf *b, const char *key, const char *value)
{
    gguf_put_str(b, key);
    gguf_put_u32(b, META_STRING);
    gguf_put_str(b, value);
}

void gguf_put_kv_array(struct buf *b, const char *key, enum meta_type type, uint64_t n)
{
    gguf_put_str(b, key);
    gguf_put_u32(b, META_ARRAY);
    gguf_put_u32(b, type);
    gguf_put_u64(b, n);
}

void gguf_put_tensor(struct buf *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                     uint64_t offset)
{
    gguf_put_str(b, name);
    gguf_put_u32(b, n_dims);
    for (uint32_t d = 0; d < n_dims; d++) gguf_put_u64(b, dims[d]);
    gguf_put_u32(b, type);
    gguf_put_u64(b, offset);
}

void gguf_put_padding(struct buf *b, size_t align)
{
    while (b->n % align) buf_putc(b, 0);
}

static void put_scalar(struct buf *b, const char *key, enum meta_type type, const void *value, size_t n)
{
    gguf_put_str(b, key);
    gguf_put_u32(b, type);
    buf_append(b, value, n);
}

#define N_SCALARS 11
static void put_scalars(struct gguf_sample *s)
{
    struct buf *b = &s->bytes;

    put_scalar(b, "test.u8", META_U8, &(uint8_t){200}, 1);
    put_scalar(b, "test.i8", META_I8, &(int8_t){-100}, 1);
    put_scalar(b, "test.u16", META_U16, &(uint16_t){60000}, 2);
    put_scalar(b, "test.i16", META_I16, &(int16_t){-30000}, 2);
    put_scalar(b, "test.u32", META_U32, &(uint32_t){4000000000u}, 4);
    put_scalar(b, "test.i32", META_I32, &(int32_t){-7}, 4);
    put_scalar(b, "test.u64", META_U64, &(uint64_t){UINT64_MAX}, 8);
    put_scalar(b, "test.i64", META_I64, &(int64_t){INT64_MIN}, 8);
    put_scalar(b, "test.f32", META_F32, &(float){0.5f}, 4);
    put_scalar(b, "test.f64", META_F64, &(double){1e300}, 8);
    put_scalar(b, "test.bool", META_BOOL, &(uint8_t){1}, 1);
    s->at_bool = b->n - 1;
}

#define N_ARRAYS 4
static void put_arrays(struct gguf_sample *s)
{
    struct buf *b = &s->bytes;

    gguf_put_kv_array(b, "test.u32s", META_U32, 3);
    s->at_array_type = b->n - 12;
    s->at_array_length = b->n - 8;
    for (uint32_t i = 0; i < 3; i++) gguf_put_u32(b, 10 + i);
    gguf_put_kv_array(b, "test.f32s", META_F32, 2);
    buf_append(b, (float[]){1.5f, -2}, 8);
    gguf_put_kv_array(b, "test.strings", META_STRING, 3);
    s->at_strings_length = b->n - 8;
    s->at_inner_length = b->n;
    gguf_put_str(b, "one");
    gguf_put_str(b, "");
    gguf_put_str(b, "drei\xff");
    gguf_put_kv_array(b, "test.bools", META_BOOL, 2);
    buf_append(b, "\0\1", 2);
}

static void put_sample_tensor(struct gguf_sample *s, int i, const char *name, uint32_t n_dims, const uint64_t *dims,
                              uint32_t type, uint64_t offset)
{
    size_t at = s->bytes.n;

    gguf_put_tensor(&s->bytes, name, n_dims, dims, type, offset);
    s->tensors[i].name_length = at;
    s->tensors[i].n_dims = at + 8 + strlen(name);
    s->tensors[i].dims = s->tensors[i].n_dims + 4;
    s->tensors[i].type = s->tensors[i].dims + 8 * n_dims;
    s->tensors[i].offset = s->tensors[i].type + 4;
}

void gguf_make_sample(struct gguf_sample *s, uint32_t version)
{
    struct buf *b = &s->bytes;

    memset(s, 0, sizeof(*s));
    s->at_version = 4;
    s->at_n_tensors = 8;
    s->at_n_kv = 16;
    gguf_put_header(b, version, SAMPLE_TENSORS, 2 + N_SCALARS + N_ARRAYS);
    s->at_key_length = b->n;
    s->at_type = b->n + 8 + strlen("general.architecture");
    s->at_string_length = s->at_type + 4;
    gguf_put_kv_str(b, "general.architecture", "llama");
    put_scalars(s);
    put_arrays(s);
    gguf_put_kv_u32(b, "general.alignment", 32);
    s->at_alignment = b->n - 4;
    put_sample_tensor(s, 0, "f32", 2, (uint64_t[]){4, 2}, DTYPE_F32, 0);   /* 32 bytes */
    put_sample_tensor(s, 1, "q4", 2, (uint64_t[]){64, 3}, DTYPE_Q4_0, 32); /* 108 bytes */
    put_sample_tensor(s, 2, "half", 1, (uint64_t[]){5}, DTYPE_F16, 160);   /* 10 bytes, the file ends */
    gguf_put_padding(b, 32);
    s->n_header = b->n;
    for (uint32_t i = 0; i < 170; i++) buf_putc(b, (char)i);
}

void gguf_poke_u32(struct buf *b, size_t at, uint32_t v)
{
    memcpy(b->data + at, &v, sizeof(v));
}

void gguf_poke_u64(struct buf *b, size_t at, uint64_t v)
{
    memcpy(b->data + at, &v, sizeof(v));
}
