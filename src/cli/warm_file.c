/* cli/warm_file.c - see the header. */
#include "cli/warm_file.h"
#include <jansson.h>
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"

#define DAY_S 86400u /* what was written into a file is worth keeping */

/* A field of the line as JSON text (free), or NULL. */
static char *dump(const json_t *line, const char *name)
{
    const json_t *value = json_object_get(line, name);

    return value && !json_is_null(value) ? json_dumps(value, JSON_COMPACT) : NULL;
}

static rd_status warm_line(rd_engine *engine, bool shared, const char *s, size_t n, struct rd_error *err)
{
    json_t *line = json_loadb(s, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL),
           *prompt = json_object_get(line, "prompt");
    char *messages = dump(line, "messages"), *tools = dump(line, "tools"), *kwargs = dump(line, "chat_template_kwargs");
    struct rd_request_options o;
    rd_status st;

    rd_request_options_default(&o);
    o.messages_json = messages;
    o.tools_json = tools;
    o.kwargs_json = kwargs;
    o.prompt = json_string_value(prompt);
    o.prompt_bytes = json_string_length(prompt);
    o.prompt_end = RD_PROMPT_CLOSED;
    o.keep_prompt_s = DAY_S;
    o.cache_salt = json_string_value(json_object_get(line, "cache_salt"));
    if (!json_is_object(line))
        st = error_set(err, RD_E_FORMAT, "not a JSON object");
    else if (!messages == !o.prompt)
        st = error_set(err, RD_E_FORMAT, "one of messages and prompt is needed");
    else
        st = shared ? rd_share_prefix(engine, &o, err) : rd_warm(engine, &o, err);
    mem_free(messages);
    mem_free(tools);
    mem_free(kwargs);
    json_decref(line);
    return st;
}

rd_status warm_file(rd_engine *engine, const char *path, bool shared, struct rd_error *err)
{
    const char *flag = shared ? "--shared-prefix" : "--warm";
    struct rd_error why = {RD_OK, ""};
    char *text = NULL;
    size_t n = 0;
    uint32_t n_line = 0;
    rd_status st = file_read_all(path, LIMIT_BODY_BYTES, &text, &n, &why);

    if (st != RD_OK) return error_set(err, st, "%s: %s", flag, why.text);
    for (size_t at = 0, next; st == RD_OK && at < n; at = next) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t n_text = end ? (size_t)(end - text) - at : n - at;

        next = at + n_text + 1;
        n_line++;
        while (n_text && strchr(" \t\r", text[at])) at++, n_text--;
        if (n_text) st = warm_line(engine, shared, text + at, n_text, &why);
    }
    mem_free(text);
    return st == RD_OK ? st : error_set(err, st, "%s: %s, line %u: %s", flag, path, n_line, why.text);
}
