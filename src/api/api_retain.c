/* api/api_retain.c - what of a request the cache shall keep longer, in tokens of its prompt. */
#include <string.h>
#include "api/api_state.h"
#include "base/mem.h"

static enum radix_class class_of(uint32_t seconds)
{
    if (seconds == 0) return RADIX_PLAIN;
    if (seconds <= 300) return RADIX_SHORT;
    return seconds <= 3600 ? RADIX_LONG : RADIX_DAY;
}

static bool is_system(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));

    return role && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);
}

/* The messages that come first and are the system's, and a short one of a user; NULL: neither those nor tools, or out of
 * memory. */
static char *head_messages(const char *messages_json, bool has_tools)
{
    json_t *messages = json_loads(messages_json, JSON_ALLOW_NUL, NULL), *head = json_array();
    char *text = NULL;
    size_t n = 0;

    while (n < json_array_size(messages) && is_system(json_array_get(messages, n)))
        json_array_append(head, json_array_get(messages, n++));
    if ((n > 0 || has_tools) &&
        json_array_append_new(head, json_pack("{s:s, s:s}", "role", "user", "content", ".")) == 0)
        text = json_dumps(head, JSON_COMPACT);
    json_decref(messages);
    json_decref(head);
    return text;
}

/* Tokens of the prompt that its tools and first system messages make. */
static uint32_t head_tokens(const rd_engine *engine, const struct rd_request_options *o, const char *tools,
                            const int32_t *tokens, uint32_t n)
{
    struct rd_request_options head = *o;
    char *messages = head_messages(o->messages_json, tools || o->tools_json);
    int32_t *other = NULL;
    uint32_t n_other = 0, n_same = 0;

    head.messages_json = messages;
    if (tools) head.tools_json = tools;
    head.prompt_end = RD_PROMPT_CLOSED;
    head.forced_tool = NULL;
    head.grammar_kind = RD_GRAMMAR_NONE;
    head.thinking_tokens = RD_NO_LIMIT;
    if (messages && api_prompt_tokens(engine, &head, NULL, &other, &n_other, NULL) == RD_OK)
        while (n_same < n && n_same < n_other && tokens[n_same] == other[n_same]) n_same++;
    mem_free(messages);
    mem_free(other);
    return n_same;
}

uint32_t api_head_tokens(const rd_engine *engine, const struct rd_request_options *o, const int32_t *tokens, uint32_t n)
{
    return head_tokens(engine, o, NULL, tokens, n);
}

void api_retain_fill(const rd_engine *engine, const struct rd_request_options *o, const char *tools,
                     const int32_t *tokens, uint32_t n, struct request_params *p)
{
    if (o->keep_head_s > o->keep_prompt_s && o->messages_json)
        p->keep[0] = (struct request_keep){head_tokens(engine, o, tools, tokens, n), class_of(o->keep_head_s)};
    p->keep[1] = (struct request_keep){n, class_of(o->keep_prompt_s)};
    p->keep[2] = (struct request_keep){UINT32_MAX, class_of(o->keep_all_s)};
}
