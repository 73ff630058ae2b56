/* cli/http_client.c - see the header. */
#include "cli/http_client.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/error.h"
#include "base/limits.h"
#include "base/net.h"

#define DEFAULT_PORT 8000
#define TIMEOUT_MS   60000

struct address {
    char host[128];
    uint16_t port;
};

static rd_status parse_url(const char *url, struct address *a, struct rd_error *err)
{
    const char *at = strncmp(url, "http://", 7) == 0 ? url + 7 : NULL, *end;
    bool is_v6 = at && *at == '[';
    char *rest = NULL;
    long port = DEFAULT_PORT;

    if (strncmp(url, "unix:", 5) == 0 && strlen(url) < sizeof(a->host)) {
        strcpy(a->host, url);
        return RD_OK;
    }
    if (!at) return error_set(err, RD_E_INVALID, "wanted http://HOST:PORT, for example http://127.0.0.1:8000");
    if (is_v6) at++;
    end = at + strcspn(at, is_v6 ? "]" : ":/");
    snprintf(a->host, sizeof(a->host), "%.*s", (int)(end - at), at);
    if (is_v6 && *end == ']') end++;
    if (*end == ':') {
        port = strtol(end + 1, &rest, 10);
        end = rest;
    }
    if (port < 1 || port > 65535 || (*end && strcmp(end, "/") != 0))
        return error_set(err, RD_E_INVALID, "wanted http://HOST:PORT and no path, for example http://127.0.0.1:8000");
    a->port = (uint16_t)port;
    return RD_OK;
}

/* Where the answer's body begins and how long it is; false: the head is not complete, or tells no length. */
static bool parse_head(const struct buf *in, int *status, size_t *body, size_t *length)
{
    const char *end = strstr(in->data, "\r\n\r\n"), *line = in->data;
    bool has_length = false;

    if (!end || sscanf(in->data, "HTTP/1.%*1[01] %d", status) != 1) return false;
    for (; line < end; line = strstr(line, "\r\n") + 2) {
        if (strncasecmp(line, "content-length:", 15) != 0) continue;
        *length = strtoull(line + 15, NULL, 10);
        has_length = true;
    }
    *body = (size_t)(end - in->data) + 4;
    return has_length;
}

static rd_status receive(int fd, int *status, struct buf *answer, struct rd_error *err)
{
    struct buf in = {0};
    char piece[16384];
    size_t got = 0, body = 0, length = 0;
    bool has_head = false;
    rd_status st = RD_OK;

    while (st == RD_OK && (!has_head || in.n < body + length)) {
        st = net_receive(fd, piece, sizeof(piece), &got);
        if (st == RD_OK && got == 0) st = RD_E_IO;
        if (st == RD_OK) buf_append(&in, piece, got);
        if (st == RD_OK && in.failed) st = RD_E_NOMEM;
        if (st == RD_OK && !has_head) has_head = parse_head(&in, status, &body, &length);
        if (st == RD_OK && (in.n > LIMIT_BODY_BYTES || length > LIMIT_BODY_BYTES)) st = RD_E_LIMIT;
    }
    if (st == RD_OK)
        buf_append(answer, in.data + body, length);
    else if (in.n && strncmp(in.data, "HTTP/1.", 7) != 0)
        st = RD_E_FORMAT;
    buf_deinit(&in);
    if (st == RD_E_FORMAT) return error_set(err, st, "what answers there is no HTTP server");
    return st == RD_OK ? st : error_set(err, st, "the answer broke off: %s", rd_status_text(st));
}

rd_status http_ask(const char *url, uint32_t timeout_ms, const char *method, const char *path, const char *key,
                   const char *body, int *status, struct buf *answer, struct rd_error *err)
{
    struct rd_error why = {RD_OK, ""};
    struct address a = {"", 0};
    struct buf out = {0};
    int fd = -1;
    rd_status st = parse_url(url, &a, &why);

    buf_printf(&out, "%s %s HTTP/1.1\r\nConnection: close\r\n", method, path);
    if (strncmp(a.host, "unix:", 5) == 0)
        buf_puts(&out, "Host: localhost\r\n");
    else
        buf_printf(&out, "Host: %s%s%s:%u\r\n", strchr(a.host, ':') ? "[" : "", a.host, strchr(a.host, ':') ? "]" : "",
                   a.port);
    if (key) buf_printf(&out, "Authorization: Bearer %s\r\n", key);
    if (body) buf_printf(&out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
    buf_puts(&out, "\r\n");
    if (body) buf_puts(&out, body);
    if (st == RD_OK && out.failed) st = error_set(&why, RD_E_NOMEM, "out of memory");
    if (st == RD_OK) st = net_connect(a.host, a.port, timeout_ms ? timeout_ms : TIMEOUT_MS, &fd, &why);
    if (st == RD_OK && net_send_all(fd, out.data, out.n) != RD_OK)
        st = error_set(&why, RD_E_IO, "the connection broke");
    if (st == RD_OK) st = receive(fd, status, answer, &why);
    if (fd >= 0) net_close(fd);
    buf_deinit(&out);
    return st == RD_OK ? st : error_set(err, st, "%s: %s", url, why.text);
}
