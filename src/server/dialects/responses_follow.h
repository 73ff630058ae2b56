/* server/dialects/responses_follow.h - the events of an answer in the background, for a client that comes (back) later.
 * Thread  io thread that owns the connection.
 */
#pragma once
#include "server/http/http_conn.h"

/* Takes the connection over: streams the log of id without its first n_skip events, until the answer ends or is
 * deleted. RD_E_NOT_FOUND, RD_E_UNSUPPORTED (it has no log), RD_E_NOMEM: nothing was sent, the caller answers. */
rd_status responses_follow(struct http_conn *c, const char *id, uint64_t n_skip);
