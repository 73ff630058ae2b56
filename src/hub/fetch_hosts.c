/* hub/fetch_hosts.c - see fetch_hosts.h. */
#include "hub/fetch_hosts.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/mem.h"

static bool is_name(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9') || strchr("-_.", s[i]))) return false;
    return n > 0 && s[0] != '-' && s[n - 1] != '.' && !memmem(s, n, "..", 2);
}

static bool is_v6(const char *s, size_t n)
{
    struct in6_addr a;
    char text[64];

    if (n < 4 || n >= sizeof(text) || s[0] != '[' || s[n - 1] != ']') return false;
    snprintf(text, sizeof(text), "%.*s", (int)(n - 2), s + 1);
    return inet_pton(AF_INET6, text, &a) == 1;
}

/* "private:name:8080" */
static bool parse(const char *s, size_t n, struct fetch_host *h)
{
    const char *close = memchr(s, ']', n), *colon;
    uint64_t port = 0;

    *h = (struct fetch_host){.port = 0};
    if (n > 8 && strncasecmp(s, "private:", 8) == 0) h->is_private = true, s += 8, n -= 8;
    if (n > 2 && s[0] == '*' && s[1] == '.') h->is_wild = true, s++, n--;
    colon = close ? (close + 1 < s + n ? close + 1 : NULL) : memchr(s, ':', n);
    if (colon) {
        size_t n_port = (size_t)(s + n - colon) - 1;

        if (*colon != ':' || !parse_u64(colon + 1, n_port, &port) || port == 0 || port > 65535) return false;
        h->port = (uint16_t)port;
        n = (size_t)(colon - s);
    }
    if (n >= sizeof(h->name) || (h->is_wild && h->is_private)) return false;
    for (size_t i = 0; i < n; i++) h->name[i] = (char)(s[i] >= 'A' && s[i] <= 'Z' ? s[i] + 32 : s[i]);
    if (h->is_wild) return is_name(h->name + 1, n - 1) && h->name[1] != '.';
    return (is_name(h->name, n) && h->name[0] != '.') || is_v6(h->name, n);
}

rd_status fetch_hosts_init(const char *const *texts, uint32_t n, struct fetch_hosts *out, struct rd_error *err)
{
    *out = (struct fetch_hosts){.list = mem_zalloc(FETCH_HOSTS_MOST, sizeof(*out->list))};
    if (!out->list) return error_set(err, RD_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n; i++) {
        for (const char *at = texts[i];; at++) {
            size_t k = strcspn(at, ",");
            char shown[128];

            if (out->n == FETCH_HOSTS_MOST || !parse(at, k, &out->list[out->n])) {
                bool is_full = out->n == FETCH_HOSTS_MOST;

                fetch_hosts_deinit(out);
                if (is_full) return error_set(err, RD_E_INVALID, "more than %u hosts", FETCH_HOSTS_MOST);
                return error_set(err, RD_E_INVALID,
                                 "got \"%s\", wanted a host: images.example.org, *.example.org, example.org:8443, or "
                                 "private:HOST without a star",
                                 error_quote(shown, sizeof(shown), at, k));
            }
            out->n++;
            at += k;
            if (!*at) break;
        }
    }
    return RD_OK;
}

void fetch_hosts_deinit(struct fetch_hosts *h)
{
    mem_free(h->list);
    *h = (struct fetch_hosts){.n = 0};
}

const struct fetch_host *fetch_hosts_find(const struct fetch_hosts *h, const char *host, uint32_t port, bool is_https)
{
    const struct fetch_host *found = NULL;
    size_t n = strlen(host);

    if (n > 1 && host[n - 1] == '.') n--; /* the same name, spelled whole */
    for (uint32_t i = 0; i < h->n; i++) {
        const struct fetch_host *e = &h->list[i];
        size_t k = strlen(e->name);

        if (port != (e->port ? e->port : is_https ? 443u : 80u)) continue;
        if (e->is_wild ? n <= k : n != k) continue;
        if (strncasecmp(host + n - k, e->name, k) != 0) continue;
        if (!found || e->is_private) found = e;
    }
    return found;
}

/* ---- addresses ---- */

static bool v4_is_public(uint32_t a)
{
    static const struct {
        uint32_t net, bits;
    } none[] = {
        {0x00000000, 8},  {0x0a000000, 8},  {0x64400000, 10}, {0x7f000000, 8},  {0xa9fe0000, 16}, {0xac100000, 12},
        {0xc0000000, 24}, {0xc0000200, 24}, {0xc0586300, 24}, {0xc0a80000, 16}, {0xc6120000, 15}, {0xc6336400, 24},
        {0xcb007100, 24}, {0xe0000000, 3},  {0xa83f8110, 32}}; /* the last: 168.63.129.16, which answers machines of Azure */

    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        if ((a ^ none[i].net) >> (32 - none[i].bits) == 0) return false;
    return true;
}

/* Of 2000::/3, without 2001::/23 (Teredo, benchmarks), 2001:db8::/32, 2002::/16 (6to4), 3fff::/20. */
static bool v6_is_public(const uint8_t *b)
{
    const uint32_t head = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];

    if (head >> 29 != 1) return false;
    return head >> 9 != 0x20010000u >> 9 && head != 0x20010db8u && head >> 16 != 0x2002u && head >> 12 != 0x3fff0u;
}

bool fetch_address_is_public(const struct sockaddr *a)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;

    if (a->sa_family == AF_INET) {
        memcpy(&v4, a, sizeof(v4));
        return v4_is_public(ntohl(v4.sin_addr.s_addr));
    }
    if (a->sa_family != AF_INET6) return false;
    memcpy(&v6, a, sizeof(v6));
    return v6_is_public(v6.sin6_addr.s6_addr);
}
