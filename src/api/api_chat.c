/* api/api_chat.c - a conversation as the text that every request of it is made from: messages are added at its end, checked
 * as JSON once, and an answer is put together from the events that told it.
 *
 *     [{"role":"user",..},{"role":"assistant",..},{"role":"user",..}]
 *      ^starts[0]         ^starts[1]              ^starts[2]
 */
#include <string.h>
#include "api/api_sizes.h"
#include "api/api_state.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"

struct rd_chat {
    struct buf messages; /* without the closing bracket */
    struct buf whole;    /* with it: what requests read */
    size_t *starts;      /* [n]: where each message begins */
    size_t cap_starts;
    uint32_t n;
    char *tools, *kwargs; /* JSON, or NULL */
    struct heard {
        struct buf content, reasoning, calls, id, name, arguments;
        uint32_t n_calls;
        bool any; /* an event came since the last answer was whole */
    } heard;
};

static void forget_heard(struct heard *h)
{
    buf_deinit(&h->content);
    buf_deinit(&h->reasoning);
    buf_deinit(&h->calls);
    buf_deinit(&h->id);
    buf_deinit(&h->name);
    buf_deinit(&h->arguments);
    *h = (struct heard){.any = false};
}

void rd_chat_free(rd_chat *c)
{
    if (!c) return;
    buf_deinit(&c->messages);
    buf_deinit(&c->whole);
    forget_heard(&c->heard);
    mem_free(c->starts);
    mem_free(c->tools);
    mem_free(c->kwargs);
    mem_free(c);
}

static rd_status no_memory(struct rd_error *err)
{
    return error_set(err, RD_E_NOMEM, "out of memory for a conversation");
}

/* What requests read, anew. */
static rd_status close_text(struct rd_chat *c)
{
    struct buf whole = {0};

    buf_append(&whole, c->messages.data, c->messages.n);
    buf_puts(&whole, "]");
    if (whole.failed) {
        buf_deinit(&whole);
        return RD_E_NOMEM;
    }
    buf_deinit(&c->whole);
    c->whole = whole;
    return RD_OK;
}

static void cut(struct rd_chat *c, size_t n_bytes)
{
    c->messages.n = n_bytes;
    c->messages.failed = false;
    if (c->messages.data) c->messages.data[n_bytes] = 0;
}

/* One JSON object's text at the end; all of it, or nothing. */
static rd_status append(struct rd_chat *c, const char *json, size_t n, struct rd_error *err)
{
    size_t before = c->messages.n;
    void *starts = c->starts;

    if (c->n == LIMIT_MESSAGES) return error_set(err, RD_E_LIMIT, "messages: at most %u", LIMIT_MESSAGES);
    if (!mem_grow(&starts, &c->cap_starts, (size_t)c->n + 1, sizeof(*c->starts))) return no_memory(err);
    c->starts = starts;
    if (c->n > 0) buf_puts(&c->messages, ",");
    c->starts[c->n] = c->messages.n;
    buf_append(&c->messages, json, n);
    if (c->messages.failed || close_text(c) != RD_OK) {
        cut(c, before);
        return no_memory(err);
    }
    c->n++;
    return RD_OK;
}

static rd_status append_value(struct rd_chat *c, const json_t *message, struct rd_error *err)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    char *text;
    rd_status st;

    if (!json_is_object(message) || !role || !*role)
        return error_set(err, RD_E_INVALID, "messages[%u]: an object with a role wanted", c->n);
    text = json_dumps(message, JSON_COMPACT);
    if (!text) return no_memory(err);
    st = append(c, text, strlen(text), err);
    mem_free(text);
    return st;
}

/* The text of JSON of one kind, as it is kept: checked, compact. json NULL: *out is NULL. */
static rd_status keep_json(const char *json, const char *what, bool array, char **out, struct rd_error *err)
{
    json_t *v;
    rd_status st = api_parse_json(json, what, array, &v, err);

    *out = NULL;
    if (st != RD_OK || !v) return st;
    *out = json_dumps(v, JSON_COMPACT);
    json_decref(v);
    return *out ? RD_OK : no_memory(err);
}

rd_status rd_chat_new(const char *messages_json, const char *tools_json, const char *kwargs_json, rd_chat **out,
                      struct rd_error *err)
{
    struct rd_chat *c;
    json_t *messages = NULL;
    rd_status st = RD_E_NOMEM;

    *out = NULL;
    json_set_alloc_funcs(api_json_alloc, mem_free);
    c = mem_zalloc(1, sizeof(*c));
    if (!c) return no_memory(err);
    buf_puts(&c->messages, "[");
    st = c->messages.failed || close_text(c) != RD_OK ? no_memory(err) : RD_OK;
    if (st == RD_OK) st = api_parse_json(messages_json, "messages", true, &messages, err);
    for (size_t i = 0; st == RD_OK && i < json_array_size(messages); i++)
        st = append_value(c, json_array_get(messages, i), err);
    if (st == RD_OK) st = keep_json(tools_json, "tools", true, &c->tools, err);
    if (st == RD_OK) st = keep_json(kwargs_json, "chat_template_kwargs", false, &c->kwargs, err);
    json_decref(messages);
    if (st == RD_OK)
        *out = c;
    else
        rd_chat_free(c);
    return st;
}

rd_status rd_chat_add(rd_chat *c, const char *message_json, struct rd_error *err)
{
    json_t *message = NULL;
    rd_status st;

    if (!message_json) return error_set(err, RD_E_INVALID, "messages[%u]: an object with a role wanted", c->n);
    st = api_parse_json(message_json, "message", false, &message, err);
    if (st == RD_OK) st = append_value(c, message, err);
    json_decref(message);
    return st;
}

static void put_text(struct buf *b, const char *name, const char *s, size_t n)
{
    buf_printf(b, "%s\"%s\":\"", b->n > 1 ? "," : "", name);
    buf_put_json(b, s, n);
    buf_puts(b, "\"");
}

static rd_status append_built(struct rd_chat *c, struct buf *b, struct rd_error *err)
{
    rd_status st;

    buf_puts(b, "}");
    st = b->failed ? no_memory(err) : append(c, b->data, b->n, err);
    buf_deinit(b);
    return st;
}

rd_status rd_chat_say(rd_chat *c, const char *role, const char *text, size_t n_bytes, struct rd_error *err)
{
    struct buf b = {0};

    if (!role || !*role) return error_set(err, RD_E_INVALID, "messages[%u]: a role wanted", c->n);
    buf_puts(&b, "{");
    put_text(&b, "role", role, strlen(role));
    put_text(&b, "content", text, n_bytes);
    return append_built(c, &b, err);
}

rd_status rd_chat_result(rd_chat *c, const char *call_id, const char *text, size_t n_bytes, struct rd_error *err)
{
    struct buf b = {0};

    if (!call_id) return error_set(err, RD_E_INVALID, "messages[%u]: the id of a call wanted", c->n);
    buf_puts(&b, "{");
    put_text(&b, "role", "tool", 4);
    put_text(&b, "tool_call_id", call_id, strlen(call_id));
    put_text(&b, "content", text, n_bytes);
    return append_built(c, &b, err);
}

/* ---- an answer, from its events ---- */

static void hear_call(struct heard *h, const struct rd_delta *d)
{
    switch (d->type) {
    case RD_DELTA_CALL_BEGIN:
        buf_clear(&h->id);
        buf_clear(&h->name);
        buf_clear(&h->arguments);
        buf_puts(&h->id, d->id);
        buf_append(&h->name, d->text, d->text_bytes);
        break;
    case RD_DELTA_CALL_ARGUMENTS:
        buf_append(&h->arguments, d->text, d->text_bytes);
        break;
    case RD_DELTA_CALL_END:
        if (!d->complete) break; /* what is torn can be called by nobody */
        buf_printf(&h->calls, "%s{\"type\":\"function\"", h->n_calls++ ? "," : "");
        put_text(&h->calls, "id", h->id.n ? h->id.data : "", h->id.n);
        buf_puts(&h->calls, ",\"function\":{");
        buf_puts(&h->calls, "\"name\":\"");
        buf_put_json(&h->calls, h->name.n ? h->name.data : "", h->name.n);
        buf_puts(&h->calls, "\"");
        put_text(&h->calls, "arguments", h->arguments.n ? h->arguments.data : "", h->arguments.n);
        buf_puts(&h->calls, "}}");
        break;
    default:
        break;
    }
}

static rd_status keep_heard(struct rd_chat *c, struct rd_error *err)
{
    struct heard *h = &c->heard;
    struct buf b = {0};
    rd_status st = RD_OK;

    buf_puts(&b, "{");
    put_text(&b, "role", "assistant", 9);
    if (h->content.n > 0 || h->n_calls == 0)
        put_text(&b, "content", h->content.n ? h->content.data : "", h->content.n);
    else
        buf_puts(&b, ",\"content\":null");
    if (h->reasoning.n > 0) put_text(&b, "reasoning_content", h->reasoning.data, h->reasoning.n);
    if (h->n_calls > 0) buf_printf(&b, ",\"tool_calls\":[%s]", h->calls.data);
    if (h->content.failed || h->reasoning.failed || h->calls.failed || h->id.failed || h->name.failed ||
        h->arguments.failed)
        b.failed = true;
    st = append_built(c, &b, err);
    forget_heard(h);
    return st;
}

rd_status rd_chat_hear(rd_chat *c, const struct rd_event *ev, struct rd_error *err)
{
    struct heard *h = &c->heard;

    for (uint32_t i = 0; i < ev->n_deltas; i++) {
        const struct rd_delta *d = &ev->deltas[i];

        if (d->type == RD_DELTA_CONTENT)
            buf_append(&h->content, d->text, d->text_bytes);
        else if (d->type == RD_DELTA_REASONING)
            buf_append(&h->reasoning, d->text, d->text_bytes);
        else
            hear_call(h, d);
    }
    if (ev->n_deltas == 0 && ev->text_bytes > 0) buf_append(&h->content, ev->text, ev->text_bytes);
    h->any |= ev->type == RD_EVENT_TOKEN;
    if (ev->type == RD_EVENT_ERROR) forget_heard(h);
    if (ev->type != RD_EVENT_DONE) return RD_OK;
    if (h->any) return keep_heard(c, err);
    forget_heard(h); /* nothing was said */
    return RD_OK;
}

/* ---- what it is ---- */

uint32_t rd_chat_length(const rd_chat *c)
{
    return c->n;
}

rd_status rd_chat_cut(rd_chat *c, uint32_t n_messages, struct rd_error *err)
{
    size_t at;

    if (n_messages >= c->n) return RD_OK;
    at = c->starts[n_messages] - (n_messages > 0);
    if (at + 2 > c->whole.n) return error_set(err, RD_E_INTERNAL, "a conversation's text is too short");
    cut(c, at);
    c->whole.n = at + 1; /* in place: what is shorter needs no memory */
    memcpy(c->whole.data + at, "]", 2);
    c->n = n_messages;
    return RD_OK;
}

char *rd_chat_json(const rd_chat *c)
{
    return mem_strdup(c->whole.data);
}

rd_status rd_chat_render(const rd_engine *engine, const rd_chat *c, enum rd_prompt_end end, char **prompt,
                         size_t *n_bytes, struct rd_error *err)
{
    return rd_apply_template(engine, c->whole.data, c->tools, c->kwargs, end, prompt, n_bytes, err);
}

rd_status api_options(const struct rd_request_options *o, struct rd_request_options *own, struct rd_error *err)
{
    if (api_check_size(o->size, sizeof(*o), "rd_request_options_default", err) != RD_OK) return RD_E_INVALID;
    *own = *o;
    if (!o->chat || o->messages_json || o->tools_json || o->kwargs_json) return RD_OK;
    own->chat = NULL;
    own->messages_json = o->chat->whole.data;
    own->tools_json = o->chat->tools;
    own->kwargs_json = o->chat->kwargs;
    return RD_OK;
}
