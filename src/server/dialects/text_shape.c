/* server/dialects/text_shape.c - a legacy completion: text, echo, logprobs as four lists. */
#include <string.h>
#include "base/utf8.h"
#include "server/dialects/answer_parts.h"
#include "server/dialects/chunks.h"
#include "server/dialects/shapes.h"
#include "server/params/json_out.h"

/* A token as a JSON string. One that holds part of a UTF-8 sequence is written "bytes:\xe2\x80", so that keys stay
 * distinct. */
static void put_token(const struct generation *g, int32_t token, struct buf *out)
{
    size_t n = 0;
    const char *s = rd_token_bytes(g->served->engine, token, &n);

    if (utf8_valid(s, n)) {
        json_put_string(out, s, n);
        return;
    }
    buf_puts(out, "\"bytes:");
    for (size_t i = 0; i < n; i++) buf_printf(out, "\\\\x%02x", (unsigned)(unsigned char)s[i]);
    buf_puts(out, "\"");
}

static uint32_t code_points_begun(const char *s, size_t n)
{
    uint32_t count = 0;

    for (size_t i = 0; i < n; i++) count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count;
}

/* A token's row of the four lists. logprob NULL: the prompt's first token has none. advance: it is part of the text. */
static void add_token(struct generation *g, struct choice *c, const struct rd_logprob *own,
                      const struct rd_logprob *top, uint32_t n_top, bool first, bool advance)
{
    const char *comma = c->logprobs.n ? "," : "";
    bool own_in_top = false;
    size_t n = 0;
    const char *s = rd_token_bytes(g->served->engine, own->token, &n);

    buf_puts(&c->lp_tokens, comma);
    put_token(g, own->token, &c->lp_tokens);
    buf_printf(&c->lp_offsets, "%s%u", comma, c->offset);
    if (advance) c->offset += code_points_begun(s, n);
    buf_puts(&c->logprobs, comma);
    buf_puts(&c->lp_top, comma);
    if (first) {
        buf_puts(&c->logprobs, "null");
        buf_puts(&c->lp_top, "null");
        return;
    }
    json_put_number(&c->logprobs, (double)own->logprob);
    buf_puts(&c->lp_top, "{");
    for (uint32_t i = 0; i < n_top; i++) {
        own_in_top |= top[i].token == own->token;
        buf_puts(&c->lp_top, i ? "," : "");
        put_token(g, top[i].token, &c->lp_top);
        buf_puts(&c->lp_top, ":");
        json_put_number(&c->lp_top, (double)top[i].logprob);
    }
    if (!own_in_top) { /* OpenAI: the drawn token is always there */
        buf_puts(&c->lp_top, n_top ? "," : "");
        put_token(g, own->token, &c->lp_top);
        buf_puts(&c->lp_top, ":");
        json_put_number(&c->lp_top, (double)own->logprob);
    }
    buf_puts(&c->lp_top, "}");
}

static void collect_prompt(struct generation *g, struct choice *c)
{
    const struct prompt *prompt = &g->p.prompts[c->prompt_index];
    const struct rd_logprob *top, *own;
    const int32_t *ids;
    uint32_t n, n_ids, n_top = (uint32_t)g->p.top_logprobs;

    own = rd_request_prompt_logprobs(c->request, &top, &n);
    ids = rd_request_prompt(c->request, &n_ids);
    for (uint32_t i = 0; own && i < n && i < n_ids; i++) {
        struct rd_logprob entry = {ids[i], own[i].logprob};
        bool added_bos = i == 0 && prompt->text && ids[0] == g->served->info.bos; /* not part of the echoed text */

        add_token(g, c, &entry, top ? top + (size_t)i * generation_n_top(g) : NULL, top ? n_top : 0, i == 0,
                  !added_bos);
    }
}

static void text_collect(struct generation *g, struct choice *c, const struct rd_event *ev)
{
    struct rd_logprob own;
    uint32_t n_top;

    if (!ev) {
        collect_prompt(g, c);
        return;
    }
    own = (struct rd_logprob){ev->token, ev->logprob};
    n_top = ev->n_top < (uint32_t)g->p.top_logprobs ? ev->n_top : (uint32_t)g->p.top_logprobs;
    add_token(g, c, &own, ev->top, n_top, false, true);
}

static void put_list(const char *before, const struct buf *list, struct buf *out)
{
    buf_puts(out, before);
    if (list->n) buf_append(out, list->data, list->n);
    if (list->failed) out->failed = true;
}

static void put_logprobs(const struct generation *g, const struct choice *c, struct buf *out)
{
    buf_puts(out, ",\"logprobs\":");
    if (!g->p.logprobs) {
        buf_puts(out, "null");
        return;
    }
    put_list("{\"tokens\":[", &c->lp_tokens, out);
    put_list("],\"token_logprobs\":[", &c->logprobs, out);
    put_list("],\"top_logprobs\":[", &c->lp_top, out);
    put_list("],\"text_offset\":[", &c->lp_offsets, out);
    buf_puts(out, "]}");
}

static void put_text(const struct generation *g, const struct choice *c, const char *text, size_t n, struct buf *out)
{
    buf_puts(out, "\"text\":");
    json_put_string(out, text, n);
    put_logprobs(g, c, out);
}

static void text_put_delta(struct generation *g, struct choice *c, const struct rd_delta *d, struct buf *out)
{
    put_text(g, c, d->text, d->text_bytes, out);
    buf_puts(out, ",\"finish_reason\":null");
}

static bool text_put_open(struct generation *g, struct choice *c, struct buf *out)
{
    struct buf prompt = {0};
    struct rd_delta all = {.type = RD_DELTA_CONTENT};

    if (!g->p.echo) return false;
    answer_put_prompt(g, c, &prompt);
    if (g->p.logprobs) collect_prompt(g, c);
    all.text = prompt.n ? prompt.data : "";
    all.text_bytes = prompt.n;
    text_put_delta(g, c, &all, out);
    if (prompt.failed) out->failed = true;
    buf_deinit(&prompt);
    return true;
}

static void put_end(const struct choice *c, struct buf *out)
{
    buf_printf(out, ",\"finish_reason\":\"%s\",", answer_finish_text(c));
    answer_put_stop_reason(c, out);
}

static void text_put_finish(struct generation *g, struct choice *c, struct buf *out)
{
    buf_puts(out, "\"text\":\"\",\"logprobs\":null");
    put_end(c, out);
}

static void text_put_whole(struct generation *g, struct choice *c, struct buf *out)
{
    put_text(g, c, c->text.n ? c->text.data : "", c->text.n, out);
    put_end(c, out);
    answer_put_prompt_logprobs(g, c, out);
}

static const struct chunk_form text_chunks = {.object = "text_completion",
                                              .chunk_object = "text_completion",
                                              .put_open = text_put_open,
                                              .put_delta = text_put_delta,
                                              .put_finish = text_put_finish,
                                              .put_whole = text_put_whole};
const struct response_shape text_shape = {.id_prefix = "cmpl-", .collect = text_collect, CHUNKS(&text_chunks)};
