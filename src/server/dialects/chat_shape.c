/* server/dialects/chat_shape.c - a chat completion: message or deltas, reasoning under both names that clients know, calls. */
#include "server/dialects/answer_parts.h"
#include "server/dialects/chunks.h"
#include "server/dialects/shapes.h"
#include "server/params/json_out.h"

static void put_logprobs(const struct generation *g, const struct choice *c, struct buf *out)
{
    buf_puts(out, "\"logprobs\":");
    if (!g->p.logprobs) {
        buf_puts(out, "null");
        return;
    }
    buf_puts(out, "{\"content\":[");
    buf_append(out, c->logprobs.data, c->logprobs.n);
    buf_puts(out, "],\"refusal\":null}");
}

/* Under both names: clients look for one or the other. */
static void put_reasoning(const char *text, size_t n, struct buf *out)
{
    buf_puts(out, "\"reasoning_content\":");
    json_put_string(out, text, n);
    buf_puts(out, ",\"reasoning\":");
    json_put_string(out, text, n);
}

static bool chat_put_open(struct generation *g, struct choice *c, struct buf *out)
{
    buf_puts(out, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null");
    return true;
}

static void chat_put_delta(struct generation *g, struct choice *c, const struct rd_delta *d, struct buf *out)
{
    buf_puts(out, "\"delta\":{");
    switch (d->type) {
    case RD_DELTA_REASONING:
        put_reasoning(d->text, d->text_bytes, out);
        break;
    case RD_DELTA_CALL_BEGIN:
        buf_printf(out, "\"tool_calls\":[{\"index\":%u,\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":",
                   d->index, d->id);
        json_put_string(out, d->text, d->text_bytes);
        buf_puts(out, ",\"arguments\":\"\"}}]");
        break;
    case RD_DELTA_CALL_ARGUMENTS:
        buf_printf(out, "\"tool_calls\":[{\"index\":%u,\"function\":{\"arguments\":", d->index);
        json_put_string(out, d->text, d->text_bytes);
        buf_puts(out, "}}]");
        break;
    default:
        buf_puts(out, "\"content\":");
        json_put_string(out, d->text, d->text_bytes);
        break;
    }
    buf_puts(out, "},");
    put_logprobs(g, c, out);
    buf_puts(out, ",\"finish_reason\":null");
}

static void chat_put_finish(struct generation *g, struct choice *c, struct buf *out)
{
    buf_printf(out, "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"%s\",", answer_finish_text(c));
    answer_put_stop_reason(c, out);
    answer_put_points(c, out);
}

static void chat_put_whole(struct generation *g, struct choice *c, struct buf *out)
{
    buf_puts(out, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (c->text.n || !c->n_calls)
        json_put_string(out, c->text.n ? c->text.data : "", c->text.n);
    else
        buf_puts(out, "null");
    buf_puts(out, ",\"refusal\":null");
    if (c->reasoning.n) {
        buf_puts(out, ",");
        put_reasoning(c->reasoning.data, c->reasoning.n, out);
    }
    if (c->n_calls) {
        buf_puts(out, ",\"tool_calls\":[");
        buf_append(out, c->calls.data, c->calls.n);
        buf_puts(out, "]");
    }
    buf_puts(out, "},");
    put_logprobs(g, c, out);
    buf_printf(out, ",\"finish_reason\":\"%s\",", answer_finish_text(c));
    answer_put_stop_reason(c, out);
    answer_put_points(c, out);
}

static const struct chunk_form chat_chunks = {.object = "chat.completion",
                                              .chunk_object = "chat.completion.chunk",
                                              .put_open = chat_put_open,
                                              .put_delta = chat_put_delta,
                                              .put_finish = chat_put_finish,
                                              .put_whole = chat_put_whole};
const struct response_shape chat_shape = {
    .id_prefix = "chatcmpl-", .begins_at_once = true, .collect = answer_collect_tokens, CHUNKS(&chat_chunks)};
