/* server/routes/messages.c - POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API.
 *
 * The answer is a list of blocks in the order in which the model wrote them: thinking, text, tool_use. As a stream each
 * block has a start, deltas and a stop; message_start waits for the first token, because its usage tells what the cache
 * gave. Source: docs.anthropic.com/en/api/messages-streaming.
 */
#include <jansson.h>
#include <string.h>
#include "base/mem.h"
#include "server/dialects/foreign.h"
#include "server/dialects/generation.h"
#include "server/params/json_out.h"
#include "server/params/params_retention.h"
#include "server/dialects/prompt_count.h"
#include "server/dialects/prompt_prints.h"
#include "server/dialects/request_body.h"
#include "server/routes/routes.h"

enum block { BLOCK_NONE, BLOCK_TEXT, BLOCK_THINKING, BLOCK_TOOL };

struct messages_state {
    enum block open;
    uint32_t n_blocks;                   /* begun */
    bool caches;                         /* the client marked what is to be cached */
    struct buf blocks;                   /* not streaming: their JSON, comma separated */
    struct buf text;                     /* not streaming: of the open block */
};

static void state_destroy(void *state)
{
    struct messages_state *s = state;

    if (!s) return;
    buf_deinit(&s->blocks);
    buf_deinit(&s->text);
    mem_free(s);
}

/* Everything computed is also kept. What clients marked for the cache counts as written to it, but for the last token,
 * which is computed anew each time; without marks it is plain input. */
static void put_usage(const struct messages_state *s, const struct rd_usage *u, struct buf *out)
{
    uint32_t fresh = u->n_prompt - u->n_cached, written = s->caches && fresh ? fresh - 1 : 0;

    buf_printf(out,
               "\"usage\":{\"input_tokens\":%u,\"cache_creation_input_tokens\":%u,\"cache_read_input_tokens\":%u,"
               "\"output_tokens\":%u,\"output_tokens_details\":{\"thinking_tokens\":%u},\"service_tier\":\"standard\"}",
               fresh - written, written, u->n_cached, u->n_generated, u->n_reasoning);
}

static void put_stop(const struct choice *c, bool ended, struct buf *out)
{
    const char *reason = c->finish == RD_FINISH_LENGTH ? "max_tokens"
                         : c->stop_string              ? "stop_sequence"
                         : c->n_calls                  ? "tool_use"
                                                       : "end_turn";

    if (!ended) {
        buf_puts(out, "\"stop_reason\":null,\"stop_sequence\":null");
        return;
    }
    buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (c->finish != RD_FINISH_LENGTH && c->stop_string) json_put_string(out, c->stop_string, strlen(c->stop_string));
    else buf_puts(out, "null");
}

static void put_message_head(const struct generation *g, struct buf *out)
{
    const char *model = g->server->info.model_id;

    buf_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", g->id);
    json_put_string(out, model, strlen(model));
    buf_puts(out, ",\"content\":[");
}

static void put_diagnostics(const struct generation *g, const struct rd_usage *u, struct buf *out)
{
    struct server *s = g->server;

    prompt_prints_put_anthropic(s->prints, g->tenant, &g->p, u, s->info.page_tokens, out);
}

static void messages_open(struct generation *g, struct choice *c, struct buf *out)
{
    struct rd_usage u = c->usage;

    u.n_generated = u.n_reasoning = 0;
    buf_puts(out, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":");
    put_message_head(g, out);
    buf_puts(out, "],");
    put_stop(c, false, out);
    buf_puts(out, ",");
    put_usage(g->state, &u, out);
    put_diagnostics(g, &u, out);
    buf_puts(out, "}}\n\n");
}

static void put_signature(const struct generation *g, const struct messages_state *s, struct buf *out)
{
    buf_printf(out, "\"signature\":\"radish-%s-%u\"", g->id, s->n_blocks - 1);
}

/* ---- blocks ---- */

static void begin_delta(const struct messages_state *s, const char *type, struct buf *out)
{
    buf_printf(out,
               "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":%u,\"delta\":{\"type\":"
               "\"%s\",",
               s->n_blocks - 1, type);
}

/* The arguments of a call that was cut are no JSON: they are delivered as the text that they are. */
static void put_input(const struct messages_state *s, struct buf *out)
{
    json_t *v = s->text.n ? json_loadb(s->text.data, s->text.n, JSON_ALLOW_NUL, NULL) : NULL;

    if (json_is_object(v)) {
        buf_append(out, s->text.data, s->text.n);
    } else if (s->text.n == 0) {
        buf_puts(out, "{}");
    } else {
        buf_puts(out, "{\"partial_json\":");
        json_put_string(out, s->text.data, s->text.n);
        buf_puts(out, "}");
    }
    json_decref(v);
}

static void close_block(const struct generation *g, struct messages_state *s, struct buf *out)
{
    if (s->open == BLOCK_NONE) return;
    if (!g->streaming) {
        if (s->open == BLOCK_TOOL) put_input(s, &s->blocks);
        else json_put_string(&s->blocks, s->text.n ? s->text.data : "", s->text.n);
        if (s->open == BLOCK_THINKING) {
            buf_puts(&s->blocks, ",");
            put_signature(g, s, &s->blocks);
        }
        buf_puts(&s->blocks, "}");
        buf_clear(&s->text);
    } else {
        if (s->open == BLOCK_THINKING) {
            begin_delta(s, "signature_delta", out);
            put_signature(g, s, out);
            buf_puts(out, "}}\n\n");
        }
        buf_printf(out, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":%u}\n\n",
                   s->n_blocks - 1);
    }
    s->open = BLOCK_NONE;
}

/* call: of BLOCK_TOOL. */
static void open_block(const struct generation *g, struct messages_state *s, enum block type,
                       const struct rd_delta *call, struct buf *out)
{
    struct buf *to = g->streaming ? out : &s->blocks;

    close_block(g, s, out);
    if (g->streaming)
        buf_printf(to, "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":%u,"
                       "\"content_block\":", s->n_blocks);
    else if (s->n_blocks) buf_puts(to, ",");
    switch (type) {
    case BLOCK_THINKING:
        buf_puts(to, g->streaming ? "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}"
                                  : "{\"type\":\"thinking\",\"thinking\":");
        break;
    case BLOCK_TOOL:
        buf_printf(to, "{\"type\":\"tool_use\",\"id\":\"toolu_%s\",\"name\":",
                   strncmp(call->id, "call_", 5) == 0 ? call->id + 5 : call->id);
        json_put_string(to, call->text, call->text_bytes);
        buf_puts(to, g->streaming ? ",\"input\":{}}" : ",\"input\":");
        break;
    default: buf_puts(to, g->streaming ? "{\"type\":\"text\",\"text\":\"\"}" : "{\"type\":\"text\",\"text\":"); break;
    }
    if (g->streaming) buf_puts(to, "}\n\n");
    s->n_blocks++;
    s->open = type;
}

/* type: of the delta, and the member that holds its text. */
static void put_piece(const struct generation *g, struct messages_state *s, const struct rd_delta *d, const char *type,
                      const char *member, struct buf *out)
{
    if (!g->streaming) {
        buf_append(&s->text, d->text, d->text_bytes);
        return;
    }
    begin_delta(s, type, out);
    buf_printf(out, "\"%s\":", member);
    json_put_string(out, d->text, d->text_bytes);
    buf_puts(out, "}}\n\n");
}

static void messages_delta(struct generation *g, struct choice *c, const struct rd_delta *d, struct buf *out)
{
    struct messages_state *s = g->state;

    (void)c;
    if (d->text_bytes == 0 && d->type != RD_DELTA_CALL_BEGIN && d->type != RD_DELTA_CALL_END) return;
    switch (d->type) {
    case RD_DELTA_CONTENT:
        if (s->open != BLOCK_TEXT) open_block(g, s, BLOCK_TEXT, NULL, out);
        put_piece(g, s, d, "text_delta", "text", out);
        break;
    case RD_DELTA_REASONING:
        if (s->open != BLOCK_THINKING) open_block(g, s, BLOCK_THINKING, NULL, out);
        put_piece(g, s, d, "thinking_delta", "thinking", out);
        break;
    case RD_DELTA_CALL_BEGIN: open_block(g, s, BLOCK_TOOL, d, out); break;
    case RD_DELTA_CALL_ARGUMENTS: put_piece(g, s, d, "input_json_delta", "partial_json", out); break;
    case RD_DELTA_CALL_END: close_block(g, s, out); break;
    }
    if (s->blocks.failed || s->text.failed) out->failed = true;
}

static void messages_finish(struct generation *g, struct choice *c, struct buf *out)
{
    struct messages_state *s = g->state;

    if (s->n_blocks == 0) open_block(g, s, BLOCK_TEXT, NULL, out);  /* clients look at content[0] */
    close_block(g, s, out);
    if (s->blocks.failed) out->failed = true;
    if (!g->streaming) return;
    buf_puts(out, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
    put_stop(c, true, out);
    buf_puts(out, "},");
    put_usage(s, &c->usage, out);
    buf_puts(out, "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

static void messages_whole(struct generation *g, struct choice *c, struct buf *out)
{
    struct messages_state *s = g->state;

    put_message_head(g, out);
    buf_append(out, s->blocks.data, s->blocks.n);
    buf_puts(out, "],");
    put_stop(c, true, out);
    buf_puts(out, ",");
    put_usage(s, &c->usage, out);
    put_diagnostics(g, &c->usage, out);
    buf_puts(out, "}");
}

static void messages_error(struct generation *g, const struct api_error *e, struct buf *out)
{
    (void)g;
    buf_puts(out, "event: error\ndata: ");
    dialect_anthropic.put_error(e, out);
    buf_puts(out, "\n\n");
}

static const struct gen_events messages_events = {.open = messages_open,
                                                  .delta = messages_delta,
                                                  .finish = messages_finish,
                                                  .whole = messages_whole,
                                                  .error = messages_error,
                                                  .ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
                                                  .rename = anthropic_error,
                                                  .destroy = state_destroy};
static const struct gen_format messages_format = {.id_prefix = "msg", .events = &messages_events};

/* The body as parameters. */
static int read_body(struct http_conn *c, bool count, struct gen_params *p, bool *caches, struct api_error *e)
{
    json_t *body = NULL, *chat = NULL;
    int rc = count ? request_reserve_texts(c, e) : 0;

    if (rc == 0) rc = request_body(c, route_of(c)->params, NULL, &body, e);
    if (rc == 0) rc = anthropic_to_chat(body, count, &chat, e);
    if (rc == 0 && gen_params_parse(chat, &server_of(c)->info, true, p, e)) {
        anthropic_error(e);
        rc = -1;
    }
    if (rc == 0) *caches = params_cache_marks(body, p);
    if (rc == 0) rc = params_diagnostics(body, p, e);
    json_decref(chat);
    json_decref(body);
    return rc;
}

void route_messages(struct http_conn *c)
{
    struct messages_state *s = mem_zalloc(1, sizeof(*s));
    struct gen_params p = {0};
    struct api_error e;

    if (!s) {
        api_error_set(&e, 503, NULL, "out of memory");
    } else if (read_body(c, false, &p, &s->caches, &e) == 0) {
        generation_start(c, &messages_format, &p, s);
        return;
    }
    gen_params_deinit(&p);
    state_destroy(s);
    http_reply_error(c, &e);
}

void route_count_tokens(struct http_conn *c)
{
    struct gen_params p = {0};
    struct api_error e;
    bool caches;

    if (read_body(c, true, &p, &caches, &e)) http_reply_error(c, &e);
    else prompt_count_reply(c, &p, NULL);
    gen_params_deinit(&p);
}
