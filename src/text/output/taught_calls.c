/* text/output/taught_calls.c - the output parser, run over instructions. */
#include "text/output/taught_calls.h"
#include <jansson.h>
#include <string.h>
#include "text/output/output_parser.h"

#define LOOK_AT (64u << 10)

static void see(void *user, const struct output_event *ev)
{
    bool *shown = user;

    *shown |= ev->type == OUTPUT_CALL_TEXT;
}

static bool shows(const char *text, size_t n)
{
    bool shown = false;
    const struct output_options o = {.style = OUTPUT_HERMES, .keep_bare = true, .sink = see, .user = &shown};
    struct output_parser *p = NULL;

    if (output_parser_create(&o, &p) != RD_OK) return false;
    if (output_parser_feed(p, text, n, false) == RD_OK) (void)output_parser_finish(p);
    output_parser_destroy(p);
    return shown;
}

/* Of one text; *left: what may still be looked at. */
static bool shows_within(const json_t *text, size_t *left)
{
    size_t n = json_string_length(text);

    if (n > *left) n = *left;
    *left -= n;
    return n > 0 && shows(json_string_value(text), n);
}

static bool message_shows(const json_t *message, size_t *left)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    const json_t *content = json_object_get(message, "content"), *part;
    size_t i;

    if (!role || (strcmp(role, "system") != 0 && strcmp(role, "developer") != 0)) return false;
    if (json_is_string(content)) return shows_within(content, left);
    json_array_foreach(content, i, part)
    {
        if (shows_within(json_object_get(part, "text"), left)) return true;
    }
    return false;
}

bool taught_calls(enum output_style style, const char *messages_json)
{
    const json_t *message;
    json_t *messages;
    size_t i, left = LOOK_AT;
    bool taught = false;

    /* mostly the text tells that there is none: quotes within a string are escaped */
    if (style != OUTPUT_HERMES || !messages_json ||
        !(strstr(messages_json, "\\\"arguments\\\"") || strstr(messages_json, "\\\"parameters\\\"")))
        return false;
    messages = json_loads(messages_json, JSON_ALLOW_NUL, NULL);
    json_array_foreach(messages, i, message)
    {
        taught = message_shows(message, &left);
        if (taught) break;
    }
    json_decref(messages);
    return taught;
}
