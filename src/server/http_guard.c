/* server/http_guard.c - the checks, in the order in which they are made. */
#include "server/http_guard.h"
#include <string.h>
#include <strings.h>
#include "server/routes.h"

/* "localhost", "127.0.0.1", "[::1]" with any port or none; "0.0.0.0" is what reaches this machine on Linux too. */
static bool is_local_authority(const char *s)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]", "0.0.0.0"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t n = strlen(names[i]);

        if (strncasecmp(s, names[i], n) != 0) continue;
        if (s[n] == 0) return true;
        if (s[n] == ':' && s[n + 1] && strspn(s + n + 1, "0123456789") == strlen(s + n + 1)) return true;
    }
    return false;
}

/* Of a page of this machine, or of a program on it whose windows are pages (Obsidian, Tauri, VS Code): no website has
 * such a scheme. */
static bool is_local_origin(const char *s)
{
    static const char *const programs[] = {"app://", "tauri://", "vscode-webview://", "vscode-file://"};

    for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++)
        if (strncasecmp(s, programs[i], strlen(programs[i])) == 0) return true;
    if (strncasecmp(s, "http://", 7) == 0) return is_local_authority(s + 7);
    if (strncasecmp(s, "https://", 8) == 0) return is_local_authority(s + 8);
    return false;
}

/* The time depends on the length of what was sent alone. */
static bool key_equal(const char *sent, const char *key)
{
    size_t n_sent = strlen(sent), n_key = strlen(key);
    unsigned diff = n_sent != n_key;

    for (size_t i = 0; i < n_sent; i++) diff |= (unsigned char)sent[i] ^ (unsigned char)key[n_key ? i % n_key : 0];
    return diff == 0;
}

/* Every key is looked at: the time does not tell which one it was. */
static bool key_ok(struct http_conn *c)
{
    const struct server_options *o = &c->io->server->o;
    const char *bearer = http_header(&c->head, "authorization"), *sent = http_header(&c->head, "x-api-key");
    bool ok;

    c->tenant = NULL;
    if (!o->api_key && o->n_tenant_keys == 0) return true;
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0) sent = bearer + 7 + strspn(bearer + 7, " ");
    if (!sent) return false;
    ok = o->api_key && key_equal(sent, o->api_key);
    for (uint32_t i = 0; i < o->n_tenant_keys; i++)
        if (key_equal(sent, o->tenant_keys[i])) c->tenant = o->tenant_keys[i];
    return ok || c->tenant;
}

void http_tenant_salt(const struct http_conn *c, const char *cache_salt, struct buf *salt)
{
    if (c->tenant || cache_salt) buf_printf(salt, "%s\n%s", c->tenant ? c->tenant : "", cache_salt ? cache_salt : "");
}

/* With a key pages of elsewhere, and names that point here (a proxy's, or a page's that rebinds its own), are let in by
 * that alone: no browser adds it by itself. Such pages may then read their answers. */
static int check_origin(struct http_conn *c, struct api_error *e)
{
    const struct server *s = c->io->server;
    const char *origin = http_header(&c->head, "origin");
    bool open = !s->o.api_key && s->o.n_tenant_keys == 0;

    if (open && s->loopback && c->head.host && !is_local_authority(c->head.host))
        return api_error_set(e, 403, NULL,
                             "this server listens on this machine only: the Host header must be localhost or 127.0.0.1 "
                             "(behind a proxy that sends another one: --api-key)");
    if (!origin) return 0;
    if (open && !is_local_origin(origin))
        return api_error_set(e, 403, NULL,
                             "requests from pages of other origins need a server with an API key (--api-key)");
    c->cors_origin = origin;
    return 0;
}

/* JSON sent as a form or as plain text is what a foreign page can send without asking; a browser then names the page
 * (Origin, Sec-Fetch-Site). `curl -d` says "form" too, without either: its users mean JSON. */
static int check_content_type(const struct http_conn *c, struct api_error *e)
{
    static const char form[] = "application/x-www-form-urlencoded";
    const char *type = http_header(&c->head, "content-type"), *coding = http_header(&c->head, "content-encoding");
    size_t n = type ? strcspn(type, "; \t") : 0;

    if (coding && *coding && strcasecmp(coding, "identity") != 0)
        return api_error_set(e, 415, NULL, "Content-Encoding: a body that is not compressed wanted");
    if (n == 0 || (n >= 5 && strncasecmp(type + n - 4, "json", 4) == 0)) return 0;
    if (n == sizeof(form) - 1 && strncasecmp(type, form, n) == 0 && !http_header(&c->head, "origin") &&
        !http_header(&c->head, "sec-fetch-site"))
        return 0;
    return api_error_set(e, 415, NULL,
                         "Content-Type: application/json wanted (curl: -H 'Content-Type: application/json')");
}

static int check_phase(enum server_phase phase, struct api_error *e)
{
    if (phase == SERVER_READY) return 0;
    return api_error_set(e, 503, NULL, phase == SERVER_LOADING ? "Loading model" : "The server is shutting down");
}

int http_guard(struct http_conn *c, bool *preflight, const char **extra, struct api_error *e)
{
    const struct server *s = c->io->server;
    uint64_t limit = s->o.max_body_bytes;
    const char *allow;

    *extra = "";
    *preflight = false;
    if (check_origin(c, e)) return -1;
    if (c->head.method == HTTP_OPTIONS) {
        *preflight = true;
        return 0;
    }
    route_tidy(c->head.path);
    c->route = route_find(c->head.method, c->head.path, &allow);
    if (!(c->route && c->route->is_public) && !key_ok(c)) {
        *extra = "WWW-Authenticate: Bearer\r\n";
        api_error_set(e, 401, NULL, "wrong or missing API key: send Authorization: Bearer KEY or x-api-key: KEY");
        e->code = "invalid_api_key";
        return -1;
    }
    if (!c->route && allow) {
        *extra = allow[0] == 'P'    ? "Allow: POST, OPTIONS\r\n"
                 : strchr(allow, 'D') && strchr(allow, 'L') ? "Allow: GET, HEAD, POST, DELETE, OPTIONS\r\n"
                                    : "Allow: GET, HEAD, OPTIONS\r\n";
        return api_error_set(e, 405, NULL, "this path takes: %s", allow);
    }
    if (!c->route) return api_error_set(e, 404, NULL, "no such endpoint; a browser shows them at /");
    if (!c->route->while_loading && check_phase(server_phase(s), e)) return -1;
    if (c->route->max_body && c->route->max_body < limit) limit = c->route->max_body;
    if (c->head.has_length && c->head.length > limit)
        return api_error_set(e, 413, NULL, "the body has %llu bytes, at most %llu are taken",
                             (unsigned long long)c->head.length, (unsigned long long)limit);
    c->max_body = limit;
    if (c->head.method != HTTP_POST) return 0;
    if (!c->head.has_length && !c->head.chunked) return api_error_set(e, 411, NULL, "a Content-Length is wanted");
    return check_content_type(c, e);
}

/* Names of header fields, as Access-Control-Request-Headers lists them. */
static bool is_field_list(const char *s)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_, ";

    return *s && s[strspn(s, allowed)] == 0;
}

/* Client libraries add headers of their own, more with each version: a page may send what it asks for. */
void http_guard_headers(const struct http_conn *c, struct buf *out)
{
    const char *wanted = http_header(&c->head, "access-control-request-headers");

    if (!c->cors_origin) return;
    buf_printf(out, "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\n", c->cors_origin);
    if (c->head.method != HTTP_OPTIONS) {
        buf_puts(out, "Access-Control-Expose-Headers: X-Request-Id, Retry-After, X-Radish-Ignored-Fields\r\n");
        return;
    }
    buf_puts(out, "Access-Control-Allow-Methods: GET, POST, DELETE, OPTIONS\r\n"
                  "Access-Control-Allow-Headers: Authorization, Content-Type, X-Api-Key");
    if (wanted && is_field_list(wanted)) buf_printf(out, ", %s", wanted);
    buf_puts(out, "\r\nAccess-Control-Max-Age: 3600\r\n");
}
