/* hub/hub_http.h - GET over libcurl as a hub wants it: redirects, a token that stays with its host, patience.
 *
 * A body that breaks off is gone on with (Range) as often as it made progress; 408, 425, 429, 5xx and connections that fail
 * are tried again after what Retry-After says, else after 1, 2, 4 ... 32 s; other answers are final. Redirects lead to http
 * and https only, never from https to http; the token goes to the endpoint's scheme, host and port alone.
 *
 * Thread  its owner; `cancelled` may be set by any thread or a signal handler.
 * Errors  RD_E_CANCELLED, RD_E_NOT_FOUND (404), RD_E_IO (no answer, or one that says no), RD_E_UNSUPPORTED (built without
 *         libcurl), RD_E_NOMEM, and what the sink says. err names the host and what it said, never the token.
 */
#pragma once
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/buf.h"
#include "radish/status.h"

struct hub_http;

enum { HUB_CONNECTIONS = 4, HUB_MAX_CONNECTIONS = 16 };

struct hub_http_options {
    const char *endpoint;   /* "https://huggingface.co": whose token it is */
    const char *token;      /* NULL: none */
    uint32_t timeout_s;     /* to connect, and for silence */
    uint32_t n_retries;     /* in a row, without a byte of progress */
    uint32_t n_connections; /* for one big file (hub_fetch.h), at most HUB_MAX_CONNECTIONS; 0: one */
    const volatile sig_atomic_t *cancelled;
    void (*tell)(void *user, const char *text); /* why it waits; may be NULL */
    void (*tick)(void *user);                   /* now and then, while bytes flow or do not; may be NULL */
    void *user;
};

/* Makes the library ready; create does it, too. Before threads create their own, or under a lock of theirs. */
bool hub_http_start(void);
rd_status hub_http_create(const struct hub_http_options *o, struct hub_http **out, struct rd_error *err);
/* NULL is fine. */
void hub_http_destroy(struct hub_http *h);

/* What the first answer on the way said (of a hub: the file) and the last one (of a store of blobs: the bytes). */
struct hub_answer {
    char commit[80], etag[160], linked_etag[160]; /* quotes and W/ off; first answer */
    bool is_weak;                                 /* etag */
    uint64_t n_linked;                            /* X-Linked-Size; UINT64_MAX: unknown */
    uint64_t n_bytes;                             /* of the whole; UINT64_MAX: unknown */
    char next[1024];                              /* Link: rel="next"; "": none */
};

/* Who takes a body. */
struct hub_sink {
    void *arg;
    /* How many bytes are there; the rest is asked for. */
    uint64_t (*have)(void *arg);
    /* Before the first byte of an attempt: it goes on at `from`, else `from` is 0 and what was there is void. n_total:
     * UINT64_MAX: unknown. */
    rd_status (*begin)(void *arg, uint64_t from, uint64_t n_total, struct rd_error *err);
    rd_status (*put)(void *arg, const void *data, size_t n, struct rd_error *err);
};

/* if_range: a strong etag that the bytes there must still have, or NULL. answer may be NULL. */
rd_status hub_http_get(struct hub_http *h, const char *url, const char *if_range, const struct hub_sink *sink,
                       struct hub_answer *answer, struct rd_error *err);
/* The whole body as text, at most `limit` bytes: RD_E_LIMIT. */
rd_status hub_http_text(struct hub_http *h, const char *url, size_t limit, struct buf *out, struct hub_answer *answer,
                        struct rd_error *err);
/* Only what the answer's head says: one try. */
rd_status hub_http_head(struct hub_http *h, const char *url, struct hub_answer *answer, struct rd_error *err);

/* Whether this program can download at all. */
bool hub_http_is_built(void);
/* "a b/c" -> "a%20b/c", appended. */
void hub_put_url_path(struct buf *out, const char *path);
/* Scheme, host and port are the same, or url is no URL: false. */
bool hub_same_origin(const char *a, const char *b);
