/* tests/torture/torture_client.c - see the header. Memory here is the C library's own: base/mem counts the server's. */
#include "torture_client.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include "base/clock.h"

#define LOOK_MS 50
#define WAIT_MS 250 /* then waiting() */

const char *const ending_names[N_ENDINGS] = {"same", "refused", "told",   "cut",      "closed",
                                             "left", "WRONG",   "BLAMED", "HEADLESS", "HANG"};

bool reply_init(struct reply *r)
{
    *r = (struct reply){.bytes = malloc(CLIENT_REPLY_BYTES)};
    return r->bytes != NULL;
}

void reply_deinit(struct reply *r)
{
    free(r->bytes);
    r->bytes = NULL;
}

static uint32_t since(uint64_t start)
{
    return (uint32_t)((clock_now_ns(clock_system()) - start) / 1000000);
}

static int connected(uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval look = {0, LOOK_MS * 1000};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &look, sizeof(look)) == 0 &&
        connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
        return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static void read_reply(int fd, size_t leave_after, void (*waiting)(void), uint64_t start, struct reply *r)
{
    bool told = false;

    while (r->n < CLIENT_REPLY_BYTES - 1 && (leave_after == 0 || r->n < leave_after)) {
        ssize_t got = recv(fd, r->bytes + r->n, CLIENT_REPLY_BYTES - 1 - r->n, 0);

        if (got > 0) r->n += (size_t)got;
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return;
        if (!told && since(start) > WAIT_MS && waiting) {
            waiting();
            told = true;
        }
        r->hang = since(start) > CLIENT_PATIENCE_MS;
        if (r->hang) return;
    }
}

/* The value of a header line of that lower-case name, or NULL. */
static const char *header(const struct reply *r, const char *name)
{
    size_t n = strlen(name);

    for (char *at = strstr(r->bytes, "\r\n"); at && at + 2 < r->body; at = strstr(at + 2, "\r\n"))
        if (strncasecmp(at + 2, name, n) == 0 && at[2 + n] == ':') return at + 3 + n;
    return NULL;
}

/* Puts the chunks together in place; false: the last is missing. */
static bool unchunk(struct reply *r)
{
    char *from = r->body, *to = r->body, *end = r->bytes + r->n;

    for (;;) {
        char *digits_end;
        size_t n = from < end ? strtoul(from, &digits_end, 16) : 0;

        if (from >= end || digits_end == from || strncmp(digits_end, "\r\n", 2)) break;
        from = digits_end + 2;
        if (n == 0 || n + 2 > (size_t)(end - from)) {
            r->n_body = (size_t)(to - r->body);
            *to = 0;
            return n == 0;
        }
        memmove(to, from, n);
        to += n;
        from += n + 2;
    }
    r->n_body = (size_t)(to - r->body);
    *to = 0;
    return false;
}

static void parse(struct reply *r)
{
    const char *length, *coding;
    char *blank;

    r->bytes[r->n] = 0;
    while (strncmp(r->bytes, "HTTP/1.1 100", 12) == 0 && (blank = strstr(r->bytes, "\r\n\r\n"))) {
        r->n -= (size_t)(blank + 4 - r->bytes);
        memmove(r->bytes, blank + 4, r->n + 1);
    }
    blank = strncmp(r->bytes, "HTTP/1.1 ", 9) == 0 ? strstr(r->bytes, "\r\n\r\n") : NULL;
    if (!blank) return;
    r->status = atoi(r->bytes + 9);
    r->body = blank + 4;
    r->n_body = r->n - (size_t)(r->body - r->bytes);
    coding = header(r, "transfer-encoding");
    length = header(r, "content-length");
    r->whole = coding ? unchunk(r) : length ? r->n_body == strtoul(length, NULL, 10) : r->status == 204;
}

void client_ask(uint16_t port, const char *request, size_t n, size_t leave_after, void (*waiting)(void),
                struct reply *r)
{
    uint64_t start = clock_now_ns(clock_system());
    int fd = connected(port);

    *r = (struct reply){.bytes = r->bytes};
    r->bytes[0] = 0;
    if (fd < 0) return;
    if (send(fd, request, n, MSG_NOSIGNAL) == (ssize_t)n) read_reply(fd, leave_after, waiting, start, r);
    close(fd);
    r->ms = since(start);
    parse(r);
}

/* ---- what it says ---- */

static const char *const told[] = {
    "content", "text",   "arguments", "response",      "embedding",   "embeddings", "relevance_score",
    "probs",   "tokens", "prompt",    "finish_reason", "stop_reason", "logprob",    "done_reason"};

static bool is_told(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++)
        if (strlen(told[i]) == n && memcmp(told[i], name, n) == 0) return true;
    return false;
}

/* The end of a string that begins behind s. */
static const char *string_end(const char *s)
{
    while (*s && *s != '"') s += s[0] == '\\' && s[1] ? 2 : 1;
    return s;
}

static const char *value_end(const char *s)
{
    if (*s == '"') return string_end(s + 1);
    if (*s == '[' && s[1] != '{' && s[1] != '"') return s + strcspn(s, "]");
    return s + (*s == '{' || *s == '[' ? 0 : strcspn(s, ",}]"));
}

uint64_t reply_words(const struct reply *r)
{
    uint64_t sum = 0;

    for (const char *s = r->body; s && (s = strchr(s, '"'));) {
        const char *name = s + 1, *end = string_end(name), *value = end + 1, *to;

        if (!*end) break;
        s = end + 1;
        if (*value != ':' || !is_told(name, (size_t)(end - name))) continue;
        to = value_end(value + 1);
        for (const char *p = value + 1; p < to; p++)
            sum += ((uint64_t)(unsigned char)*p + 1) * 0x9e3779b97f4a7c15u >> 20;
        s = *to == '"' ? to + 1 : to;
    }
    return sum;
}

bool reply_tells_error(const struct reply *r)
{
    return r->body &&
           (strstr(r->body, "\"error\":{") || strstr(r->body, "\"error\":\"") || strstr(r->body, "event: error"));
}

void reply_id(const struct reply *r, char *out, size_t cap)
{
    const char *at = r->body ? strstr(r->body, "\"id\":\"") : NULL;

    snprintf(out, cap, "%.*s", at ? (int)strcspn(at + 6, "\"") : 0, at ? at + 6 : "");
}

enum ending reply_judge(const struct reply *r, const struct answer *wanted)
{
    if (r->hang) return END_HANG;
    if (r->n == 0) return END_CLOSED;
    if (!r->body) return strncmp(r->bytes, "HTTP/1.1 ", r->n < 9 ? r->n : 9) ? END_HEADLESS : END_CUT;
    if (!r->whole) return END_CUT;
    if ((r->status >= 500 || r->status == 429) && r->status != wanted->status) return END_REFUSED;
    if (r->status >= 400 && r->status != wanted->status) return END_BLAMED;
    if (r->status == 200 && reply_tells_error(r)) return END_TOLD;
    return r->status == wanted->status && (wanted->any || reply_words(r) == wanted->words) ? END_SAME : END_WRONG;
}
