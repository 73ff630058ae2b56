/* tests/rooms/toy_endpoint.c - POST /toy: {"text", "stream"} -> {"toy": what the model writes behind the text}, or lines of
 * its pieces. All that an endpoint with a shape of its own takes, beside its row. */
#include "server/dialects/foreign.h"
#include "server/dialects/generation.h"
#include "server/dialects/request_body.h"
#include "server/params/json_out.h"
#include "server/routes/routes.h"

static void toy_delta(struct generation *g, struct choice *c, const struct rd_delta *d, struct buf *out)
{
    if (g->streaming)
        buf_printf(out, "%.*s\n", (int)d->text_bytes, d->text);
    else
        buf_append(&c->text, d->text, d->text_bytes);
}

static void toy_finish(struct generation *g, struct choice *c, struct buf *out)
{
    if (g->streaming) buf_printf(out, "%u tokens\n", c->usage.n_generated);
}

static void toy_whole(struct generation *g, struct buf *out)
{
    const struct buf *text = &g->choices[0].text;

    buf_puts(out, "{\"toy\":");
    json_put_string(out, text->n ? text->data : "", text->n);
    buf_puts(out, "}");
}

static const struct response_shape toy_shape = {
    .id_prefix = "toy_", .media = "text/plain", .delta = toy_delta, .finish = toy_finish, .whole = toy_whole};

static int read_body(struct http_conn *c, const json_t *body, struct gen_params *p, struct api_error *e)
{
    json_t *text = json_object_get(body, "text"), *as_text;
    int rc;

    if (!json_is_string(text)) return api_error_set(e, 400, "text", "text: a string wanted");
    as_text = json_pack("{s:O, s:i, s:i, s:b, s:b}", "prompt", text, "max_tokens", 8, "temperature", 0, "ignore_eos", 1,
                        "stream", json_is_true(json_object_get(body, "stream")));
    rc = as_text ? gen_params_parse(as_text, served_of(c), false, p, e) : foreign_no_memory(e);
    json_decref(as_text);
    return rc;
}

void route_toy(struct http_conn *c)
{
    struct gen_params p = {0};
    json_t *body = NULL;
    struct api_error e;
    int rc = request_json(c, &body, &e);

    if (rc == 0) rc = read_body(c, body, &p, &e);
    json_decref(body);
    if (rc == 0) {
        generation_start(c, &toy_shape, &p, NULL);
        return;
    }
    gen_params_deinit(&p);
    http_reply_error(c, &e);
}
