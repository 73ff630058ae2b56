/* server/routes/named_caches.c - GET and POST /v1/cache/names, POST /v1/cache/names/save and /drop: named caches.
 *
 * Each tenant has names of its own, and each cache_salt; POST lists those of a salt. Saving waits for the disk, so it is
 * never done by an io thread.
 */
#include <string.h>
#include "server/dialects/request_body.h"
#include "server/http/http_guard.h"
#include "server/params/json_out.h"
#include "server/routes/routes.h"

/* The body, if the row has parameters, and whose names are meant; salt.data NULL: everybody's. */
static int read_space(struct http_conn *c, struct gen_params *p, struct buf *salt, struct api_error *e)
{
    json_t *in = NULL;
    int rc = route_of(c)->params ? request_body(c, route_of(c)->params, p, &in, e) : 0;

    if (rc == 0) http_tenant_salt(c, p->cache_salt, salt);
    if (rc == 0 && salt->failed) rc = api_error_set(e, 503, NULL, "out of memory");
    json_decref(in);
    return rc;
}

static void reply(struct http_conn *c, int rc, struct buf *body, const struct api_error *e)
{
    if (rc == 0)
        http_reply_json(c, body);
    else
        http_reply_error(c, e);
    buf_deinit(body);
}

void route_cache_names(struct http_conn *c)
{
    struct gen_params p;
    struct buf salt = {0}, body = {0};
    struct api_error e;
    char *list;
    int rc;

    gen_params_init(&p, false);
    rc = read_space(c, &p, &salt, &e);
    if (rc == 0) {
        list = rd_cache_names(served_of(c)->engine, salt.data);
        if (list)
            buf_puts(&body, list);
        else
            rc = api_error_set(&e, 503, NULL, "out of memory");
        rd_free(list);
    }
    reply(c, rc, &body, &e);
    gen_params_deinit(&p);
    buf_deinit(&salt);
}

static void put_name(struct buf *b, const char *object, const char *name, const struct rd_cache_name *n)
{
    buf_printf(b, "{\"object\":\"%s\",\"cache_name\":", object);
    json_put_string(b, name, strlen(name));
    buf_printf(b,
               ",\"texts\":%u,\"running\":%u,\"tokens\":%llu,\"own_tokens\":%llu,\"own_bytes\":%llu,"
               "\"disk_tokens\":%llu,\"saved\":%s",
               n->n_texts, n->n_running, (unsigned long long)n->n_tokens, (unsigned long long)n->n_own_tokens,
               (unsigned long long)n->own_bytes, (unsigned long long)n->n_disk_tokens, n->is_saved ? "true" : "false");
}

/* What is done to one name. */
static void do_name(struct http_conn *c, bool saves)
{
    rd_engine *engine = served_of(c)->engine;
    struct rd_error err = {RD_OK, ""};
    struct rd_cache_name n;
    uint64_t n_pages = 0;
    struct gen_params p;
    struct buf salt = {0}, body = {0};
    struct api_error e;
    rd_status st;
    int rc;

    gen_params_init(&p, false);
    rc = read_space(c, &p, &salt, &e);
    if (rc == 0) {
        st = saves ? rd_cache_save_name(engine, salt.data, p.cache_name, &n, &err)
                   : rd_cache_drop_name(engine, salt.data, p.cache_name, &n, &n_pages, &err);
        if (st == RD_E_NOT_FOUND)
            rc = api_error_set(&e, 404, "cache_name", "%s", err.text);
        else if (st == RD_E_LIMIT)
            rc = api_error_set(&e, 409, "cache_name", "%s", err.text);
        else if (st == RD_E_UNSUPPORTED)
            rc = api_error_set(&e, 400, NULL, "%s", err.text);
        else if (st == RD_E_AGAIN || st == RD_E_IO)
            rc = api_error_set(&e, 503, NULL, "%s", err.text);
        else if (st != RD_OK) {
            api_error_from_status(&e, st, err.text);
            rc = -1;
        }
    }
    if (rc == 0) {
        put_name(&body, saves ? "cache.name.saved" : "cache.name.dropped", p.cache_name, &n);
        if (!saves) buf_printf(&body, ",\"pages\":%llu", (unsigned long long)n_pages);
        buf_puts(&body, "}");
    }
    reply(c, rc, &body, &e);
    gen_params_deinit(&p);
    buf_deinit(&salt);
}

void route_cache_name_save(struct http_conn *c)
{
    do_name(c, true);
}

void route_cache_name_drop(struct http_conn *c)
{
    do_name(c, false);
}
