/* server/routes/routes.h - the endpoints, and the HTTP layer's service made of them: finding the row of a path is all that
 * ever compares one.
 *
 * A new endpoint is a file with route_NAME() and a row of route_list.h; its parameters are rows of the table in params.h.
 *
 * Thread  as struct http_service says; handlers run on the io thread that owns the connection, or on a worker with a copy
 *         of it (offload.h).
 */
#pragma once
#include <jansson.h>
#include "server/dialects/dialect.h"
#include "server/dialects/server_state.h"
#include "server/http/http_conn.h"
#include "server/params/params.h"

enum route_who { WITH_KEY, NO_MODEL, FOR_ALL, AT_DOOR };

struct route {
    enum http_method method;             /* HTTP_GET also serves HEAD */
    const char *method_name, *path;      /* a path that ends in '/' (but "/" itself) also takes one further segment */
    void (*handle)(struct http_conn *c); /* answers, or leaves an owner on the connection */
    const struct dialect *dialect;
    unsigned params;                            /* enum endpoint_bits, or 0 */
    uint64_t max_body;                          /* bytes; 0: the server's limit */
    size_t (*weigh)(const struct http_conn *c); /* bytes of input and of what is made of it: many leave the io thread */
    enum route_who who;
    const char *title; /* "": it is not shown */
};

extern const struct http_service route_service;

const struct route *route_table(size_t *n);
/* The row of a connection's request. */
static inline const struct route *route_of(const struct http_conn *c)
{
    return c->target.route;
}
/* The rest of the path after the route's own. */
const char *route_rest(const struct http_conn *c);

/* The table of parameters as JSON, {"endpoints":[..],"parameters":[..]}. */
void route_list_parameters(struct buf *out);

/* The bytes are somewhere in the body, which nobody has parsed. */
bool route_body_has(const struct http_conn *c, const char *text);

/* Size classes: it waits for the disk, whatever its size; nothing; the body; with the answer; what is in the store as well;
 * the body, and images whose tokens are counted: few bytes may be many pixels. */
size_t weigh_wait(const struct http_conn *c);
size_t weigh_light(const struct http_conn *c);
size_t weigh_body(const struct http_conn *c);
size_t weigh_images(const struct http_conn *c);
size_t weigh_tokenize(const struct http_conn *c);
size_t weigh_detokenize(const struct http_conn *c);
size_t weigh_stored(const struct http_conn *c);
size_t weigh_conversation(const struct http_conn *c);

/* Whether the request comes from whoever runs the server: not under a tenant's key, nor from a page of another origin. Else
 * it is answered. what: "the settings are". */
bool route_for_owner(struct http_conn *c, const char *what);

/* A body of /v1/responses, with what went before it, as one of chat completions: the caller's. -1: *e says why not. */
int responses_chat(struct http_conn *c, const json_t *body, json_t **chat, struct api_error *e);

/* A body of any API that generates (cache.c says what tells them apart): p is filled (gen_params_deinit in any case). -1: *e
 * says why not. */
int cache_read_any(struct http_conn *c, const json_t *body, struct gen_params *p, struct api_error *e);

#define ROUTE(method, path, name, ...) void route_##name(struct http_conn *c);
#include "server/routes/route_list.h"
#undef ROUTE
