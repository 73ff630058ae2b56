/* server/dialects/request_body.c - JSON, the table, and what the table does not know. */
#include "server/dialects/request_body.h"
#include <stdbool.h>
#include "server/dialects/server_state.h"
#include "server/params/odd_fields.h"

static int read_body(struct http_conn *c, int (*parse)(const struct buf *, json_t **, struct api_error *), json_t **out,
                     struct api_error *e)
{
    struct json_size size;
    int rc = json_body_check(&c->body, &size, e);

    *out = NULL;
    /* a translation makes the values a second time, and the text is written from them; the parser has its longest
     * string twice */
    if (rc == 0) rc = client_charge_set(&c->memory, CLIENT_TREES, 2 * size.n_tree + size.n_text + size.n_longest, e);
    if (rc == 0) rc = parse(&c->body, out, e);
    buf_deinit(&c->body); /* a long generation need not keep it */
    client_charge_force(&c->memory, CLIENT_BODIES, 0);
    if (rc == 0) rc = client_charge_set(&c->memory, CLIENT_TREES, 2 * size.n_tree + 2 * size.n_text, e);
    if (rc == 0) return 0;
    json_decref(*out);
    *out = NULL;
    return -1;
}

int request_json(struct http_conn *c, json_t **out, struct api_error *e)
{
    return read_body(c, json_body_tree, out, e);
}

int request_value(struct http_conn *c, json_t **out, struct api_error *e)
{
    return read_body(c, json_body_value, out, e);
}

#define TEXT_COST    10u /* for each byte, */
#define STRETCH_COST 38u /* and for each of the longest stretch */

/* Longest stretch so far, and the one that is open. */
struct stretch {
    size_t longest, open;
};

static void add_text(struct stretch *x, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool blank = s[i] == ' ' || s[i] == '\n' || (s[i] == '\\' && i + 1 < n && s[i + 1] == 'n');

        x->open = blank ? 0 : x->open + 1;
        if (x->open > x->longest) x->longest = x->open;
    }
}

static uint64_t cost(size_t n, const struct stretch *x)
{
    return TEXT_COST * (uint64_t)n + STRETCH_COST * (uint64_t)x->longest;
}

uint64_t request_text_cost(const char *s, size_t n)
{
    struct stretch x = {0, 0};

    add_text(&x, s, n);
    return cost(n, &x);
}

uint64_t request_json_cost(const char *s, size_t n)
{
    struct stretch x = {0, 0};

    for (size_t i = 0; i < n; i++) {
        struct stretch before = x;
        size_t begin = i + 1;

        if (s[i] != '"') continue;
        for (i++; i < n && s[i] != '"'; i++) i += s[i] == '\\';
        if (i > n) i = n;
        add_text(&x, s + begin, i - begin);
        if (i + 1 < n && s[i + 1] == ':') x = before; /* a name */
    }
    return cost(n, &x);
}

int request_reserve(struct http_conn *c, uint64_t n_bytes, struct api_error *e)
{
    return client_charge_set(&c->memory, CLIENT_ANSWERS, n_bytes, e);
}

int request_reserve_texts(struct http_conn *c, struct api_error *e)
{
    return request_reserve(c, request_json_cost(c->body.data, c->body.n), e);
}

int request_body(struct http_conn *c, unsigned endpoint, struct gen_params *p, json_t **out, struct api_error *e)
{
    json_t *body = NULL;

    *out = NULL;
    if (request_json(c, &body, e)) return -1;
    buf_clear(&c->ignored);
    params_ignored(body, endpoint, &c->ignored);
    if (params_read(body, endpoint, p, e)) {
        json_decref(body);
        return -1;
    }
    odd_fields(body, endpoint, served_of(c)->info.holds_calls, &c->ignored);
    *out = body;
    return 0;
}
