/* format/gguf/gguf.c - opening GGUF files; the kind behind format/model_file.h. */
#include "format/gguf/gguf.h"
#include <assert.h>
#include "base/error.h"
#include "base/mem.h"
#include "format/gguf/gguf_inside.h"

struct parse_call {
    struct model_file *g;
    struct rd_error *err;
};

static rd_status parse_guarded(void *arg)
{
    struct parse_call *call = arg;

    return gguf_parse(call->g, call->err);
}

rd_status gguf_open_one(const char *path, struct model_file **out, struct rd_error *err)
{
    struct model_file *g = mem_zalloc(1, sizeof(*g));
    struct gguf_maps *own = mem_zalloc(1, sizeof(*own));
    struct parse_call call = {g, err};
    rd_status st = RD_E_NOMEM;

    assert(path && out);
    if (!g || !own) {
        mem_free(g);
        mem_free(own);
        return error_set(err, st, "out of memory");
    }
    g->kind = &model_kind_gguf;
    g->own = own;
    st = file_map_open(path, &own->map, err);
    if (st != RD_OK) goto fail;
    own->mapped = true;
    g->data = own->map.data;
    g->n_bytes = own->map.n_bytes;
    st = file_map_guard(&own->map, parse_guarded, &call, err);
    if (st == RD_OK) st = file_map_watch(&own->map, err);
    if (st != RD_OK) goto fail;
    *out = g;
    return RD_OK;

fail:
    model_file_close(g);
    return st;
}

rd_status gguf_open(const char *path, struct model_file **out, struct rd_error *err)
{
    struct model_file *g = NULL;
    rd_status st = gguf_open_one(path, &g, err);

    if (st == RD_OK) st = gguf_open_parts(g, path, err);
    if (st != RD_OK)
        model_file_close(g);
    else
        *out = g;
    return st;
}

rd_status gguf_open_bytes(const uint8_t *data, size_t n, struct model_file **out, struct rd_error *err)
{
    struct model_file *g = mem_zalloc(1, sizeof(*g));
    rd_status st;

    assert(out && (data || n == 0));
    if (!g) return error_set(err, RD_E_NOMEM, "out of memory");
    g->kind = &model_kind_gguf;
    g->data = data;
    g->n_bytes = n;
    st = gguf_parse(g, err);
    if (st != RD_OK) goto fail;
    *out = g;
    return RD_OK;

fail:
    model_file_close(g);
    return st;
}

static bool takes(const char *path)
{
    return true; /* the last kind: what is not a GGUF file is told so */
}

static rd_status open_kind(const char *path, const struct hub_families *families, struct model_file **out,
                           struct rd_error *err)
{
    return gguf_open(path, out, err);
}

static void close_maps(struct model_file *g)
{
    struct gguf_maps *own = g->own;

    if (!own) return;
    for (uint32_t i = 0; i < own->n_parts; i++) model_file_close(own->parts[i]);
    mem_free(own->parts);
    if (own->mapped) file_map_close(&own->map);
    mem_free(own);
}

static uint32_t n_maps(const struct model_file *g)
{
    const struct gguf_maps *own = g->own;

    return own ? own->mapped + own->n_parts : 0;
}

static const struct file_map *map_at(const struct model_file *g, uint32_t i)
{
    const struct gguf_maps *own = g->own;

    return i ? map_at(own->parts[i - 1], 0) : &own->map;
}

const struct model_file_kind model_kind_gguf = {
    .takes = takes, .open = open_kind, .close = close_maps, .n_maps = n_maps, .map_at = map_at};
