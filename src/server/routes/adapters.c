/* server/routes/adapters.c - adapters (LoRA) while the server runs: vLLM's /v1/load_lora_adapter and /v1/unload_lora_adapter,
 * llama-server's /lora-adapters.
 *
 * Loading and applying are for whoever runs the server, and files are taken from below --lora-dir alone: a client must not
 * choose what the server reads.
 */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "server/dialects/request_body.h"
#include "server/params/json_out.h"
#include "server/routes/routes.h"

static int no_memory(struct api_error *e)
{
    return api_error_set(e, 503, NULL, "out of memory");
}

static void end(struct http_conn *c, int rc, struct buf *body, const struct api_error *e)
{
    if (rc == 0)
        http_reply_json(c, body);
    else
        http_reply_error(c, e);
    buf_deinit(body);
}

/* full: whole paths, which are not for every client. */
static int put_list(const rd_engine *engine, bool full, struct buf *out, struct api_error *e)
{
    uint32_t n;
    struct rd_adapter *list = served_adapters(engine, &n);

    if (!list) return no_memory(e);
    buf_puts(out, "[");
    for (uint32_t i = 0; i < n; i++) {
        const struct rd_adapter *a = &list[i];
        const char *path = full ? a->path : served_adapter_file(a);

        buf_printf(out, "%s{\"id\":%u,\"name\":", i ? "," : "", a->id);
        json_put_string(out, a->name, strlen(a->name));
        buf_puts(out, ",\"path\":");
        json_put_string(out, path, strlen(path));
        buf_printf(out,
                   ",\"scale\":%g,\"own_scale\":%g,\"rank\":%u,\"matrices\":%u,\"bytes\":%llu,\"in_memory\":%s,\"base_"
                   "model\":",
                   a->applied, a->scale, a->rank, a->n_matrices, (unsigned long long)a->n_bytes,
                   a->in_memory ? "true" : "false");
        if (a->base[0])
            json_put_string(out, a->base, strlen(a->base));
        else
            buf_puts(out, "null");
        buf_puts(out, "}");
    }
    buf_puts(out, "]");
    mem_free(list);
    return 0;
}

void route_adapters(struct http_conn *c)
{
    struct buf body = {0};
    struct api_error e;
    int rc = put_list(served_of(c)->engine, c->is_admin, &body, &e);

    end(c, rc, &body, &e);
}

/* ---- which are applied to requests that say nothing ---- */

static const struct rd_adapter *by_id(const struct rd_adapter *list, uint32_t n, const json_t *id)
{
    for (uint32_t i = 0; i < n; i++)
        if (json_is_integer(id) && json_integer_value(id) == list[i].id) return &list[i];
    return NULL;
}

/* Those that in does not name get 0, as llama-server has it. */
static int apply_all(rd_engine *engine, const json_t *in, const struct rd_adapter *list, uint32_t n,
                     struct api_error *e)
{
    const json_t *v;
    size_t i;

    if (!json_is_array(in)) return api_error_set(e, 400, NULL, "a list of {\"id\", \"scale\"} wanted");
    json_array_foreach(in, i, v)
    {
        const json_t *scale = json_object_get(v, "scale");

        if (!by_id(list, n, json_object_get(v, "id")))
            return api_error_set(e, 400, "id",
                                 "element %zu: id: there is no such adapter; GET /lora-adapters lists them", i);
        if (!param_is_scale(scale))
            return api_error_set(e, 400, "scale", "element %zu: scale: a number within -1000 and 1000 wanted", i);
    }
    for (uint32_t k = 0; k < n; k++) {
        double to = 0;

        json_array_foreach(in, i, v) if (by_id(list, n, json_object_get(v, "id")) == &list[k]) to =
            json_number_value(json_object_get(v, "scale"));
        (void)rd_adapter_apply(engine, list[k].name, to, NULL); /* one that went meanwhile is gone */
    }
    return 0;
}

void route_adapters_set(struct http_conn *c)
{
    rd_engine *engine = served_of(c)->engine;
    struct rd_adapter *list = NULL;
    struct buf body = {0};
    struct api_error e;
    json_t *in = NULL;
    uint32_t n = 0;
    int rc;

    if (!route_for_owner(c, "what is applied to every request is")) return;
    rc = request_value(c, &in, &e);
    if (rc == 0 && !(list = served_adapters(engine, &n))) rc = no_memory(&e);
    if (rc == 0) rc = apply_all(engine, in, list, n, &e);
    if (rc == 0) buf_puts(&body, "{\"success\":true}");
    mem_free(list);
    json_decref(in);
    end(c, rc, &body, &e);
}

/* ---- loading and unloading ---- */

static int read_text(const json_t *in, const char *name, const char **out, struct api_error *e)
{
    *out = json_plain(json_object_get(in, name));
    if (*out && **out) return 0;
    return api_error_set(e, 400, name, "%s: a string wanted", name);
}

/* The real path of what is asked for, below the folder. */
static int find_file(const char *dir, const char *asked, char path[LIMIT_PATH_BYTES], struct api_error *e)
{
    char joined[LIMIT_PATH_BYTES], real_dir[LIMIT_PATH_BYTES];
    size_t n;

    if (!dir || !file_real_path(dir, real_dir))
        return api_error_set(e, 403, "lora_path",
                             "lora_path: adapters are loaded by request only from below the server's --lora-dir%s",
                             dir ? ", which is not there" : ", and it was started without one");
    n = strlen(real_dir);
    if ((size_t)snprintf(joined, sizeof(joined), "%s%s%s", *asked == '/' ? "" : real_dir, *asked == '/' ? "" : "/",
                         asked) < sizeof(joined) &&
        file_real_path(joined, path) && strncmp(path, real_dir, n) == 0 && (path[n] == '/' || n == 1))
        return 0;
    return api_error_set(e, 404, "lora_path",
                         "lora_path: there is no such adapter below --lora-dir"); /* elsewhere is nowhere */
}

static int from_status(rd_status st, const struct rd_error *err, struct api_error *e)
{
    if (st == RD_OK) return 0;
    if (st == RD_E_NOMEM) return no_memory(e);
    return api_error_set(e, st == RD_E_NOT_FOUND ? 404 : st == RD_E_LIMIT ? 409 : 400, "lora_name", "%s", err->text);
}

static int load(struct http_conn *c, const json_t *in, struct buf *out, struct api_error *e)
{
    const json_t *scale = json_object_get(in, "scale");
    const char *name, *asked;
    struct rd_error err = {RD_OK, ""};
    char path[LIMIT_PATH_BYTES];
    int rc;

    if (read_text(in, "lora_name", &name, e) || read_text(in, "lora_path", &asked, e)) return -1;
    if (param_is_model(name, &served_of(c)->info))
        return api_error_set(e, 400, "lora_name", "lora_name: the model itself is called that");
    if (scale && !param_is_scale(scale))
        return api_error_set(e, 400, "scale", "scale: a number within -1000 and 1000 wanted");
    rc = find_file(server_of(c)->lora_dir, asked, path, e);
    if (rc == 0)
        rc = from_status(rd_adapter_load(served_of(c)->engine, name, path, scale ? json_number_value(scale) : 1, &err),
                         &err, e);
    if (rc == 0) buf_puts(out, "{\"success\":true,\"loaded\":");
    if (rc == 0) json_put_string(out, name, strlen(name));
    if (rc == 0) buf_puts(out, "}");
    return rc;
}

static int unload(struct http_conn *c, const json_t *in, struct buf *out, struct api_error *e)
{
    struct rd_error err = {RD_OK, ""};
    const char *name;
    int rc = read_text(in, "lora_name", &name, e);

    if (rc == 0) rc = from_status(rd_adapter_unload(served_of(c)->engine, name, &err), &err, e);
    if (rc == 0) buf_puts(out, "{\"success\":true,\"unloaded\":");
    if (rc == 0) json_put_string(out, name, strlen(name));
    if (rc == 0) buf_puts(out, "}");
    return rc;
}

static void change(struct http_conn *c, int (*fn)(struct http_conn *, const json_t *, struct buf *, struct api_error *))
{
    struct buf body = {0};
    struct api_error e;
    json_t *in = NULL;
    int rc;

    if (!route_for_owner(c, "which adapters are loaded is")) return;
    rc = request_json(c, &in, &e);
    if (rc == 0 && !json_is_object(in)) rc = api_error_set(&e, 400, NULL, "an object wanted");
    if (rc == 0) rc = fn(c, in, &body, &e);
    json_decref(in);
    end(c, rc, &body, &e);
}

void route_adapter_load(struct http_conn *c)
{
    change(c, load);
}

void route_adapter_unload(struct http_conn *c)
{
    change(c, unload);
}
