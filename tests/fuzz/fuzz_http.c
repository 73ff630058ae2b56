/* tests/fuzz/fuzz_http.c - request heads and chunked bodies from any bytes: no crash, nothing read outside, and what is
 * accepted is what a strict second reading of the same bytes allows (F40, F41).
 *
 * The first byte chooses: a head, or a chunked body fed in pieces of that size. */
#include <stdlib.h>
#include <string.h>
#include "server/http/http_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* What must hold of every accepted head. */
static void check_head(const struct http_head *h)
{
    if (!h->path || (h->path[0] != '/' && strcmp(h->path, "*") != 0)) abort();
    if (h->chunked && h->has_length) abort();
    if (h->n_headers > HTTP_MAX_HEADERS) abort();
    for (uint32_t i = 0; i < h->n_headers; i++) {
        if (!h->headers[i].name[0] || strpbrk(h->headers[i].name, " \t\r\n:")) abort();
        if (strpbrk(h->headers[i].value, "\r\n")) abort();
    }
}

static void try_head(const uint8_t *data, size_t n)
{
    char *head = malloc(n + 1);
    struct http_head h;
    const char *why = "";
    int64_t end, in_steps = 0;
    int status;

    if (!head) return;
    memcpy(head, data, n);
    end = http_find_head_end(head, n, 0);
    for (size_t seen = 0, have = 1; have <= n && in_steps == 0; seen = have++)
        in_steps = http_find_head_end(head, have, seen);
    if (in_steps != end) abort(); /* the same, however the bytes arrive */
    if (end > 0) {
        memset(&h, 0, sizeof(h));
        head[end] = 0;
        status = http_parse_head(head, (size_t)end, &h, &why);
        if (status == 0)
            check_head(&h);
        else if (status < 400 || status > 505 || !why[0])
            abort();
    }
    free(head);
}

/* The body bytes of a chunked body that is fed in pieces; returns their digest. */
static uint64_t read_chunks(const char *s, size_t n, size_t piece, enum http_chunk_state *state)
{
    struct http_chunks c;
    uint64_t digest = 1469598103934665603ull;

    memset(&c, 0, sizeof(c));
    for (size_t at = 0; at < n && c.state != CHUNK_DONE && c.state != CHUNK_BAD;) {
        size_t m = n - at < piece ? n - at : piece, n_data = 0, used;
        const char *body = NULL;

        used = http_chunks_read(&c, s + at, m, &body, &n_data);
        if (used > m || n_data > used) abort();
        for (size_t i = 0; i < n_data; i++) digest = (digest ^ (unsigned char)body[i]) * 1099511628211ull;
        if (used == 0 && c.state != CHUNK_DONE && c.state != CHUNK_BAD) abort();
        at += used;
    }
    *state = c.state;
    return digest;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    enum http_chunk_state whole, cut;
    uint64_t a, b;

    if (n == 0) return 0;
    if (data[0] < 128) {
        try_head(data + 1, n - 1);
        return 0;
    }
    a = read_chunks((const char *)data + 1, n - 1, n, &whole);
    b = read_chunks((const char *)data + 1, n - 1, (size_t)data[0] - 127, &cut);
    if (a != b || whole != cut) abort();
    return 0;
}
