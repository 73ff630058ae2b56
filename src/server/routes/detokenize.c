/* server/routes/detokenize.c - POST /detokenize: {tokens} -> the text as both `content` (llama-server) and `prompt`
 * (vLLM). */
#include "base/mem.h"
#include "server/json_out.h"
#include "server/params.h"
#include "server/routes.h"

static int read_tokens(const json_t *in, int32_t **ids, uint32_t *n, bool *special, struct api_error *e)
{
    const json_t *list = json_object_get(in, "tokens");

    if (!json_is_array(list)) return api_error_set(e, 400, "tokens", "tokens: a list of token ids wanted");
    if (param_bool(in, "special", special, e)) return -1;
    return param_tokens("tokens", list, ids, n, e);
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
    bool special = true;
    int rc = json_body_parse(&c->body, &in, &e);

    if (rc == 0) rc = read_tokens(in, &ids, &n, &special, &e);
    if (rc == 0) {
        rd_status st = rd_detokenize(c->io->server->engine, ids, n, special, &text, &n_text, &err);

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
    buf_deinit(&body);
    json_decref(in);
}
