/* format/gguf.c - opening and closing, the sorted indexes, lookups by name.
 *
 * Names are found by binary search over a sorted array of positions: no hash that a crafted file could make collide.
 */
#include "format/gguf.h"
#include <assert.h>
#include "base/error.h"
#include "base/mem.h"
#include "format/gguf_inside.h"
#include "format/hf_inside.h"

/* < 0, 0, > 0 as memcmp; positions into g's tables. */
typedef int (*compare_fn)(const struct gguf *g, uint32_t a, uint32_t b);

static int compare_str(struct gguf_str a, struct gguf_str b)
{
    int c = memcmp(a.s, b.s, a.n < b.n ? a.n : b.n);

    return c ? c : (a.n > b.n) - (a.n < b.n);
}

static int compare_keys(const struct gguf *g, uint32_t a, uint32_t b)
{
    return compare_str(g->kv[a].key, g->kv[b].key);
}

static int compare_names(const struct gguf *g, uint32_t a, uint32_t b)
{
    return compare_str(g->tensors[a].name, g->tensors[b].name);
}

static int compare_offsets(const struct gguf *g, uint32_t a, uint32_t b)
{
    uint64_t x = g->tensors[a].offset, y = g->tensors[b].offset;

    return (x > y) - (x < y);
}

static void merge(const struct gguf *g, compare_fn compare, const uint32_t *from, uint32_t *to, size_t left, size_t mid,
                  size_t right)
{
    size_t i = left, j = mid;

    for (size_t k = left; k < right; k++)
        to[k] = j >= right || (i < mid && compare(g, from[i], from[j]) <= 0) ? from[i++] : from[j++];
}

/* order[n] = 0 .. n-1 sorted by compare: a bottom-up merge sort, n log n whatever the file says. scratch: [n]. */
static void sort_positions(const struct gguf *g, compare_fn compare, uint32_t *order, uint32_t *scratch, size_t n)
{
    for (size_t i = 0; i < n; i++) order[i] = (uint32_t)i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t left = 0; left < n; left += 2 * width) {
            size_t mid = left + width < n ? left + width : n, right = mid + width < n ? mid + width : n;

            merge(g, compare, order, scratch, left, mid, right);
        }
        memcpy(order, scratch, n * sizeof(*order));
    }
}

static rd_status make_index(struct gguf *g, compare_fn compare, uint64_t n, uint32_t **order)
{
    if (!*order) *order = mem_alloc(n, sizeof(**order));
    mem_free(g->scratch);
    g->scratch = mem_alloc(n, sizeof(*g->scratch));
    if (!*order || !g->scratch) return RD_E_NOMEM;
    sort_positions(g, compare, *order, g->scratch, n);
    return RD_OK;
}

rd_status gguf_index_kv(struct gguf *g, struct rd_error *err)
{
    char quoted[160];

    if (make_index(g, compare_keys, g->n_kv, &g->kv_by_key) != RD_OK)
        return error_set(err, RD_E_NOMEM, "out of memory for the metadata index");
    for (uint64_t i = 1; i < g->n_kv; i++) {
        struct gguf_str key = g->kv[g->kv_by_key[i]].key;

        if (compare_keys(g, g->kv_by_key[i - 1], g->kv_by_key[i]) == 0)
            return error_set(err, RD_E_FORMAT, "metadata \"%s\": the key is there twice",
                             error_quote(quoted, sizeof(quoted), key.s, key.n));
    }
    return RD_OK;
}

static rd_status check_overlaps(struct gguf *g, const uint32_t *by_offset, struct rd_error *err)
{
    char a[120], b[120];

    for (uint64_t i = 1; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[by_offset[i - 1]], *next = &g->tensors[by_offset[i]];

        if (t->offset + t->n_bytes > next->offset)
            return error_set(err, RD_E_FORMAT, "tensor \"%s\": offset %llu + %llu bytes overlaps tensor \"%s\" at %llu",
                             error_quote(a, sizeof(a), t->name.s, t->name.n), (unsigned long long)t->offset,
                             (unsigned long long)t->n_bytes, error_quote(b, sizeof(b), next->name.s, next->name.n),
                             (unsigned long long)next->offset);
    }
    return RD_OK;
}

rd_status gguf_index_names(struct gguf *g, struct rd_error *err)
{
    char quoted[160];

    if (make_index(g, compare_names, g->n_tensors, &g->tensors_by_name) != RD_OK)
        return error_set(err, RD_E_NOMEM, "out of memory for the tensor index");
    for (uint64_t i = 1; i < g->n_tensors; i++) {
        struct gguf_str name = g->tensors[g->tensors_by_name[i]].name;

        if (compare_names(g, g->tensors_by_name[i - 1], g->tensors_by_name[i]) == 0)
            return error_set(err, RD_E_FORMAT, "tensor \"%s\": the name is there twice",
                             error_quote(quoted, sizeof(quoted), name.s, name.n));
    }
    mem_free(g->scratch);
    g->scratch = NULL;
    return RD_OK;
}

rd_status gguf_index_tensors(struct gguf *g, struct rd_error *err)
{
    rd_status st;

    /* The array serves twice: first in the order of offsets, then, for good, in the order of names. */
    if (make_index(g, compare_offsets, g->n_tensors, &g->tensors_by_name) != RD_OK)
        return error_set(err, RD_E_NOMEM, "out of memory for the tensor index");
    st = check_overlaps(g, g->tensors_by_name, err);
    return st == RD_OK ? gguf_index_names(g, err) : st;
}

struct parse_call { struct gguf *g; struct rd_error *err; };

static rd_status parse_guarded(void *arg)
{
    struct parse_call *call = arg;

    return gguf_parse(call->g, call->err);
}

rd_status gguf_open_one(const char *path, struct gguf **out, struct rd_error *err)
{
    struct gguf *g = mem_zalloc(1, sizeof(*g));
    struct parse_call call = {g, err};
    rd_status st;

    assert(path && out);
    if (!g) return error_set(err, RD_E_NOMEM, "out of memory");
    st = file_map_open(path, &g->map, err);
    if (st != RD_OK) goto fail;
    g->mapped = true;
    g->data = g->map.data;
    g->n_bytes = g->map.n_bytes;
    st = file_map_guard(&g->map, parse_guarded, &call, err);
    if (st == RD_OK) st = file_map_watch(&g->map, err);
    if (st != RD_OK) goto fail;
    *out = g;
    return RD_OK;

fail:
    gguf_close(g);
    return st;
}

rd_status gguf_open(const char *path, struct gguf **out, struct rd_error *err)
{
    struct gguf *g = NULL;
    rd_status st = gguf_open_one(path, &g, err);

    if (st == RD_OK) st = gguf_open_parts(g, path, err);
    if (st != RD_OK) gguf_close(g);
    else *out = g;
    return st;
}

rd_status gguf_open_bytes(const uint8_t *data, size_t n, struct gguf **out, struct rd_error *err)
{
    struct gguf *g = mem_zalloc(1, sizeof(*g));
    rd_status st;

    assert(out && (data || n == 0));
    if (!g) return error_set(err, RD_E_NOMEM, "out of memory");
    g->data = data;
    g->n_bytes = n;
    st = gguf_parse(g, err);
    if (st != RD_OK) goto fail;
    *out = g;
    return RD_OK;

fail:
    gguf_close(g);
    return st;
}

void gguf_close(struct gguf *g)
{
    if (!g) return;
    for (uint32_t i = 0; i < g->n_parts; i++) gguf_close(g->parts[i]);
    mem_free(g->parts);
    if (g->mapped) file_map_close(&g->map);
    hf_dir_destroy(g->dir);
    mem_free(g->kv);
    mem_free(g->tensors);
    mem_free(g->kv_by_key);
    mem_free(g->tensors_by_name);
    mem_free(g->scratch);
    mem_free(g);
}

bool gguf_unchanged(const struct gguf *g)
{
    for (uint32_t i = 0; i < gguf_n_maps(g); i++)
        if (!file_map_unchanged(gguf_map_at(g, i))) return false;
    return true;
}

uint32_t gguf_n_maps(const struct gguf *g)
{
    return g->dir ? g->dir->n_shards : g->mapped + g->n_parts;
}

const struct file_map *gguf_map_at(const struct gguf *g, uint32_t i)
{
    assert(i < gguf_n_maps(g));
    return g->dir ? &g->dir->maps[i] : i ? &g->parts[i - 1]->map : &g->map;
}

const struct file_map *gguf_map(const struct gguf *g)
{
    return g->mapped ? &g->map : NULL;
}

const struct gguf_hub_text *gguf_hub_text(const struct gguf *g)
{
    return g->dir ? &g->dir->text : NULL;
}

bool gguf_broken(const struct gguf *g)
{
    for (uint32_t i = 0; i < gguf_n_maps(g); i++)
        if (file_map_broken(gguf_map_at(g, i))) return true;
    return false;
}

rd_status gguf_guard(const struct gguf *g, rd_status (*fn)(void *arg), void *arg, struct rd_error *err)
{
    rd_status st;

    if (gguf_n_maps(g) == 1 && g->mapped) return file_map_guard(&g->map, fn, arg, err);
    st = fn(arg);                               /* several maps are watched: zeros, and broken */
    return st == RD_OK && gguf_broken(g) ? error_set(err, RD_E_IO, "the model's files became shorter") : st;
}

uint32_t gguf_version(const struct gguf *g)
{
    return g->version;
}

uint64_t gguf_file_bytes(const struct gguf *g)
{
    uint64_t n = g->n_bytes;

    for (uint32_t i = 0; i < g->n_parts; i++) n += g->parts[i]->n_bytes;
    return n;
}

uint64_t gguf_n_kv(const struct gguf *g)
{
    return g->n_kv;
}

const struct gguf_kv *gguf_kv_at(const struct gguf *g, uint64_t i)
{
    assert(i < g->n_kv);
    return &g->kv[i];
}

uint64_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint64_t i)
{
    assert(i < g->n_tensors);
    return &g->tensors[i];
}

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key)
{
    struct gguf_str want = {key, strlen(key)};
    uint64_t low = 0, high = g->n_kv;

    while (low < high) {
        uint64_t mid = low + (high - low) / 2;
        const struct gguf_kv *kv = &g->kv[g->kv_by_key[mid]];
        int c = compare_str(want, kv->key);

        if (c == 0) return kv;
        if (c < 0) high = mid;
        else low = mid + 1;
    }
    return NULL;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
    struct gguf_str want = {name, strlen(name)};
    uint64_t low = 0, high = g->n_tensors;

    while (low < high) {
        uint64_t mid = low + (high - low) / 2;
        const struct gguf_tensor *t = &g->tensors[g->tensors_by_name[mid]];
        int c = compare_str(want, t->name);

        if (c == 0) return t;
        if (c < 0) high = mid;
        else low = mid + 1;
    }
    return NULL;
}
