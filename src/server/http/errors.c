/* server/http/errors.c - one table of HTTP statuses, one from rd_status to them. */
#include "server/http/errors.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct http_status {
    int status;
    const char *text, *type;
} statuses[] = {
    {200, "OK", ""},
    {204, "No Content", ""},
    {400, "Bad Request", "invalid_request_error"},
    {401, "Unauthorized", "authentication_error"},
    {403, "Forbidden", "permission_error"},
    {404, "Not Found", "not_found_error"},
    {405, "Method Not Allowed", "invalid_request_error"},
    {408, "Request Timeout", "invalid_request_error"},
    {409, "Conflict", "invalid_request_error"},
    {411, "Length Required", "invalid_request_error"},
    {413, "Content Too Large", "invalid_request_error"},
    {414, "URI Too Long", "invalid_request_error"},
    {415, "Unsupported Media Type", "invalid_request_error"},
    {417, "Expectation Failed", "invalid_request_error"},
    {429, "Too Many Requests", "rate_limit_error"},
    {431, "Request Header Fields Too Large", "invalid_request_error"},
    {500, "Internal Server Error", "server_error"},
    {501, "Not Implemented", "not_supported_error"},
    {503, "Service Unavailable", "unavailable_error"},
    {505, "HTTP Version Not Supported", "invalid_request_error"},
    {529, "Overloaded", "unavailable_error"},
};

static const struct http_status *find_status(int status)
{
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++)
        if (statuses[i].status == status) return &statuses[i];
    return &statuses[0];
}

const char *http_status_text(int status)
{
    return find_status(status)->text;
}

int api_error_set(struct api_error *e, int http, const char *param, const char *format, ...)
{
    va_list args;

    e->http = http;
    e->type = find_status(http)->type;
    e->code = NULL;
    e->is_broken = false;
    snprintf(e->param, sizeof(e->param), "%s", param ? param : "");
    va_start(args, format);
    vsnprintf(e->message, sizeof(e->message), format, args);
    va_end(args);
    return -1;
}

/* "stop: at most 64 strings" names its parameter. */
static void param_from_message(struct api_error *e)
{
    size_t n = strspn(e->message, "abcdefghijklmnopqrstuvwxyz_");

    if (n == 0 || n >= sizeof(e->param) || e->message[n] != ':') return;
    memcpy(e->param, e->message, n);
    e->param[n] = 0;
}

void api_error_from_status(struct api_error *e, rd_status st, const char *message)
{
    static const struct {
        rd_status st;
        int http;
        const char *code;
    } map[] = {{RD_E_INVALID, 400, NULL},
               {RD_E_FORMAT, 400, NULL},
               {RD_E_UNSUPPORTED, 400, NULL},
               {RD_E_CONTEXT, 400, "context_length_exceeded"},
               {RD_E_TEMPLATE, 400, "chat_template_error"},
               {RD_E_LIMIT, 400, NULL},
               {RD_E_NOT_FOUND, 404, NULL},
               {RD_E_FULL, 429, "queue_full"},
               {RD_E_NO_PAGES, 503, NULL},
               {RD_E_NOMEM, 503, NULL},
               {RD_E_DEVICE, 503, NULL},
               {RD_E_CLOSED, 503, NULL},
               {RD_E_CANCELLED, 503, NULL}};
    int http = 500;
    const char *code = NULL;

    for (size_t i = 0; i < sizeof(map) / sizeof(map[0]); i++) {
        if (map[i].st != st) continue;
        http = map[i].http;
        code = map[i].code;
    }
    api_error_set(e, http, NULL, "%s", message && *message ? message : rd_status_text(st));
    e->code = code;
    e->is_broken = st == RD_E_DEVICE;
    if (http == 400) param_from_message(e);
    if (st == RD_E_CONTEXT || st == RD_E_TEMPLATE) snprintf(e->param, sizeof(e->param), "messages");
}
