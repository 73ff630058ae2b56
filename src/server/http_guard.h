/* server/http_guard.h - who may call: Host and Origin against DNS rebinding and foreign pages (F51), the API key (F49),
 * the route and method, the content type. Decided from the head alone, before a body is read. Thread  io thread that
 * owns the connection.
 */
#pragma once
#include "server/http_conn.h"

/* Who may share what is stored: the salt of the connection's tenant and the request's own. Nothing: salt stays empty. */
void http_tenant_salt(const struct http_conn *c, const char *cache_salt, struct buf *salt);
/* 0: c->route is set (or the request was a preflight: *preflight). -1: *e says what to answer; *extra are header lines
 * for it. */
int http_guard(struct http_conn *c, bool *preflight, const char **extra, struct api_error *e);
/* The header lines that go with every response of this connection's request: CORS. Appends to out. */
void http_guard_headers(const struct http_conn *c, struct buf *out);
