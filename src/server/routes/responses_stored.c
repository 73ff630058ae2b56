/* server/routes/responses_stored.c - answers of /v1/responses that were kept:
 *     GET /v1/responses/{id}   GET .../{id}/input_items?order=&limit=&after=   POST .../{id}/cancel   DELETE .../{id}
 */
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/mem.h"
#include "server/params/json_out.h"
#include "server/dialects/responses_follow.h"
#include "server/dialects/responses_store.h"
#include "server/routes/routes.h"

#define ITEMS_DEFAULT 20u
#define ITEMS_MOST    100u

/* /v1/responses/{id}{rest} */
struct stored {
    char id[64], key[RESPONSES_KEY_BYTES]; /* key: in the store */
    const char *rest;
};

static void split_path(const struct http_conn *c, struct stored *at)
{
    const char *s = route_rest(c);
    size_t n = strcspn(s, "/");

    at->rest = s + n;
    if (n >= sizeof(at->id)) n = 0; /* no id of ours is so long */
    memcpy(at->id, s, n);
    at->id[n] = 0;
    responses_key(c->tenant, at->id, at->key);
}

static int store_error(const char *id, rd_status st, struct api_error *e)
{
    char quoted[80];

    if (st == RD_E_NOT_FOUND)
        return api_error_set(e, 404, "response_id", "There is no response %s",
                             error_quote(quoted, sizeof(quoted), id, strlen(id)));
    if (st == RD_E_UNSUPPORTED)
        return api_error_set(e, 400, "stream", "stream: only of responses made with background: true and stream: true");
    api_error_from_status(e, st, NULL);
    return -1;
}

static int no_endpoint(struct api_error *e)
{
    return api_error_set(e, 404, NULL, "no such endpoint; a browser shows them at /");
}

/* The value of name= in the query as it stands; ids, numbers and orders need no decoding. */
static bool query_value(const struct http_conn *c, const char *name, char *out, size_t n_out)
{
    const char *rest = c->head.query, *v;
    size_t n;

    while ((v = http_query_next(&rest, name, &n)))
        if (n < n_out) {
            memcpy(out, v, n);
            out[n] = 0;
            return true;
        }
    return false;
}

static int read_page(const struct http_conn *c, bool *ascending, size_t *limit, char *after, size_t n_after,
                     struct api_error *e)
{
    char text[16];

    *limit = ITEMS_DEFAULT;
    *ascending = false;
    if (query_value(c, "order", text, sizeof(text))) {
        *ascending = strcmp(text, "asc") == 0;
        if (!*ascending && strcmp(text, "desc") != 0)
            return api_error_set(e, 400, "order", "order: asc or desc wanted");
    }
    if (query_value(c, "limit", text, sizeof(text))) {
        char *end;
        unsigned long v = strtoul(text, &end, 10);

        if (*end || end == text || v < 1 || v > ITEMS_MOST)
            return api_error_set(e, 400, "limit", "limit: 1 to %u wanted", ITEMS_MOST);
        *limit = v;
    }
    if (!query_value(c, "after", after, n_after)) *after = 0;
    return 0;
}

static const char *item_id(const json_t *item)
{
    const char *id = json_string_value(json_object_get(item, "id"));

    return id ? id : "";
}

/* One page of items: newest first unless ascending. */
static bool put_page(const json_t *items, bool ascending, size_t limit, const char *after, struct buf *out)
{
    size_t n = json_array_size(items), first = 0, end;
    const char *ids[2] = {"", ""};
    bool ok = true;

#define AT(k) json_array_get(items, ascending ? (k) : n - 1 - (k))
    for (size_t k = 0; *after && k < n; k++)
        if (strcmp(item_id(AT(k)), after) == 0) first = k + 1;
    end = n - first < limit ? n : first + limit;
    buf_puts(out, "{\"object\":\"list\",\"data\":[");
    for (size_t k = first; ok && k < end; k++) {
        char *text = json_dumps(AT(k), JSON_COMPACT);

        ok = text != NULL;
        if (k > first) buf_puts(out, ",");
        if (ok) buf_puts(out, text);
        mem_free(text);
    }
    if (end > first) {
        ids[0] = item_id(AT(first));
        ids[1] = item_id(AT(end - 1));
    }
#undef AT
    buf_puts(out, "],\"first_id\":");
    json_put_string(out, ids[0], strlen(ids[0]));
    buf_puts(out, ",\"last_id\":");
    json_put_string(out, ids[1], strlen(ids[1]));
    buf_printf(out, ",\"has_more\":%s}", end < n ? "true" : "false");
    return ok;
}

static int put_input_items(struct http_conn *c, const struct stored *at, struct buf *out, struct api_error *e)
{
    struct responses_store *store = server_of(c)->responses;
    struct responses_turn *turn = NULL;
    json_t *items = NULL;
    char after[80];
    size_t limit;
    bool ascending;
    rd_status st;

    if (read_page(c, &ascending, &limit, after, sizeof(after), e)) return -1;
    st = responses_store_turn(store, at->key, false, &turn);
    if (st != RD_OK) return store_error(at->id, st, e);
    st = responses_turn_items(turn, false, &items);
    if (st == RD_OK && !put_page(items, ascending, limit, after, out)) st = RD_E_NOMEM;
    responses_turn_release(store, turn);
    json_decref(items);
    return st == RD_OK ? 0 : store_error(at->id, st, e);
}

/* ?stream=true&starting_after=N: *n_skip events are not wanted. */
static int read_stream(const struct http_conn *c, bool *stream, uint64_t *n_skip, struct api_error *e)
{
    char text[24], *end;

    *n_skip = 0;
    *stream = c->head.method == HTTP_GET && query_value(c, "stream", text, sizeof(text)) &&
              strcmp(text, "false") != 0 && strcmp(text, "False") != 0;
    if (!query_value(c, "starting_after", text, sizeof(text))) return 0;
    *n_skip = strtoull(text, &end, 10);
    if (*end || end == text || *text == '-' || *n_skip > UINT32_MAX)
        return api_error_set(e, 400, "starting_after", "starting_after: a sequence_number wanted");
    *n_skip += 1;
    return 0;
}

size_t weigh_stored(const struct http_conn *c)
{
    struct api_error e;
    struct stored at;
    uint64_t n_skip;
    bool stream = false;

    split_path(c, &at);
    (void)read_stream(c, &stream, &n_skip, &e);
    return stream ? 0 : responses_store_size(server_of(c)->responses, at.key);
}

void route_response(struct http_conn *c)
{
    struct responses_store *store = server_of(c)->responses;
    struct buf body = {0};
    struct api_error e;
    struct stored at;
    uint64_t n_skip;
    bool stream = false;
    rd_status st;
    int rc;

    split_path(c, &at);
    rc = read_stream(c, &stream, &n_skip, &e);
    if (strcmp(at.rest, "/input_items") == 0) {
        stream = false;
        rc = put_input_items(c, &at, &body, &e);
    } else if (*at.rest) {
        rc = no_endpoint(&e);
    } else {
        if (rc == 0) {
            st = stream ? responses_follow(c, at.key, n_skip) : responses_store_get(store, at.key, &body);
            if (st != RD_OK) rc = store_error(at.id, st, &e);
        }
    }
    if (rc)
        http_reply_error(c, &e);
    else if (!stream)
        http_reply_json(c, &body);
    buf_deinit(&body);
}

void route_response_delete(struct http_conn *c)
{
    struct buf body = {0};
    struct api_error e;
    struct stored at;
    rd_status st;

    split_path(c, &at);
    st = *at.rest ? RD_E_NOT_FOUND : responses_store_remove(server_of(c)->responses, at.key);
    if (st == RD_OK) {
        buf_printf(&body, "{\"id\":\"%s\",\"object\":\"response\",\"deleted\":true}", at.id);
        http_reply_json(c, &body);
        buf_deinit(&body);
        return;
    }
    store_error(at.id, st, &e);
    http_reply_error(c, &e);
}

/* The response with status cancelled. */
static int put_cancelled(json_t *response, struct buf *out, struct api_error *e)
{
    char *text = NULL;

    if (json_object_set_new(response, "status", json_string("cancelled")) == 0)
        text = json_dumps(response, JSON_COMPACT);
    if (text) buf_puts(out, text);
    mem_free(text);
    return text && !out->failed ? 0 : api_error_set(e, 503, NULL, "out of memory");
}

/* Its JSON as it is after cancelling into out. */
static int cancel(struct responses_store *store, const struct stored *at, struct buf *out, struct api_error *e)
{
    json_t *response = NULL;
    const char *status;
    rd_status st = responses_store_get(store, at->key, out);
    int rc = 0;

    if (st == RD_OK) response = json_loadb(out->data, out->n, JSON_ALLOW_NUL, NULL);
    if (st == RD_OK && !response) st = RD_E_NOMEM;
    if (st != RD_OK) return store_error(at->id, st, e);
    status = json_string_value(json_object_get(response, "status"));
    if (strcmp(status, "queued") == 0 || strcmp(status, "in_progress") == 0) {
        buf_clear(out);
        rc = put_cancelled(response, out, e);
        if (rc == 0) st = responses_store_cancel(store, at->key, out);
        if (st == RD_E_INVALID) { /* it ended just now */
            buf_clear(out);
            st = responses_store_get(store, at->key, out);
        }
        if (st != RD_OK) rc = store_error(at->id, st, e);
    } else if (!json_is_true(json_object_get(response, "background"))) {
        rc = api_error_set(e, 400, "response_id", "Cannot cancel a response that is complete");
    }
    json_decref(response);
    return rc;
}

void route_response_cancel(struct http_conn *c)
{
    struct buf body = {0};
    struct api_error e;
    struct stored at;
    int rc;

    split_path(c, &at);
    rc = strcmp(at.rest, "/cancel") == 0 ? cancel(server_of(c)->responses, &at, &body, &e) : no_endpoint(&e);
    if (rc == 0)
        http_reply_json(c, &body);
    else
        http_reply_error(c, &e);
    buf_deinit(&body);
}
