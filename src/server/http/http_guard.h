/* server/http/http_guard.h - who may call: Host and Origin against DNS rebinding and foreign pages (F51), the API key (F49),
 * the path and method, the content type. Decided from the head alone, before a body is read. Thread  io thread that
 * owns the connection.
 */
#pragma once
#include "server/http/http_state.h"

/* Whether a Host header (with or without a port) is one that a page of the internet cannot have: a name must be pointed
 * at this machine for that, which cannot be done with IP addresses as they are written, localhost, names without a dot
 * (a machine, a container), this machine's name, and those below .localhost, .local, .internal, .lan and .home.arpa,
 * which no one can register. For servers without a key that listen to more than this machine. */
bool http_host_is_private(const char *host);
/* Whether host (with or without a port) is in allowed[0..n): names, or "*". */
bool http_host_in(const char *host, const char *const *allowed, uint32_t n);

/* A page of another origin sent it, with or without a key: what changes the server itself is not for those. */
bool http_from_elsewhere(const struct http_conn *c);

/* Who may share what is stored: the salt of the connection's tenant and the request's own. Nothing: salt stays empty. */
void http_tenant_salt(const struct http_conn *c, const char *cache_salt, struct buf *salt);
/* What concerns all tenants (`the cache`, `the monitor`) is for the admin (keys.h): true: refused, with 403. */
bool http_refuse_tenant(struct http_conn *c, const char *what);
/* Whether origin is in allowed[0..n): "https://name:port", or "*". */
bool http_origin_in(const char *origin, const char *const *allowed, uint32_t n);
/* 0: c->target.route is set (or the request was a preflight: *preflight). -1: *e says what to answer; *extra are header lines
 * for it. */
int http_guard(struct http_conn *c, bool *preflight, const char **extra, struct api_error *e);
/* The header lines that go with every response of this connection's request: CORS. Appends to out. */
void http_guard_headers(const struct http_conn *c, struct buf *out);
