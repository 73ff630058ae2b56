/* text/chat/chat_messages.c - the adapting of messages, one by one and then as a conversation. */
#include "text/chat/chat_messages.h"
#include <string.h>
#include "base/buf.h"
#include "base/error.h"

static rd_status no_memory(struct rd_error *err)
{
    return error_set(err, RD_E_NOMEM, "out of memory for messages");
}

static bool is_text(const json_t *v, const char *text)
{
    return json_is_string(v) && strcmp(json_string_value(v), text) == 0;
}

static bool has_role(const json_t *message, const char *role)
{
    return is_text(json_object_get(message, "role"), role);
}

static int append_text(const char *s, size_t n, void *to)
{
    buf_append(to, s, n);
    return 0;
}

/* A value's JSON as a string value. */
static json_t *as_text(const json_t *v)
{
    struct buf text = {0};
    json_t *out = NULL;

    if (json_dump_callback(v, append_text, &text, JSON_ENCODE_ANY) == 0 && !text.failed)
        out = json_stringn(text.data, text.n);
    buf_deinit(&text);
    return out;
}

/* ---- content ---- */

/* The text of a part, or NULL when it is none; *thinking: it is the assistant's thinking. */
static const json_t *part_text(const json_t *part, bool *thinking)
{
    const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");

    *thinking = is_text(type, "thinking") || is_text(type, "reasoning");
    if (json_is_string(part)) return part;
    if (*thinking) return json_is_string(text) ? text : json_object_get(part, "thinking");
    if (is_text(type, "refusal")) return json_object_get(part, "refusal");
    if (!type || is_text(type, "text") || is_text(type, "input_text") || is_text(type, "output_text")) return text;
    return NULL;
}

static rd_status unknown_part(const json_t *part, size_t message, size_t i, struct rd_error *err)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    char quoted[64];

    if (!type) return error_set(err, RD_E_INVALID, "messages: messages[%zu].content[%zu] needs a type", message, i);
    error_quote(quoted, sizeof(quoted), type, strlen(type));
    if (part_text(part, &(bool){false}) || !strcmp(type, "text") || !strcmp(type, "input_text"))
        return error_set(err, RD_E_INVALID, "messages: messages[%zu].content[%zu]: the part of type %s lacks its text",
                         message, i, quoted);
    return error_set(err, RD_E_INVALID,
                     "messages: messages[%zu].content[%zu]: parts of type %s are not supported by this model", message,
                     i, quoted);
}

/* Parts to text and thinking. as_parts: *content is a list of text parts, else one text. */
static rd_status join_parts(const json_t *parts, size_t message, bool as_parts, json_t **content, struct buf *thought,
                            struct rd_error *err)
{
    struct buf text = {0};
    json_t *list = as_parts ? json_array() : NULL, *part;
    rd_status st = as_parts && !list ? no_memory(err) : RD_OK;
    size_t i;

    *content = NULL;
    json_array_foreach(parts, i, part)
    {
        bool thinking;
        const json_t *piece = part_text(part, &thinking);

        if (st != RD_OK) break;
        if (!json_is_string(piece)) {
            st = unknown_part(part, message, i, err);
        } else if (thinking) {
            buf_append(thought, json_string_value(piece), json_string_length(piece));
        } else if (!as_parts) {
            buf_append(&text, json_string_value(piece), json_string_length(piece));
        } else {
            json_t *entry = json_object();
            bool bad = !entry || json_object_set_new(entry, "type", json_string("text")) ||
                       json_object_set(entry, "text", (json_t *)(uintptr_t)piece);
            if (bad || json_array_append(list, entry)) st = no_memory(err);
            json_decref(entry);
        }
    }
    if (st == RD_OK) *content = as_parts ? json_incref(list) : json_stringn(text.n ? text.data : "", text.n);
    if (st == RD_OK && (!*content || text.failed || thought->failed)) {
        json_decref(*content);
        *content = NULL;
        st = no_memory(err);
    }
    json_decref(list);
    buf_deinit(&text);
    return st;
}

/* "text" -> [{"type": "text", "text": "text"}] */
static json_t *wrap_text(json_t *text)
{
    json_t *list = json_array(), *part = json_object();
    bool bad = !list || !part || json_object_set_new(part, "type", json_string("text")) ||
               json_object_set(part, "text", text) || json_array_append(list, part);

    json_decref(part);
    if (!bad) return list;
    json_decref(list);
    return NULL;
}

static rd_status adapt_content(const struct chat_caps *caps, json_t *m, size_t i, unsigned folds, struct rd_error *err)
{
    json_t *content = json_object_get(m, "content"), *fresh = NULL;
    bool missing = !content, empty = missing || json_is_null(content);
    struct buf thought = {0};
    rd_status st = RD_OK;

    if (empty) {
        if ((missing || caps->null_content) && !(folds & CHAT_FOLD_EMPTY) && !has_role(m, "tool")) return RD_OK;
        return json_object_set_new(m, "content", json_string("")) ? no_memory(err) : RD_OK;
    }
    if (json_is_array(content)) {
        bool as_parts = (caps->parts || caps->only_parts) && !(folds & CHAT_FOLD_TURNS);
        st = join_parts(content, i, as_parts, &fresh, &thought, err);
        if (st == RD_OK && json_object_set_new(m, "content", fresh)) st = no_memory(err);
        if (st == RD_OK && thought.n && !json_object_get(m, "reasoning_content") &&
            json_object_set_new(m, "reasoning_content", json_stringn(thought.data, thought.n)))
            st = no_memory(err);
        buf_deinit(&thought);
        return st;
    }
    if (!json_is_string(content)) {
        /* a tool's result may be any JSON; llama-server and vLLM take it as its text */
        if (!has_role(m, "tool"))
            return error_set(err, RD_E_INVALID, "messages: messages[%zu]: content must be a string or a list of parts",
                             i);
        return json_object_set_new(m, "content", as_text(content)) ? no_memory(err) : RD_OK;
    }
    if (!caps->only_parts) return RD_OK;
    fresh = wrap_text(content);
    return !fresh || json_object_set_new(m, "content", fresh) ? no_memory(err) : RD_OK;
}

/* ---- the rest of a message ---- */

static rd_status adapt_reasoning(const struct chat_caps *caps, json_t *m, struct rd_error *err)
{
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
    const bool reads[] = {true, caps->reasoning, caps->thinking};
    json_t *text = NULL;

    for (size_t k = 0; k < 3 && !text; k++) {
        json_t *v = json_object_get(m, names[k]);
        if (json_is_string(v)) text = v;
    }
    for (size_t k = 0; text && k < 3; k++)
        if (reads[k] && !json_is_string(json_object_get(m, names[k])) && json_object_set(m, names[k], text))
            return no_memory(err);
    return RD_OK;
}

/* The arguments of a call's function, as the template wants them; function is the caller's own copy. */
static rd_status adapt_arguments(const struct chat_caps *caps, json_t *function, struct rd_error *err)
{
    json_t *arguments = json_object_get(function, "arguments"), *fresh = NULL;
    json_error_t why = {.line = 0};

    if (json_is_string(arguments) && !caps->text_args) {
        if (json_string_length(arguments) == 0)
            fresh = json_object();
        else
            fresh = json_loadb(json_string_value(arguments), json_string_length(arguments), JSON_ALLOW_NUL, &why);
        if (!fresh && (json_string_length(arguments) == 0 || json_error_code(&why) == json_error_out_of_memory))
            return no_memory(err);
        if (json_is_object(fresh)) return json_object_set_new(function, "arguments", fresh) ? no_memory(err) : RD_OK;
        json_decref(fresh); /* no object: the text is what the model wrote */
    } else if (json_is_object(arguments) && caps->text_args) {
        if (json_object_set_new(function, "arguments", as_text(arguments))) return no_memory(err);
    }
    return RD_OK;
}

/* Nine letters and digits that follow from the id. */
static json_t *short_id(const json_t *id)
{
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    const char *s = json_string_value(id);
    uint64_t h = 1469598103934665603ull;
    char text[9];
    bool fits = json_string_length(id) == 9;

    for (size_t i = 0; i < json_string_length(id); i++) {
        fits &= strchr(digits, s[i] | 32) != NULL && s[i] != 0;
        h = (h ^ (unsigned char)s[i]) * 1099511628211ull;
    }
    if (fits) return json_incref((json_t *)(uintptr_t)id);
    for (size_t i = 0; i < 9; i++, h /= 36) text[i] = digits[h % 36];
    return json_stringn(text, 9);
}

static rd_status shorten_id(json_t *owner, const char *name, struct rd_error *err)
{
    json_t *id = json_object_get(owner, name);

    if (!id && strcmp(name, "id") != 0) return RD_OK;
    if (!json_is_string(id)) return json_object_set_new(owner, name, json_string("000000000")) ? no_memory(err) : RD_OK;
    return json_object_set_new(owner, name, short_id(id)) ? no_memory(err) : RD_OK;
}

static rd_status adapt_call(const struct chat_caps *caps, json_t *calls, size_t k, unsigned folds, struct rd_error *err)
{
    json_t *call = json_copy(json_array_get(calls, k)), *function = NULL;
    rd_status st = call ? RD_OK : no_memory(err);

    if (st == RD_OK && json_is_object(json_object_get(call, "function"))) {
        function = json_copy(json_object_get(call, "function"));
        if (!function || json_object_set(call, "function", function)) st = no_memory(err);
    } else if (st == RD_OK) {
        function = json_incref(call); /* {name, arguments} without a wrapper */
    }
    if (st == RD_OK && json_is_object(function)) st = adapt_arguments(caps, function, err);
    if (st == RD_OK && (folds & CHAT_FOLD_IDS) && json_is_object(call)) st = shorten_id(call, "id", err);
    if (st == RD_OK && json_array_set(calls, k, call)) st = no_memory(err);
    json_decref(function);
    json_decref(call);
    return st;
}

/* OpenAI's older form: {"function_call": {name, arguments}} */
static rd_status adapt_function_call(json_t *m, struct rd_error *err)
{
    json_t *old = json_object_get(m, "function_call"), *calls, *call;
    bool bad;

    if (!json_is_object(old) || json_object_get(m, "tool_calls")) return RD_OK;
    calls = json_array();
    call = json_object();
    bad = !calls || !call || json_object_set_new(call, "id", json_string("call00000")) ||
          json_object_set_new(call, "type", json_string("function")) || json_object_set(call, "function", old) ||
          json_array_append(calls, call) || json_object_set(m, "tool_calls", calls) ||
          json_object_del(m, "function_call");
    json_decref(call);
    json_decref(calls);
    return bad ? no_memory(err) : RD_OK;
}

static rd_status adapt_calls(const struct chat_caps *caps, json_t *m, size_t i, unsigned folds, struct rd_error *err)
{
    json_t *calls = json_object_get(m, "tool_calls"), *fresh;
    rd_status st = RD_OK;

    if (folds & CHAT_FOLD_IDS) st = shorten_id(m, "tool_call_id", err);
    if (st != RD_OK || !calls) return st;
    if (json_is_null(calls) || (json_is_array(calls) && json_array_size(calls) == 0)) {
        json_object_del(m, "tool_calls"); /* clients send them empty; templates ask whether they are defined */
        return RD_OK;
    }
    if (!json_is_array(calls))
        return error_set(err, RD_E_INVALID, "messages: messages[%zu]: tool_calls must be a list", i);
    fresh = json_copy(calls);
    if (!fresh || json_object_set(m, "tool_calls", fresh)) st = no_memory(err);
    for (size_t k = 0; st == RD_OK && k < json_array_size(fresh); k++) {
        if (!json_is_object(json_array_get(fresh, k)))
            st = error_set(err, RD_E_INVALID, "messages: messages[%zu]: tool_calls[%zu] must be an object", i, k);
        else
            st = adapt_call(caps, fresh, k, folds, err);
    }
    json_decref(fresh);
    return st;
}

static rd_status adapt_role(const struct chat_caps *caps, json_t *m, struct rd_error *err)
{
    const char *role = NULL;

    if (has_role(m, "developer") && !caps->developer) role = "system";
    if (has_role(m, "function")) role = "tool";
    return role && json_object_set_new(m, "role", json_string(role)) ? no_memory(err) : RD_OK;
}

static rd_status adapt_one(const struct chat_caps *caps, const json_t *message, size_t i, unsigned folds, json_t *to,
                           struct rd_error *err)
{
    json_t *m;
    rd_status st;

    if (!json_is_object(message)) return error_set(err, RD_E_INVALID, "messages: messages[%zu] is not an object", i);
    if (!json_is_string(json_object_get(message, "role")))
        return error_set(err, RD_E_INVALID, "messages: messages[%zu] needs a role", i);
    m = json_copy((json_t *)(uintptr_t)message);
    st = m ? adapt_role(caps, m, err) : no_memory(err);
    if (st == RD_OK) st = adapt_content(caps, m, i, folds, err);
    if (st == RD_OK) st = adapt_reasoning(caps, m, err);
    if (st == RD_OK) st = adapt_function_call(m, err);
    if (st == RD_OK) st = adapt_calls(caps, m, i, folds, err);
    if (st == RD_OK && json_array_append(to, m)) st = no_memory(err);
    json_decref(m);
    return st;
}

/* ---- the conversation ---- */

/* a's text before b's, in b. Parts are put together as parts. */
static rd_status prepend(const json_t *a, json_t *b, const char *between, struct rd_error *err)
{
    json_t *x = json_object_get(a, "content"), *y = json_object_get(b, "content"), *list;
    struct buf text = {0};
    bool bad;

    if (json_is_array(x) && json_is_array(y)) {
        list = json_copy(x);
        bad = !list || json_array_extend(list, y) || json_object_set(b, "content", list);
        json_decref(list);
        return bad ? no_memory(err) : RD_OK;
    }
    if (json_is_string(x)) buf_append(&text, json_string_value(x), json_string_length(x));
    if (json_is_string(y) && json_string_length(y)) {
        if (text.n) buf_puts(&text, between);
        buf_append(&text, json_string_value(y), json_string_length(y));
    }
    bad = text.failed || json_object_set_new(b, "content", json_stringn(text.n ? text.data : "", text.n));
    buf_deinit(&text);
    return bad ? no_memory(err) : RD_OK;
}

/* System message i goes into the user message behind it; if there is none, it becomes one itself. */
static rd_status fold_system(json_t *list, size_t i, struct rd_error *err)
{
    json_t *m = json_array_get(list, i), *next = json_array_get(list, i + 1);
    rd_status st;

    if (!next || !has_role(next, "user"))
        return json_object_set_new(m, "role", json_string("user")) ? no_memory(err) : RD_OK;
    st = prepend(m, next, "\n\n", err);
    if (st == RD_OK) json_array_remove(list, i);
    return st;
}

/* Backwards, so that several in a row keep their order. */
static rd_status fold_systems(json_t *list, bool first_too, struct rd_error *err)
{
    rd_status st = RD_OK;
    size_t first = 0;

    if (!first_too) { /* those that lead become the one system message */
        while (st == RD_OK && json_array_size(list) > 1 && has_role(json_array_get(list, 0), "system") &&
               has_role(json_array_get(list, 1), "system")) {
            st = prepend(json_array_get(list, 0), json_array_get(list, 1), "\n\n", err);
            if (st == RD_OK) json_array_remove(list, 0);
        }
        first = 1;
    }
    for (size_t i = json_array_size(list); st == RD_OK && i-- > first;)
        if (has_role(json_array_get(list, i), "system")) st = fold_system(list, i, err);
    return st;
}

static bool can_merge(const json_t *a, const json_t *b)
{
    return (has_role(a, "user") && has_role(b, "user")) ||
           (has_role(a, "assistant") && has_role(b, "assistant") && !json_object_get(a, "tool_calls") &&
            !json_object_get(b, "tool_calls"));
}

static rd_status fold_turns(json_t *list, struct rd_error *err)
{
    rd_status st = RD_OK;

    for (size_t i = json_array_size(list); st == RD_OK && i-- > 1;) {
        json_t *a = json_array_get(list, i - 1), *b = json_array_get(list, i);
        if (!can_merge(a, b)) continue;
        st = prepend(a, b, "\n\n", err);
        if (st == RD_OK) json_array_remove(list, i - 1);
    }
    return st;
}

/* The call that a result belongs to: by its id, else the one at the same place. */
static size_t call_of(const json_t *calls, const json_t *result, size_t place)
{
    const char *id = json_string_value(json_object_get(result, "tool_call_id"));
    size_t n = json_array_size(calls);

    for (size_t k = 0; id && k < n; k++) {
        const char *other = json_string_value(json_object_get(json_array_get(calls, k), "id"));
        if (other && strcmp(id, other) == 0) return k;
    }
    return place < n ? place : n - 1;
}

/* m with call k alone; text and thoughts stay with the first. */
static json_t *with_one_call(const json_t *m, size_t k)
{
    static const char *const thoughts[] = {"reasoning_content", "reasoning", "thinking"};
    json_t *one = json_copy((json_t *)(uintptr_t)m), *calls = json_array();
    bool bad = json_array_append(calls, json_array_get(json_object_get(m, "tool_calls"), k)) ||
               json_object_set(one, "tool_calls", calls);

    if (k > 0 && json_is_string(json_object_get(one, "content")))
        bad |= json_object_set_new(one, "content", json_string("")) != 0;
    for (size_t i = 0; k > 0 && i < sizeof(thoughts) / sizeof(thoughts[0]); i++) json_object_del(one, thoughts[i]);
    json_decref(calls);
    if (!bad) return one;
    json_decref(one);
    return NULL;
}

/* Message i and the results behind it, call by call, onto the end of `to`. */
static rd_status split_calls(const json_t *list, size_t i, size_t n_results, json_t *to, struct rd_error *err)
{
    const json_t *m = json_array_get(list, i), *calls = json_object_get(m, "tool_calls");

    for (size_t k = 0; k < json_array_size(calls); k++) {
        if (json_array_append_new(to, with_one_call(m, k))) return no_memory(err);
        for (size_t j = 0; j < n_results; j++) {
            json_t *result = json_array_get(list, i + 1 + j);
            if (call_of(calls, result, j) == k && json_array_append(to, result)) return no_memory(err);
        }
    }
    return RD_OK;
}

static rd_status fold_calls(json_t *list, struct rd_error *err)
{
    json_t *to = json_array();
    rd_status st = to ? RD_OK : no_memory(err);

    for (size_t i = 0, n; st == RD_OK && i < json_array_size(list); i += n + 1) {
        json_t *m = json_array_get(list, i);
        n = 0;
        if (json_array_size(json_object_get(m, "tool_calls")) < 2) {
            if (json_array_append(to, m)) st = no_memory(err);
            continue;
        }
        while (has_role(json_array_get(list, i + 1 + n), "tool")) n++;
        st = split_calls(list, i, n, to, err);
    }
    if (st == RD_OK && (json_array_clear(list) || json_array_extend(list, to))) st = no_memory(err);
    json_decref(to);
    return st;
}

rd_status chat_messages_adapt(const struct chat_caps *caps, const json_t *messages, unsigned folds, json_t **out,
                              struct rd_error *err)
{
    json_t *list = json_array();
    const json_t *m;
    rd_status st = list ? RD_OK : no_memory(err);
    size_t i;

    if (st == RD_OK && !json_is_array(messages)) st = error_set(err, RD_E_INVALID, "messages must be an array");
    json_array_foreach(messages, i, m)
    {
        if (st != RD_OK) break;
        st = adapt_one(caps, m, i, folds, list, err);
    }
    if (caps->loses_late) folds |= CHAT_FOLD_LATE;
    if (caps->loses_system) folds |= CHAT_FOLD_SYSTEM;
    if (st == RD_OK && (folds & (CHAT_FOLD_LATE | CHAT_FOLD_SYSTEM)))
        st = fold_systems(list, folds & CHAT_FOLD_SYSTEM, err);
    if (st == RD_OK && (folds & CHAT_FOLD_TURNS)) st = fold_turns(list, err);
    if (st == RD_OK && (folds & CHAT_FOLD_CALLS)) st = fold_calls(list, err);
    if (st != RD_OK) {
        json_decref(list);
        return st;
    }
    *out = list;
    return RD_OK;
}
