/* format/hub/hf_shards.c - the safetensors files of a directory: which, mapped, each checked as a whole. */
#include <stdio.h>
#include "base/cache_dir.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "format/hub/hf_inside.h"

#define SINGLE       "model.safetensors"
#define INDEX        "model.safetensors.index.json"
#define SERIES_BYTES 64

/* A plain name: nothing outside the directory. */
static bool is_plain(const char *name, size_t n)
{
    return n > 0 && n < 256 && name[0] != '.' && !memchr(name, '/', n) && !memchr(name, 0, n);
}

static rd_status add_shard(struct hf_dir *dir, const char *name, size_t n, struct rd_error *err)
{
    for (uint32_t i = 0; i < dir->n_shards; i++)
        if (strlen(dir->names[i]) == n && !memcmp(dir->names[i], name, n)) return RD_OK;
    if (dir->n_shards == LIMIT_SHARDS) return error_set(err, RD_E_LIMIT, INDEX ": more than %u files", LIMIT_SHARDS);
    dir->names[dir->n_shards] = mem_memdup(name, n);
    if (!dir->names[dir->n_shards]) return error_set(err, RD_E_NOMEM, "out of memory");
    dir->maps[dir->n_shards] = (struct file_map){.fd = -1};
    dir->n_shards++;
    return RD_OK;
}

static rd_status list_shards(struct hf_dir *dir, const json_t *map, struct rd_error *err)
{
    char quoted[96];
    const char *tensor;
    json_t *file;
    rd_status st = RD_OK;

    if (!json_is_object(map) || json_object_size(map) == 0)
        return error_set(err, RD_E_FORMAT, INDEX ": \"weight_map\" is missing or no object");
    json_object_foreach((json_t *)(uintptr_t)map, tensor, file)
    {
        const char *name = json_string_value(file);

        if (!name || !is_plain(name, json_string_length(file)))
            return error_set(err, RD_E_FORMAT, INDEX ": \"%s\" is not in a file of this directory",
                             error_quote(quoted, sizeof(quoted), tensor, strlen(tensor)));
        st = add_shard(dir, name, json_string_length(file), err);
        if (st != RD_OK) return st;
    }
    return st;
}

struct copy_call {
    uint8_t *to;
    const uint8_t *from;
    uint64_t n;
};

static rd_status copy_guarded(void *arg)
{
    const struct copy_call *c = arg;

    memcpy(c->to, c->from, c->n);
    return RD_OK;
}

/* The header is copied: what is checked is what is read. */
static rd_status read_shard(struct hf_dir *dir, uint32_t i, struct rd_error *err)
{
    const struct file_map *map = &dir->maps[i];
    uint8_t first[8], *header;
    struct copy_call call = {first, map->data, 8};
    uint64_t n;
    rd_status st;

    if (map->n_bytes < 8)
        return error_set(err, RD_E_FORMAT, "%s: %llu bytes are no safetensors file", dir->names[i],
                         (unsigned long long)map->n_bytes);
    if ((st = file_map_guard(map, copy_guarded, &call, err)) != RD_OK) return st;
    if ((st = safetensors_header_bytes(dir->names[i], first, map->n_bytes, &n, err)) != RD_OK) return st;
    header = mem_alloc(n, 1);
    if (!header) return error_set(err, RD_E_NOMEM, "%s: out of memory", dir->names[i]);
    call = (struct copy_call){header, map->data, n};
    st = file_map_guard(map, copy_guarded, &call, err);
    if (st == RD_OK) st = safetensors_read(dir->names[i], i, header, n, map->n_bytes, &dir->table, err);
    mem_free(header);
    return st;
}

static rd_status open_shard(struct hf_dir *dir, uint32_t i, struct rd_error *err)
{
    char path[LIMIT_PATH_BYTES];
    rd_status st = hf_path(dir, dir->names[i], path, sizeof(path), err);

    if (st == RD_OK) st = file_map_open(path, &dir->maps[i], err);
    if (st == RD_OK) st = read_shard(dir, i, err);
    return st == RD_OK ? file_map_watch(&dir->maps[i], err) : st;
}

/* Every tensor of the index is in the shard that it says. */
static rd_status check_index(const struct hf_dir *dir, const json_t *map, struct rd_error *err)
{
    char quoted[96];
    const char *tensor;
    json_t *file;

    json_object_foreach((json_t *)(uintptr_t)map, tensor, file)
    {
        const struct st_tensor *t = safetensors_find(&dir->table, tensor);

        if (!t || strcmp(dir->names[t->shard], json_string_value(file)) != 0)
            return error_set(err, RD_E_FORMAT, "%s: tensor \"%s\" is missing, which " INDEX " says is there",
                             json_string_value(file), error_quote(quoted, sizeof(quoted), tensor, strlen(tensor)));
    }
    return RD_OK;
}

/* Without an index: model-00001-of-00003.safetensors and its like, as many as their names say. */
struct series {
    uint32_t n;
    bool mixed;
};

static void series_name(char name[SERIES_BYTES], uint32_t i, uint32_t n)
{
    snprintf(name, SERIES_BYTES, "model-%05u-of-%05u.safetensors", i, n);
}

static bool see_file(void *arg, const char *name)
{
    struct series *s = arg;
    char wanted[SERIES_BYTES];
    uint32_t i, n;

    if (sscanf(name, "model-%5u-of-%5u.safetensors", &i, &n) != 2) return true;
    series_name(wanted, i, n);
    if (strcmp(name, wanted) != 0 || i == 0 || i > n) return true;
    s->mixed |= s->n != 0 && s->n != n;
    s->n = n;
    return true;
}

static rd_status list_series(struct hf_dir *dir, struct rd_error *err)
{
    struct series s = {0, false};
    char name[SERIES_BYTES];
    rd_status st = cache_dir_list(dir->path, see_file, &s);

    if (st != RD_OK) return error_set(err, st, "the directory cannot be read");
    if (s.n == 0)
        return error_set(err, RD_E_NOT_FOUND,
                         "the directory has neither " SINGLE " nor " INDEX " nor model-00001-of-...safetensors");
    if (s.mixed)
        return error_set(err, RD_E_FORMAT, "the directory has no " INDEX ", and files of two models (one of %u files)",
                         s.n);
    for (uint32_t i = 1; st == RD_OK && i <= s.n; i++) {
        series_name(name, i, s.n);
        st = add_shard(dir, name, strlen(name), err);
    }
    return st;
}

static rd_status open_all(struct hf_dir *dir, const json_t *map, bool is_single, struct rd_error *err)
{
    rd_status st = map         ? list_shards(dir, map, err)
                   : is_single ? add_shard(dir, SINGLE, strlen(SINGLE), err)
                               : list_series(dir, err);

    for (uint32_t i = 0; st == RD_OK && i < dir->n_shards; i++) st = open_shard(dir, i, err);
    if (st == RD_OK) st = safetensors_sort(&dir->table, dir->names, err);
    return st == RD_OK && map ? check_index(dir, map, err) : st;
}

rd_status hf_open_shards(struct hf_dir *dir, struct rd_error *err)
{
    char path[LIMIT_PATH_BYTES];
    json_t *index = NULL;
    rd_status st;

    dir->maps = mem_zalloc(LIMIT_SHARDS, sizeof(*dir->maps));
    dir->names = mem_zalloc(LIMIT_SHARDS, sizeof(*dir->names));
    if (!dir->maps || !dir->names) return error_set(err, RD_E_NOMEM, "out of memory");
    st = hf_read_json(dir, INDEX, LIMIT_INDEX_BYTES, false, &index, err);
    if (st == RD_OK) st = hf_path(dir, SINGLE, path, sizeof(path), err);
    if (st == RD_OK && index && !json_object_get(index, "weight_map"))
        st = error_set(err, RD_E_FORMAT, INDEX ": \"weight_map\" is missing or no object");
    if (st == RD_OK) st = open_all(dir, index ? json_object_get(index, "weight_map") : NULL, file_exists(path), err);
    json_decref(index);
    return st;
}

/* The tensor of layer 0 of the text model, whatever stands before "layers.0." there. */
static const struct st_tensor *in_first_layer(const struct st_table *table, const char *name)
{
    const size_t n_name = strlen(name);

    for (size_t i = 0; i < table->n; i++) {
        const struct st_tensor *t = &table->tensors[i];

        if (t->n_name < n_name || strcmp(t->name + t->n_name - n_name, name) != 0) continue;
        if (!strstr(t->name, "vision") && !strstr(t->name, "visual")) return t;
    }
    return NULL;
}

struct hf_told hf_look(const struct st_table *table)
{
    const struct st_tensor *q = in_first_layer(table, "layers.0.self_attn.q_proj.weight");

    return (struct hf_told){
        .qk_norms = in_first_layer(table, "layers.0.self_attn.q_norm.weight"),
        .qkv_biases = in_first_layer(table, "layers.0.self_attn.q_proj.bias"),
        .post_norms = in_first_layer(table, "layers.0.pre_feedforward_layernorm.weight"),
        .n_q_rows = q && q->n_dims == 2 ? q->dims[0] : 0,
    };
}
