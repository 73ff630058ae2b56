/* server/dialects/messages_shape.c - a message of Anthropic's.
 *
 * The answer is a list of blocks in the order in which the model wrote them: thinking, text, tool_use. As a stream each
 * block has a start, deltas and a stop; message_start waits for the first token, because its usage tells what the cache
 * gave. Source: docs.anthropic.com/en/api/messages-streaming.
 */
#include <jansson.h>
#include <string.h>
#include "base/mem.h"
#include "server/dialects/answer_parts.h"
#include "server/dialects/dialect.h"
#include "server/dialects/foreign.h"
#include "server/dialects/prompt_prints.h"
#include "server/dialects/shapes.h"
#include "server/params/json_out.h"

void messages_state_destroy(void *state)
{
    struct messages_state *s = state;

    if (!s) return;
    buf_deinit(&s->blocks);
    buf_deinit(&s->text);
    mem_free(s);
}

/* Everything computed is also kept. What clients marked for the cache counts as written to it, except for the last token,
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
    if (c->finish != RD_FINISH_LENGTH && c->stop_string)
        json_put_string(out, c->stop_string, strlen(c->stop_string));
    else
        buf_puts(out, "null");
}

static void put_message_head(const struct generation *g, struct buf *out)
{
    const char *model = generation_model(g);

    buf_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", g->id);
    json_put_string(out, model, strlen(model));
    buf_puts(out, ",\"content\":[");
}

static void put_diagnostics(const struct generation *g, const struct rd_usage *u, struct buf *out)
{
    prompt_prints_put_anthropic(g->server->prints, g->tenant, &g->p, u, g->served->info.page_tokens, out);
}

static void messages_begin(struct generation *g, struct choice *c, struct buf *out)
{
    struct rd_usage u = c->usage;

    if (!g->streaming) return;
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
        if (s->open == BLOCK_TOOL)
            put_input(s, &s->blocks);
        else
            json_put_string(&s->blocks, s->text.n ? s->text.data : "", s->text.n);
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
        buf_printf(to,
                   "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":%u,"
                   "\"content_block\":",
                   s->n_blocks);
    else if (s->n_blocks)
        buf_puts(to, ",");
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
    default:
        buf_puts(to, g->streaming ? "{\"type\":\"text\",\"text\":\"\"}" : "{\"type\":\"text\",\"text\":");
        break;
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
    case RD_DELTA_CALL_BEGIN:
        open_block(g, s, BLOCK_TOOL, d, out);
        break;
    case RD_DELTA_CALL_ARGUMENTS:
        put_piece(g, s, d, "input_json_delta", "partial_json", out);
        break;
    case RD_DELTA_CALL_END:
        close_block(g, s, out);
        break;
    }
    if (s->blocks.failed || s->text.failed) out->failed = true;
}

static void messages_finish(struct generation *g, struct choice *c, struct buf *out)
{
    struct messages_state *s = g->state;

    if (s->n_blocks == 0) open_block(g, s, BLOCK_TEXT, NULL, out); /* clients look at content[0] */
    close_block(g, s, out);
    if (s->blocks.failed) out->failed = true;
    if (!g->streaming) return;
    buf_puts(out, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
    put_stop(c, true, out);
    buf_puts(out, "},");
    put_usage(s, &c->usage, out);
    answer_put_points(c, out);
    buf_puts(out, "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

static void messages_whole(struct generation *g, struct buf *out)
{
    struct choice *c = &g->choices[0];
    struct messages_state *s = g->state;

    put_message_head(g, out);
    buf_append(out, s->blocks.data, s->blocks.n);
    buf_puts(out, "],");
    put_stop(c, true, out);
    buf_puts(out, ",");
    put_usage(s, &c->usage, out);
    answer_put_points(c, out);
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

const struct response_shape messages_shape = {.id_prefix = "msg_",
                                              .media = "text/event-stream",
                                              .ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
                                              .begin = messages_begin,
                                              .delta = messages_delta,
                                              .finish = messages_finish,
                                              .whole = messages_whole,
                                              .error = messages_error,
                                              .rename = anthropic_error,
                                              .destroy = messages_state_destroy};
