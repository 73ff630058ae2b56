/* server/http/http_guard.c - the checks, in the order in which they are made. */
#include "server/http/http_guard.h"
#include <arpa/inet.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "server/http/http_conn.h"
#include "server/http/keys.h"

#define MAX_HOST 256u

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

/* "name", "name:port", "[v6]:port" -> the name, in lower case and without a final dot. false: it is none of these. */
static bool host_name(const char *host, char name[MAX_HOST])
{
    bool is_v6 = *host == '[';
    const char *begin = host + is_v6;
    size_t n = strcspn(begin, is_v6 ? "]" : ":");
    const char *end = begin + n + is_v6;

    if (n == 0 || n >= MAX_HOST || (is_v6 && begin[n] != ']')) return false;
    if (*end && (*end != ':' || !end[1] || end[1 + strspn(end + 1, "0123456789")])) return false;
    for (size_t i = 0; i < n; i++) name[i] = begin[i] >= 'A' && begin[i] <= 'Z' ? (char)(begin[i] + 32) : begin[i];
    if (!is_v6 && n > 1 && name[n - 1] == '.') n--;
    name[n] = 0;
    return true;
}

static bool is_address(const char *name)
{
    struct in6_addr any;

    return inet_pton(AF_INET, name, &any) == 1 || inet_pton(AF_INET6, name, &any) == 1;
}

bool http_host_is_private(const char *host)
{
    static const char *const ends[] = {".localhost", ".local", ".internal", ".lan", ".home.arpa"};
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789-_.";
    char name[MAX_HOST], own[MAX_HOST] = "";
    size_t n;

    if (!host_name(host, name)) return false;
    if (*host == '[' || is_address(name)) return is_address(name);
    n = strlen(name);
    /* all digits, or 0x..: some resolvers take these for addresses, and browsers write them out before they send them */
    if (name[strspn(name, allowed)] || name[strspn(name, "0123456789.")] == 0 || strncmp(name, "0x", 2) == 0)
        return false;
    if (!strchr(name, '.')) return true;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        if (n > strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0) return true;
    return gethostname(own, sizeof(own) - 1) == 0 && *own && strcasecmp(name, own) == 0;
}

bool http_host_in(const char *host, const char *const *allowed, uint32_t n)
{
    char name[MAX_HOST], other[MAX_HOST];

    if (!host_name(host, name)) return false;
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(allowed[i], "*") == 0 || (host_name(allowed[i], other) && strcmp(name, other) == 0)) return true;
    return false;
}

static bool key_ok(struct http_conn *c, bool *is_held_back)
{
    const char *bearer = http_header(&c->head, "authorization"), *sent = http_header(&c->head, "x-api-key");
    struct key_holder holder;

    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0) sent = bearer + 7 + strspn(bearer + 7, " ");
    holder = keys_find(c->io->server->keys, sent, c->sender);
    *is_held_back = holder.is_held_back;
    c->tenant = holder.tenant;
    c->is_admin = holder.is_admin;
    return holder.ok;
}

bool http_refuse_tenant(struct http_conn *c, const char *what)
{
    struct api_error e;

    if (c->is_admin) return false;
    api_error_set(&e, 403, NULL,
                  "%s belongs to all tenants: only the server's own key (--api-key) may do this, or the admin's, "
                  "if it has one",
                  what);
    http_reply_error(c, &e);
    return true;
}

void http_tenant_salt(const struct http_conn *c, const char *cache_salt, struct buf *salt)
{
    if (c->tenant || cache_salt) buf_printf(salt, "%s\n%s", c->tenant ? c->tenant : "", cache_salt ? cache_salt : "");
}

bool http_origin_in(const char *origin, const char *const *allowed, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(allowed[i], "*") == 0 || strcasecmp(allowed[i], origin) == 0) return true;
    return false;
}

/* A page of this server itself; its Host was let in. */
static bool is_same_origin(const char *origin, const char *host)
{
    size_t n = strncasecmp(origin, "http://", 7) == 0 ? 7 : strncasecmp(origin, "https://", 8) == 0 ? 8 : 0;

    return n && host && strcasecmp(origin + n, host) == 0;
}

bool http_from_elsewhere(const struct http_conn *c)
{
    const char *origin = http_header(&c->head, "origin"), *site = http_header(&c->head, "sec-fetch-site");

    if (origin && !is_same_origin(origin, c->head.host)) return true;
    return site && strcmp(site, "same-origin") != 0 && strcmp(site, "none") != 0;
}

/* With a key pages of elsewhere, and names that point here (a proxy's, or a page's that rebinds its own), are let in by
 * that alone: no browser adds it by itself. Such pages may then read their answers. */
static int check_origin(struct http_conn *c, struct api_error *e)
{
    const struct http_server *s = c->io->server;
    const char *origin = http_header(&c->head, "origin");
    bool open = !keys_are_needed(s->keys);
    bool named = c->head.host && http_host_in(c->head.host, s->o.allow_hosts, s->o.n_allow_hosts);

    if (open && c->head.host && !named && s->loopback && !is_local_authority(c->head.host))
        return api_error_set(e, 403, NULL,
                             "this server listens on this machine only: the Host header must be localhost or 127.0.0.1 "
                             "(behind a proxy that sends another one: --allow-host NAME, or --api-key)");
    if (open && c->head.host && !named && !s->loopback && !http_host_is_private(c->head.host))
        return api_error_set(e, 403, NULL,
                             "this server has no API key: the Host header must be an address, or a name no one else "
                             "can own (for others: --allow-host NAME, or --api-key)");
    if (!origin) return 0;
    if (is_same_origin(origin, c->head.host)) {
        c->cors_origin = origin;
        return 0;
    }
    if (s->o.n_allow_origins > 0 && !http_origin_in(origin, s->o.allow_origins, s->o.n_allow_origins))
        return api_error_set(e, 403, NULL, "pages of this origin are not on the server's list (--allow-origin)");
    if (s->o.n_allow_origins == 0 && open && !is_local_origin(origin))
        return api_error_set(
            e, 403, NULL,
            "requests from pages of other origins need a server with an API key (--api-key), or one that "
            "lists them (--allow-origin)");
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

static int check_phase(enum http_phase phase, struct api_error *e)
{
    if (phase == HTTP_READY) return 0;
    return api_error_set(e, 503, NULL, phase == HTTP_LOADING ? "Loading model" : "The server is shutting down");
}

int http_guard(struct http_conn *c, bool *preflight, const char **extra, struct api_error *e)
{
    const struct http_server *s = c->io->server;
    const struct http_target *t = &c->target;
    uint64_t limit = s->o.max_body_bytes;
    bool is_held_back;

    *extra = "";
    *preflight = false;
    if (check_origin(c, e)) return -1;
    if (c->head.method == HTTP_OPTIONS) {
        *preflight = true;
        return 0;
    }
    s->service->on_head(c->head.method, c->head.path, &c->target);
    if (!(t->route && t->is_public) && !key_ok(c, &is_held_back)) {
        if (is_held_back) {
            *extra = "Retry-After: 1\r\n";
            return api_error_set(e, 429, NULL,
                                 "too many wrong API keys were sent from this address: send the right one again later");
        }
        *extra = "WWW-Authenticate: Bearer\r\n";
        api_error_set(e, 401, NULL, "wrong or missing API key: send Authorization: Bearer KEY or x-api-key: KEY");
        e->code = "invalid_api_key";
        return -1;
    }
    if (!t->route && t->allow) {
        *extra = t->allow_line;
        return api_error_set(e, 405, NULL, "this path takes: %s", t->allow);
    }
    if (!t->route) return api_error_set(e, 404, NULL, "no such endpoint; a browser shows them at /");
    if (!t->while_loading && check_phase(http_phase(s), e)) return -1;
    if (t->max_body && t->max_body < limit) limit = t->max_body;
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
        buf_puts(out, "Access-Control-Expose-Headers: X-Request-Id, Retry-After, X-Radish-Ignored-Fields, "
                      "X-Radish-Cache\r\n");
        return;
    }
    buf_puts(out, "Access-Control-Allow-Methods: GET, POST, DELETE, OPTIONS\r\n"
                  "Access-Control-Allow-Headers: Authorization, Content-Type, X-Api-Key");
    if (wanted && is_field_list(wanted)) buf_printf(out, ", %s", wanted);
    buf_puts(out, "\r\nAccess-Control-Max-Age: 3600\r\n");
}
