/* api/api_output.c - the text of a request's output as deltas: content, thinking, tool calls.
 *
 *     token -> UTF-8 whole -> output parser -> content -> stop strings -> deltas of the event
 *                                           -> thinking, calls -------->
 *
 * Where one call is wanted, the answer ends with that call's closing tag, whatever the engine has made behind it by then:
 * what is kept of it must not depend on time. The request is let go with the next token, when the tag is in the cache.
 *
 * Stop strings cut the content only: a call's JSON or the thinking cannot be torn by one, not even where the call is
 * content, too.
 */
#include <string.h>
#include "api/api_state.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/random.h"

#define TAIL_PIECES 16u /* of text: a closing tag does not come later */

bool api_output_is_cut(const struct rd_request *r)
{
    return r->stop_hit >= 0 || r->output.satisfied;
}

/* Text and id are stored as offsets: the buffer may still move. */
static void put_delta(struct rd_request *r, enum rd_delta_type type, uint32_t index, const char *s, size_t n)
{
    struct api_output *out = &r->output;
    struct rd_delta *last = out->n_deltas ? &out->deltas[out->n_deltas - 1] : NULL;
    bool joins = type == RD_DELTA_CONTENT || type == RD_DELTA_REASONING || type == RD_DELTA_CALL_ARGUMENTS;

    if (type == RD_DELTA_CONTENT) buf_append(&r->text, s, n);
    if (out->parser && type != RD_DELTA_CALL_BEGIN) api_answer_add(&out->answer, type, NULL, s, n);
    if (last && joins && last->type == type) {
        buf_append(&out->text, s, n);
        last->text_bytes += n;
        return;
    }
    if (!mem_grow((void **)&out->deltas, &out->cap_deltas, (size_t)out->n_deltas + 1, sizeof(*out->deltas))) {
        out->failed = true;
        return;
    }
    last = &out->deltas[out->n_deltas++];
    *last =
        (struct rd_delta){.type = type, .index = index, .text = (const char *)(uintptr_t)out->text.n, .text_bytes = n};
    buf_append(&out->text, s, n);
}

static void put_content(struct rd_request *r, const char *s, size_t n)
{
    const char *safe;
    int hit = -1;
    size_t n_safe;

    if (r->n_tokens_out <= r->o.min_tokens && r->o.min_tokens > 0) { /* too early to stop */
        put_delta(r, RD_DELTA_CONTENT, 0, s, n);
        return;
    }
    n_safe = stop_matcher_feed(r->stops, s, n, &safe, &hit);
    if (hit == STOP_NOMEM) { /* what it held back is lost */
        r->output.failed = true;
        return;
    }
    if (n_safe) put_delta(r, RD_DELTA_CONTENT, 0, safe, n_safe);
    r->stop_hit = hit;
    if (hit >= 0 && r->o.include_stop) put_delta(r, RD_DELTA_CONTENT, 0, r->o.stop[hit], strlen(r->o.stop[hit]));
}

/* What the stop strings hold back is content after all: something else follows. */
static void flush_content(struct rd_request *r)
{
    const char *held;
    size_t n = stop_matcher_flush(r->stops, &held);

    if (n) put_delta(r, RD_DELTA_CONTENT, 0, held, n);
}

static void begin_call(struct rd_request *r, const struct output_event *ev)
{
    struct api_output *out = &r->output;
    char id[OUTPUT_CALL_ID_BYTES];
    uint64_t random[2];
    size_t at;

    random_os(random, sizeof(random));
    output_call_id(r->engine->style.tools, random, id);
    buf_putc(&out->text, 0); /* an offset of its own, never 0 */
    at = out->text.n;
    buf_append(&out->text, id, strlen(id) + 1);
    put_delta(r, RD_DELTA_CALL_BEGIN, ev->index, ev->text, ev->n);
    api_answer_add(&out->answer, RD_DELTA_CALL_BEGIN, id, ev->text, ev->n);
    if (!out->failed) out->deltas[out->n_deltas - 1].id = (const char *)(uintptr_t)at;
}

static void on_output(void *user, const struct output_event *ev)
{
    struct rd_request *r = user;
    struct api_output *out = &r->output;

    if (api_output_is_cut(r) || ev->type == OUTPUT_SOURCE) return;
    if (out->has_call && !(ev->type == OUTPUT_CALL_TEXT && output_parser_awaits_tail(out->parser))) {
        out->has_all = true;
        return;
    }
    if (ev->type == OUTPUT_CONTENT) {
        put_content(r, ev->text, ev->n);
        return;
    }
    flush_content(r);
    switch (ev->type) {
    case OUTPUT_CALL_TEXT:
        out->answer.shown = true;
        put_delta(r, RD_DELTA_CONTENT, 0, ev->text, ev->n);
        break;
    case OUTPUT_REASONING:
        put_delta(r, RD_DELTA_REASONING, 0, ev->text, ev->n);
        break;
    case OUTPUT_CALL_BEGIN:
        begin_call(r, ev);
        break;
    case OUTPUT_CALL_ARGS:
        put_delta(r, RD_DELTA_CALL_ARGUMENTS, ev->index, ev->text, ev->n);
        break;
    default:
        put_delta(r, RD_DELTA_CALL_END, ev->index, "", 0);
        if (!out->failed) out->deltas[out->n_deltas - 1].complete = ev->complete;
        out->has_call = r->o.single_call;
        break;
    }
}

rd_status api_output_init(struct rd_request *r, bool thinks, struct rd_error *err)
{
    const struct api_style *style = &r->engine->style;
    struct api_output *out = &r->output;
    struct output_options o = {.in_thinking = thinks,
                               .forced = r->o.forced_tool != NULL,
                               .keep_bare = r->taught,
                               .sink = on_output,
                               .user = r};
    rd_status st;

    if (r->o.parse_tools && r->o.tools_json) {
        out->tools = json_loads(r->o.tools_json, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
        if (!out->tools) return error_set(err, RD_E_NOMEM, "out of memory for tools"); /* it was rendered before */
        o.tools = out->tools;
        o.style = json_array_size(out->tools) ? style->tools : OUTPUT_NO_CALLS;
    }
    if (r->o.parse_thinking) o.think = style->think;
    if (o.style == OUTPUT_NO_CALLS && !o.think) return RD_OK;
    st = output_parser_create(&o, &out->parser);
    return st == RD_OK ? st : error_set(err, st, "out of memory for a request");
}

void api_output_deinit(struct api_output *out)
{
    output_parser_destroy(out->parser);
    json_decref(out->tools);
    mem_free(out->deltas);
    buf_deinit(&out->text);
    api_answer_deinit(&out->answer);
}

/* A call that the prompt began; where it comes to nothing it is not content, the model did not write it. */
static void feed_head(struct api_output *out)
{
    const char *head = out->head;

    out->head = NULL;
    if (head && output_parser_feed(out->parser, head, strlen(head), true) != RD_OK) out->failed = true;
}

void api_output_feed(struct rd_request *r, const char *s, size_t n, bool special)
{
    struct api_output *out = &r->output;

    if (n == 0 || api_output_is_cut(r)) return;
    if (out->parser) feed_head(out);
    if (!out->parser)
        put_content(r, s, n);
    else if (output_parser_feed(out->parser, s, n, special) != RD_OK)
        out->failed = true;
    if (out->has_call && (!output_parser_awaits_tail(out->parser) || ++out->n_tail > TAIL_PIECES)) out->has_all = true;
}

void api_output_finish(struct rd_request *r)
{
    struct api_output *out = &r->output;

    if (out->parser && !api_output_is_cut(r)) feed_head(out);
    if (out->parser && !api_output_is_cut(r) && output_parser_finish(out->parser) != RD_OK) out->failed = true;
    if (!api_output_is_cut(r)) flush_content(r);
}

void api_output_hand_out(struct rd_request *r, struct rd_event *ev)
{
    struct api_output *out = &r->output;
    const char *base = out->text.n ? out->text.data : "";

    if (out->failed || out->text.failed) { /* the event becomes an error */
        r->text.failed = true;
        return;
    }
    for (uint32_t i = 0; i < out->n_deltas; i++) {
        struct rd_delta *d = &out->deltas[i];

        d->text = base + (uintptr_t)d->text;
        d->id = d->id ? base + (uintptr_t)d->id : "";
    }
    ev->deltas = out->deltas;
    ev->n_deltas = out->n_deltas;
}
