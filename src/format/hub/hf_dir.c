/* format/hub/hf_dir.c - opens a directory: config, shards, text side, tensors; in this order, for the weights tell what
 * config.json does not. */
#include <stdio.h>
#include <sys/stat.h>
#include "base/arena.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "format/hub/hf_inside.h"
#include "format/hub/hf_vision.h"

rd_status hf_path(const struct hf_dir *dir, const char *name, char *buf, size_t cap, struct rd_error *err)
{
    int n = snprintf(buf, cap, "%s/%s", dir->path, name);

    return n > 0 && (size_t)n < cap ? RD_OK : error_set(err, RD_E_LIMIT, "the path of the model is too long");
}

rd_status hf_read_json(const struct hf_dir *dir, const char *name, size_t max, bool needed, json_t **out,
                       struct rd_error *err)
{
    char path[LIMIT_PATH_BYTES], *text = NULL;
    json_error_t why;
    size_t n = 0;
    rd_status st = hf_path(dir, name, path, sizeof(path), err);

    *out = NULL;
    if (st != RD_OK) return st;
    if (!needed && !file_exists(path)) return RD_OK;
    if ((st = file_read_all(path, max, &text, &n, err)) != RD_OK) return st;
    *out = json_loadb(text, n, JSON_ALLOW_NUL, &why);
    mem_free(text);
    if (*out) return RD_OK;
    if (json_error_code(&why) == json_error_out_of_memory || !why.text[0]) /* jansson does not say it everywhere */
        return error_set(err, RD_E_NOMEM, "%s: out of memory", name);
    return error_set(err, RD_E_FORMAT, "%s: line %d: %.150s", name, why.line, why.text);
}

static bool has_file(const char *dir, const char *name)
{
    char path[LIMIT_PATH_BYTES];
    int n = snprintf(path, sizeof(path), "%s/%s", dir, name);

    return n > 0 && (size_t)n < sizeof(path) && file_exists(path);
}

static rd_status make_head(struct hf_dir *dir, struct gguf_writer *w, struct rd_error *err)
{
    struct buf head = {0};
    size_t n = 0;

    gguf_write_header(w, 0, &head);
    dir->head = (uint8_t *)buf_take(&head, &n);
    dir->n_head = n;
    buf_deinit(&head);
    return dir->head ? RD_OK : error_set(err, RD_E_NOMEM, "out of memory for the metadata");
}

/* What decides how the tensors are understood: a directory that is renamed or talks otherwise is the same model. */
static rd_status digest_keys(const struct model_file *g, struct hf_dir *dir, struct rd_error *err)
{
    static const char *const left_out[] = {"general.name", "tokenizer.chat_template"};
    struct gguf_writer w = {0};
    rd_status st = RD_OK;

    for (uint64_t i = 0; i < g->n_kv; i++) {
        bool skip = false;

        for (size_t k = 0; k < sizeof(left_out) / sizeof(left_out[0]); k++)
            skip |= g->kv[i].key.n == strlen(left_out[k]) && !memcmp(g->kv[i].key.s, left_out[k], g->kv[i].key.n);
        if (!skip) gguf_add_copy(&w, &g->kv[i]);
    }
    if (w.kv.failed)
        st = error_set(err, RD_E_NOMEM, "out of memory for the metadata");
    else
        dir->keys = hash128_of(w.kv.data, w.kv.n);
    gguf_writer_deinit(&w);
    return st;
}

static rd_status open_parts(struct model_file *g, const char *path, const struct hub_families *families,
                            struct rd_error *err)
{
    struct hf_dir *dir = g->own;
    struct gguf_writer w = {0};
    struct hf_told told;
    char name[128];
    rd_status st;

    dir->path = path;
    model_name_of(path, name, sizeof(name));
    st = hf_read_json(dir, "config.json", LIMIT_CONFIG_BYTES, true, &dir->config, err);
    if (st == RD_OK) st = hf_open_shards(dir, err);
    if (st == RD_OK) told = hf_look(&dir->table);
    if (st == RD_OK) st = hf_put_keys(dir->config, name, families, &told, &w, &dir->model, err);
    if (st == RD_OK) st = hf_read_quantisation(dir, err);
    if (st == RD_OK) st = hf_open_text(dir, &w, err);
    if (st == RD_OK) st = make_head(dir, &w, err);
    gguf_writer_deinit(&w);
    if (st != RD_OK) return st;
    g->data = dir->head;
    g->n_bytes = dir->n_head;
    if ((st = gguf_parse(g, err)) != RD_OK || (st = digest_keys(g, dir, err)) != RD_OK) return st;
    g->n_bytes = 0;
    for (uint32_t i = 0; i < dir->n_shards; i++) g->n_bytes += dir->maps[i].n_bytes;
    st = hf_add_tensors(g, err);
    if (st == RD_OK) st = hf_open_vision(g, err);
    if (st == RD_OK) g->vision = dir->vision;
    return st;
}

static rd_status open_dir(const char *path, const struct hub_families *families, struct model_file **out,
                          struct rd_error *err)
{
    struct model_file *g = mem_zalloc(1, sizeof(*g));
    struct hf_dir *dir = mem_zalloc(1, sizeof(*dir));
    rd_status st;

    if (!g || !dir) {
        mem_free(g);
        mem_free(dir);
        return error_set(err, RD_E_NOMEM, "out of memory");
    }
    g->kind = &model_kind_hub;
    g->own = dir;
    g->keys = &dir->keys;
    g->text = &dir->text;
    st = open_parts(g, path, families, err);
    if (st != RD_OK) goto fail;
    json_decref(dir->config);
    dir->config = NULL;
    dir->path = NULL;
    *out = g;
    return RD_OK;

fail:
    model_file_close(g);
    return st;
}

static void close_dir(struct model_file *g)
{
    struct hf_dir *dir = g->own;

    for (uint32_t i = 0; i < dir->n_shards; i++) {
        if (dir->maps) file_map_close(&dir->maps[i]);
        if (dir->names) mem_free(dir->names[i]);
    }
    mem_free(dir->maps);
    mem_free(dir->names);
    safetensors_deinit(&dir->table);
    for (size_t i = 0; i < sizeof(dir->texts) / sizeof(dir->texts[0]); i++) mem_free(dir->texts[i]);
    mem_free(dir->head);
    model_file_close(dir->vision);
    mem_free(dir->vision_head);
    json_decref(dir->config);
    mem_free(dir);
}

static bool takes(const char *path)
{
    struct stat s;

    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

static rd_status open_kind(const char *path, const struct hub_families *families, struct model_file **out,
                           struct rd_error *err)
{
    char name[128];

    model_name_of(path, name, sizeof(name)); /* as base/file.h names files */
    if (has_file(path, "config.json")) return open_dir(path, families, out, err);
    if (has_file(path, "adapter_config.json"))
        return error_set(err, RD_E_UNSUPPORTED, "%s: an adapter (LoRA), no model: give it to --lora, beside its model",
                         name);
    return error_set(err, RD_E_INVALID,
                     "%s: is a directory without a config.json, expected a GGUF file or a model's directory "
                     "(config.json, tokenizer.json, *.safetensors)",
                     name);
}

static uint32_t n_maps(const struct model_file *g)
{
    return ((const struct hf_dir *)g->own)->n_shards;
}

static const struct file_map *map_at(const struct model_file *g, uint32_t i)
{
    return &((const struct hf_dir *)g->own)->maps[i];
}

const struct model_file_kind model_kind_hub = {
    .takes = takes, .open = open_kind, .close = close_dir, .n_maps = n_maps, .map_at = map_at};
