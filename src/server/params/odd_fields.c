/* server/params/odd_fields.c - see the header. The ids of the calls so far are members of an object: one look each. */
#include "server/params/odd_fields.h"
#include <stdio.h>
#include <string.h>
#include "server/params/params.h"

#define MAX_TOLD 16u

struct odd_search {
    json_t *ids; /* of the calls before */
    struct buf *out;
    uint32_t n;
};

static void tell(struct odd_search *s, const char *name)
{
    if (s->n++ < MAX_TOLD) buf_printf(s->out, "%s%s", s->out->n ? ", " : "", name);
}

static bool is(const json_t *object, const char *key, const char *wanted)
{
    const char *text = json_plain(json_object_get(object, key));

    return text && strcmp(text, wanted) == 0;
}

static void keep_id(struct odd_search *s, const json_t *id)
{
    const char *text = json_plain(id);

    if (text && s->ids) json_object_set_new(s->ids, text, json_true());
}

/* An id that no call had. Without memory nothing is told. */
static bool is_orphan(const struct odd_search *s, const json_t *id)
{
    const char *text = json_plain(id);

    return text && s->ids && !json_object_get(s->ids, text);
}

static void look_at_tools(struct odd_search *s, const json_t *tools)
{
    const json_t *tool;
    size_t i;

    json_array_foreach(tools, i, tool)
    {
        const json_t *f = json_object_get(tool, "function");

        if (!json_is_true(json_object_get(json_is_object(f) ? f : tool, "strict"))) continue;
        tell(s, json_is_object(f) ? "tools.function.strict" : "tools.strict");
        return;
    }
}

static bool is_known_role(const json_t *message)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function", "ctx", "msg"};

    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
        if (is(message, "role", roles[i])) return true;
    return false;
}

/* The blocks of Anthropic's messages. */
static void look_at_blocks(struct odd_search *s, const json_t *content, size_t i)
{
    const json_t *block;
    char name[80];
    size_t k;

    json_array_foreach(content, k, block)
    {
        if (is(block, "type", "tool_use")) keep_id(s, json_object_get(block, "id"));
        if (!is(block, "type", "tool_result") || !is_orphan(s, json_object_get(block, "tool_use_id"))) continue;
        snprintf(name, sizeof(name), "messages[%zu].content[%zu].tool_use_id", i, k);
        tell(s, name);
    }
}

static void look_at_messages(struct odd_search *s, const json_t *messages)
{
    const json_t *m, *call;
    char name[64];
    size_t i, k;

    json_array_foreach(messages, i, m)
    {
        if (!is_known_role(m)) {
            snprintf(name, sizeof(name), "messages[%zu].role", i);
            tell(s, name);
        }
        json_array_foreach(json_object_get(m, "tool_calls"), k, call) keep_id(s, json_object_get(call, "id"));
        look_at_blocks(s, json_object_get(m, "content"), i);
        if (!is(m, "role", "tool") || !is_orphan(s, json_object_get(m, "tool_call_id"))) continue;
        snprintf(name, sizeof(name), "messages[%zu].tool_call_id", i);
        tell(s, name);
    }
}

/* Of the Responses API; calls of an answer in the store are not here. */
static void look_at_items(struct odd_search *s, const json_t *body)
{
    const json_t *item;
    char name[64];
    size_t i;

    if (json_is_string(json_object_get(body, "previous_response_id"))) return;
    json_array_foreach(json_object_get(body, "input"), i, item)
    {
        const json_t *id = json_object_get(item, "call_id");

        if (is(item, "type", "item_reference")) return;
        if (is(item, "type", "function_call") || is(item, "type", "custom_tool_call")) keep_id(s, id);
        if (!is(item, "type", "function_call_output") && !is(item, "type", "custom_tool_call_output")) continue;
        if (!is_orphan(s, id)) continue;
        snprintf(name, sizeof(name), "input[%zu].call_id", i);
        tell(s, name);
    }
}

void odd_fields(const json_t *body, unsigned endpoint, bool holds_calls, struct buf *out)
{
    struct odd_search s = {.ids = json_object(), .out = out};

    if (!holds_calls) look_at_tools(&s, json_object_get(body, "tools"));
    if (endpoint & (FOR_RENDERING | FOR_OLLAMA_CHAT)) look_at_messages(&s, json_object_get(body, "messages"));
    if (endpoint & FOR_RESPONSES) look_at_items(&s, body);
    if (s.n > MAX_TOLD) buf_printf(out, ", and %u more", s.n - MAX_TOLD);
    json_decref(s.ids);
}
