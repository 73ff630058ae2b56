/* server/routes/tokenize.c - POST /tokenize: llama-server's fields (content, add_special, parse_special, with_pieces)
 * and vLLM's (prompt or messages, add_special_tokens, return_token_strs); the answer is the union.
 */
#include "base/mem.h"
#include "base/utf8.h"
#include "server/params/json_out.h"
#include "server/dialects/prompt_only.h"
#include "server/dialects/request_body.h"
#include "server/routes/routes.h"

#define ID_BYTES    16u /* of an id, and where it is written */
#define PIECE_BYTES 32u /* of {"id":12345,"piece":"word"}, with room for the buffer to grow */

/* Messages: the prompt that a chat would have, a token of the vocabulary for each row of an image. 1: there are none. */
static int read_messages(const struct http_conn *c, const json_t *body, struct gen_params *p, int32_t **ids,
                         uint32_t *n, struct api_error *e)
{
    const int32_t row = rd_image_token(served_of(c)->engine);

    if (!json_is_array(json_object_get(body, "messages")) || json_is_string(json_object_get(body, "content")) ||
        json_is_string(json_object_get(body, "prompt")))
        return 1;
    p->messages_special = p->has_parse_special && p->parse_special;
    if (gen_params_rendering(body, p, e)) return -1;
    if (prompt_only_tokens(c, p, ids, n, e)) return -1;
    for (uint32_t t = 0; t < *n; t++)
        if ((*ids)[t] < 0) (*ids)[t] = row;
    return 0;
}

/* The text, borrowed. */
static int read_text(const json_t *body, const char **text, size_t *n, struct api_error *e)
{
    const json_t *content = json_object_get(body, "content");

    if (!json_is_string(content)) content = json_object_get(body, "prompt");
    if (!json_is_string(content)) return api_error_set(e, 400, "content", "content (or prompt, or messages): missing");
    *n = json_string_length(content);
    *text = json_string_value(content);
    return 0;
}

/* bytes: a piece that is no valid UTF-8 as a list of its bytes (llama-server); else with U+FFFD (vLLM). */
static void put_piece(const rd_engine *engine, int32_t id, bool bytes, struct buf *out)
{
    size_t n = 0;
    const char *s = rd_token_bytes(engine, id, &n);

    if (!bytes || utf8_valid(s, n)) {
        json_put_string(out, s, n);
        return;
    }
    for (size_t i = 0; i < n; i++) buf_printf(out, "%s%u", i ? "," : "[", (unsigned)(unsigned char)s[i]);
    buf_putc(out, ']');
}

static void put_answer(const struct served_model *s, const struct gen_params *p, const int32_t *ids, uint32_t n,
                       struct buf *out)
{
    buf_printf(out, "{\"count\":%u,\"max_model_len\":%u,\"tokens\":[", n, s->info.n_ctx);
    for (uint32_t i = 0; i < n; i++) {
        if (i) buf_putc(out, ',');
        buf_printf(out, p->with_pieces ? "{\"id\":%d,\"piece\":" : "%d", ids[i]);
        if (!p->with_pieces) continue;
        put_piece(s->engine, ids[i], true, out);
        buf_putc(out, '}');
    }
    buf_puts(out, "],\"token_strs\":");
    buf_puts(out, p->with_strings ? "[" : "null");
    for (uint32_t i = 0; i < n && p->with_strings; i++) {
        if (i) buf_putc(out, ',');
        put_piece(s->engine, ids[i], false, out);
    }
    buf_puts(out, p->with_strings ? "]}" : "}");
}

/* With pieces the answer is that much longer. */
size_t weigh_tokenize(const struct http_conn *c)
{
    return 8 * weigh_images(c);
}

void route_tokenize(struct http_conn *c)
{
    const struct served_model *s = served_of(c);
    struct rd_error err = {RD_OK, ""};
    struct gen_params p;
    struct buf body = {0};
    struct api_error e;
    json_t *in = NULL;
    const char *text = NULL;
    size_t n_text = 0;
    int32_t *ids = NULL;
    uint32_t n = 0;
    rd_status st = RD_OK;
    int rc;

    gen_params_init(&p, true);
    rc = request_reserve_texts(c, &e) || request_body(c, route_of(c)->params, &p, &in, &e) ? -1 : 1;
    if (rc == 1) rc = read_messages(c, in, &p, &ids, &n, &e);
    if (rc < 0 || (rc == 1 && read_text(in, &text, &n_text, &e))) {
        http_reply_error(c, &e);
        goto done;
    }
    if (!p.has_add_special)
        p.add_special = json_is_string(json_object_get(in, "prompt")); /* as vLLM, whose field it is */
    if (rc == 1) st = rd_tokenize(s->engine, text, n_text, p.add_special, p.parse_special, &ids, &n, &err);
    if (st != RD_OK) {
        api_error_from_status(&e, st, err.text);
        http_reply_error(c, &e);
        goto done;
    }
    if (request_reserve(
            c, n * (uint64_t)(ID_BYTES + (p.with_pieces ? PIECE_BYTES : 0) + (p.with_strings ? PIECE_BYTES : 0)), &e)) {
        http_reply_error(c, &e);
        goto done;
    }
    put_answer(s, &p, ids, n, &body);
    http_reply_json(c, &body);
done:
    rd_free(ids);
    gen_params_deinit(&p);
    buf_deinit(&body);
    json_decref(in);
}
