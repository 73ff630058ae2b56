/* format/gguf/gguf_dump.c - one walk over metadata, tensors and totals each for the text and the JSON form.
 *
 * Foreign bytes go through error_quote() or buf_put_json() into the caller's buffer; nothing is held that a SIGBUS in
 * between would leak.
 */
#include "format/gguf/gguf_dump.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"

#define TEXT_ELEMENTS        6
#define JSON_ELEMENTS        16
#define TEXT_STRING_BYTES    96
#define ELEMENT_STRING_BYTES 24

struct totals {
    uint64_t tensors, weights, bytes;
};

/* The rows of the totals, in the order of DTYPE_LIST. */
static const enum dtype dtypes[] = {
#define DTYPE_VALUE(name, gguf, text, n, bytes) name,
    DTYPE_LIST(DTYPE_VALUE)
#undef DTYPE_VALUE
};

#define N_DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

static uint64_t n_weights(const struct model_tensor *t)
{
    return t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3]; /* the reader has checked the product */
}

/* sums[N_DTYPES] is the total. No sum overflows: tensors do not overlap, and a weight takes at least two bits. */
static void sum_tensors(const struct model_file *g, struct totals sums[N_DTYPES + 1])
{
    memset(sums, 0, (N_DTYPES + 1) * sizeof(*sums));
    for (uint64_t i = 0; i < model_file_n_tensors(g); i++) {
        const struct model_tensor *t = model_file_tensor(g, i);

        for (size_t d = 0; d <= N_DTYPES; d++) {
            if (d < N_DTYPES && dtypes[d] != t->dtype) continue;
            sums[d].tensors++;
            sums[d].weights += n_weights(t);
            sums[d].bytes += t->n_bytes;
        }
    }
}

/* A value as an array of one (their bytes are the same), so that the same functions write values and elements. */
static struct model_meta as_array(const struct model_meta *kv)
{
    struct model_meta a = *kv;

    if (kv->type != META_ARRAY) {
        a.type = META_ARRAY;
        a.array_type = kv->type;
        a.n = 1;
    }
    return a;
}

/* Element i of an array of numbers or bools; the same in text and JSON, except for numbers that JSON does not have. */
static void put_number(struct buf *out, const struct model_meta *array, uint64_t i, bool json)
{
    double f;

    switch (array->array_type) {
    case META_F32:
    case META_F64:
        f = meta_f64_at(array, i);
        if (json && !isfinite(f))
            buf_puts(out, "null");
        else
            buf_printf(out, "%.*g", array->array_type == META_F32 ? 9 : 17, f);
        break;
    case META_BOOL:
        buf_puts(out, meta_u64_at(array, i) ? "true" : "false");
        break;
    case META_I8:
    case META_I16:
    case META_I32:
    case META_I64:
        buf_printf(out, "%lld", (long long)meta_u64_at(array, i));
        break;
    default:
        buf_printf(out, "%llu", (unsigned long long)meta_u64_at(array, i));
        break;
    }
}

static void put_string(struct buf *out, struct model_str s, bool json, size_t max_bytes)
{
    char quoted[4 * TEXT_STRING_BYTES];

    buf_putc(out, '"');
    if (json)
        buf_put_json(out, s.s, s.n);
    else
        buf_puts(out, error_quote(quoted, max_bytes + 1, s.s, s.n));
    buf_putc(out, '"');
}

/* At most max elements, with ", " between. */
static void put_elements(struct buf *out, const struct model_meta *array, uint64_t max, bool json, size_t string_bytes)
{
    struct meta_strings it;
    struct model_str s;

    meta_strings_of(array, &it);
    for (uint64_t i = 0; i < array->n && i < max; i++) {
        if (i) buf_puts(out, ", ");
        if (array->array_type != META_STRING)
            put_number(out, array, i, json);
        else if (meta_next_string(&it, &s))
            put_string(out, s, json, string_bytes);
    }
}

#define DIMS_BYTES 96 /* four numbers of up to 20 digits */

/* "[1, 2, 3]"; returns text. */
static const char *format_dims(char text[DIMS_BYTES], const struct model_tensor *t)
{
    int n = 0;

    for (uint32_t d = 0; d < t->n_dims; d++)
        n += snprintf(text + n, (size_t)(DIMS_BYTES - n), "%s%llu", d ? ", " : "[", (unsigned long long)t->dims[d]);
    snprintf(text + n, (size_t)(DIMS_BYTES - n), "]");
    return text;
}

/* "12.3 MiB" */
static void put_size(struct buf *out, uint64_t n_bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)n_bytes;
    size_t unit = 0;

    while (v >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        v /= 1024;
        unit++;
    }
    buf_printf(out, unit ? "%.1f %s" : "%.0f %s", v, units[unit]);
}

static void text_kv(struct buf *out, const struct model_meta *kv)
{
    char key[256], type[48];
    struct model_meta array = as_array(kv);
    bool is_array = kv->type == META_ARRAY;

    if (is_array)
        snprintf(type, sizeof(type), "%s[%llu]", meta_type_name(kv->array_type), (unsigned long long)kv->n);
    else
        snprintf(type, sizeof(type), "%s", meta_type_name(kv->type));
    buf_printf(out, "  %-44s %-16s ", error_quote(key, sizeof(key), kv->key.s, kv->key.n), type);
    if (is_array) buf_putc(out, '[');
    put_elements(out, &array, TEXT_ELEMENTS, false, is_array ? ELEMENT_STRING_BYTES : TEXT_STRING_BYTES);
    if (is_array) buf_puts(out, kv->n > TEXT_ELEMENTS ? ", ...]" : "]");
    buf_putc(out, '\n');
}

static void text_tensor(struct buf *out, const struct model_tensor *t)
{
    char name[256], dims[DIMS_BYTES];

    buf_printf(out, "  %-44s %-5s %-24s", error_quote(name, sizeof(name), t->name.s, t->name.n), dtype_name(t->dtype),
               format_dims(dims, t));
    buf_printf(out, " offset %llu, %llu bytes\n", (unsigned long long)t->offset, (unsigned long long)t->n_bytes);
}

static void dump_text(const struct model_file *g, struct buf *out)
{
    struct totals sums[N_DTYPES + 1];

    sum_tensors(g, sums);
    if (model_file_text(g))
        buf_printf(out, "safetensors, %u %s, ", model_file_n_maps(g), model_file_n_maps(g) == 1 ? "file" : "files");
    else
        buf_printf(out, "GGUF version %u, ", model_file_version(g));
    put_size(out, model_file_bytes(g));
    buf_printf(out, " (%llu bytes)\n\nmetadata (%llu)\n", (unsigned long long)model_file_bytes(g),
               (unsigned long long)model_file_n_meta(g));
    for (uint64_t i = 0; i < model_file_n_meta(g); i++) text_kv(out, model_file_meta(g, i));
    buf_printf(out, "\ntensors (%llu)\n", (unsigned long long)model_file_n_tensors(g));
    for (uint64_t i = 0; i < model_file_n_tensors(g); i++) text_tensor(out, model_file_tensor(g, i));
    buf_puts(out, "\ntotals\n");
    for (size_t d = 0; d <= N_DTYPES; d++) {
        if (sums[d].tensors == 0 && d < N_DTYPES) continue;
        buf_printf(out, "  %-5s %6llu tensors  %14llu weights  ", d < N_DTYPES ? dtype_name(dtypes[d]) : "all",
                   (unsigned long long)sums[d].tensors, (unsigned long long)sums[d].weights);
        put_size(out, sums[d].bytes);
        if (sums[d].weights)
            buf_printf(out, "  %.2f bits per weight", 8 * (double)sums[d].bytes / (double)sums[d].weights);
        buf_putc(out, '\n');
    }
}

static void json_kv(struct buf *out, const struct model_meta *kv)
{
    struct model_meta array = as_array(kv);

    buf_puts(out, "{\"key\": ");
    put_string(out, kv->key, true, 0);
    buf_printf(out, ", \"type\": \"%s\", ", meta_type_name(kv->type));
    if (kv->type == META_ARRAY)
        buf_printf(out, "\"array_type\": \"%s\", \"n\": %llu, \"first\": [", meta_type_name(kv->array_type),
                   (unsigned long long)kv->n);
    else
        buf_puts(out, "\"value\": ");
    put_elements(out, &array, JSON_ELEMENTS, true, 0);
    buf_puts(out, kv->type == META_ARRAY ? "]}" : "}");
}

static void json_tensor(struct buf *out, const struct model_tensor *t)
{
    char dims[DIMS_BYTES];

    buf_puts(out, "{\"name\": ");
    put_string(out, t->name, true, 0);
    buf_printf(out, ", \"type\": \"%s\", \"dims\": %s, \"offset\": %llu, \"bytes\": %llu}", dtype_name(t->dtype),
               format_dims(dims, t), (unsigned long long)t->offset, (unsigned long long)t->n_bytes);
}

static void dump_json(const struct model_file *g, struct buf *out)
{
    struct totals sums[N_DTYPES + 1];
    const char *comma = "";

    sum_tensors(g, sums);
    buf_putc(out, '{');
    if (model_file_text(g)) buf_printf(out, "\"format\": \"safetensors\", \"files\": %u, ", model_file_n_maps(g));
    buf_printf(out, "\"version\": %u, \"file_bytes\": %llu,\n\"metadata\": [", model_file_version(g),
               (unsigned long long)model_file_bytes(g));
    for (uint64_t i = 0; i < model_file_n_meta(g); i++) {
        buf_puts(out, i ? ",\n" : "\n");
        json_kv(out, model_file_meta(g, i));
    }
    buf_puts(out, "],\n\"tensors\": [");
    for (uint64_t i = 0; i < model_file_n_tensors(g); i++) {
        buf_puts(out, i ? ",\n" : "\n");
        json_tensor(out, model_file_tensor(g, i));
    }
    buf_printf(out, "],\n\"totals\": {\"metadata\": %llu, \"tensors\": %llu, \"weights\": %llu, ",
               (unsigned long long)model_file_n_meta(g), (unsigned long long)sums[N_DTYPES].tensors,
               (unsigned long long)sums[N_DTYPES].weights);
    buf_printf(out, "\"bytes\": %llu, \"types\": [", (unsigned long long)sums[N_DTYPES].bytes);
    for (size_t d = 0; d < N_DTYPES; d++) {
        if (sums[d].tensors == 0) continue;
        buf_printf(out, "%s{\"type\": \"%s\", \"tensors\": %llu, \"weights\": %llu, \"bytes\": %llu}", comma,
                   dtype_name(dtypes[d]), (unsigned long long)sums[d].tensors, (unsigned long long)sums[d].weights,
                   (unsigned long long)sums[d].bytes);
        comma = ", ";
    }
    buf_puts(out, "]}}\n");
}

struct dump_call {
    const struct model_file *g;
    struct buf *out;
    void (*dump)(const struct model_file *g, struct buf *out);
};

static rd_status dump_guarded(void *arg)
{
    struct dump_call *call = arg;

    call->dump(call->g, call->out);
    return RD_OK;
}

static rd_status dump_with(const struct model_file *g, void (*dump)(const struct model_file *g, struct buf *out),
                           struct buf *out, struct rd_error *err)
{
    struct dump_call call = {g, out, dump};
    rd_status st = model_file_guard(g, dump_guarded, &call, err);

    if (st == RD_OK && out->failed) return error_set(err, RD_E_NOMEM, "out of memory for the listing");
    return st;
}

rd_status gguf_dump_text(const struct model_file *g, struct buf *out, struct rd_error *err)
{
    return dump_with(g, dump_text, out, err);
}

rd_status gguf_dump_json(const struct model_file *g, struct buf *out, struct rd_error *err)
{
    return dump_with(g, dump_json, out, err);
}
