/* store/store_url.c - parts between separators, each copied into a field of fixed size. */
#include "store/store_url.h"
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/hex.h"

/* Percent-decoded; false: too long, a broken escape, a zero or a line's end in it. */
static bool copy_part(char *out, size_t cap, const char *s, size_t n)
{
    size_t at = 0;

    for (size_t i = 0; i < n; i++) {
        char c = s[i];

        if (c == '%') {
            int high = i + 2 < n ? hex_digit(s[i + 1]) : -1, low = high < 0 ? -1 : hex_digit(s[i + 2]);

            if (low < 0) return false;
            c = (char)(high * 16 + low);
            i += 2;
        }
        if (c == 0 || c == '\r' || c == '\n' || at + 1 >= cap) return false;
        out[at++] = c;
    }
    out[at] = 0;
    return true;
}

/* All of s[0..n), decimal, at most `most`. */
static bool number(const char *s, size_t n, uint32_t most, uint32_t *out)
{
    uint32_t v = 0;

    if (n == 0 || n > 5) return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        v = v * 10 + (uint32_t)(s[i] - '0');
    }
    *out = v;
    return v <= most;
}

/* [USER]:PASSWORD, in s[0..n). */
static bool take_login(struct store_url *url, const char *s, size_t n)
{
    const char *colon = memchr(s, ':', n);

    return colon && copy_part(url->user, sizeof(url->user), s, (size_t)(colon - s)) &&
           copy_part(url->password, sizeof(url->password), colon + 1, n - (size_t)(colon + 1 - s)) && *url->password;
}

static bool take_place(struct store_url *url, const char *s, size_t n)
{
    const char *end = s + n, *host_end, *rest;

    if (n > 0 && *s == '[') {
        host_end = memchr(s, ']', n);
        if (!host_end) return false;
        s++;
        rest = host_end + 1;
    } else {
        host_end = memchr(s, ':', n);
        if (!host_end) host_end = end;
        rest = host_end;
    }
    if (host_end == s || !copy_part(url->host, sizeof(url->host), s, (size_t)(host_end - s))) return false;
    url->port = STORE_URL_PORT;
    if (rest == end) return true;
    return *rest == ':' && number(rest + 1, (size_t)(end - rest - 1), 65535, &url->port) && url->port > 0;
}

static bool parse_redis(const char *s, struct store_url *url)
{
    const char *slash, *at = strrchr(s, '@');

    if (at && !take_login(url, s, (size_t)(at - s))) return false;
    if (at) s = at + 1;
    slash = strchr(s, '/');
    if (!take_place(url, s, slash ? (size_t)(slash - s) : strlen(s))) return false;
    return !slash || !slash[1] || number(slash + 1, strlen(slash + 1), STORE_URL_MOST_DBS - 1, &url->db);
}

static bool parse_unix(const char *s, struct store_url *url)
{
    const char *question, *at = *s == '/' ? NULL : strchr(s, '@');

    if (at && !take_login(url, s, (size_t)(at - s))) return false;
    if (at) s = at + 1;
    question = strchr(s, '?');
    if (question && (strncmp(question, "?db=", 4) != 0 ||
                     !number(question + 4, strlen(question + 4), STORE_URL_MOST_DBS - 1, &url->db)))
        return false;
    return *s == '/' && copy_part(url->path, sizeof(url->path), s, question ? (size_t)(question - s) : strlen(s));
}

rd_status store_url_parse(const char *text, struct store_url *out, struct rd_error *err)
{
    bool good = false;

    memset(out, 0, sizeof(*out));
    if (strncmp(text, "redis://", 8) == 0)
        good = parse_redis(text + 8, out);
    else if (strncmp(text, "unix://", 7) == 0)
        good = parse_unix(text + 7, out);
    if (good) return RD_OK;
    return error_set(err, RD_E_INVALID,
                     "the shared store's address is not one (it is not shown, since it may hold a password): wanted "
                     "redis://[[user]:password@]host[:port][/db] or unix://[[user]:password@]/path[?db=N]");
}

void store_url_show(const struct store_url *url, char out[STORE_URL_SHOWN])
{
    bool is_v6 = strchr(url->host, ':') != NULL;

    if (*url->host)
        snprintf(out, STORE_URL_SHOWN, "redis://%s%s%s:%u/%u", is_v6 ? "[" : "", url->host, is_v6 ? "]" : "", url->port,
                 url->db);
    else
        snprintf(out, STORE_URL_SHOWN, "unix://%s?db=%u", url->path, url->db);
}
