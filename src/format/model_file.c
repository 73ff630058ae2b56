/* format/model_file.c - the list of kinds, and what they share: the sorted indexes, lookups by name, closing.
 *
 * Names are found by binary search over a sorted array of positions: no hash that a crafted file could make collide.
 */
#include "format/model_file.h"
#include <assert.h>
#include <stdio.h>
#include "base/error.h"
#include "base/mem.h"
#include "format/model_file_inside.h"

/* A new kind is one line here, its folder, and its name in model_file_inside.h. */
static const struct model_file_kind *const kinds[] = {&model_kind_hub, &model_kind_gguf};

rd_status model_file_open(const char *path, const struct hub_families *families, struct model_file **out,
                          struct rd_error *err)
{
    size_t k = 0;

    while (!kinds[k]->takes(path)) k++; /* the last takes all */
    return kinds[k]->open(path, families, out, err);
}

/* < 0, 0, > 0 as memcmp; positions into g's tables. */
typedef int (*compare_fn)(const struct model_file *g, uint32_t a, uint32_t b);

static int compare_str(struct model_str a, struct model_str b)
{
    int c = memcmp(a.s, b.s, a.n < b.n ? a.n : b.n);

    return c ? c : (a.n > b.n) - (a.n < b.n);
}

static int compare_keys(const struct model_file *g, uint32_t a, uint32_t b)
{
    return compare_str(g->kv[a].key, g->kv[b].key);
}

static int compare_names(const struct model_file *g, uint32_t a, uint32_t b)
{
    return compare_str(g->tensors[a].name, g->tensors[b].name);
}

static int compare_offsets(const struct model_file *g, uint32_t a, uint32_t b)
{
    uint64_t x = g->tensors[a].offset, y = g->tensors[b].offset;

    return (x > y) - (x < y);
}

static void merge(const struct model_file *g, compare_fn compare, const uint32_t *from, uint32_t *to, size_t left,
                  size_t mid, size_t right)
{
    size_t i = left, j = mid;

    for (size_t k = left; k < right; k++)
        to[k] = j >= right || (i < mid && compare(g, from[i], from[j]) <= 0) ? from[i++] : from[j++];
}

/* order[n] = 0 .. n-1 sorted by compare: a bottom-up merge sort, n log n whatever the file says. scratch: [n]. */
static void sort_positions(const struct model_file *g, compare_fn compare, uint32_t *order, uint32_t *scratch, size_t n)
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

static rd_status make_index(struct model_file *g, compare_fn compare, uint64_t n, uint32_t **order)
{
    if (!*order) *order = mem_alloc(n, sizeof(**order));
    mem_free(g->scratch);
    g->scratch = mem_alloc(n, sizeof(*g->scratch));
    if (!*order || !g->scratch) return RD_E_NOMEM;
    sort_positions(g, compare, *order, g->scratch, n);
    return RD_OK;
}

rd_status model_file_index_meta(struct model_file *g, struct rd_error *err)
{
    char quoted[160];

    if (make_index(g, compare_keys, g->n_kv, &g->kv_by_key) != RD_OK)
        return error_set(err, RD_E_NOMEM, "out of memory for the metadata index");
    for (uint64_t i = 1; i < g->n_kv; i++) {
        struct model_str key = g->kv[g->kv_by_key[i]].key;

        if (compare_keys(g, g->kv_by_key[i - 1], g->kv_by_key[i]) == 0)
            return error_set(err, RD_E_FORMAT, "metadata \"%s\": the key is there twice",
                             error_quote(quoted, sizeof(quoted), key.s, key.n));
    }
    return RD_OK;
}

static rd_status check_overlaps(struct model_file *g, const uint32_t *by_offset, struct rd_error *err)
{
    char a[120], b[120];

    for (uint64_t i = 1; i < g->n_tensors; i++) {
        const struct model_tensor *t = &g->tensors[by_offset[i - 1]], *next = &g->tensors[by_offset[i]];

        if (t->offset + t->n_bytes > next->offset)
            return error_set(err, RD_E_FORMAT, "tensor \"%s\": offset %llu + %llu bytes overlaps tensor \"%s\" at %llu",
                             error_quote(a, sizeof(a), t->name.s, t->name.n), (unsigned long long)t->offset,
                             (unsigned long long)t->n_bytes, error_quote(b, sizeof(b), next->name.s, next->name.n),
                             (unsigned long long)next->offset);
    }
    return RD_OK;
}

rd_status model_file_index_names(struct model_file *g, struct rd_error *err)
{
    char quoted[160];

    if (make_index(g, compare_names, g->n_tensors, &g->tensors_by_name) != RD_OK)
        return error_set(err, RD_E_NOMEM, "out of memory for the tensor index");
    for (uint64_t i = 1; i < g->n_tensors; i++) {
        struct model_str name = g->tensors[g->tensors_by_name[i]].name;

        if (compare_names(g, g->tensors_by_name[i - 1], g->tensors_by_name[i]) == 0)
            return error_set(err, RD_E_FORMAT, "tensor \"%s\": the name is there twice",
                             error_quote(quoted, sizeof(quoted), name.s, name.n));
    }
    mem_free(g->scratch);
    g->scratch = NULL;
    return RD_OK;
}

rd_status model_file_index_tensors(struct model_file *g, struct rd_error *err)
{
    rd_status st;

    /* The array serves twice: first in the order of offsets, then, for good, in the order of names. */
    if (make_index(g, compare_offsets, g->n_tensors, &g->tensors_by_name) != RD_OK)
        return error_set(err, RD_E_NOMEM, "out of memory for the tensor index");
    st = check_overlaps(g, g->tensors_by_name, err);
    return st == RD_OK ? model_file_index_names(g, err) : st;
}

void model_file_close(struct model_file *g)
{
    if (!g) return;
    if (g->kind->close) g->kind->close(g);
    mem_free(g->kv);
    mem_free(g->tensors);
    mem_free(g->kv_by_key);
    mem_free(g->tensors_by_name);
    mem_free(g->scratch);
    mem_free(g);
}

bool model_file_unchanged(const struct model_file *g)
{
    for (uint32_t i = 0; i < model_file_n_maps(g); i++)
        if (!file_map_unchanged(model_file_map_at(g, i))) return false;
    return true;
}

uint32_t model_file_n_maps(const struct model_file *g)
{
    return g->kind->n_maps(g);
}

const struct file_map *model_file_map_at(const struct model_file *g, uint32_t i)
{
    assert(i < model_file_n_maps(g));
    return g->kind->map_at(g, i);
}

const struct file_map *model_file_map(const struct model_file *g)
{
    return !g->keys && model_file_n_maps(g) > 0 ? model_file_map_at(g, 0) : NULL;
}

const struct model_text *model_file_text(const struct model_file *g)
{
    return g->text;
}

const struct model_file *model_file_vision(const struct model_file *g)
{
    return g->vision;
}

bool model_file_broken(const struct model_file *g)
{
    for (uint32_t i = 0; i < model_file_n_maps(g); i++)
        if (file_map_broken(model_file_map_at(g, i))) return true;
    return false;
}

rd_status model_file_guard(const struct model_file *g, rd_status (*fn)(void *arg), void *arg, struct rd_error *err)
{
    rd_status st;

    if (model_file_n_maps(g) == 1 && !g->keys) return file_map_guard(model_file_map(g), fn, arg, err);
    st = fn(arg); /* several maps are watched: zeros, and broken */
    return st == RD_OK && model_file_broken(g) ? error_set(err, RD_E_IO, "the model's files became shorter") : st;
}

rd_status model_tensor_open_as(const struct model_tensor *t, enum dtype as, struct tensor_bytes *out,
                               struct rd_error *err)
{
    assert(as == t->dtype || (t->n_hub_bytes > 0 && as == t->hub_dtype));
    *out = (struct tensor_bytes){.data = t->data};
    return t->data ? RD_OK : t->recipe->open_as(t, as, out, err);
}

rd_status model_tensor_open(const struct model_tensor *t, struct tensor_bytes *out, struct rd_error *err)
{
    return model_tensor_open_as(t, t->dtype, out, err);
}

void model_tensor_close(struct tensor_bytes *b)
{
    mem_free_aligned(b->owned);
    *b = (struct tensor_bytes){NULL, NULL};
}

uint32_t model_file_version(const struct model_file *g)
{
    return g->version;
}

uint64_t model_file_bytes(const struct model_file *g)
{
    return g->n_bytes;
}

uint64_t model_file_n_meta(const struct model_file *g)
{
    return g->n_kv;
}

const struct model_meta *model_file_meta(const struct model_file *g, uint64_t i)
{
    assert(i < g->n_kv);
    return &g->kv[i];
}

uint64_t model_file_n_tensors(const struct model_file *g)
{
    return g->n_tensors;
}

const struct model_tensor *model_file_tensor(const struct model_file *g, uint64_t i)
{
    assert(i < g->n_tensors);
    return &g->tensors[i];
}

const struct model_meta *model_file_find(const struct model_file *g, const char *key)
{
    struct model_str want = {key, strlen(key)};
    uint64_t low = 0, high = g->n_kv;

    while (low < high) {
        uint64_t mid = low + (high - low) / 2;
        const struct model_meta *kv = &g->kv[g->kv_by_key[mid]];
        int c = compare_str(want, kv->key);

        if (c == 0) return kv;
        if (c < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

const struct model_tensor *model_file_find_tensor(const struct model_file *g, const char *name)
{
    struct model_str want = {name, strlen(name)};
    uint64_t low = 0, high = g->n_tensors;

    while (low < high) {
        uint64_t mid = low + (high - low) / 2;
        const struct model_tensor *t = &g->tensors[g->tensors_by_name[mid]];
        int c = compare_str(want, t->name);

        if (c == 0) return t;
        if (c < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

/* ---- names ---- */

/* Where the last part of path[0 .. n) begins. */
static size_t last_part(const char *path, size_t n)
{
    while (n > 0 && path[n - 1] != '/') n--;
    return n;
}

void model_name_of(const char *path, char *name, size_t cap)
{
    static const char cached[] = "models--", snapshots[] = "/snapshots/";
    size_t n = strlen(path), start, n_parent = sizeof(snapshots) - 1;
    char *dashes;

    while (n > 1 && path[n - 1] == '/') n--;
    start = last_part(path, n);
    snprintf(name, cap, "%.*s", (int)(n - start), path + start);
    if (start <= n_parent || memcmp(path + start - n_parent, snapshots, n_parent) != 0) return;
    n = start - n_parent;
    start = last_part(path, n);
    if (n - start <= sizeof(cached) - 1 || memcmp(path + start, cached, sizeof(cached) - 1) != 0) return;
    start += sizeof(cached) - 1;
    snprintf(name, cap, "%.*s", (int)(n - start), path + start);
    dashes = strstr(name, "--");
    if (!dashes) return;
    *dashes = '/';
    memmove(dashes + 1, dashes + 2, strlen(dashes + 2) + 1);
}
