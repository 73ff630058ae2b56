/* server/http/http_parse.c - one pass over the head, cutting it into terminated strings. */
#include "server/http/http_parse.h"
#include <string.h>
#include <strings.h>
#include "base/hex.h"
#include "base/limits.h"

#define MAX_CHUNK_DIGITS  8u
#define MAX_CHUNK_LINE    256u
#define MAX_LENGTH_DIGITS 15u

int64_t http_find_head_end(const char *s, size_t n, size_t from)
{
    for (size_t i = from; i < n; i++) {
        if (s[i] == 0) return -1;
        if (s[i] != '\n') continue;
        if (i == 0 || s[i - 1] != '\r') return -1;
        if (i >= 3 && s[i - 2] == '\n') return (int64_t)i + 1;
    }
    return 0;
}

static bool is_token(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

/* In place. false: a broken escape, or a control character behind one. */
static bool percent_decode(char *s)
{
    char *to = s;

    for (; *s; s++, to++) {
        *to = *s;
        if (*s != '%') continue;
        int high = hex_digit(s[1]), low = high < 0 ? -1 : hex_digit(s[2]);
        if (low < 0 || high * 16 + low < 0x20 || high * 16 + low == 0x7f) return false;
        *to = (char)(high * 16 + low);
        s += 2;
    }
    *to = 0;
    return true;
}

static enum http_method method_of(const char *s)
{
    static const struct {
        const char *name;
        enum http_method method;
    } methods[] = {{"GET", HTTP_GET},
                   {"HEAD", HTTP_HEAD},
                   {"POST", HTTP_POST},
                   {"DELETE", HTTP_DELETE},
                   {"OPTIONS", HTTP_OPTIONS}};

    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++)
        if (strcmp(s, methods[i].name) == 0) return methods[i].method;
    return HTTP_OTHER;
}

static int fail(int status, const char *text, const char **why)
{
    *why = text;
    return status;
}

/* origin-form, absolute-form (its authority replaces Host), or "*". */
static int parse_target(char *target, struct http_head *out, const char **why)
{
    char *path = target, *mark;

    for (const char *p = target; *p; p++)
        if ((unsigned char)*p <= 0x20 || *p == 0x7f || *p == '#') return fail(400, "malformed request target", why);
    if (strncasecmp(path, "http://", 7) == 0) {
        out->host = path + 7;
        path = strchr(path + 7, '/');
        if (!path) return fail(400, "a request target in absolute form needs a path", why);
        memmove(target, out->host, (size_t)(path - out->host)); /* make room for a terminator before the path */
        target[path - out->host] = 0;
        out->host = target;
    }
    if (*path != '/' && strcmp(path, "*") != 0) return fail(400, "malformed request target", why);
    mark = strchr(path, '?');
    out->query = mark ? mark + 1 : "";
    if (mark) *mark = 0;
    if (!percent_decode(path)) return fail(400, "malformed percent escape in the request target", why);
    out->path = path;
    return 0;
}

static int parse_request_line(char *line, struct http_head *out, const char **why)
{
    char *target = strchr(line, ' '), *version = target ? strchr(target + 1, ' ') : NULL;

    if (!version || target == line) return fail(400, "malformed request line", why);
    *target++ = 0;
    *version++ = 0;
    for (const char *p = line; *p; p++)
        if (!is_token(*p)) return fail(400, "malformed method", why);
    out->method_text = line;
    out->method = method_of(line);
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0) {
        bool other = strncmp(version, "HTTP/", 5) == 0 && version[5] >= '0' && version[5] <= '9' && version[6] == '.' &&
                     version[7] >= '0' && version[7] <= '9' && !version[8];
        return other ? fail(505, "HTTP/1.0 or HTTP/1.1 wanted", why) : fail(400, "malformed request line", why);
    }
    out->http_1_0 = version[7] == '0';
    out->keep_alive = !out->http_1_0;
    return parse_target(target, out, why);
}

static int parse_header_line(char *line, size_t n, struct http_head *out, const char **why)
{
    char *p = line, *end = line + n;
    struct http_header *h;

    if (out->n_headers == HTTP_MAX_HEADERS) return fail(431, "too many header fields", why);
    while (is_token(*p)) {
        if (*p >= 'A' && *p <= 'Z') *p = (char)(*p + 32);
        p++;
    }
    if (p == line || *p != ':') return fail(400, "malformed header field", why);
    *p++ = 0;
    while (*p == ' ' || *p == '\t') p++;
    while (end > p && (end[-1] == ' ' || end[-1] == '\t')) *--end = 0;
    for (const char *q = p; q < end; q++)
        if (((unsigned char)*q < 0x20 && *q != '\t') || *q == 0x7f)
            return fail(400, "control character in a header field", why);
    h = &out->headers[out->n_headers++];
    h->name = line;
    h->value = p;
    return 0;
}

/* Is word one of the comma-separated elements of value? */
static bool has_element(const char *value, const char *word)
{
    size_t n_word = strlen(word);

    while (*value) {
        value += strspn(value, " \t,");
        size_t n = strcspn(value, ", \t");
        if (n == n_word && strncasecmp(value, word, n) == 0) return true;
        value += n;
    }
    return false;
}

static int use_length(const char *value, struct http_head *out, const char **why)
{
    size_t n = strlen(value);

    if (out->has_length) return fail(400, "more than one Content-Length", why);
    if (n == 0 || n > MAX_LENGTH_DIGITS) return fail(400, "malformed Content-Length", why);
    for (const char *p = value; *p; p++) {
        if (*p < '0' || *p > '9') return fail(400, "malformed Content-Length", why);
        out->length = out->length * 10 + (uint64_t)(*p - '0');
    }
    out->has_length = true;
    return 0;
}

static int use_header(const struct http_header *h, struct http_head *out, const char **why)
{
    if (strcmp(h->name, "content-length") == 0) return use_length(h->value, out, why);
    if (strcmp(h->name, "transfer-encoding") == 0) {
        if (out->chunked || out->http_1_0 || strcasecmp(h->value, "chunked") != 0)
            return fail(400, "Transfer-Encoding: only a single \"chunked\" is understood", why);
        out->chunked = true;
    } else if (strcmp(h->name, "connection") == 0) {
        if (has_element(h->value, "close"))
            out->keep_alive = false;
        else if (out->http_1_0 && has_element(h->value, "keep-alive"))
            out->keep_alive = true;
    } else if (strcmp(h->name, "expect") == 0) {
        if (strcasecmp(h->value, "100-continue") != 0) return fail(417, "Expect: only 100-continue is understood", why);
        out->expect_continue = !out->http_1_0;
    } else if (strcmp(h->name, "te") == 0) {
        if (has_element(h->value, "trailers")) out->takes_trailers = true;
    } else if (strcmp(h->name, "host") == 0 && !out->host) {
        out->host = h->value;
    }
    return 0;
}

int http_parse_head(char *head, size_t n, struct http_head *out, const char **why)
{
    char *line = head, *end = head + n - 2; /* the last two bytes are the empty line */
    uint32_t n_hosts = 0;
    int status = 0;

    memset(out, 0, sizeof(*out));
    while (line < end && status == 0) {
        char *cr = memchr(line, '\r', (size_t)(end - line));
        size_t n_line = (size_t)(cr - line);

        if (cr[1] != '\n') return fail(400, "bare CR in the head", why);
        *cr = 0;
        if (n_line > HTTP_MAX_LINE)
            return line == head ? fail(414, "request target too long", why) : fail(431, "header field too long", why);
        status = line == head ? parse_request_line(line, out, why) : parse_header_line(line, n_line, out, why);
        line = cr + 2;
    }
    for (uint32_t i = 0; i < out->n_headers && status == 0; i++) {
        n_hosts += strcmp(out->headers[i].name, "host") == 0;
        status = use_header(&out->headers[i], out, why);
    }
    if (status) return status;
    if (n_hosts > 1 || (n_hosts == 0 && !out->http_1_0)) return fail(400, "exactly one Host header is wanted", why);
    if (out->chunked && out->has_length) return fail(400, "both Content-Length and Transfer-Encoding", why);
    return 0;
}

const char *http_header(const struct http_head *head, const char *name)
{
    for (uint32_t i = 0; i < head->n_headers; i++)
        if (strcmp(head->headers[i].name, name) == 0) return head->headers[i].value;
    return NULL;
}

const char *http_query_next(const char **s, const char *name, size_t *n)
{
    const size_t n_name = strlen(name);

    while (**s) {
        const char *field = *s;
        const size_t n_field = strcspn(field, "&");

        *s += n_field + (field[n_field] == '&');
        if (n_field <= n_name || field[n_name] != '=' || strncmp(field, name, n_name) != 0) continue;
        *n = n_field - n_name - 1;
        return field + n_name + 1;
    }
    return NULL;
}

/* One byte of "SIZE[;ext]CRLF". */
static void size_byte(struct http_chunks *c, char b)
{
    int v = hex_digit(b);

    if (++c->n_line > MAX_CHUNK_LINE)
        c->state = CHUNK_BAD;
    else if (c->cr) {
        bool ok = b == '\n' && c->n_digits > 0;

        c->state = !ok ? CHUNK_BAD : c->left ? CHUNK_DATA : CHUNK_TRAILER;
        c->cr = c->in_ext = false;
        c->n_line = c->n_digits = 0;
        c->line_empty = true;
    } else if (b == '\r')
        c->cr = true;
    else if (c->in_ext) {
        if ((unsigned char)b < 0x20 && b != '\t') c->state = CHUNK_BAD;
    } else if (b == ';' && c->n_digits > 0)
        c->in_ext = true;
    else if (v >= 0 && ++c->n_digits <= MAX_CHUNK_DIGITS)
        c->left = c->left * 16 + (uint64_t)v;
    else
        c->state = CHUNK_BAD;
}

/* One byte of the trailers, which are read and dropped, up to an empty line. Each is NAME: VALUE, as in a head: what a
 * laxer parser might take for the next request is none. */
static void trailer_byte(struct http_chunks *c, char b)
{
    if (++c->n_line > LIMIT_HEADER_BYTES || b == 0)
        c->state = CHUNK_BAD;
    else if (c->cr) {
        if (b != '\n' || (!c->line_empty && !c->has_colon))
            c->state = CHUNK_BAD;
        else if (c->line_empty)
            c->state = CHUNK_DONE;
        c->cr = c->has_colon = false;
        c->line_empty = true;
    } else if (b == '\r')
        c->cr = true;
    else if (b == '\n')
        c->state = CHUNK_BAD;
    else if (!c->has_colon && b == ':' && !c->line_empty)
        c->has_colon = true;
    else if (!c->has_colon && !is_token(b))
        c->state = CHUNK_BAD;
    else
        c->line_empty = false;
}

size_t http_chunks_read(struct http_chunks *c, const char *s, size_t n, const char **data, size_t *n_data)
{
    size_t i = 0;

    *n_data = 0;
    *data = s;
    while (i < n) {
        switch (c->state) {
        case CHUNK_SIZE:
            size_byte(c, s[i++]);
            break;
        case CHUNK_DATA:
            *data = s + i;
            *n_data = n - i < c->left ? n - i : (size_t)c->left;
            c->left -= *n_data;
            if (c->left == 0) c->state = CHUNK_DATA_END;
            return i + *n_data;
        case CHUNK_DATA_END:
            if (!c->cr && s[i] == '\r')
                c->cr = true;
            else if (c->cr && s[i] == '\n') {
                c->cr = false;
                c->state = CHUNK_SIZE;
            } else
                c->state = CHUNK_BAD;
            i++;
            break;
        case CHUNK_TRAILER:
            trailer_byte(c, s[i++]);
            break;
        case CHUNK_DONE:
        case CHUNK_BAD:
            return i;
        }
    }
    return i;
}
