/* cli/http_client.h - one request to a radish server, and its whole answer.
 *
 * For commands that look at a running server: HTTP/1.1 without TLS, a new connection each time, an answer with a length.
 * Thread  any thread.  Errors  RD_E_INVALID (the URL), RD_E_IO (no connection, or it broke), RD_E_FORMAT (what answers is
 * no HTTP server), RD_E_LIMIT (an answer beyond LIMIT_BODY_BYTES): err names the address.
 */
#pragma once
#include "base/buf.h"
#include "radish/status.h"

/* url: "http://host[:port]", of which the port defaults to 8000, or "unix:PATH". timeout_ms: to connect, and of
 * silence; 0: a minute. key: a bearer token, or NULL. body: JSON, or NULL. */
rd_status http_ask(const char *url, uint32_t timeout_ms, const char *method, const char *path, const char *key,
                   const char *body, int *status, struct buf *answer, struct rd_error *err);
