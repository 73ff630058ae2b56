/* server/routes/tokenize.c - POST /tokenize: llama-server's fields (content, add_special, parse_special, with_pieces)
 * and vLLM's (prompt or messages, add_special_tokens, return_token_strs); the answer is the union.
 */
#include <string.h>
#include "base/mem.h"
#include "server/json_out.h"
#include "server/params.h"
#include "server/routes.h"

struct tokenize_request {
    bool add_special, parse_special, with_pieces, with_strings;
    char *text;                          /* rd_free or mem_free: the library's heap is the same facade */
    size_t n_text;
    enum rd_prompt_end end;
};

static int read_text(const rd_engine *engine, const json_t *body, struct tokenize_request *r, struct api_error *e)
{
    const json_t *content = json_object_get(body, "content");
    struct gen_params p = {.thinking_tokens = -1};
    struct rd_error err = {RD_OK, ""};
    rd_status st = RD_OK;
    int rc;

    if (!content) content = json_object_get(body, "prompt");
    if (json_is_string(content)) {
        r->n_text = json_string_length(content);
        r->text = mem_memdup(json_string_value(content), r->n_text);
        return r->text ? 0 : api_error_set(e, 503, NULL, "out of memory");
    }
    if (content) return api_error_set(e, 400, "content", "content: a string wanted");
    if (!json_object_get(body, "messages"))
        return api_error_set(e, 400, "content", "content (or prompt, or messages): missing");
    rc = param_messages(body, &p.messages, e);
    if (rc == 0) rc = param_tools(body, &p, e);
    if (rc == 0) rc = param_template_kwargs(body, &p, e);
    if (rc == 0)
        st = rd_apply_template(engine, p.messages, p.tools, p.kwargs, r->end, &r->text, &r->n_text, &err);
    gen_params_deinit(&p);
    if (st == RD_OK) return rc;
    api_error_from_status(e, st, err.text);
    return -1;
}

static int read_request(const rd_engine *engine, const json_t *body, struct tokenize_request *r, struct api_error *e)
{
    const bool vllm = json_object_get(body, "prompt") || json_object_get(body, "messages");

    /* each server's own defaults, told apart by the field that holds the text */
    r->add_special = json_object_get(body, "prompt") != NULL;
    r->parse_special = true;
    r->end = RD_PROMPT_AUTO;
    if (param_bool(body, "add_special", &r->add_special, e) ||
        param_bool(body, "add_special_tokens", &r->add_special, e) ||
        param_bool(body, "parse_special", &r->parse_special, e) ||
        param_bool(body, "with_pieces", &r->with_pieces, e) ||
        param_bool(body, "return_token_strs", &r->with_strings, e) ||
        (vllm && param_prompt_end(body, &r->end, e)))
        return -1;
    return read_text(engine, body, r, e);
}

static void put_piece(const rd_engine *engine, int32_t id, struct buf *out)
{
    size_t n = 0;
    const char *s = rd_token_bytes(engine, id, &n);

    json_put_string(out, s, n);
}

static void put_answer(const struct server *s, const struct tokenize_request *r, const int32_t *ids, uint32_t n,
                       struct buf *out)
{
    buf_printf(out, "{\"count\":%u,\"max_model_len\":%u,\"tokens\":[", n, s->info.n_ctx);
    for (uint32_t i = 0; i < n; i++) {
        if (i) buf_putc(out, ',');
        buf_printf(out, r->with_pieces ? "{\"id\":%d,\"piece\":" : "%d", ids[i]);
        if (!r->with_pieces) continue;
        put_piece(s->engine, ids[i], out);
        buf_putc(out, '}');
    }
    buf_puts(out, "],\"token_strs\":");
    buf_puts(out, r->with_strings ? "[" : "null");
    for (uint32_t i = 0; i < n && r->with_strings; i++) {
        if (i) buf_putc(out, ',');
        put_piece(s->engine, ids[i], out);
    }
    buf_puts(out, r->with_strings ? "]}" : "}");
}

void route_tokenize(struct http_conn *c)
{
    const struct server *s = c->io->server;
    struct tokenize_request r = {0};
    struct rd_error err = {RD_OK, ""};
    struct buf body = {0};
    struct api_error e;
    json_t *in = NULL;
    int32_t *ids = NULL;
    uint32_t n = 0;
    rd_status st;

    if (json_body_parse(&c->body, &in, &e) || read_request(s->engine, in, &r, &e)) {
        http_reply_error(c, &e);
        goto done;
    }
    st = rd_tokenize(s->engine, r.text, r.n_text, r.add_special, r.parse_special, &ids, &n, &err);
    if (st != RD_OK) {
        api_error_from_status(&e, st, err.text);
        http_reply_error(c, &e);
        goto done;
    }
    put_answer(s, &r, ids, n, &body);
    http_reply_json(c, &body);
done:
    rd_free(ids);
    rd_free(r.text);
    buf_deinit(&body);
    json_decref(in);
}
