/* server/dialects/ollama_shape.c - an answer of Ollama's, lines of JSON.
 *
 * A stream is a line per piece and a last one with done true and the numbers; not streamed it is that last line alone,
 * with everything in it. A tool call is one piece, its arguments an object.
 */
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "server/dialects/answer_parts.h"
#include "server/dialects/dialect.h"
#include "server/dialects/fim.h"
#include "server/dialects/ollama.h"
#include "server/dialects/shapes.h"
#include "server/params/json_out.h"

static void state_destroy(void *state)
{
    struct ollama_state *s = state;

    if (!s) return;
    buf_deinit(&s->text);
    buf_deinit(&s->thinking);
    buf_deinit(&s->calls);
    buf_deinit(&s->name);
    buf_deinit(&s->arguments);
    mem_free(s);
}

void ollama_begin_line(const char *model, struct buf *out)
{
    buf_puts(out, "{\"model\":");
    json_put_string(out, model, strlen(model));
    buf_puts(out, ",\"created_at\":");
    json_put_time(out, clock_wall_s(clock_system()));
}

static void put_text(const char *name, const char *s, size_t n, struct buf *out)
{
    buf_printf(out, "\"%s\":", name);
    json_put_string(out, n ? s : "", n);
}

/* ,"message":{..} or ,"response":.. with what there is. calls: elements of a list. */
static void put_piece(const struct ollama_state *s, struct fim_text text, struct fim_text thinking,
                      struct fim_text calls, struct buf *out)
{
    if (!s->generate) buf_puts(out, ",\"message\":{\"role\":\"assistant\"");
    buf_putc(out, ',');
    put_text(s->generate ? "response" : "content", text.s, text.n, out);
    if (thinking.n) {
        buf_putc(out, ',');
        put_text("thinking", thinking.s, thinking.n, out);
    }
    if (calls.n) {
        buf_puts(out, ",\"tool_calls\":[");
        buf_append(out, calls.s, calls.n);
        buf_putc(out, ']');
    }
    if (!s->generate) buf_putc(out, '}');
}

static void stream_piece(const struct generation *g, struct fim_text text, struct fim_text thinking,
                         struct fim_text calls, struct buf *out)
{
    ollama_begin_line(g->served->info.model_id, out);
    put_piece(g->state, text, thinking, calls, out);
    answer_put_collected(g, &g->choices[0], "logprobs", out);
    buf_puts(out, ",\"done\":false}\n");
}

/* The arguments as the model wrote them may hold line ends, which would end the line of the stream; those of a call that
 * was cut are no JSON: they are delivered as the text that they are. */
static void put_call(struct ollama_state *s, const struct rd_delta *d, struct buf *out)
{
    json_t *v = s->arguments.n ? json_loadb(s->arguments.data, s->arguments.n, JSON_ALLOW_NUL, NULL) : NULL;
    char *text = json_is_object(v) ? json_dumps(v, JSON_COMPACT) : NULL;

    buf_printf(out, "%s{\"id\":\"%s\",\"function\":{\"index\":%u,\"name\":", out->n ? "," : "", s->id, d->index);
    json_put_string(out, s->name.n ? s->name.data : "", s->name.n);
    buf_puts(out, ",\"arguments\":");
    if (text)
        buf_puts(out, text);
    else if (s->arguments.n == 0)
        buf_puts(out, "{}");
    else {
        buf_puts(out, "{\"partial_json\":");
        json_put_string(out, s->arguments.data, s->arguments.n);
        buf_puts(out, "}");
    }
    buf_puts(out, "}}");
    mem_free(text);
    json_decref(v);
    buf_clear(&s->name);
    buf_clear(&s->arguments);
}

static void ollama_call_delta(struct generation *g, const struct rd_delta *d, struct buf *out)
{
    static const struct fim_text none = {NULL, 0};
    struct ollama_state *s = g->state;
    struct buf call = {0};

    switch (d->type) {
    case RD_DELTA_CALL_BEGIN:
        buf_append(&s->name, d->text, d->text_bytes);
        snprintf(s->id, sizeof(s->id), "%s", d->id);
        break;
    case RD_DELTA_CALL_ARGUMENTS:
        buf_append(&s->arguments, d->text, d->text_bytes);
        break;
    default:
        s->n_calls++;
        if (!g->streaming) {
            put_call(s, d, &s->calls);
            break;
        }
        put_call(s, d, &call);
        stream_piece(g, none, none, (struct fim_text){call.data, call.n}, out);
        if (call.failed) out->failed = true;
        buf_deinit(&call);
        break;
    }
}

static void ollama_delta(struct generation *g, struct choice *c, const struct rd_delta *d, struct buf *out)
{
    static const struct fim_text none = {NULL, 0};
    const struct fim_text piece = {d->text, d->text_bytes};
    struct ollama_state *s = g->state;

    (void)c;
    if (d->type != RD_DELTA_CONTENT && d->type != RD_DELTA_REASONING)
        ollama_call_delta(g, d, out);
    else if (d->text_bytes == 0)
        return;
    else if (!g->streaming)
        buf_append(d->type == RD_DELTA_CONTENT ? &s->text : &s->thinking, d->text, d->text_bytes);
    else if (d->type == RD_DELTA_CONTENT)
        stream_piece(g, piece, none, none, out);
    else
        stream_piece(g, none, piece, none, out);
    if (s->text.failed || s->thinking.failed || s->calls.failed || s->name.failed || s->arguments.failed)
        out->failed = true;
}

/* The last line, with the numbers; times in nanoseconds. */
static void put_last(const struct generation *g, const struct choice *c, struct buf *out)
{
    const struct ollama_state *s = g->state;
    const struct rd_usage *u = &c->usage;
    uint64_t total = clock_now_ns(clock_system()) - g->begun_ns;

    ollama_begin_line(g->served->info.model_id, out);
    put_piece(s, (struct fim_text){s->text.data, s->text.n}, (struct fim_text){s->thinking.data, s->thinking.n},
              (struct fim_text){s->calls.data, s->calls.n}, out);
    answer_put_collected(g, &g->choices[0], "logprobs", out);
    answer_put_points(c, out);
    buf_printf(out,
               ",\"done\":true,\"done_reason\":\"%s\",\"total_duration\":%llu,\"load_duration\":0,"
               "\"prompt_eval_count\":%u,\"prompt_eval_duration\":%llu,\"eval_count\":%u,\"eval_duration\":%llu,"
               "\"cached_tokens\":%u}",
               c->finish == RD_FINISH_LENGTH ? "length" : "stop", (unsigned long long)total, u->n_prompt,
               (unsigned long long)(u->prompt_ms * 1e6), u->n_generated, (unsigned long long)(u->predicted_ms * 1e6),
               u->n_cached);
}

static void ollama_finish(struct generation *g, struct choice *c, struct buf *out)
{
    if (!g->streaming) return;
    put_last(g, c, out);
    buf_putc(out, '\n');
}

static void ollama_whole(struct generation *g, struct buf *out)
{
    struct choice *c = &g->choices[0];
    put_last(g, c, out);
}

static void ollama_stream_error(struct generation *g, const struct api_error *e, struct buf *out)
{
    (void)g;
    dialect_ollama.put_error(e, out);
    buf_putc(out, '\n');
}

const struct response_shape ollama_shape = {.id_prefix = "ollama_",
                                            .media = "application/x-ndjson",
                                            .collect = answer_collect_tokens,
                                            .delta = ollama_delta,
                                            .finish = ollama_finish,
                                            .whole = ollama_whole,
                                            .error = ollama_stream_error,
                                            .rename = ollama_error,
                                            .destroy = state_destroy};
