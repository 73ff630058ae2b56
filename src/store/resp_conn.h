/* store/resp_conn.h - a connection to a server that speaks Redis' protocol (Redis, Valkey): commands are queued, sent together,
 * and answered in order. Nothing waits longer than it is told.
 *
 * The server is not trusted. An answer is a number, a text, bytes, nothing or an error: arrays are refused before anything is
 * allocated for them, and so is what is longer than max_reply. After any status but RD_OK the connection is of no use and
 * is to be closed; an answer that is an error of the server's is no such failure.
 *
 * Thread  one at a time.
 * Errors  RD_E_IO: refused, closed, or not in time; RD_E_FORMAT: not that protocol, or too long; RD_E_NOMEM;
 *         RD_E_UNSUPPORTED: built without libhiredis. err says what; never a password.
 * Source  hiredis parses and formats; the waiting is here.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "store/store_url.h"

struct resp_conn;

enum resp_kind { RESP_NOTHING, RESP_NUMBER, RESP_TEXT, RESP_BYTES, RESP_ERROR };
struct resp_reply {
    enum resp_kind kind;
    int64_t number;
    const char *bytes; /* [n], until the next call with the connection; ends with a 0 beyond n */
    size_t n;
};

bool resp_is_built(void);

/* Connected, logged in, the database chosen. deadline_ns: of clock_system. max_reply: bytes of the longest answer. */
rd_status resp_open(const struct store_url *url, size_t max_reply, uint64_t deadline_ns, struct resp_conn **out,
                    struct rd_error *err);
/* NULL is fine. */
void resp_close(struct resp_conn *c);
/* Queues a command of n parts. */
rd_status resp_ask(struct resp_conn *c, uint32_t n, const char *const *parts, const size_t *n_bytes);
/* Bytes that are queued and not sent. */
size_t resp_n_unsent(const struct resp_conn *c);
/* Sends what is queued while the next answer comes. */
rd_status resp_next(struct resp_conn *c, uint64_t deadline_ns, struct resp_reply *out, struct rd_error *err);

/* The parser alone, for tests: answers in s[0..n), one after another, until they end or are refused. Returns how many. */
uint32_t resp_parse(const void *s, size_t n, size_t max_reply, void (*see)(void *arg, const struct resp_reply *r),
                    void *arg);
