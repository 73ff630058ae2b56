/* server/request_body.c - JSON, the table, and what the table does not know. */
#include "server/request_body.h"
#include "server/odd_fields.h"

int request_body(struct http_conn *c, unsigned endpoint, struct gen_params *p, json_t **out, struct api_error *e)
{
    json_t *body = NULL;
    int rc = json_body_parse(&c->body, &body, e);

    *out = NULL;
    buf_deinit(&c->body);                                   /* a long generation need not keep it */
    if (rc) return -1;
    buf_clear(&c->ignored);
    params_ignored(body, endpoint, &c->ignored);
    if (params_read(body, endpoint, p, e)) {
        json_decref(body);
        return -1;
    }
    odd_fields(body, endpoint, &c->ignored);
    *out = body;
    return 0;
}
