/* server/dialects/responses_shape.c - an answer of OpenAI's Responses API.
 *
 * The answer is a list of items in the order in which the model wrote them: reasoning, message, function_call. As a
 * stream every item is added, gets its part, deltas, and is done; each event has a sequence_number. What was answered
 * is kept in the store (responses_store.h) unless store is false; streams and answers in the background are there from
 * their beginning, and end when they are cancelled or deleted there.
 */
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "server/dialects/answer_parts.h"
#include "server/dialects/foreign.h"
#include "server/dialects/prompt_prints.h"
#include "server/dialects/shapes.h"
#include "server/params/json_out.h"

void responses_state_destroy(void *state)
{
    struct responses_state *s = state;

    if (!s) return;
    if (s->registered && !s->kept) (void)responses_store_remove(s->store, s->key); /* it may be gone already */
    responses_turn_release(s->store, s->parent);
    mem_free(s->input);
    mem_free(s->echo);
    buf_deinit(&s->output);
    buf_deinit(&s->text);
    buf_deinit(&s->call);
    buf_deinit(&s->name);
    buf_deinit(&s->final);
    mem_free(s);
}

/* ---- the response object ---- */

/* What was computed is also kept. */
static void put_usage(const struct generation *g, const struct rd_usage *u, struct buf *out)
{
    buf_printf(out,
               "{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u,\"cache_write_tokens\":%u},"
               "\"output_tokens\":%u,\"output_tokens_details\":{\"reasoning_tokens\":%u},\"total_tokens\":%u}",
               u->n_prompt, u->n_cached, g->p.cache_prompt ? u->n_prompt - u->n_cached : 0, u->n_generated,
               u->n_reasoning, u->n_prompt + u->n_generated);
}

/* u: NULL while it runs. error: of status failed. */
static void put_response(const struct generation *g, const char *status, const struct rd_usage *u,
                         const struct api_error *error, struct buf *out)
{
    const struct responses_state *s = g->state;
    const char *model = generation_model(g);
    bool cut = strcmp(status, "incomplete") == 0;

    buf_printf(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"completed_at\":", g->id,
               (long long)g->created_s);
    if (u && !cut)
        buf_printf(out, "%lld", (long long)clock_wall_s(clock_system()));
    else
        buf_puts(out, "null");
    buf_printf(out, ",\"status\":\"%s\",\"background\":%s,\"error\":", status, s->background ? "true" : "false");
    if (error) {
        buf_printf(out, "{\"code\":\"%s\",\"message\":", error->code ? error->code : "server_error");
        json_put_string(out, error->message, strlen(error->message));
        buf_puts(out, "}");
    } else {
        buf_puts(out, "null");
    }
    buf_printf(out, ",\"incomplete_details\":%s,\"model\":", cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    json_put_string(out, model, strlen(model));
    buf_puts(out, ",\"output\":[");
    buf_append(out, s->output.data, s->output.n);
    buf_puts(out, "],\"usage\":");
    if (u)
        put_usage(g, u, out);
    else
        buf_puts(out, "null");
    if (u) answer_put_points(&g->choices[0], out);
    if (u) prompt_prints_put_openai(g->server->prints, g->tenant, &g->p, u, g->served->info.page_tokens, out);
    buf_puts(out, ",");
    buf_puts(out, s->echo + 1);
}

/* ---- events ---- */

static void begin_event(struct responses_state *s, const char *type, struct buf *out)
{
    buf_printf(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%u", type, type, s->sequence++);
}

static void end_event(struct buf *out)
{
    buf_puts(out, "}\n\n");
}

static void put_response_event(struct generation *g, const char *type, const struct buf *response, struct buf *out)
{
    begin_event(g->state, type, out);
    buf_puts(out, ",\"response\":");
    buf_append(out, response->data, response->n);
    end_event(out);
    if (response->failed) out->failed = true;
}

/* ,"item_id":..,"output_index":.. and, except for calls, "content_index":0 */
static void put_place(const struct responses_state *s, struct buf *out)
{
    buf_printf(out, ",\"item_id\":\"%s\",\"output_index\":%u%s", s->item_id, s->n_items - 1,
               s->open == ITEM_CALL ? "" : ",\"content_index\":0");
}

/* ,"logprobs":[..]: list NULL: none. */
static void put_logprobs(const struct buf *list, struct buf *out)
{
    buf_puts(out, ",\"logprobs\":[");
    if (list && list->n) buf_append(out, list->data, list->n);
    buf_putc(out, ']');
}

static void put_part(const struct responses_state *s, bool filled, struct buf *out)
{
    buf_puts(out, s->open == ITEM_REASONING ? "{\"type\":\"reasoning_text\",\"text\":"
                                            : "{\"type\":\"output_text\",\"text\":");
    json_put_string(out, filled && s->text.n ? s->text.data : "", filled ? s->text.n : 0);
    if (s->open == ITEM_MESSAGE) {
        buf_puts(out, ",\"annotations\":[]");
        put_logprobs(filled ? s->logprobs : NULL, out);
    }
    buf_putc(out, '}');
}

/* The open item, empty or with what it holds. */
static void put_item(const struct responses_state *s, const char *status, bool filled, struct buf *out)
{
    buf_printf(out, "{\"id\":\"%s\",\"status\":\"%s\",", s->item_id, status);
    if (s->open == ITEM_CALL) {
        buf_puts(out, "\"type\":\"function_call\",");
        buf_append(out, s->call.data, s->call.n);
        buf_puts(out, ",\"arguments\":");
        json_put_string(out, filled && s->text.n ? s->text.data : "", filled ? s->text.n : 0);
    } else {
        buf_puts(out, s->open == ITEM_REASONING ? "\"type\":\"reasoning\",\"summary\":[],\"content\":["
                                                : "\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
        if (filled) put_part(s, true, out);
        buf_puts(out, "]");
    }
    buf_puts(out, "}");
}

static void put_item_event(struct responses_state *s, const char *type, const char *status, bool filled,
                           struct buf *out)
{
    begin_event(s, type, out);
    buf_printf(out, ",\"output_index\":%u,\"item\":", s->n_items - 1);
    put_item(s, status, filled, out);
    end_event(out);
}

static void put_part_event(struct responses_state *s, const char *type, bool filled, struct buf *out)
{
    if (s->open == ITEM_CALL) return;
    begin_event(s, type, out);
    put_place(s, out);
    buf_puts(out, ",\"part\":");
    put_part(s, filled, out);
    end_event(out);
}

static void put_text_done(struct responses_state *s, struct buf *out)
{
    begin_event(s,
                s->open == ITEM_CALL        ? "response.function_call_arguments.done"
                : s->open == ITEM_REASONING ? "response.reasoning_text.done"
                                            : "response.output_text.done",
                out);
    put_place(s, out);
    if (s->open == ITEM_CALL) {
        buf_puts(out, ",\"name\":");
        buf_append(out, s->name.data, s->name.n);
    }
    buf_puts(out, s->open == ITEM_CALL ? ",\"arguments\":" : ",\"text\":");
    json_put_string(out, s->text.n ? s->text.data : "", s->text.n);
    if (s->open == ITEM_MESSAGE) put_logprobs(s->logprobs, out);
    end_event(out);
}

static void put_text_delta(struct responses_state *s, const struct choice *c, const struct rd_delta *d, struct buf *out)
{
    begin_event(s,
                s->open == ITEM_CALL        ? "response.function_call_arguments.delta"
                : s->open == ITEM_REASONING ? "response.reasoning_text.delta"
                                            : "response.output_text.delta",
                out);
    put_place(s, out);
    buf_puts(out, ",\"delta\":");
    json_put_string(out, d->text, d->text_bytes);
    if (s->open == ITEM_MESSAGE) put_logprobs(&c->logprobs, out);
    end_event(out);
}

/* ---- items ---- */

static void close_item(const struct generation *g, struct responses_state *s, const char *status, struct buf *out)
{
    if (s->open == ITEM_NONE) return;
    if (g->streaming) {
        put_text_done(s, out);
        put_part_event(s, "response.content_part.done", true, out);
        put_item_event(s, "response.output_item.done", status, true, out);
    }
    if (s->output.n) buf_puts(&s->output, ",");
    put_item(s, status, true, &s->output);
    s->open = ITEM_NONE;
}

/* call: of ITEM_CALL. */
static void open_item(const struct generation *g, struct responses_state *s, enum item type,
                      const struct rd_delta *call, struct buf *out)
{
    close_item(g, s, "completed", out);
    snprintf(s->item_id, sizeof(s->item_id), "%s_%s%02x",
             type == ITEM_CALL        ? "fc"
             : type == ITEM_REASONING ? "rs"
                                      : "msg",
             g->id + strlen("resp_"), s->n_items);
    s->open = type;
    s->n_items++;
    buf_clear(&s->text);
    if (call) {
        buf_clear(&s->call);
        buf_clear(&s->name);
        json_put_string(&s->name, call->text, call->text_bytes);
        buf_printf(&s->call, "\"call_id\":\"%s\",\"name\":", call->id);
        buf_append(&s->call, s->name.data, s->name.n);
    }
    if (!g->streaming) return;
    put_item_event(s, "response.output_item.added", "in_progress", false, out);
    put_part_event(s, "response.content_part.added", false, out);
}

/* What was collected with the text is the item's; of thinking and calls it is not told. */
static void add_text(const struct generation *g, struct responses_state *s, struct choice *c, const struct rd_delta *d,
                     struct buf *out)
{
    buf_append(&s->text, d->text, d->text_bytes);
    if (g->streaming) put_text_delta(s, c, d, out);
    if (s->open == ITEM_MESSAGE && c->logprobs.n) {
        if (c->lp_tokens.n) buf_putc(&c->lp_tokens, ',');
        buf_append(&c->lp_tokens, c->logprobs.data, c->logprobs.n);
        if (c->lp_tokens.failed) out->failed = true;
    }
    buf_clear(&c->logprobs);
    s->n_pending = 0;
}

static void responses_collect(struct generation *g, struct choice *c, const struct rd_event *ev)
{
    struct responses_state *s = g->state;
    uint32_t i = s->n_pending++ % RESPONSES_PENDING;

    s->pending[i].at = c->logprobs.n;
    (void)rd_token_bytes(g->served->engine, ev->token, &s->pending[i].n_bytes);
    answer_collect_tokens(g, c, ev);
}

/* A message behind something else begins with d: of the tokens since the last text those are its own that d is made of,
 * not the mark that ended what was before. */
static void begin_message(struct generation *g, struct choice *c, const struct rd_delta *d, struct buf *out)
{
    struct responses_state *s = g->state;
    bool is_first = s->n_items == 0;
    size_t at = c->logprobs.n, n_bytes = 0;

    open_item(g, s, ITEM_MESSAGE, NULL, out);
    buf_clear(&c->lp_tokens);
    s->logprobs = &c->lp_tokens;
    if (is_first || !at) return;
    for (uint32_t k = 1; k <= s->n_pending && k <= RESPONSES_PENDING && n_bytes < d->text_bytes; k++) {
        at = s->pending[(s->n_pending - k) % RESPONSES_PENDING].at;
        n_bytes += s->pending[(s->n_pending - k) % RESPONSES_PENDING].n_bytes;
    }
    at += at < c->logprobs.n && c->logprobs.data[at] == ',';
    memmove(c->logprobs.data, c->logprobs.data + at, c->logprobs.n - at);
    c->logprobs.n -= at;
}

static bool out_of_memory(const struct responses_state *s)
{
    return s->output.failed || s->text.failed || s->call.failed || s->name.failed || s->final.failed;
}

/* ---- the API's part of a generation ---- */

/* From here on the answer can be looked up and cancelled. */
static int register_response(struct generation *g)
{
    struct responses_state *s = g->state;
    struct buf now = {0};
    rd_status st;

    put_response(g, s->background ? "queued" : "in_progress", NULL, NULL, &now);
    responses_key(s->tenant, g->id, s->key);
    st = responses_store_begin(s->store, s->key, s->parent, &now, s->input, s->background && !g->leaves);
    s->registered = st == RD_OK;
    buf_deinit(&now);
    return st == RD_OK ? 0 : -1;
}

/* A store without room is no reason to refuse an answer that its client waits for: it cannot be asked for again, that
 * is all. */
static int responses_accept(struct generation *g, struct api_error *e)
{
    struct responses_state *s = g->state;

    if (!s->keep || register_response(g) == 0 || !s->background) return 0;
    return api_error_set(e, 503, "background", "background: too many answers are running or kept; try again later");
}

static void put_lifecycle(struct generation *g, const char *status, struct buf *out)
{
    char type[40];
    struct buf now = {0};

    snprintf(type, sizeof(type), "response.%s", status);
    put_response(g, status, NULL, NULL, &now);
    put_response_event(g, type, &now, out);
    buf_deinit(&now);
}

static void responses_begin(struct generation *g, struct choice *c, struct buf *out)
{
    struct responses_state *s = g->state;
    struct buf now = {0};

    (void)c;
    if (!g->streaming) return;
    s->queued = s->background;
    put_response(g, s->queued ? "queued" : "in_progress", NULL, NULL, &now);
    put_response_event(g, "response.created", &now, out);
    buf_deinit(&now);
    put_lifecycle(g, s->queued ? "queued" : "in_progress", out);
}

/* In the background: the first token. */
static void leave_queue(struct generation *g, struct buf *out)
{
    struct responses_state *s = g->state;

    if (!s->queued) return;
    s->queued = false;
    s->changed = true;
    put_lifecycle(g, "in_progress", out);
}

/* Arguments that are cut short are none; then the end of the answer tells the item's status. */
static bool is_object(const struct buf *text)
{
    json_t *v = text->n ? json_loadb(text->data, text->n, JSON_ALLOW_NUL, NULL) : NULL;
    bool object = json_is_object(v);

    json_decref(v);
    return object;
}

static void responses_delta(struct generation *g, struct choice *c, const struct rd_delta *d, struct buf *out)
{
    struct responses_state *s = g->state;

    leave_queue(g, out);
    if (d->text_bytes == 0 && d->type != RD_DELTA_CALL_BEGIN && d->type != RD_DELTA_CALL_END) return;
    switch (d->type) {
    case RD_DELTA_CONTENT:
        if (s->open != ITEM_MESSAGE) begin_message(g, c, d, out);
        add_text(g, s, c, d, out);
        break;
    case RD_DELTA_REASONING:
        if (s->open != ITEM_REASONING) open_item(g, s, ITEM_REASONING, NULL, out);
        add_text(g, s, c, d, out);
        break;
    case RD_DELTA_CALL_BEGIN:
        open_item(g, s, ITEM_CALL, d, out);
        break;
    case RD_DELTA_CALL_ARGUMENTS:
        add_text(g, s, c, d, out);
        break;
    case RD_DELTA_CALL_END:
        if (is_object(&s->text)) close_item(g, s, "completed", out);
        break;
    }
    if (out_of_memory(s)) out->failed = true;
}

/* The answer is complete; events: the last ones. */
static void keep_response(struct generation *g, const struct buf *events)
{
    struct responses_state *s = g->state;
    struct buf output = {0};

    if (!s->registered && register_response(g)) return;
    buf_puts(&output, "[");
    buf_append(&output, s->output.data, s->output.n);
    buf_puts(&output, "]");
    s->kept = !output.failed && !s->final.failed &&
              responses_store_finish(s->store, s->key, &s->final, output.data, events) == RD_OK;
    buf_deinit(&output);
}

/* The stream of an answer that was cancelled or deleted ends with what the store says of it. */
static void put_last_words(struct generation *g, struct buf *out)
{
    struct responses_state *s = g->state;
    struct buf now = {0}, event = {0};

    if (responses_store_get(s->store, s->key, &now) != RD_OK) {
        buf_clear(&now);
        put_response(g, "cancelled", NULL, NULL, &now);
    }
    put_response_event(g, "response.incomplete", &now, &event);
    s->kept = responses_store_finish(s->store, s->key, &now, "[]", &event) == RD_OK;
    buf_append(out, event.data, event.n);
    buf_deinit(&now);
    buf_deinit(&event);
}

static bool responses_keep(struct generation *g, struct buf *out)
{
    struct responses_state *s = g->state;
    struct buf now = {0};
    rd_status st;

    if (!s->registered || s->kept) return true;
    if (s->final.n) {
        keep_response(g, out);
        return true;
    }
    if (s->changed) put_response(g, "in_progress", NULL, NULL, &now);
    st = responses_store_append(s->store, s->key, s->changed ? &now : NULL, out);
    s->changed = false;
    buf_deinit(&now);
    if (st == RD_OK) return true;
    put_last_words(g, out);
    return false;
}

static void responses_finish(struct generation *g, struct choice *c, struct buf *out)
{
    struct responses_state *s = g->state;
    const char *status = c->finish == RD_FINISH_LENGTH ? "incomplete" : "completed";

    leave_queue(g, out);
    if (s->n_items == 0) begin_message(g, c, NULL, out);
    close_item(g, s, status, out);
    put_response(g, status, &c->usage, NULL, &s->final);
    if (out_of_memory(s)) {
        out->failed = true;
        return;
    }
    if (!g->streaming && s->keep) {
        struct buf none = {0};

        keep_response(g, &none);
    }
    if (g->streaming)
        put_response_event(g, *status == 'i' ? "response.incomplete" : "response.completed", &s->final, out);
}

static void responses_whole(struct generation *g, struct buf *out)
{
    struct responses_state *s = g->state;

    if (s->final.n)
        buf_append(out, s->final.data, s->final.n);
    else
        put_response(g, "queued", NULL, NULL, out); /* in the background */
}

static void responses_failed(struct generation *g, const struct api_error *e, struct buf *out)
{
    struct responses_state *s = g->state;

    buf_clear(&s->final);
    put_response(g, "failed", NULL, e, &s->final);
    put_response_event(g, "response.failed", &s->final, out);
}

#define RESPONSES                                                                                                      \
    .id_prefix = "resp_", .media = "text/event-stream", .ping = ": ping\n\n", .begins_at_once = true,                  \
    .accept = responses_accept, .collect = responses_collect, .begin = responses_begin, .delta = responses_delta,      \
    .finish = responses_finish, .whole = responses_whole, .error = responses_failed, .keep = responses_keep,           \
    .rename = responses_error, .destroy = responses_state_destroy
const struct response_shape responses_shape = {RESPONSES};
const struct response_shape responses_background_shape = {RESPONSES, .background = true};
