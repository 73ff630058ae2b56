/* server/dialects/anthropic_in.c - a body of the Messages API as one of chat completions.
 *
 *     system                   a system message
 *     text                     content parts; also what documents, search results and tool references hold of it
 *     tool_use                 tool_calls of the assistant's message; toolu_ ids are our call_ ids
 *     tool_result              a message of its own, role tool
 *     thinking                 reasoning_content; redacted_thinking is nothing, like what other servers' tools left
 *     roles ctx and msg        user (Claude Code sends them)
 *     thinking absent          off, as the API has it
 */
#include <string.h>
#include "base/error.h"
#include "base/limits.h"
#include "server/dialects/foreign.h"

/* One message being translated. */
struct turn {
    json_t *messages;      /* where whole ones go */
    json_t *parts, *calls; /* of the one that is open, */
    struct buf reasoning;  /* and its thinking, */
    bool reasons;          /* if it has any */
    const char *role;
    size_t i; /* for complaints */
    struct api_error *e;
};

static int bad_block(const struct turn *t, size_t k, const char *what)
{
    return api_error_set(t->e, 400, "messages", "messages.%zu.content.%zu: %s", t->i, k, what);
}

static int unsupported_block(const struct turn *t, size_t k, const char *type)
{
    char quoted[64];

    error_quote(quoted, sizeof(quoted), type, strlen(type));
    return api_error_set(t->e, 400, "messages",
                         "messages.%zu.content.%zu: blocks of type %s are not supported by this "
                         "model",
                         t->i, k, quoted);
}

/* The string, or the blocks of text, that a document or a search result holds; NULL: something else. */
static const json_t *inner_text(const json_t *block, const char *type)
{
    const json_t *source = json_object_get(block, "source"), *content;
    const char *kind = json_plain(json_object_get(source, "type"));

    if (strcmp(type, "search_result") == 0)
        content = json_object_get(block, "content");
    else if (kind && strcmp(kind, "text") == 0)
        content = json_object_get(source, "data");
    else if (kind && strcmp(kind, "content") == 0)
        content = json_object_get(source, "content");
    else
        return NULL;
    return json_is_string(content) || json_is_array(content) ? content : NULL;
}

static bool add_part(json_t *parts, const json_t *text)
{
    return foreign_add(parts, json_pack("{s:s, s:O}", "type", "text", "text", text));
}

/* A block that is text, or holds some, as parts. */
static int add_text(const struct turn *t, json_t *parts, const json_t *block, size_t k)
{
    const char *type = json_plain(json_object_get(block, "type"));
    const json_t *text = json_object_get(block, "text"), *inner;
    bool document = strcmp(type, "document") == 0, reference = strcmp(type, "tool_reference") == 0;
    size_t i;

    if (document || strcmp(type, "search_result") == 0) {
        text = inner_text(block, type);
        if (!text && document)
            return bad_block(t, k, "documents are supported with a source of type text or content only");
        if (!text) return bad_block(t, k, "a search_result needs its content");
        json_array_foreach(text, i, inner)
        {
            const json_t *s = json_object_get(inner, "text");

            if (!json_is_string(s)) return bad_block(t, k, "text is all that a document or search_result may hold");
            if (!add_part(parts, s)) return foreign_no_memory(t->e);
        }
        if (json_is_array(text)) return 0;
    } else if (reference) {
        text = json_object_get(block, "tool_name");
    } else if (strcmp(type, "image") == 0) { /* as it is: rd_request_options.messages_json */
        return foreign_add(parts, json_incref((json_t *)(uintptr_t)block)) ? 0 : foreign_no_memory(t->e);
    } else if (strcmp(type, "text") != 0) {
        return unsupported_block(t, k, type);
    }
    if (!json_is_string(text))
        return bad_block(
            t, k, reference ? "a tool_reference needs a string tool_name" : "a block of type text needs a string text");
    return add_part(parts, text) ? 0 : foreign_no_memory(t->e);
}

/* A text alone where there is one, else the list; takes parts. */
static json_t *content_of(json_t *parts)
{
    json_t *text = json_object_get(json_array_get(parts, 0), "text");
    json_t *only = json_array_size(parts) == 1 && text ? json_incref(text)
                   : json_array_size(parts) == 0       ? json_string("")
                                                       : json_incref(parts);

    json_decref(parts);
    return only;
}

/* The open message, if anything is in it, becomes one of the list. */
static int flush(struct turn *t)
{
    json_t *m;
    bool ok;

    if (!json_array_size(t->parts) && !json_array_size(t->calls) && !t->reasons) return 0;
    m = json_pack("{s:s, s:o}", "role", t->role, "content", content_of(t->parts));
    t->parts = json_array();
    ok = m && t->parts;
    if (ok && t->reasons)
        ok = foreign_set(m, "reasoning_content", json_stringn(t->reasoning.n ? t->reasoning.data : "", t->reasoning.n));
    if (ok && json_array_size(t->calls)) {
        ok = json_object_set(m, "tool_calls", t->calls) == 0;
        json_decref(t->calls);
        t->calls = json_array();
    }
    buf_clear(&t->reasoning);
    t->reasons = false;
    if (!ok) {
        json_decref(m);
        return foreign_no_memory(t->e);
    }
    return foreign_add(t->messages, m) ? 0 : foreign_no_memory(t->e);
}

/* toolu_X was made from our call_X (routes/messages.c). */
static json_t *own_id(const json_t *id)
{
    const char *s = json_plain(id);

    return strncmp(s, "toolu_", 6) == 0 ? json_sprintf("call_%s", s + 6) : json_string(s);
}

static int add_tool_result(struct turn *t, const json_t *block, size_t k)
{
    const json_t *id = json_object_get(block, "tool_use_id"), *content = json_object_get(block, "content"), *b;
    json_t *parts = NULL, *m;
    size_t i;

    if (strcmp(t->role, "assistant") == 0) return bad_block(t, k, "a tool_result belongs into a message of the user");
    if (!json_plain(id)) return bad_block(t, k, "a tool_result needs a string tool_use_id");
    if (content && !json_is_null(content) && !json_is_string(content) && !json_is_array(content))
        return bad_block(t, k, "the content of a tool_result is a string or a list of blocks");
    if (flush(t)) return -1;
    if (!(parts = json_array())) return foreign_no_memory(t->e);
    if (json_is_string(content) && !add_part(parts, content)) goto no_memory;
    json_array_foreach(content, i, b)
    {
        const char *type = json_plain(json_object_get(b, "type"));

        if (!type) {
            json_decref(parts);
            return bad_block(t, k, "the blocks of a tool_result need a type");
        }
        if (add_text(t, parts, b, k)) {
            json_decref(parts);
            return -1;
        }
    }
    m = json_pack("{s:s, s:o, s:o}", "role", "tool", "tool_call_id", own_id(id), "content", content_of(parts));
    return foreign_add(t->messages, m) ? 0 : foreign_no_memory(t->e);

no_memory:
    json_decref(parts);
    return foreign_no_memory(t->e);
}

static int add_tool_use(struct turn *t, const json_t *block, size_t k)
{
    const json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name"),
                 *input = json_object_get(block, "input");
    json_t *f;

    if (strcmp(t->role, "assistant") != 0) return bad_block(t, k, "a tool_use belongs into a message of the assistant");
    if (!json_plain(id) || !json_plain(name)) return bad_block(t, k, "a tool_use needs strings id and name");
    if (input && !json_is_object(input)) return bad_block(t, k, "the input of a tool_use is an object");
    f = json_pack("{s:O, s:o}", "name", name, "arguments",
                  input ? json_incref((json_t *)(uintptr_t)input) : json_object());
    return foreign_add(t->calls, json_pack("{s:o, s:s, s:o}", "id", own_id(id), "type", "function", "function", f))
               ? 0
               : foreign_no_memory(t->e);
}

static int add_thinking(struct turn *t, const json_t *block, size_t k)
{
    const json_t *text = json_object_get(block, "thinking");

    if (!json_is_string(text)) return bad_block(t, k, "a block of type thinking needs a string thinking");
    buf_append(&t->reasoning, json_string_value(text), json_string_length(text));
    t->reasons = true;
    return t->reasoning.failed ? foreign_no_memory(t->e) : 0;
}

/* What tools of another server left in the history. */
static bool is_skipped(const char *type)
{
    static const char *const types[] = {"redacted_thinking", "server_tool_use",  "mcp_tool_use",
                                        "mcp_tool_result",   "container_upload", "compaction"};
    const char *suffix = "_tool_result";
    size_t n = strlen(type), n_suffix = strlen(suffix);

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(type, types[i]) == 0) return true;
    return n > n_suffix && strcmp(type + n - n_suffix, suffix) == 0; /* web_search_tool_result and the like */
}

static int add_block(struct turn *t, const json_t *block, size_t k)
{
    const char *type = json_plain(json_object_get(block, "type"));

    if (!json_is_object(block)) return bad_block(t, k, "an object wanted");
    if (!type) return bad_block(t, k, "a block needs a type");
    if (strcmp(type, "tool_result") == 0) return add_tool_result(t, block, k);
    if (strcmp(type, "tool_use") == 0) return add_tool_use(t, block, k);
    if (strcmp(type, "thinking") == 0) return add_thinking(t, block, k);
    return is_skipped(type) ? 0 : add_text(t, t->parts, block, k);
}

static int add_message(struct turn *t, const json_t *m)
{
    static const char *const roles[][2] = {
        {"user", "user"}, {"assistant", "assistant"}, {"system", "system"}, {"ctx", "user"}, {"msg", "user"}};
    const char *role = json_plain(json_object_get(m, "role"));
    const json_t *content = json_object_get(m, "content"), *block;
    size_t k, n_before = json_array_size(t->messages);

    t->role = NULL;
    for (k = 0; role && k < sizeof(roles) / sizeof(roles[0]); k++)
        if (strcmp(role, roles[k][0]) == 0) t->role = roles[k][1];
    if (!t->role) return api_error_set(t->e, 400, "messages", "messages.%zu.role: user or assistant wanted", t->i);
    if (json_is_string(content))
        return foreign_add(t->messages, json_pack("{s:s, s:O}", "role", t->role, "content", content))
                   ? 0
                   : foreign_no_memory(t->e);
    if (!json_is_array(content))
        return api_error_set(t->e, 400, "messages", "messages.%zu.content: a string or a list of blocks wanted", t->i);
    json_array_foreach(content, k, block) if (add_block(t, block, k)) return -1;
    if (flush(t)) return -1;
    if (json_array_size(t->messages) > n_before) return 0; /* else the message was empty */
    return foreign_add(t->messages, json_pack("{s:s, s:s}", "role", t->role, "content", "")) ? 0
                                                                                             : foreign_no_memory(t->e);
}

static int add_system(json_t *messages, const json_t *system, struct api_error *e)
{
    json_t *parts;
    const json_t *block;
    size_t i;
    bool ok = true;

    if (!system || json_is_null(system)) return 0;
    if (json_is_string(system)) {
        ok = foreign_add(messages, json_pack("{s:s, s:O}", "role", "system", "content", system));
        return ok ? 0 : foreign_no_memory(e);
    }
    if (!(parts = json_array())) return foreign_no_memory(e);
    json_array_foreach(system, i, block)
    {
        const char *type = json_plain(json_object_get(block, "type"));
        const json_t *text = json_object_get(block, "text");

        if (!type || strcmp(type, "text") != 0 || !json_is_string(text)) {
            json_decref(parts);
            return api_error_set(e, 400, "system", "system.%zu: a block of type text with a string text wanted", i);
        }
        ok = ok && add_part(parts, text);
    }
    if (ok && json_array_size(parts) == 0) {
        json_decref(parts);
        return 0;
    }
    if (ok)
        return foreign_add(messages, json_pack("{s:s, s:o}", "role", "system", "content", content_of(parts)))
                   ? 0
                   : foreign_no_memory(e);
    json_decref(parts);
    return foreign_no_memory(e);
}

static int translate_messages(const json_t *body, json_t *chat, struct api_error *e)
{
    const json_t *list = json_object_get(body, "messages"), *m;
    struct turn t = {.messages = json_array(), .parts = json_array(), .calls = json_array(), .e = e};
    int rc = 0;

    if (!(t.messages && t.parts && t.calls)) rc = foreign_no_memory(e);
    if (rc == 0) rc = add_system(t.messages, json_object_get(body, "system"), e);
    for (t.i = 0; rc == 0 && t.i < json_array_size(list); t.i++) {
        m = json_array_get(list, t.i);
        rc = add_message(&t, m);
    }
    json_decref(t.parts);
    json_decref(t.calls);
    buf_deinit(&t.reasoning);
    if (rc) {
        json_decref(t.messages);
        return rc;
    }
    return foreign_set(chat, "messages", t.messages) ? 0 : foreign_no_memory(e);
}

/* Tools with a schema of the client's; those that a server would run itself (web_search_20250305 ...) are skipped. */
static int translate_tools(const json_t *body, json_t *chat, struct api_error *e)
{
    const json_t *list = json_object_get(body, "tools"), *tool;
    json_t *functions;
    size_t i;

    if (!list || json_is_null(list)) return 0;
    if (!(functions = json_array())) return foreign_no_memory(e);
    json_array_foreach(list, i, tool)
    {
        const json_t *type = json_object_get(tool, "type"), *name = json_object_get(tool, "name");
        bool own =
            !type || json_is_null(type) || (json_is_string(type) && strcmp(json_string_value(type), "custom") == 0);
        int rc = 0;

        if (type && !json_is_null(type) && !json_is_string(type))
            rc = api_error_set(e, 400, "tools", "tools.%zu.type: a string wanted", i);
        else if (!own)
            continue;
        else if (!json_is_string(name) || json_string_length(name) == 0 ||
                 json_string_length(name) > LIMIT_TOOL_NAME_BYTES)
            rc = api_error_set(e, 400, "tools", "tools.%zu.name: a string of 1 to %u bytes wanted", i,
                               LIMIT_TOOL_NAME_BYTES);
        else if (!json_is_object(json_object_get(tool, "input_schema")))
            rc = api_error_set(e, 400, "tools", "tools.%zu.input_schema: an object wanted", i);
        else if (!foreign_add(functions, foreign_tool(tool, "input_schema")))
            rc = foreign_no_memory(e);
        if (rc) {
            json_decref(functions);
            return rc;
        }
    }
    return foreign_set(chat, "tools", functions) ? 0 : foreign_no_memory(e);
}

static int translate_choice(const json_t *body, json_t *chat, struct api_error *e)
{
    const json_t *choice = json_object_get(body, "tool_choice"),
                 *single = json_object_get(choice, "disable_parallel_tool_use"),
                 *name = json_object_get(choice, "name");
    const char *type = json_plain(json_object_get(choice, "type"));
    json_t *ours = NULL;

    if (!choice || json_is_null(choice)) return 0;
    if (type && (strcmp(type, "auto") == 0 || strcmp(type, "none") == 0))
        ours = json_string(type);
    else if (type && strcmp(type, "any") == 0)
        ours = json_string("required");
    else if (type && strcmp(type, "tool") == 0 && json_is_string(name))
        ours = json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name);
    else
        return api_error_set(e, 400, "tool_choice",
                             "tool_choice: {type: auto, any, none}, or {type: tool, name} wanted");
    if (!foreign_set(chat, "tool_choice", ours)) return foreign_no_memory(e);
    if (json_is_true(single) && !foreign_set(chat, "parallel_tool_calls", json_false())) return foreign_no_memory(e);
    return 0;
}

/* thinking and output_config. */
static int translate_thinking(const json_t *body, json_t *chat, struct api_error *e)
{
    json_t *thinking = json_object_get(body, "thinking"), *config = json_object_get(body, "output_config"),
           *effort = json_object_get(config, "effort"), *format = json_object_get(config, "format");
    const char *type = json_plain(json_object_get(thinking, "type"));
    bool given = thinking && !json_is_null(thinking), off = !given || (type && strcmp(type, "disabled") == 0);

    if (!foreign_set(chat, "thinking", given ? json_incref(thinking) : json_pack("{s:s}", "type", "disabled")))
        return foreign_no_memory(e);
    if (!off && json_is_string(effort) && json_object_set(chat, "reasoning_effort", effort))
        return foreign_no_memory(e);
    if (!json_is_object(format)) return 0;
    if (!json_object_get(format, "schema")) return json_object_set(chat, "response_format", format);
    return foreign_set(chat, "response_format",
                       json_pack("{s:O, s:{s:s, s:O}}", "type", json_object_get(format, "type"), "json_schema", "name",
                                 "output", "schema", json_object_get(format, "schema")))
               ? 0
               : api_error_set(e, 400, "output_config.format", "output_config.format: an object with a type wanted");
}

static int translate_limits(const json_t *body, json_t *chat, struct api_error *e)
{
    json_t *max = json_object_get(body, "max_tokens"), *stop = json_object_get(body, "stop_sequences");

    if ((max && json_object_set(chat, "max_tokens", max)) || (stop && json_object_set(chat, "stop", stop)))
        return foreign_no_memory(e);
    return 0;
}

int anthropic_to_chat(const json_t *body, bool count, json_t **chat, struct api_error *e)
{
    *chat = params_shared(body, count ? FOR_COUNT : FOR_MESSAGES, FOR_CHAT);
    if (!*chat) return foreign_no_memory(e);
    if ((count || translate_limits(body, *chat, e) == 0) && translate_messages(body, *chat, e) == 0 &&
        translate_tools(body, *chat, e) == 0 && translate_choice(body, *chat, e) == 0 &&
        translate_thinking(body, *chat, e) == 0)
        return 0;
    json_decref(*chat);
    *chat = NULL;
    return -1;
}

void anthropic_error(struct api_error *e)
{
    foreign_rename(e, "stop", "stop_sequences");
    foreign_rename(e, "response_format", "output_config.format");
}
