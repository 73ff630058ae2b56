/* server/http/http_parse.h - a strict reader of HTTP/1.x request heads and chunked bodies.
 *
 * Pure functions on bytes: no socket, no allocation. What two parsers could read differently is refused (F41): bare CR
 * or LF, obs-fold, space before a colon, NUL, two Content-Lengths, Content-Length beside Transfer-Encoding, any
 * Transfer-Encoding but "chunked". libevent's evhttp accepts most of these, answers its errors in HTML and reads a
 * whole body before the caller may look at the head; therefore this parser over a plain bufferevent.
 *
 * Thread  any thread. Source  RFC 9110, RFC 9112.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTTP_MAX_HEADERS 100u
#define HTTP_MAX_LINE    8192u

enum http_method { HTTP_GET, HTTP_HEAD, HTTP_POST, HTTP_DELETE, HTTP_OPTIONS, HTTP_OTHER };

struct http_header {
    const char *name, *value;
}; /* terminated views into the head; names in lower case */

struct http_head {
    enum http_method method;
    const char *method_text;
    char *path;        /* percent-decoded, without the query; begins with '/' (or is "*") */
    const char *query; /* "" when there is none */
    const char *host;  /* NULL: HTTP/1.0 without Host */
    bool http_1_0, keep_alive, chunked, has_length, expect_continue, takes_trailers; /* TE: trailers */
    uint64_t length;                                                                 /* has_length: the body's bytes */
    uint32_t n_headers;
    struct http_header headers[HTTP_MAX_HEADERS];
};

/* Where the head in s[0..n) ends, its final CRLF CRLF included; 0: not yet; -1: a byte that no head may hold (NUL, bare
 * LF). from: bytes known to hold neither (an earlier call's n). */
int64_t http_find_head_end(const char *s, size_t n, size_t from);
/* Parses head[0..n) (from http_find_head_end) in place: it is cut into terminated strings. Returns 0, or the HTTP
 * status to answer with: 400, 414, 417, 431, 501, 505. *why is a fixed text then. */
int http_parse_head(char *head, size_t n, struct http_head *out, const char **why);
/* NULL: absent. name in lower case. */
const char *http_header(const struct http_head *head, const char *name);
/* The next value of name= in a query of which *s is the rest, as it stands, of *n bytes; NULL: there is none. *s goes behind it. */
const char *http_query_next(const char **s, const char *name, size_t *n);

enum http_chunk_state { CHUNK_SIZE, CHUNK_DATA, CHUNK_DATA_END, CHUNK_TRAILER, CHUNK_DONE, CHUNK_BAD };

struct http_chunks {
    enum http_chunk_state state;
    uint64_t left;   /* of this chunk's data */
    uint32_t n_line; /* bytes of the size line or the trailers so far */
    uint32_t n_digits;
    bool in_ext, cr, line_empty, has_colon; /* of a trailer: its name has ended */
};

/* Reads s[0..n): returns how many bytes were consumed; *data and *n_data are the body bytes among them (one run; call
 * again until it consumes nothing, or state is DONE or BAD). */
size_t http_chunks_read(struct http_chunks *c, const char *s, size_t n, const char **data, size_t *n_data);
