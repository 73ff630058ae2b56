/* server/routes/routes.c - the rows, and the service made of them. */
#include "server/routes/routes.h"
#include <string.h>
#include "server/http/http_guard.h"
#include "server/http/offload.h"
#include "server/routes/model_gate.h"

#define TEXT (4u << 20) /* bodies of endpoints that work on texts alone */

static const struct route routes[] = {
#define ROUTE(method, path, name, dialect, params, most, size, who, title)                                             \
    {HTTP_##method, #method, path, route_##name, &dialect_##dialect, params, most, weigh_##size, who, title},
#include "server/routes/route_list.h"
#undef ROUTE
};
#define N_ROUTES (sizeof(routes) / sizeof(routes[0]))

/* What is not the path of any row belongs to an API all the same. */
static const struct {
    const char *prefix;
    const struct dialect *dialect;
} families[] = {{"/v1/messages", &dialect_anthropic}, {"/api/", &dialect_ollama}};

const struct route *route_table(size_t *n)
{
    *n = N_ROUTES;
    return routes;
}

/* The path as clients mean it whose base URL ends in "/", or has a "/v1" more than their library wants. In place. */
static void tidy(char *path)
{
    size_t n = strlen(path);

    while (strncmp(path, "/v1/v1/", 7) == 0) {
        memmove(path, path + 3, n - 2);
        n -= 3;
    }
    while (n > 1 && path[n - 1] == '/') path[--n] = 0;
}

static bool path_matches(const struct route *r, const char *path)
{
    size_t n = strlen(r->path);

    if (n > 1 && r->path[n - 1] == '/') return strncmp(path, r->path, n) == 0 && path[n] != 0;
    return strcmp(path, r->path) == 0;
}

/* The methods of a path that has no row of this one: a bit each for GET, POST and DELETE. */
static void tell_methods(unsigned methods, struct http_target *t)
{
#define ALLOW(list)                                                                                                    \
    {                                                                                                                  \
        list, "Allow: " list "\r\n"                                                                                    \
    }
    static const struct {
        const char *methods, *line;
    } of[8] = {[1] = ALLOW("GET, HEAD, OPTIONS"),
               [2] = ALLOW("POST, OPTIONS"),
               [3] = ALLOW("GET, HEAD, POST, OPTIONS"),
               [4] = ALLOW("DELETE, OPTIONS"),
               [5] = ALLOW("GET, HEAD, DELETE, OPTIONS"),
               [6] = ALLOW("POST, DELETE, OPTIONS"),
               [7] = ALLOW("GET, HEAD, POST, DELETE, OPTIONS")};
#undef ALLOW

    t->allow = of[methods].methods;
    t->allow_line = of[methods].line;
}

static void on_head(enum http_method method, char *path, struct http_target *t)
{
    unsigned methods = 0;

    memset(t, 0, sizeof(*t));
    tidy(path);
    for (size_t i = 0; i < N_ROUTES; i++) {
        const struct route *r = &routes[i];

        if (!path_matches(r, path)) continue;
        if (r->method != method && !(r->method == HTTP_GET && method == HTTP_HEAD)) {
            methods |= r->method == HTTP_GET ? 1u : r->method == HTTP_POST ? 2u : 4u;
            continue;
        }
        *t = (struct http_target){.route = r,
                                  .max_body = r->max_body,
                                  .is_public = r->who == FOR_ALL || r->who == AT_DOOR,
                                  .while_loading = r->who == FOR_ALL || r->who == AT_DOOR,
                                  .is_quick = r->method == HTTP_GET,
                                  .at_door = r->who == AT_DOOR};
        return;
    }
    if (methods) tell_methods(methods, t);
}

static void serve(struct http_conn *c)
{
    const struct route *r = route_of(c);

    if (!c->job && offload_if(c, r->weigh(c))) return;
    r->handle(c);
}

static void on_request(struct http_conn *c)
{
    struct model_gate *gate = server_of(c)->gate;

    if (gate && route_of(c)->who == WITH_KEY)
        model_gate_pass(gate, c, serve);
    else
        serve(c);
}

static int put_error(const struct http_conn *c, const struct api_error *e, struct buf *out)
{
    const struct dialect *d = c->target.route ? route_of(c)->dialect : &dialect_openai;

    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]) && !c->target.route && c->head.path; i++)
        if (strncmp(c->head.path, families[i].prefix, strlen(families[i].prefix)) == 0) d = families[i].dialect;
    d->put_error(e, out);
    return d->status(e);
}

static bool is_busy(void *arg)
{
    struct server *s = arg;
    rd_engine *engine = model_gate_hold(s->gate, s);
    bool is = engine && rd_is_busy(engine);

    if (engine) model_gate_release(s->gate);
    return is;
}

const struct http_service route_service = {on_head, on_request, put_error, is_busy};

const char *route_rest(const struct http_conn *c)
{
    return c->head.path + strlen(route_of(c)->path);
}

bool route_for_owner(struct http_conn *c, const char *what)
{
    struct api_error e;

    if (c->is_admin && !http_from_elsewhere(c)) return true;
    if (!c->is_admin)
        api_error_set(
            &e, 403, NULL,
            "%s for whoever runs the server: only its own key (--api-key), or the admin's, if it has one, may do this",
            what);
    else
        api_error_set(&e, 403, NULL, "%s not for pages of other origins", what);
    http_reply_error(c, &e);
    return false;
}

void route_list_parameters(struct buf *out)
{
    struct param_endpoint endpoints[N_ROUTES];

    for (size_t i = 0; i < N_ROUTES; i++)
        endpoints[i] = (struct param_endpoint){routes[i].params, routes[i].method_name, routes[i].path};
    params_list(endpoints, N_ROUTES, out);
}

size_t weigh_wait(const struct http_conn *c)
{
    (void)c;
    return OFFLOAD_BYTES + 1;
}

size_t weigh_light(const struct http_conn *c)
{
    (void)c;
    return 0;
}

size_t weigh_body(const struct http_conn *c)
{
    return c->body.n;
}

bool route_body_has(const struct http_conn *c, const char *text)
{
    return c->body.n && memmem(c->body.data, c->body.n, text, strlen(text));
}

/* All forms of images have one of the words, which JSON may spell by escapes. */
size_t weigh_images(const struct http_conn *c)
{
    bool may_have = route_body_has(c, "image") || route_body_has(c, "video") || route_body_has(c, "\\u");

    return c->body.n + (may_have ? OFFLOAD_BYTES : 0);
}
