/* format/hf_dir.c - opens a directory: config, text side, shards, tensors; in this order, cheap checks first. */
#include "format/hf_dir.h"
#include <stdio.h>
#include <sys/stat.h>
#include "base/arena.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "format/hf_inside.h"

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

bool hf_is_dir(const char *path)
{
    char config[LIMIT_PATH_BYTES];
    int n = snprintf(config, sizeof(config), "%s/config.json", path);

    return n > 0 && (size_t)n < sizeof(config) && file_exists(config);
}

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
static rd_status digest_keys(struct gguf *g, struct rd_error *err)
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
    if (w.kv.failed) st = error_set(err, RD_E_NOMEM, "out of memory for the metadata");
    else g->dir->keys = hash128_of(w.kv.data, w.kv.n);
    gguf_writer_deinit(&w);
    return st;
}

static rd_status open_parts(struct gguf *g, const char *path, struct rd_error *err)
{
    struct hf_dir *dir = g->dir;
    struct gguf_writer w = {0};
    char name[128];
    rd_status st;

    dir->path = path;
    model_name_of(path, name, sizeof(name));
    st = hf_read_json(dir, "config.json", LIMIT_CONFIG_BYTES, true, &dir->config, err);
    if (st == RD_OK) st = hf_put_keys(dir->config, name, &w, &dir->model, err);
    if (st == RD_OK) st = hf_read_quantisation(dir, err);
    if (st == RD_OK) st = hf_open_text(dir, &w, err);
    if (st == RD_OK) st = make_head(dir, &w, err);
    gguf_writer_deinit(&w);
    if (st != RD_OK) return st;
    g->data = dir->head;
    g->n_bytes = dir->n_head;
    if ((st = gguf_parse(g, err)) != RD_OK || (st = digest_keys(g, err)) != RD_OK) return st;
    if ((st = hf_open_shards(dir, err)) != RD_OK) return st;
    g->n_bytes = 0;
    for (uint32_t i = 0; i < dir->n_shards; i++) g->n_bytes += dir->maps[i].n_bytes;
    return hf_add_tensors(g, err);
}

static rd_status open_dir(const char *path, struct gguf **out, struct rd_error *err)
{
    struct gguf *g = mem_zalloc(1, sizeof(*g));
    rd_status st = RD_E_NOMEM;

    if (g) g->dir = mem_zalloc(1, sizeof(*g->dir));
    if (!g || !g->dir) {
        error_set(err, st, "out of memory");
        goto fail;
    }
    st = open_parts(g, path, err);
    if (st != RD_OK) goto fail;
    json_decref(g->dir->config);
    g->dir->config = NULL;
    g->dir->path = NULL;
    *out = g;
    return RD_OK;

fail:
    gguf_close(g);
    return st;
}

void hf_dir_destroy(struct hf_dir *dir)
{
    if (!dir) return;
    for (uint32_t i = 0; i < dir->n_shards; i++) {
        if (dir->maps) file_map_close(&dir->maps[i]);
        if (dir->names) mem_free(dir->names[i]);
    }
    mem_free(dir->maps);
    mem_free(dir->names);
    safetensors_deinit(&dir->table);
    for (size_t i = 0; i < sizeof(dir->texts) / sizeof(dir->texts[0]); i++) mem_free(dir->texts[i]);
    mem_free(dir->head);
    json_decref(dir->config);
    mem_free(dir);
}

rd_status model_file_open(const char *path, struct gguf **out, struct rd_error *err)
{
    char name[128];
    struct stat s;

    if (stat(path, &s) != 0 || !S_ISDIR(s.st_mode)) return gguf_open(path, out, err);
    model_name_of(path, name, sizeof(name));                /* as base/file.h names files */
    if (!hf_is_dir(path))
        return error_set(err, RD_E_INVALID,
                         "%s: is a directory without a config.json, expected a GGUF file or a model's directory "
                         "(config.json, tokenizer.json, *.safetensors)", name);
    return open_dir(path, out, err);
}
