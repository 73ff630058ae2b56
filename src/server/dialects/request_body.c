/* server/dialects/request_body.c - JSON, the table, and what the table does not know. */
#include "server/dialects/request_body.h"
#include "server/dialects/prompt_cost.h"
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

int request_reserve(struct http_conn *c, uint64_t n_bytes, struct api_error *e)
{
    return client_charge_set(&c->memory, CLIENT_ANSWERS, n_bytes, e);
}

int request_reserve_texts(struct http_conn *c, struct api_error *e)
{
    return request_reserve(c, prompt_json_cost(c->body.data, c->body.n), e);
}

json_t *request_json_or_answer(struct http_conn *c, bool its_texts)
{
    json_t *body = NULL;
    struct api_error e;

    if ((its_texts && request_reserve_texts(c, &e)) || request_json(c, &body, &e)) http_reply_error(c, &e);
    return body;
}

int request_fields(struct http_conn *c, unsigned endpoint, const json_t *body, struct gen_params *p,
                   struct api_error *e)
{
    buf_clear(&c->ignored);
    params_ignored(body, endpoint, &c->ignored);
    if (params_read(body, endpoint, p, e)) return -1;
    odd_fields(body, endpoint, served_of(c)->info.holds_calls, &c->ignored);
    return 0;
}

int request_body(struct http_conn *c, unsigned endpoint, struct gen_params *p, json_t **out, struct api_error *e)
{
    json_t *body = NULL;

    *out = NULL;
    if (request_json(c, &body, e)) return -1;
    if (request_fields(c, endpoint, body, p, e)) {
        json_decref(body);
        return -1;
    }
    *out = body;
    return 0;
}
