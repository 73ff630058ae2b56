/* server/dialects/dialect.c - see the header. */
#include "server/dialects/dialect.h"
#include <string.h>
#include "server/params/json_out.h"

static int status_as_it_is(const struct api_error *e)
{
    return e->http;
}

static void put_openai(const struct api_error *e, struct buf *out)
{
    buf_puts(out, "{\"error\":{\"message\":");
    json_put_string(out, e->message, strlen(e->message));
    buf_puts(out, ",\"type\":");
    json_put_string(out, e->type, strlen(e->type));
    buf_puts(out, ",\"param\":");
    if (e->param[0])
        json_put_string(out, e->param, strlen(e->param));
    else
        buf_puts(out, "null");
    buf_puts(out, ",\"code\":");
    if (e->code)
        json_put_string(out, e->code, strlen(e->code));
    else if (e->http == 503)
        buf_puts(out, "503");
    else
        buf_puts(out, "null");
    buf_puts(out, "}}");
}

/* What is broken is an api_error there, what will be well in a while is overload. */
static int status_anthropic(const struct api_error *e)
{
    if (e->http != 503) return e->http;
    return e->is_broken ? 500 : 529;
}

static void put_anthropic(const struct api_error *e, struct buf *out)
{
    static const struct {
        int http;
        const char *type;
    } types[] = {
        {401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"}, {413, "request_too_large"},
        {429, "rate_limit_error"},     {500, "api_error"},        {501, "api_error"},       {529, "overloaded_error"}};
    const char *type = "invalid_request_error";
    int http = status_anthropic(e);

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (types[i].http == http) type = types[i].type;
    buf_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":\"", type);
    /* the words by which its clients know that they should compact */
    if (e->code && strcmp(e->code, "context_length_exceeded") == 0) buf_puts(out, "prompt is too long: ");
    buf_put_json(out, e->message, strlen(e->message));
    buf_puts(out, "\"}}");
}

static void put_ollama(const struct api_error *e, struct buf *out)
{
    buf_puts(out, "{\"error\":");
    json_put_string(out, e->message, strlen(e->message));
    buf_puts(out, "}");
}

const struct dialect dialect_openai = {"openai", status_as_it_is, put_openai},
                     dialect_anthropic = {"anthropic", status_anthropic, put_anthropic},
                     dialect_ollama = {"ollama", status_as_it_is, put_ollama};
