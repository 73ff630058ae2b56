/* format/model_values.c - typed reads of metadata: one value, array elements, strings. The parser checked the bytes. */
#include <assert.h>
#include <math.h>
#include "base/error.h"
#include "format/model_file_inside.h"

static const struct {
    const char *name;
    uint32_t bytes;
} types[] = {
    [META_U8] = {"u8", 1},         [META_I8] = {"i8", 1},       [META_U16] = {"u16", 2}, [META_I16] = {"i16", 2},
    [META_U32] = {"u32", 4},       [META_I32] = {"i32", 4},     [META_F32] = {"f32", 4}, [META_BOOL] = {"bool", 1},
    [META_STRING] = {"string", 0}, [META_ARRAY] = {"array", 0}, [META_U64] = {"u64", 8}, [META_I64] = {"i64", 8},
    [META_F64] = {"f64", 8},
};

const char *meta_type_name(enum meta_type t)
{
    return (size_t)t < sizeof(types) / sizeof(types[0]) ? types[t].name : "unknown";
}

uint32_t meta_type_bytes(enum meta_type type)
{
    assert((size_t)type < sizeof(types) / sizeof(types[0]));
    return types[type].bytes;
}

/* One integer, sign-extended; *negative says that the value is below 0. false: not an integer type. */
static bool integer_at(enum meta_type type, const uint8_t *p, uint64_t *v, bool *negative)
{
    uint32_t n = meta_type_bytes(type);
    bool is_signed = type == META_I8 || type == META_I16 || type == META_I32 || type == META_I64;

    if (n == 0 || type == META_F32 || type == META_F64 || type == META_BOOL) return false;
    *v = 0;
    memcpy(v, p, n); /* little endian, here and in the file */
    *negative = is_signed && (*v >> (8 * n - 1) & 1);
    if (*negative && n < 8) *v |= UINT64_MAX << (8 * n);
    return true;
}

/* Any number as double. false: not a number type. */
static bool number_at(enum meta_type type, const uint8_t *p, double *v)
{
    bool negative;
    uint64_t u;
    float f;

    switch (type) {
    case META_F32:
        memcpy(&f, p, sizeof(f));
        *v = (double)f;
        return true;
    case META_F64:
        memcpy(v, p, sizeof(*v));
        return true;
    default:
        if (!integer_at(type, p, &u, &negative)) return false;
        *v = negative ? (double)(int64_t)u : (double)u;
        return true;
    }
}

static rd_status wrong_type(const struct model_meta *kv, const char *key, const char *expected, struct rd_error *err)
{
    return error_set(err, RD_E_FORMAT, "metadata \"%s\": type %s, expected %s", key, meta_type_name(kv->type),
                     expected);
}

rd_status model_file_u64(const struct model_file *g, const char *key, uint64_t min, uint64_t max, uint64_t *out,
                         struct rd_error *err)
{
    const struct model_meta *kv = model_file_find(g, key);
    bool negative;
    uint64_t v;

    if (!kv) return RD_E_NOT_FOUND;
    if (!integer_at(kv->type, kv->data, &v, &negative)) return wrong_type(kv, key, "an integer", err);
    if (negative)
        return error_set(err, RD_E_FORMAT, "metadata \"%s\": %lld, expected %llu .. %llu", key, (long long)(int64_t)v,
                         (unsigned long long)min, (unsigned long long)max);
    if (v < min || v > max)
        return error_set(err, RD_E_FORMAT, "metadata \"%s\": %llu, expected %llu .. %llu", key, (unsigned long long)v,
                         (unsigned long long)min, (unsigned long long)max);
    *out = v;
    return RD_OK;
}

rd_status model_file_f64(const struct model_file *g, const char *key, double *out, struct rd_error *err)
{
    const struct model_meta *kv = model_file_find(g, key);
    double v;

    if (!kv) return RD_E_NOT_FOUND;
    if (!number_at(kv->type, kv->data, &v)) return wrong_type(kv, key, "a number", err);
    if (!isfinite(v)) return error_set(err, RD_E_FORMAT, "metadata \"%s\": the number is not finite", key);
    *out = v;
    return RD_OK;
}

rd_status model_file_bool(const struct model_file *g, const char *key, bool *out, struct rd_error *err)
{
    const struct model_meta *kv = model_file_find(g, key);

    if (!kv) return RD_E_NOT_FOUND;
    if (kv->type != META_BOOL) return wrong_type(kv, key, "bool", err);
    *out = kv->data[0] != 0;
    return RD_OK;
}

rd_status model_file_str(const struct model_file *g, const char *key, struct model_str *out, struct rd_error *err)
{
    const struct model_meta *kv = model_file_find(g, key);

    if (!kv) return RD_E_NOT_FOUND;
    if (kv->type != META_STRING) return wrong_type(kv, key, "string", err);
    out->s = (const char *)kv->data + 8;
    out->n = (size_t)meta_u64_of(kv->data);
    return RD_OK;
}

uint64_t meta_u64_at(const struct model_meta *kv, uint64_t i)
{
    uint64_t v = 0;
    bool negative, is_integer;

    assert(kv->type == META_ARRAY && i < kv->n);
    if (kv->array_type == META_BOOL) return kv->data[i];
    is_integer = integer_at(kv->array_type, kv->data + i * meta_type_bytes(kv->array_type), &v, &negative);
    assert(is_integer);
    (void)is_integer;
    return v;
}

double meta_f64_at(const struct model_meta *kv, uint64_t i)
{
    double v = 0;
    bool is_number;

    assert(kv->type == META_ARRAY && i < kv->n);
    is_number = number_at(kv->array_type, kv->data + i * meta_type_bytes(kv->array_type), &v);
    assert(is_number);
    (void)is_number;
    return v;
}

void meta_strings_of(const struct model_meta *kv, struct meta_strings *it)
{
    bool is_strings = kv->type == META_ARRAY && kv->array_type == META_STRING;

    it->p = kv->data;
    it->left = is_strings ? kv->n : 0;
}

bool meta_next_string(struct meta_strings *it, struct model_str *out)
{
    if (it->left == 0) return false;
    out->s = (const char *)it->p + 8;
    out->n = (size_t)meta_u64_of(it->p);
    it->p += 8 + out->n;
    it->left--;
    return true;
}
