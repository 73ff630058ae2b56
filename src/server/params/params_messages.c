/* server/params/params_messages.c - the messages of a request, checked before anything is queued, and how their prompt ends.
 *
 * What a template makes of them is the library's business (docs/api.md, "Messages"); here they are only refused when no
 * template could take them.
 */
#include <string.h>
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "server/params/params_custom.h"

bool param_part_is_image(const char *type, size_t n)
{
    static const char *const kinds[] = {"image_url", "input_image", "image", "video", "video_url"};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strlen(kinds[i]) == n && memcmp(kinds[i], type, n) == 0) return true;
    return false;
}

static int check_part(const json_t *part, size_t message, size_t i, struct api_error *e)
{
    /* type, and the field that holds its text */
    static const char *const known[][2] = {{"text", "text"},       {"input_text", "text"},   {"output_text", "text"},
                                           {"refusal", "refusal"}, {"thinking", "thinking"}, {"reasoning", "text"}};
    const char *type = json_plain(json_object_get(part, "type"));
    char quoted[64];

    if (json_is_string(part)) return 0;
    if (!type)
        return api_error_set(e, 400, "messages", "messages: messages[%zu].content[%zu]: a content part needs a type",
                             message, i);
    for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++) {
        if (strcmp(type, known[k][0]) != 0) continue;
        if (json_is_string(json_object_get(part, known[k][1]))) return 0;
        return api_error_set(e, 400, "messages",
                             "messages: messages[%zu].content[%zu]: a part of type %s needs a string %s", message, i,
                             known[k][0], known[k][1]);
    }
    if (param_part_is_image(type, strlen(type))) return 0; /* looked at where they are decoded */
    error_quote(quoted, sizeof(quoted), type, strlen(type));
    return api_error_set(e, 400, "messages",
                         "messages: messages[%zu].content[%zu]: parts of type %s are not supported by this model",
                         message, i, quoted);
}

static int check_content(const json_t *content, const char *role, size_t i, struct api_error *e)
{
    bool tool = strcmp(role, "tool") == 0 || strcmp(role, "function") == 0;
    const json_t *part;
    size_t k;

    if (!content || json_is_null(content)) {
        if (strcmp(role, "assistant") == 0 || tool) return 0; /* tools that have nothing to say */
        return api_error_set(e, 400, "messages", "messages: messages[%zu] needs content", i);
    }
    if (json_is_string(content)) return 0;
    if (!json_is_array(content)) {
        if (tool) return 0; /* a result may be any JSON */
        return api_error_set(e, 400, "messages", "messages: messages[%zu]: content must be a string or a list of parts",
                             i);
    }
    if (json_array_size(content) > LIMIT_MESSAGES)
        return api_error_set(e, 400, "messages", "messages: at most %u content parts", LIMIT_MESSAGES);
    json_array_foreach(content, k, part) if (check_part(part, i, k, e)) return -1;
    return 0;
}

static int check_calls(const json_t *calls, size_t i, struct api_error *e)
{
    const json_t *call;
    size_t k;

    if (!calls || json_is_null(calls)) return 0;
    if (!json_is_array(calls))
        return api_error_set(e, 400, "messages", "messages: messages[%zu]: tool_calls must be a list", i);
    if (json_array_size(calls) > LIMIT_TOOLS)
        return api_error_set(e, 400, "messages", "messages: messages[%zu]: at most %u tool_calls", i, LIMIT_TOOLS);
    json_array_foreach(calls, k, call)
    {
        const json_t *f = json_object_get(call, "function");
        if (!json_is_string(json_object_get(json_is_object(f) ? f : call, "name")))
            return api_error_set(e, 400, "messages",
                                 "messages: messages[%zu].tool_calls[%zu] needs a function with a name", i, k);
    }
    return 0;
}

static int check_message(const json_t *m, size_t i, struct api_error *e)
{
    const char *role = json_plain(json_object_get(m, "role"));

    if (!role || !*role) return api_error_set(e, 400, "messages", "messages: messages[%zu] needs a role", i);
    if (check_content(json_object_get(m, "content"), role, i, e)) return -1;
    return check_calls(json_object_get(m, "tool_calls"), i, e);
}

int param_messages(const json_t *body, char **messages, struct api_error *e)
{
    const json_t *list = json_object_get(body, "messages"), *m;
    size_t i;

    json_array_foreach(list, i, m) if (check_message(m, i, e)) return -1;
    *messages = json_text(list, JSON_COMPACT);
    return *messages ? 0 : api_error_set(e, 503, NULL, "out of memory");
}

int param_prompt_end(const json_t *body, enum rd_prompt_end *end, struct api_error *e)
{
    const json_t *prompt = json_object_get(body, "add_generation_prompt"),
                 *cont = json_object_get(body, "continue_final_message");
    bool begin = json_is_true(prompt), go_on = json_is_true(cont);

    if (begin && go_on)
        return api_error_set(e, 400, "continue_final_message",
                             "continue_final_message: cannot be true together with add_generation_prompt");
    *end = go_on                     ? RD_PROMPT_CONTINUED
           : begin                   ? RD_PROMPT_NEW
           : json_is_boolean(prompt) ? RD_PROMPT_CLOSED
           : json_is_boolean(cont)   ? RD_PROMPT_NEW
                                     : RD_PROMPT_AUTO;
    return 0;
}
