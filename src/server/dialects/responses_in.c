/* server/dialects/responses_in.c - a body of the Responses API: its input as items, and items as the messages of a chat.
 *
 *     message                        a message; an assistant's joins the reasoning before it
 *     reasoning                      reasoning_content of what follows; its content, or else its summary
 *     function_call                  tool_calls of the assistant's message before it, or of a new one
 *     function_call_output           a message of role tool
 *     custom_tool_call, its output   the same, with {"input": its text} as arguments
 *     item_reference                 the caller replaces it by the item
 *
 * What other tools left (web_search_call, mcp_list_tools, compaction, ...) says nothing to this model and is skipped.
 * Agents send items without id, type or status (codex#12669) and tools of other types (codex#10635): both are taken.
 */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/random.h"
#include "server/dialects/foreign.h"

/* ---- input to items ---- */

static int bad_item(struct api_error *e, size_t i, const char *what)
{
    return api_error_set(e, 400, "input", "input[%zu]: %s", i, what);
}

static const char *type_of(const json_t *v)
{
    return json_plain(json_object_get(v, "type"));
}

static bool is_type(const json_t *item, const char *type)
{
    const char *t = type_of(item);

    return t && strcmp(t, type) == 0;
}

/* The parts of a message or of a call's output, each a text. */
static int check_parts(const json_t *parts, size_t i, struct api_error *e)
{
    static const char *const known[] = {"input_text",     "output_text",  "text",       "refusal",
                                        "reasoning_text", "summary_text", "input_image"};
    const json_t *part;
    char quoted[64];
    size_t k;

    json_array_foreach(parts, k, part)
    {
        const char *type = type_of(part);
        bool ok = false;

        if (!type) return api_error_set(e, 400, "input", "input[%zu].content[%zu]: a part needs a type", i, k);
        for (size_t t = 0; t < sizeof(known) / sizeof(known[0]); t++) ok = ok || strcmp(type, known[t]) == 0;
        if (!ok)
            return api_error_set(e, 400, "input",
                                 "input[%zu].content[%zu]: parts of type %s are not supported by this "
                                 "model",
                                 i, k, error_quote(quoted, sizeof(quoted), type, strlen(type)));
        if (strcmp(type, "input_image") == 0) continue; /* read where it is decoded */
        if (!json_is_string(json_object_get(part, strcmp(type, "refusal") == 0 ? "refusal" : "text")))
            return api_error_set(e, 400, "input", "input[%zu].content[%zu]: a part of type %s needs its text", i, k,
                                 type);
    }
    return 0;
}

static int check_message(json_t *item, size_t i, struct api_error *e)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    const char *role = json_plain(json_object_get(item, "role"));
    json_t *content = json_object_get(item, "content"), *part;
    bool assistant = role && strcmp(role, "assistant") == 0, ok = false;

    for (size_t k = 0; role && k < sizeof(roles) / sizeof(roles[0]); k++) ok = ok || strcmp(role, roles[k]) == 0;
    if (!ok) return bad_item(e, i, "a role of user, assistant, system or developer wanted");
    if (json_is_array(content)) return check_parts(content, i, e);
    if (!json_is_string(content)) return bad_item(e, i, "content must be a string or a list of parts");
    part = json_pack("{s:s, s:O}", "type", assistant ? "output_text" : "input_text", "text", content);
    if (part && assistant && !foreign_set(part, "annotations", json_array())) {
        json_decref(part);
        part = NULL;
    }
    return foreign_set(item, "content", part ? json_pack("[o]", part) : NULL) ? 0 : foreign_no_memory(e);
}

static int check_reasoning(const json_t *item, size_t i, struct api_error *e)
{
    const char *const fields[] = {"summary", "content"};

    for (size_t k = 0; k < 2; k++) {
        const json_t *v = json_object_get(item, fields[k]);

        if (!v || json_is_null(v)) continue;
        if (!json_is_array(v)) return bad_item(e, i, "summary and content of reasoning are lists");
        if (check_parts(v, i, e)) return -1;
    }
    return 0;
}

static bool is_result(const json_t *item)
{
    return is_type(item, "function_call_output") || is_type(item, "custom_tool_call_output");
}

/* Items of tools that run elsewhere, and of clients' own book-keeping. */
static bool is_skipped(const char *type)
{
    static const char *const types[] = {"local_shell_call_output", "shell_call_output",     "computer_call_output",
                                        "apply_patch_call_output", "tool_search_output",    "mcp_list_tools",
                                        "mcp_approval_request",    "mcp_approval_response", "compaction",
                                        "compaction_trigger",      "ghost_snapshot",        "program",
                                        "program_output"};
    size_t n = strlen(type);

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(type, types[i]) == 0) return true;
    return n > 5 && strcmp(type + n - 5, "_call") == 0 && strcmp(type, "function_call") != 0 &&
           strcmp(type, "custom_tool_call") != 0;
}

static int check_item(json_t *item, size_t i, struct api_error *e)
{
    const char *type = type_of(item);
    const json_t *output = json_object_get(item, "output");
    char quoted[64];

    if (strcmp(type, "message") == 0) return check_message(item, i, e);
    if (strcmp(type, "reasoning") == 0) return check_reasoning(item, i, e);
    if (strcmp(type, "function_call") == 0) {
        if (json_is_string(json_object_get(item, "call_id")) && json_is_string(json_object_get(item, "name")) &&
            json_is_string(json_object_get(item, "arguments")))
            return 0;
        return bad_item(e, i, "a function_call needs strings call_id, name and arguments");
    }
    if (strcmp(type, "custom_tool_call") == 0) {
        if (json_is_string(json_object_get(item, "call_id")) && json_is_string(json_object_get(item, "name")) &&
            json_is_string(json_object_get(item, "input")))
            return 0;
        return bad_item(e, i, "a custom_tool_call needs strings call_id, name and input");
    }
    if (strcmp(type, "item_reference") == 0)
        return json_plain(json_object_get(item, "id")) ? 0 : bad_item(e, i, "an item_reference needs a string id");
    if (is_result(item)) {
        if (!json_is_string(json_object_get(item, "call_id")))
            return bad_item(e, i, "the output of a call needs a string call_id");
        if (json_is_array(output)) return check_parts(output, i, e);
        return json_is_string(output) ? 0 : bad_item(e, i, "output must be a string or a list of parts");
    }
    return api_error_set(e, 400, "input", "input[%zu]: items of type %s are not supported", i,
                         error_quote(quoted, sizeof(quoted), type, strlen(type)));
}

/* What agents leave out. */
static int complete_item(json_t *item, struct api_error *e)
{
    static const struct {
        const char *type, *prefix;
    } kinds[] = {{"message", "msg"},          {"reasoning", "rs"},
                 {"function_call", "fc"},     {"function_call_output", "fco"},
                 {"custom_tool_call", "ctc"}, {"custom_tool_call_output", "ctco"}};
    const char *prefix = "msg";
    uint64_t random[2];

    if (is_type(item, "item_reference")) return 0;
    if (!type_of(item) && !foreign_set(item, "type", json_string("message"))) return foreign_no_memory(e);
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
        if (is_type(item, kinds[k].type)) prefix = kinds[k].prefix;
    random_os(random, sizeof(random));
    if (!json_is_string(json_object_get(item, "id")) &&
        !foreign_set(item, "id",
                     json_sprintf("%s_%016llx%08llx", prefix, (unsigned long long)random[0],
                                  (unsigned long long)(random[1] >> 32))))
        return foreign_no_memory(e);
    if (!json_is_string(json_object_get(item, "status")) && !foreign_set(item, "status", json_string("completed")))
        return foreign_no_memory(e);
    return 0;
}

int responses_items(const json_t *body, json_t **items, struct api_error *e)
{
    const json_t *input = json_object_get(body, "input"), *given;
    json_t *list = NULL, *item;
    size_t i;

    *items = NULL;
    list = json_is_string(input) ? json_pack("[{s:s, s:s, s:O}]", "type", "message", "role", "user", "content", input)
                                 : json_array();
    if (!list) return foreign_no_memory(e);
    json_array_foreach(input, i, given)
    {
        const json_t *type = json_object_get(given, "type");

        if ((type && !json_plain(type)) || (!type && !json_object_get(given, "role"))) {
            bad_item(e, i, "an item needs a type, or a role");
            goto fail;
        }
        if (type && is_skipped(json_string_value(type))) continue;
        if (!foreign_add(list, json_copy((json_t *)(uintptr_t)given))) {
            foreign_no_memory(e);
            goto fail;
        }
    }
    json_array_foreach(list, i, item) if (complete_item(item, e) || check_item(item, i, e)) goto fail;
    *items = list;
    return 0;

fail:
    json_decref(list);
    return -1;
}

/* ---- items to messages ---- */

struct chat_writer {
    json_t *messages;
    json_t *open;  /* an assistant's message that calls can join; a view into messages, or NULL */
    bool answered; /* it has content or calls: new reasoning begins another */
};

static const json_t *text_of(const json_t *part)
{
    const json_t *v = json_object_get(part, "text");

    return v ? v : json_object_get(part, "refusal");
}

/* Parts of a chat: images as they are, and texts. */
static json_t *with_images(const json_t *content)
{
    json_t *parts = json_array();
    const json_t *part;
    bool ok = parts != NULL;
    size_t k;

    json_array_foreach(content, k, part)
    {
        if (ok)
            ok = foreign_add(parts, is_type(part, "input_image")
                                        ? json_incref((json_t *)(uintptr_t)part)
                                        : json_pack("{s:s, s:O}", "type", "text", "text", text_of(part)));
    }
    if (ok) return parts;
    json_decref(parts);
    return NULL;
}

/* The texts of a list of parts, or a string, as one string; with images among them, parts. */
static json_t *joined(const json_t *content)
{
    struct buf text = {0};
    const json_t *part;
    json_t *s;
    size_t k;

    if (json_is_string(content)) return json_incref((json_t *)(uintptr_t)content);
    json_array_foreach(content, k, part) if (is_type(part, "input_image")) return with_images(content);
    json_array_foreach(content, k, part)
    {
        const json_t *v = text_of(part);

        buf_append(&text, json_string_value(v), json_string_length(v));
    }
    s = text.failed ? NULL : json_stringn(text.n ? text.data : "", text.n);
    buf_deinit(&text);
    return s;
}

static bool open_assistant(struct chat_writer *w, bool fresh)
{
    json_t *m;

    if (w->open && !fresh) return true;
    m = json_pack("{s:s, s:s}", "role", "assistant", "content", "");
    if (!foreign_add(w->messages, m)) return false;
    w->open = m;
    w->answered = false;
    return true;
}

/* The arguments of a custom tool: its input is no JSON. */
static json_t *custom_arguments(const json_t *item)
{
    json_t *object = json_pack("{s:O}", "input", json_object_get(item, "input")), *arguments = NULL;
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;

    if (text) arguments = json_string(text);
    mem_free(text);
    json_decref(object);
    return arguments;
}

static bool add_call(struct chat_writer *w, const json_t *item)
{
    json_t *calls, *call;
    bool custom = is_type(item, "custom_tool_call");

    if (!open_assistant(w, false)) return false;
    calls = json_object_get(w->open, "tool_calls");
    if (!calls) {
        calls = json_array();
        if (!foreign_set(w->open, "tool_calls", calls)) return false;
    }
    w->answered = true;
    call = json_pack("{s:O, s:s, s:{s:O, s:o}}", "id", json_object_get(item, "call_id"), "type", "function", "function",
                     "name", json_object_get(item, "name"), "arguments",
                     custom ? custom_arguments(item) : json_incref(json_object_get(item, "arguments")));
    return foreign_add(calls, call);
}

static bool add_item(struct chat_writer *w, const json_t *item)
{
    const json_t *role = json_object_get(item, "role"), *content = json_object_get(item, "content");

    if (is_type(item, "function_call") || is_type(item, "custom_tool_call")) return add_call(w, item);
    if (is_type(item, "reasoning")) {
        if (!json_array_size(content)) content = json_object_get(item, "summary");
        return open_assistant(w, w->answered) && foreign_set(w->open, "reasoning_content", joined(content));
    }
    if (is_type(item, "message") && strcmp(json_string_value(role), "assistant") == 0) {
        if (!open_assistant(w, w->answered)) return false;
        w->answered = true;
        return foreign_set(w->open, "content", joined(content));
    }
    w->open = NULL;
    w->answered = false;
    if (is_result(item))
        return foreign_add(w->messages, json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id",
                                                  json_object_get(item, "call_id"), "content",
                                                  joined(json_object_get(item, "output"))));
    return foreign_add(w->messages,
                       json_pack("{s:s, s:o}", "role", json_string_value(role), "content", joined(content)));
}

static int translate_items(const json_t *body, const json_t *items, json_t *chat, struct api_error *e)
{
    const json_t *instructions = json_object_get(body, "instructions"), *item;
    struct chat_writer w = {.messages = json_array()};
    bool ok = w.messages != NULL;
    size_t i;

    if (ok && json_is_string(instructions))
        ok = foreign_add(w.messages, json_pack("{s:s, s:O}", "role", "system", "content", instructions));
    json_array_foreach(items, i, item) ok = ok && add_item(&w, item);
    if (ok && json_array_size(items) == 0) {
        json_decref(w.messages);
        return api_error_set(e, 400, "input", "input: empty");
    }
    if (ok) return foreign_set(chat, "messages", w.messages) ? 0 : foreign_no_memory(e);
    json_decref(w.messages);
    return foreign_no_memory(e);
}

/* Functions in the flat form; tools of other types are skipped. */
static int translate_tools(const json_t *body, json_t *chat, struct api_error *e)
{
    const json_t *list = json_object_get(body, "tools"), *tool;
    json_t *functions;
    size_t i;

    if (!list || json_is_null(list)) return 0;
    if (!(functions = json_array())) return foreign_no_memory(e);
    json_array_foreach(list, i, tool)
    {
        const json_t *name = json_object_get(tool, "name"), *schema = json_object_get(tool, "parameters");
        int rc = 0;

        if (!type_of(tool))
            rc = api_error_set(e, 400, "tools", "tools[%zu]: a type wanted", i);
        else if (!is_type(tool, "function"))
            continue;
        else if (json_is_object(json_object_get(tool, "function")))
            rc = json_array_append(functions, (json_t *)(uintptr_t)tool) ? foreign_no_memory(e) : 0;
        else if (!json_is_string(name) || json_string_length(name) == 0 ||
                 json_string_length(name) > LIMIT_TOOL_NAME_BYTES)
            rc = api_error_set(e, 400, "tools", "tools[%zu].name: a string of 1 to %u bytes wanted", i,
                               LIMIT_TOOL_NAME_BYTES);
        else if (schema && !json_is_object(schema) && !json_is_null(schema)) {
            char path[48];

            snprintf(path, sizeof(path), "tools[%zu].parameters", i);
            rc = api_error_set(e, 400, path, "%s: a JSON schema, which is an object, wanted", path);
        } else if (!foreign_add(functions, foreign_tool(tool, "parameters")))
            rc = foreign_no_memory(e);
        if (rc) {
            json_decref(functions);
            return rc;
        }
    }
    return foreign_set(chat, "tools", functions) ? 0 : foreign_no_memory(e);
}

/* text.format {type, name, schema, strict} -> response_format. */
static int translate_format(const json_t *body, json_t *chat, struct api_error *e)
{
    json_t *format = json_object_get(json_object_get(body, "text"), "format"), *ours;
    const char *type = type_of(format);

    if (!format || json_is_null(format)) return 0;
    if (!type) return api_error_set(e, 400, "text.format", "text.format.type: a string wanted");
    ours = strcmp(type, "json_schema") == 0 ? json_pack("{s:s, s:o}", "type", type, "json_schema", json_copy(format))
                                            : json_incref(format);
    return foreign_set(chat, "response_format", ours) ? 0 : foreign_no_memory(e);
}

/* include names them, or there shall be alternatives. */
static int translate_logprobs(const json_t *body, json_t *chat, struct api_error *e)
{
    const json_t *list = json_object_get(body, "include"), *item;
    json_t *n_top = json_object_get(body, "top_logprobs");
    bool asked = json_integer_value(n_top) > 0;
    size_t i;

    json_array_foreach(list, i, item) asked =
        asked || strcmp(json_string_value(item), "message.output_text.logprobs") == 0;
    if (!asked) return 0;
    if (!foreign_set(chat, "logprobs", json_true())) return foreign_no_memory(e);
    return json_is_integer(n_top) && json_object_set(chat, "top_logprobs", n_top) ? foreign_no_memory(e) : 0;
}

int responses_to_chat(const json_t *body, const json_t *items, json_t **chat, struct api_error *e)
{
    static const char *const absent[] = {"conversation", "prompt"};
    json_t *max = json_object_get(body, "max_output_tokens"), *choice = json_object_get(body, "tool_choice");

    *chat = NULL;
    for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++) {
        const json_t *v = json_object_get(body, absent[i]);

        if (v && !json_is_null(v))
            return api_error_set(e, 400, absent[i], "%s: not supported by this server", absent[i]);
    }
    *chat = params_shared(body, FOR_RESPONSES, FOR_CHAT);
    if (!*chat) return foreign_no_memory(e);
    if ((max && json_object_set(*chat, "max_tokens", max)) ||
        (choice && json_object_set(*chat, "tool_choice", choice)) ||
        !foreign_set(*chat, "add_generation_prompt", json_true()))
        foreign_no_memory(e);
    else if (translate_items(body, items, *chat, e) == 0 && translate_tools(body, *chat, e) == 0 &&
             translate_format(body, *chat, e) == 0 && translate_logprobs(body, *chat, e) == 0)
        return 0;
    json_decref(*chat);
    *chat = NULL;
    return -1;
}

void responses_error(struct api_error *e)
{
    foreign_rename(e, "response_format", "text.format");
    foreign_rename(e, "messages", "input");
    foreign_rename(e, "max_tokens", "max_output_tokens");
}
