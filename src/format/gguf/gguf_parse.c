/* format/gguf/gguf_parse.c - from bytes to tables: every length is compared with the bytes that are left before it is used.
 *
 * The mapping may vanish underneath (SIGBUS, caught by file_map_guard), so nothing that must be undone is held in local
 * variables: tables grow inside struct model_file, and foreign bytes are copied out before they are formatted.
 */
#include "format/gguf/gguf_inside.h"
#include <stdarg.h>
#include <stdio.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"

#define KV_MIN_BYTES      14 /* key length 8, key 1, type 4, value 1 */
#define TENSOR_MIN_BYTES  33 /* name length 8, name 1, n_dims 4, one dim 8, type 4, offset 8 */
#define ALIGNMENT_DEFAULT 32
#define NO_POSITION       UINT64_MAX

struct reader {
    const uint8_t *data;
    uint64_t n, pos;
    struct rd_error *err;
    const char *kind; /* "header", "metadata", "tensor": what is being read, for error texts */
    uint64_t index;   /* which of them, until its name is known */
    struct model_str name;
};

/* "KIND "NAME": TEXT (at byte AT)". */
static rd_status fail_at(const struct reader *r, rd_status st, uint64_t at, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static rd_status fail_at(const struct reader *r, rd_status st, uint64_t at, const char *format, ...)
{
    char text[240], name[120], where[160], place[48] = "";
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (r->name.s)
        snprintf(where, sizeof(where), "%s \"%s\"", r->kind, error_quote(name, sizeof(name), r->name.s, r->name.n));
    else if (r->index != NO_POSITION)
        snprintf(where, sizeof(where), "%s %llu", r->kind, (unsigned long long)r->index);
    else
        snprintf(where, sizeof(where), "%s", r->kind);
    if (at != NO_POSITION) snprintf(place, sizeof(place), " (at byte %llu)", (unsigned long long)at);
    return error_set(r->err, st, "%s: %s%s", where, text, place);
}

static rd_status take(struct reader *r, uint64_t n, const char *what, const uint8_t **p)
{
    if (n > r->n - r->pos)
        return fail_at(r, RD_E_FORMAT, r->pos, "%s needs %llu bytes, but the file ends at byte %llu", what,
                       (unsigned long long)n, (unsigned long long)r->n);
    *p = r->data + r->pos;
    r->pos += n;
    return RD_OK;
}

static rd_status take_u32(struct reader *r, const char *what, uint32_t *out)
{
    const uint8_t *p = NULL;
    rd_status st = take(r, 4, what, &p);

    if (st == RD_OK) *out = meta_u32_of(p);
    return st;
}

static rd_status take_u64(struct reader *r, const char *what, uint64_t *out)
{
    const uint8_t *p = NULL;
    rd_status st = take(r, 8, what, &p);

    if (st == RD_OK) *out = meta_u64_of(p);
    return st;
}

static rd_status take_str(struct reader *r, uint64_t limit, const char *what, struct model_str *out)
{
    const uint8_t *p = NULL;
    uint64_t n, at = r->pos;
    rd_status st = take_u64(r, what, &n);

    if (st != RD_OK) return st;
    if (n > limit)
        return fail_at(r, RD_E_FORMAT, at, "%s of %llu bytes, at most %llu are allowed", what, (unsigned long long)n,
                       (unsigned long long)limit);
    st = take(r, n, what, &p);
    if (st != RD_OK) return st;
    out->s = (const char *)p;
    out->n = (size_t)n;
    return RD_OK;
}

/* Walks the strings so that meta_next_string() can trust their lengths later. */
static rd_status skip_strings(struct reader *r, uint64_t n)
{
    struct model_str s;

    for (uint64_t i = 0; i < n; i++) {
        rd_status st = take_str(r, LIMIT_GGUF_STRING_BYTES, "array string", &s);

        if (st != RD_OK) return st;
    }
    return RD_OK;
}

static rd_status check_bools(const struct reader *r, const uint8_t *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (p[i] > 1)
            return fail_at(r, RD_E_FORMAT, (uint64_t)(p - r->data) + i, "bool with value %u, expected 0 or 1", p[i]);
    return RD_OK;
}

static rd_status parse_array(struct reader *r, struct model_meta *kv)
{
    uint64_t at = r->pos, left, element, n_bytes;
    const uint8_t *p = NULL;
    uint32_t type;
    rd_status st = take_u32(r, "array type", &type);

    if (st != RD_OK) return st;
    if (type > META_F64) return fail_at(r, RD_E_FORMAT, at, "unknown array type %u", type);
    if (type == META_ARRAY) return fail_at(r, RD_E_UNSUPPORTED, at, "array of arrays");
    kv->array_type = (enum meta_type)type;
    at = r->pos;
    st = take_u64(r, "array length", &kv->n);
    if (st != RD_OK) return st;
    left = r->n - r->pos;
    element = type == META_STRING ? 8 : meta_type_bytes(kv->array_type);
    if (kv->n > LIMIT_GGUF_ARRAY)
        return fail_at(r, RD_E_FORMAT, at, "array length %llu, at most %u are allowed", (unsigned long long)kv->n,
                       LIMIT_GGUF_ARRAY);
    if (!checked_mul(kv->n, element, &n_bytes) || n_bytes > left)
        return fail_at(r, RD_E_FORMAT, at, "array length %llu of type %s, but %llu bytes are left",
                       (unsigned long long)kv->n, meta_type_name(kv->array_type), (unsigned long long)left);
    kv->data = r->data + r->pos;
    if (type == META_STRING) return skip_strings(r, kv->n);
    st = take(r, n_bytes, "array", &p);
    if (st == RD_OK && type == META_BOOL) st = check_bools(r, p, kv->n);
    return st;
}

static rd_status parse_kv(struct reader *r, struct model_meta *kv)
{
    uint64_t at = r->pos;
    struct model_str s;
    uint32_t type;
    rd_status st = take_str(r, LIMIT_GGUF_KEY_BYTES, "key", &kv->key);

    if (st != RD_OK) return st;
    if (kv->key.n == 0) return fail_at(r, RD_E_FORMAT, at, "empty key");
    r->name = kv->key;
    at = r->pos;
    st = take_u32(r, "value type", &type);
    if (st != RD_OK) return st;
    if (type > META_F64) return fail_at(r, RD_E_FORMAT, at, "unknown value type %u", type);
    kv->type = (enum meta_type)type;
    if (type == META_ARRAY) return parse_array(r, kv);
    kv->data = r->data + r->pos;
    if (type == META_STRING) return take_str(r, LIMIT_GGUF_STRING_BYTES, "string", &s);
    st = take(r, meta_type_bytes(kv->type), "value", &kv->data);
    if (st == RD_OK && type == META_BOOL) st = check_bools(r, kv->data, 1);
    return st;
}

/* dtype, dims -> n_bytes, without wrapping. */
static rd_status tensor_bytes(const struct reader *r, struct model_tensor *t)
{
    uint64_t n_rows = 1, n_weights;
    char dims[120];

    snprintf(dims, sizeof(dims), "[%llu, %llu, %llu, %llu]", (unsigned long long)t->dims[0],
             (unsigned long long)t->dims[1], (unsigned long long)t->dims[2], (unsigned long long)t->dims[3]);
    for (int d = 1; d < 4; d++)
        if (!checked_mul(n_rows, t->dims[d], &n_rows))
            return fail_at(r, RD_E_FORMAT, NO_POSITION, "dims %s: the product overflows", dims);
    if (!checked_mul(n_rows, t->dims[0], &n_weights))
        return fail_at(r, RD_E_FORMAT, NO_POSITION, "dims %s: the product overflows", dims);
    if (t->dims[0] % dtype_block_weights(t->dtype))
        return fail_at(r, RD_E_FORMAT, NO_POSITION, "dims %s: rows are not whole blocks of %u weights (%s)", dims,
                       dtype_block_weights(t->dtype), dtype_name(t->dtype));
    if (!dtype_row_bytes(t->dtype, t->dims[0], &t->n_bytes) || !checked_mul(t->n_bytes, n_rows, &t->n_bytes))
        return fail_at(r, RD_E_FORMAT, NO_POSITION, "dims %s of type %s: the size overflows", dims,
                       dtype_name(t->dtype));
    return RD_OK;
}

static rd_status parse_dims(struct reader *r, struct model_tensor *t)
{
    uint64_t at = r->pos;
    rd_status st = take_u32(r, "number of dims", &t->n_dims);

    if (st != RD_OK) return st;
    if (t->n_dims < 1 || t->n_dims > 4) return fail_at(r, RD_E_FORMAT, at, "%u dims, expected 1 .. 4", t->n_dims);
    for (uint32_t d = 0; d < 4; d++) {
        at = r->pos;
        t->dims[d] = 1;
        if (d >= t->n_dims) continue;
        st = take_u64(r, "dims", &t->dims[d]);
        if (st != RD_OK) return st;
        if (t->dims[d] == 0) return fail_at(r, RD_E_FORMAT, at, "dims[%u] is 0", d);
    }
    return RD_OK;
}

/* t->offset stays relative to the data until place_tensors(). */
static rd_status parse_tensor(struct reader *r, struct model_tensor *t)
{
    uint64_t at = r->pos;
    uint32_t type;
    rd_status st = take_str(r, LIMIT_GGUF_KEY_BYTES, "name", &t->name);

    if (st != RD_OK) return st;
    if (t->name.n == 0) return fail_at(r, RD_E_FORMAT, at, "empty name");
    r->name = t->name;
    st = parse_dims(r, t);
    if (st != RD_OK) return st;
    at = r->pos;
    st = take_u32(r, "type", &type);
    if (st != RD_OK) return st;
    t->dtype = dtype_from_gguf(type);
    if (t->dtype == DTYPE_NONE && dtype_gguf_name(type))
        return fail_at(r, RD_E_UNSUPPORTED, at, "type %s is not supported", dtype_gguf_name(type));
    if (t->dtype == DTYPE_NONE) return fail_at(r, RD_E_UNSUPPORTED, at, "unknown type %u", type);
    st = take_u64(r, "offset", &t->offset);
    if (st != RD_OK) return st;
    return tensor_bytes(r, t);
}

static rd_status parse_header(struct model_file *g, struct reader *r, uint64_t *n_kv, uint64_t *n_tensors)
{
    const uint8_t *magic = NULL;
    rd_status st = take(r, 4, "magic", &magic);

    if (st == RD_E_FORMAT) return error_set(r->err, st, "header: not a GGUF file: it has less than 4 bytes");
    if (st != RD_OK) return st;
    if (memcmp(magic, "GGUF", 4))
        return fail_at(r, RD_E_FORMAT, 0, "not a GGUF file: begins with bytes %02x %02x %02x %02x, expected \"GGUF\"",
                       magic[0], magic[1], magic[2], magic[3]);
    st = take_u32(r, "version", &g->version);
    if (st != RD_OK) return st;
    if (g->version != 0 && (g->version & 0xffff) == 0)
        return fail_at(r, RD_E_UNSUPPORTED, 4, "big-endian file (version %u); only little-endian files are read",
                       __builtin_bswap32(g->version));
    if (g->version < 2 || g->version > 3)
        return fail_at(r, RD_E_UNSUPPORTED, 4, "version %u is not supported, only 2 and 3 are", g->version);
    st = take_u64(r, "tensor count", n_tensors);
    if (st != RD_OK) return st;
    st = take_u64(r, "metadata count", n_kv);
    if (st != RD_OK) return st;
    uint64_t left = r->n - r->pos;
    if (*n_tensors > LIMIT_GGUF_TENSORS || *n_tensors > left / TENSOR_MIN_BYTES)
        return fail_at(r, RD_E_FORMAT, 8, "tensor count %llu; at most %u are allowed, and %llu bytes are left",
                       (unsigned long long)*n_tensors, LIMIT_GGUF_TENSORS, (unsigned long long)left);
    if (*n_kv > LIMIT_GGUF_KV || *n_kv > left / KV_MIN_BYTES)
        return fail_at(r, RD_E_FORMAT, 16, "metadata count %llu; at most %u are allowed, and %llu bytes are left",
                       (unsigned long long)*n_kv, LIMIT_GGUF_KV, (unsigned long long)left);
    return RD_OK;
}

static rd_status read_alignment(struct model_file *g, struct rd_error *err)
{
    rd_status st = model_file_u64(g, "general.alignment", 8, LIMIT_GGUF_ALIGNMENT, &g->alignment, err);

    if (st == RD_E_NOT_FOUND) {
        g->alignment = ALIGNMENT_DEFAULT;
        return RD_OK;
    }
    if (st == RD_OK && (g->alignment & (g->alignment - 1)))
        return error_set(err, RD_E_FORMAT, "metadata \"general.alignment\": %llu is not a power of two",
                         (unsigned long long)g->alignment);
    return st;
}

/* Offsets become absolute and are compared with the file's size. */
static rd_status place_tensors(struct model_file *g, struct reader *r)
{
    uint64_t start = 0, end;

    if (!checked_align(r->pos, g->alignment, &start))
        return fail_at(r, RD_E_FORMAT, r->pos, "the start of the data overflows");
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        struct model_tensor *t = &g->tensors[i];

        r->name = t->name;
        if (t->offset % g->alignment)
            return fail_at(r, RD_E_FORMAT, NO_POSITION, "offset %llu is not a multiple of the alignment %llu",
                           (unsigned long long)t->offset, (unsigned long long)g->alignment);
        if (!checked_add(t->offset, start, &t->offset) || !checked_add(t->offset, t->n_bytes, &end))
            return fail_at(r, RD_E_FORMAT, NO_POSITION, "the offset plus %llu bytes overflows",
                           (unsigned long long)t->n_bytes);
        if (end > r->n)
            return fail_at(r, RD_E_FORMAT, NO_POSITION,
                           "offset %llu + %llu bytes is beyond the end of the file (%llu bytes)",
                           (unsigned long long)t->offset, (unsigned long long)t->n_bytes, (unsigned long long)r->n);
        t->data = g->data + t->offset;
    }
    return RD_OK;
}

static rd_status parse_tables(struct model_file *g, struct reader *r, uint64_t n_kv, uint64_t n_tensors)
{
    r->kind = "metadata";
    for (uint64_t i = 0; i < n_kv; i++) {
        struct model_meta kv = {0};

        r->index = i;
        r->name = (struct model_str){0};
        rd_status st = parse_kv(r, &kv);
        if (st != RD_OK) return st;
        if (!mem_grow((void **)&g->kv, &g->cap_kv, i + 1, sizeof(*g->kv)))
            return error_set(r->err, RD_E_NOMEM, "out of memory for the metadata table");
        g->kv[i] = kv;
        g->n_kv = i + 1;
    }
    r->kind = "tensor";
    for (uint64_t i = 0; i < n_tensors; i++) {
        struct model_tensor t = {0};

        r->index = i;
        r->name = (struct model_str){0};
        rd_status st = parse_tensor(r, &t);
        if (st != RD_OK) return st;
        if (!mem_grow((void **)&g->tensors, &g->cap_tensors, i + 1, sizeof(*g->tensors)))
            return error_set(r->err, RD_E_NOMEM, "out of memory for the tensor table");
        g->tensors[i] = t;
        g->n_tensors = i + 1;
    }
    return RD_OK;
}

rd_status gguf_parse(struct model_file *g, struct rd_error *err)
{
    struct reader r = {.data = g->data, .n = g->n_bytes, .err = err, .kind = "header", .index = NO_POSITION};
    uint64_t n_kv = 0, n_tensors = 0;
    rd_status st = parse_header(g, &r, &n_kv, &n_tensors);

    if (st != RD_OK) return st;
    st = parse_tables(g, &r, n_kv, n_tensors);
    if (st != RD_OK) return st;
    st = model_file_index_meta(g, err);
    if (st != RD_OK) return st;
    st = read_alignment(g, err);
    if (st != RD_OK) return st;
    st = place_tensors(g, &r);
    if (st != RD_OK) return st;
    return model_file_index_tensors(g, err);
}
