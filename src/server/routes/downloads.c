/* server/routes/downloads.c - models of the configured hub: GET /v1/hub/models?search= and /v1/hub/models/ORG/NAME look there,
 * /v1/downloads starts, lists and cancels.
 *
 * Whoever fetches them is given to the server (struct server_downloads). They fill the disk of the machine and use its
 * network: only for whoever runs it.
 */
#include <stdlib.h>
#include <string.h>
#include "base/checked.h"
#include "base/log.h"
#include "base/utf8.h"
#include "server/dialects/request_body.h"
#include "server/routes/routes.h"

enum { WORDS_BYTES = 200 };

static const struct server_downloads *downloads_of(struct http_conn *c)
{
    const struct server_downloads *d = server_of(c)->downloads;
    struct api_error e;

    if (!route_for_owner(c, "downloads are")) return NULL;
    if (d) return d;
    api_error_set(&e, 501, NULL, "this server downloads nothing");
    http_reply_error(c, &e);
    return NULL;
}

static void refuse(struct http_conn *c, rd_status st, const struct rd_error *err)
{
    struct api_error e;

    api_error_from_status(&e, st, err->text);
    if (st == RD_E_IO || st == RD_E_FORMAT)
        api_error_set(&e, 503, NULL, "the hub: %s", *err->text ? err->text : rd_status_text(st));
    http_reply_error(c, &e);
}

/* What was found, or why nothing was; frees it. */
static void finish(struct http_conn *c, rd_status st, struct buf *body, const struct rd_error *err)
{
    if (st == RD_OK)
        http_reply_json(c, body);
    else
        refuse(c, st, err);
    buf_deinit(body);
}

/* search=WORDS of the query, decoded. -1: too long, or no text. */
static int read_search(const char *query, char words[WORDS_BYTES], struct api_error *e)
{
    size_t n = 0;

    while (*query && strncmp(query, "search=", 7) != 0) query += strcspn(query, "&"), query += *query == '&';
    for (query += *query ? 7 : 0; *query && *query != '&' && n < WORDS_BYTES - 1; query++) {
        char hex[3] = {query[0] == '%' ? query[1] : 0, query[0] == '%' && query[1] ? query[2] : 0, 0}, *end = hex;
        unsigned long code = strtoul(hex, &end, 16);

        words[n] = *query == '+' ? ' ' : *query;
        if (end == hex + 2) {
            words[n] = (char)code;
            query += 2;
        }
        n++;
    }
    words[n] = 0;
    if (*query && *query != '&') return api_error_set(e, 400, "search", "search: at most %d bytes", WORDS_BYTES - 1);
    if (strlen(words) != n || utf8_valid_prefix(words, n) != n)
        return api_error_set(e, 400, "search", "search: text wanted");
    return 0;
}

void route_hub_search(struct http_conn *c)
{
    const struct server_downloads *d = downloads_of(c);
    struct rd_error err = {RD_OK, ""};
    struct buf body = {0};
    char words[WORDS_BYTES];
    struct api_error e;
    rd_status st;

    if (!d) return;
    if (read_search(c->head.query, words, &e)) {
        http_reply_error(c, &e);
        return;
    }
    buf_puts(&body, "{\"object\":\"list\",");
    st = d->search(d->user, words, &body, &err);
    buf_puts(&body, "}");
    finish(c, st, &body, &err);
}

void route_hub_look(struct http_conn *c)
{
    const struct server_downloads *d = downloads_of(c);
    struct rd_error err = {RD_OK, ""};
    struct buf body = {0};
    rd_status st;

    if (!d) return;
    buf_puts(&body, "{\"object\":\"hub.model\",");
    st = d->look(d->user, route_rest(c), &body, &err);
    buf_puts(&body, "}");
    finish(c, st, &body, &err);
}

void route_downloads(struct http_conn *c)
{
    const struct server_downloads *d = downloads_of(c);
    struct buf body = {0};

    if (!d) return;
    buf_puts(&body, "{\"object\":\"list\",");
    d->list(d->user, &body);
    buf_puts(&body, "}");
    http_reply_json(c, &body);
    buf_deinit(&body);
}

void route_download_start(struct http_conn *c)
{
    const struct server_downloads *d = downloads_of(c);
    struct rd_error err = {RD_OK, ""};
    struct buf out = {0};
    const json_t *model;
    json_t *body = NULL;
    struct api_error e;
    uint64_t id = 0;
    rd_status st = RD_OK;
    int rc;

    if (!d) return;
    rc = request_json(c, &body, &e);
    model = json_object_get(body, "model");
    if (rc == 0 && (!json_is_string(model) || strlen(json_string_value(model)) != json_string_length(model)))
        rc = api_error_set(&e, 400, "model", "model: ORG/NAME of the hub, or ORG/NAME:QUANT, wanted");
    if (rc == 0) {
        st = d->start(d->user, json_string_value(model), &id, &err);
        if (st == RD_OK)
            log_event(LOG_INFO, "download",
                      LOG_FIELDS(LOG_F_NUMBER("download", id), LOG_F_TEXT("state", "started"),
                                 LOG_F_TEXT("model", json_string_value(model)),
                                 LOG_F_TEXT("request_id", http_request_id(c))),
                      "download %llu was started by %s", (unsigned long long)id, http_request_id(c));
    }
    json_decref(body);
    buf_printf(&out, "{\"object\":\"download\",\"id\":%llu}", (unsigned long long)id);
    if (rc)
        http_reply_error(c, &e);
    else if (st != RD_OK)
        refuse(c, st, &err);
    else
        http_reply_json(c, &out);
    buf_deinit(&out);
}

void route_download_cancel(struct http_conn *c)
{
    const struct server_downloads *d = downloads_of(c);
    const char *id = d ? route_rest(c) : "";
    struct buf body = {0};
    struct api_error e;
    uint64_t n;

    if (!d) return;
    if (!parse_u64(id, strlen(id), &n) || d->cancel(d->user, n) != RD_OK) {
        api_error_set(&e, 404, "id", "no such download, or it has ended");
        http_reply_error(c, &e);
        return;
    }
    buf_printf(&body, "{\"object\":\"download.cancelled\",\"id\":%llu}", (unsigned long long)n);
    http_reply_json(c, &body);
    buf_deinit(&body);
}
