/* server/routes/detokenize.c - POST /detokenize: {tokens} -> the text as both `content` (llama-server) and `prompt`
 * (vLLM). */
#include "base/mem.h"
#include "server/params/json_out.h"
#include "server/dialects/request_body.h"
#include "server/routes/routes.h"

#define TEXT_BYTES 32u /* three times the text of a token of two characters, if it is long */

/* A token is written in 2 bytes, and its text may be long. */
size_t weigh_detokenize(const struct http_conn *c)
{
    return 16 * c->body.n;
}

void route_detokenize(struct http_conn *c)
{
    struct rd_error err = {RD_OK, ""};
    struct buf body = {0};
    struct api_error e;
    json_t *in = NULL;
    int32_t *ids = NULL;
    uint32_t n = 0;
    char *text = NULL;
    size_t n_text = 0;
    struct gen_params p;
    int rc;

    gen_params_init(&p, false);
    rc = request_reserve(c, TEXT_BYTES * (uint64_t)c->body.n, &e);
    if (rc == 0) rc = request_body(c, route_of(c)->params, &p, &in, &e);
    if (rc == 0) rc = param_tokens("tokens", json_object_get(in, "tokens"), &ids, &n, &e);
    if (rc == 0) {
        rd_status st = rd_detokenize(served_of(c)->engine, ids, n, p.special, &text, &n_text, &err);

        if (st != RD_OK) {
            api_error_from_status(&e, st, err.text);
            rc = -1;
        }
    }
    if (rc == 0) {
        buf_puts(&body, "{\"content\":");
        json_put_string(&body, text, n_text);
        buf_puts(&body, ",\"prompt\":");
        json_put_string(&body, text, n_text);
        buf_puts(&body, "}");
        http_reply_json(c, &body);
    } else {
        http_reply_error(c, &e);
    }
    rd_free(text);
    mem_free(ids);
    gen_params_deinit(&p);
    buf_deinit(&body);
    json_decref(in);
}
