/* format/hub/safetensors.c - a walk over the header's JSON without building a tree (text/json_scan.h). */
#include "format/hub/safetensors.h"
#include <stdlib.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "text/json_scan.h"

#define QUOTED 160

static const struct {
    const char *name;
    uint32_t bytes;
} types[] = {
#define ST_ROW(id, name, bytes) [id] = {name, bytes},
    ST_TYPE_LIST(ST_ROW)
#undef ST_ROW
};

const char *st_type_name(enum st_type t)
{
    return (unsigned)t < ST_N_TYPES ? types[t].name : "unknown";
}

rd_status safetensors_header_bytes(const char *file, const uint8_t first[8], uint64_t n_file, uint64_t *out,
                                   struct rd_error *err)
{
    uint64_t n = 0;

    *out = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | first[i];
    if (n > LIMIT_SAFETENSORS_HEADER)
        return error_set(err, RD_E_FORMAT, "%s: header of %llu bytes, at most %u are allowed: not a safetensors file?",
                         file, (unsigned long long)n, LIMIT_SAFETENSORS_HEADER);
    if (n_file < 8 || n > n_file - 8)
        return error_set(err, RD_E_FORMAT, "%s: header of %llu bytes, but the file has %llu", file,
                         (unsigned long long)n, (unsigned long long)n_file);
    *out = n + 8;
    return RD_OK;
}

struct reader {
    const char *file;
    uint32_t shard;
    uint64_t n_header, n_data;
    struct json_scan sc;
    struct buf key, text;
    struct st_table *table;
    struct rd_error *err;
};

static rd_status no_memory(const struct reader *r)
{
    return error_set(r->err, RD_E_NOMEM, "%s: out of memory for its table", r->file);
}

static rd_status malformed(const struct reader *r, const char *what)
{
    if (r->key.failed || r->text.failed) return no_memory(r);
    return error_set(r->err, RD_E_FORMAT, "%s: %s: not as expected near byte %zu of the header", r->file, what,
                     r->sc.at + 8);
}

static bool read_numbers(struct reader *r, uint64_t *out, uint32_t max, uint32_t *n)
{
    *n = 0;
    if (!json_scan_enter(&r->sc, '[')) return false;
    while (json_scan_element(&r->sc)) {
        if (*n == max || !json_scan_uint(&r->sc, &out[*n])) return false;
        ++*n;
    }
    return !r->sc.failed;
}

static rd_status read_type(struct reader *r, const char *name, struct st_tensor *t)
{
    char quoted[2][QUOTED];

    buf_clear(&r->text);
    if (!json_scan_string(&r->sc, &r->text) || r->text.failed) return malformed(r, "a dtype");
    for (unsigned i = 0; i < ST_N_TYPES; i++)
        if (r->text.n == strlen(types[i].name) && !memcmp(types[i].name, r->text.data, r->text.n)) {
            t->type = (enum st_type)i;
            return RD_OK;
        }
    return error_set(r->err, RD_E_UNSUPPORTED, "%s: tensor \"%s\": type \"%s\" is not known", r->file,
                     error_quote(quoted[0], QUOTED, name, strlen(name)),
                     error_quote(quoted[1], QUOTED, r->text.n ? r->text.data : "", r->text.n));
}

static rd_status check_bytes(const struct reader *r, struct st_tensor *t, const uint64_t range[2])
{
    uint64_t n = types[t->type].bytes;
    char quoted[QUOTED];

    error_quote(quoted, sizeof(quoted), t->name, t->n_name);
    for (uint32_t d = 0; d < t->n_dims; d++)
        if (!checked_mul(n, t->dims[d], &n))
            return error_set(r->err, RD_E_FORMAT, "%s: tensor \"%s\": the product of its shape overflows", r->file,
                             quoted);
    if (range[0] > range[1] || range[1] > r->n_data)
        return error_set(r->err, RD_E_FORMAT,
                         "%s: tensor \"%s\": data_offsets [%llu, %llu], but the data has %llu bytes", r->file, quoted,
                         (unsigned long long)range[0], (unsigned long long)range[1], (unsigned long long)r->n_data);
    if (n != range[1] - range[0])
        return error_set(r->err, RD_E_FORMAT,
                         "%s: tensor \"%s\": its shape and type %s make %llu bytes, data_offsets [%llu, %llu] are %llu",
                         r->file, quoted, types[t->type].name, (unsigned long long)n, (unsigned long long)range[0],
                         (unsigned long long)range[1], (unsigned long long)(range[1] - range[0]));
    t->offset = r->n_header + range[0];
    t->n_bytes = n;
    return RD_OK;
}

/* {"dtype", "shape", "data_offsets"}: each once. */
static rd_status read_tensor(struct reader *r, struct st_tensor *t)
{
    uint64_t range[2] = {0, 0};
    uint32_t n_range = 0, n_seen[3] = {0, 0, 0};
    char quoted[QUOTED];
    rd_status st;

    for (uint32_t d = 0; d < ST_MAX_DIMS; d++) t->dims[d] = 1;
    if (!json_scan_enter(&r->sc, '{')) return malformed(r, "a tensor's entry");
    while (json_scan_member(&r->sc, &r->key)) {
        bool good;

        if (r->key.failed) return no_memory(r);
        if (r->key.n == 5 && !memcmp(r->key.data, "dtype", 5)) {
            n_seen[0]++;
            if ((st = read_type(r, t->name, t)) != RD_OK) return st;
            continue;
        }
        if (r->key.n == 5 && !memcmp(r->key.data, "shape", 5)) {
            n_seen[1]++;
            good = read_numbers(r, t->dims, ST_MAX_DIMS, &t->n_dims);
        } else if (r->key.n == 12 && !memcmp(r->key.data, "data_offsets", 12)) {
            n_seen[2]++;
            good = read_numbers(r, range, 2, &n_range) && n_range == 2;
        } else {
            good = json_scan_skip(&r->sc, NULL, NULL);
        }
        if (!good) return malformed(r, error_quote(quoted, sizeof(quoted), t->name, t->n_name));
    }
    if (r->sc.failed) return malformed(r, error_quote(quoted, sizeof(quoted), t->name, t->n_name));
    if (n_seen[0] != 1 || n_seen[1] != 1 || n_seen[2] != 1)
        return error_set(r->err, RD_E_FORMAT,
                         "%s: tensor \"%s\": \"dtype\", \"shape\" and \"data_offsets\" once each "
                         "are wanted",
                         r->file, error_quote(quoted, sizeof(quoted), t->name, t->n_name));
    return check_bytes(r, t, range);
}

static rd_status add_tensor(struct reader *r)
{
    struct st_table *table = r->table;
    struct st_tensor t = {.shard = r->shard, .n_name = r->key.n};
    char *name;
    rd_status st;

    if (r->key.n == 0 || r->key.n > LIMIT_GGUF_KEY_BYTES || memchr(r->key.data, 0, r->key.n))
        return error_set(r->err, RD_E_FORMAT, "%s: a tensor's name of %zu bytes, or with a 0 byte in it", r->file,
                         r->key.n);
    if (table->n == LIMIT_SAFETENSORS_TENSORS)
        return error_set(r->err, RD_E_LIMIT, "%s: more than %u tensors", r->file, LIMIT_SAFETENSORS_TENSORS);
    t.name = name = arena_memdup(&table->arena, r->key.data, r->key.n);
    if (!name) return no_memory(r);
    st = read_tensor(r, &t);
    if (st != RD_OK) return st;
    if (!mem_grow((void **)&table->tensors, &table->cap, table->n + 1, sizeof(t))) return no_memory(r);
    table->tensors[table->n++] = t;
    return RD_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;

    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes); /* one without bytes comes first */
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

/* Every byte of the data belongs to one tensor. */
static rd_status check_cover(const struct reader *r, size_t first)
{
    struct st_table *table = r->table;
    uint64_t end = r->n_header;
    char quoted[QUOTED];

    if (table->n > first) qsort(table->tensors + first, table->n - first, sizeof(*table->tensors), by_offset);
    for (size_t i = first; i < table->n; i++) {
        const struct st_tensor *t = &table->tensors[i];

        if (t->offset != end)
            return error_set(r->err, RD_E_FORMAT, "%s: tensor \"%s\" begins at byte %llu of the data, %s byte %llu",
                             r->file, error_quote(quoted, sizeof(quoted), t->name, t->n_name),
                             (unsigned long long)(t->offset - r->n_header),
                             t->offset < end ? "which overlaps one that ends at" : "with a hole before it from",
                             (unsigned long long)(end - r->n_header));
        end += t->n_bytes;
    }
    if (end != r->n_header + r->n_data)
        return error_set(r->err, RD_E_FORMAT, "%s: the tensors end at byte %llu, the file at %llu", r->file,
                         (unsigned long long)end, (unsigned long long)(r->n_header + r->n_data));
    return RD_OK;
}

rd_status safetensors_read(const char *file, uint32_t shard, const uint8_t *header, uint64_t n_header, uint64_t n_file,
                           struct st_table *table, struct rd_error *err)
{
    struct reader r = {.file = file,
                       .shard = shard,
                       .n_header = n_header,
                       .n_data = n_file - n_header,
                       .sc = {(const char *)header + 8, (size_t)n_header - 8, 0, false},
                       .table = table,
                       .err = err};
    size_t first = table->n;
    rd_status st = RD_OK;

    if (!json_scan_enter(&r.sc, '{')) st = malformed(&r, "the header");
    while (st == RD_OK && json_scan_member(&r.sc, &r.key)) {
        if (r.key.failed)
            st = no_memory(&r);
        else if (r.key.n == 12 && !memcmp(r.key.data, "__metadata__", 12))
            json_scan_skip(&r.sc, NULL, NULL);
        else
            st = add_tensor(&r);
    }
    if (st == RD_OK && (r.sc.failed || json_scan_peek(&r.sc))) st = malformed(&r, "the header");
    if (st == RD_OK) st = check_cover(&r, first);
    buf_deinit(&r.key);
    buf_deinit(&r.text);
    return st;
}

rd_status safetensors_sort(struct st_table *table, char *const *files, struct rd_error *err)
{
    char quoted[QUOTED];

    if (table->n) qsort(table->tensors, table->n, sizeof(*table->tensors), by_name);
    for (size_t i = 1; i < table->n; i++) {
        const struct st_tensor *t = &table->tensors[i];

        if (!strcmp(t->name, t[-1].name))
            return error_set(err, RD_E_FORMAT, "%s: tensor \"%s\" is there twice (also in %s)", files[t->shard],
                             error_quote(quoted, sizeof(quoted), t->name, t->n_name), files[t[-1].shard]);
    }
    return RD_OK;
}

const struct st_tensor *safetensors_find(const struct st_table *table, const char *name)
{
    const struct st_tensor want = {.name = name};

    return table->n ? bsearch(&want, table->tensors, table->n, sizeof(want), by_name) : NULL;
}

void safetensors_deinit(struct st_table *table)
{
    arena_deinit(&table->arena);
    mem_free(table->tensors);
    memset(table, 0, sizeof(*table));
}
