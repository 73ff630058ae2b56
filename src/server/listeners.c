/* server/listeners.c - addresses taken apart, sockets opened in order. */
#include "server/listeners.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/net.h"

static bool is_loopback(const char *host)
{
    struct in6_addr v6;

    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 ||
           (inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6));
}

static rd_status refuse(const char *text, struct rd_error *err)
{
    char quoted[160];

    error_quote(quoted, sizeof(quoted), text, strlen(text));
    return error_set(err, RD_E_INVALID, "listening on %s: wanted ADDRESS:PORT, [ADDRESS]:PORT or unix:PATH", quoted);
}

/* "ADDRESS:PORT" */
static rd_status split(const char *text, char *host, size_t size, uint16_t *port, struct rd_error *err)
{
    const char *colon = strrchr(text, ':');
    bool is_v6 = *text == '[';
    size_t n = colon ? (size_t)(colon - text) : 0;
    uint64_t number;

    if (!colon || !parse_u64(colon + 1, strlen(colon + 1), &number) || number > UINT16_MAX) return refuse(text, err);
    if (is_v6 && (n < 3 || text[n - 1] != ']')) return refuse(text, err);
    if (is_v6) text++, n -= 2;
    if (n == 0 || n >= size || (!is_v6 && memchr(text, ':', n))) return refuse(text, err);
    memcpy(host, text, n);
    host[n] = 0;
    *port = (uint16_t)number;
    return RD_OK;
}

/* The next place; NULL: there is none. */
static struct listener *next_place(struct listeners *l, struct rd_error *err)
{
    if (l->n < LIMIT_LISTENERS) return &l->at[l->n];
    error_set(err, RD_E_LIMIT, "more than %u addresses to listen on", LIMIT_LISTENERS);
    return NULL;
}

static rd_status open_address(struct listeners *l, const char *host, uint16_t port, int backlog, struct rd_error *err)
{
    struct listener *at = next_place(l, err);
    rd_status st;

    if (!at) return RD_E_LIMIT;
    st = net_listen(host, port, backlog, &l->fds[l->n], &at->port, err);
    if (st != RD_OK) return st;
    snprintf(at->host, sizeof(at->host), "%s", host);
    l->all_local = l->all_local && is_loopback(host);
    l->n++;
    return RD_OK;
}

static rd_status open_path(struct listeners *l, const char *path, unsigned mode, int backlog, struct rd_error *err)
{
    struct listener *at = next_place(l, err);
    rd_status st;

    if (!at) return RD_E_LIMIT;
    st = net_listen_unix(path, mode, backlog, &l->fds[l->n], err);
    if (st != RD_OK) return st;
    snprintf(at->host, sizeof(at->host), "unix:%s", path);
    at->is_made = true;
    l->n++;
    return RD_OK;
}

static rd_status open_text(struct listeners *l, const char *text, const struct server_options *o, int backlog,
                           struct rd_error *err)
{
    char host[64];
    uint16_t port = 0;
    rd_status st;

    if (strncmp(text, "unix:", 5) == 0) return open_path(l, text + 5, o->socket_mode, backlog, err);
    st = split(text, host, sizeof(host), &port, err);
    return st == RD_OK ? open_address(l, host, port, backlog, err) : st;
}

static rd_status adopt(struct listeners *l, int fd, struct rd_error *err)
{
    struct listener *at = next_place(l, err);
    bool local;
    rd_status st;

    if (!at) return RD_E_LIMIT;
    st = net_adopt(fd, at->host, sizeof(at->host), &at->port, &local, err);
    if (st != RD_OK) return st;
    l->fds[l->n++] = fd;
    l->all_local = l->all_local && local;
    return RD_OK;
}

rd_status listeners_open(const struct server_options *o, int backlog, struct listeners *out, struct rd_error *err)
{
    rd_status st = RD_OK;

    *out = (struct listeners){.all_local = true};
    for (uint32_t i = 0; i < o->n_passed_fds && st == RD_OK; i++) st = adopt(out, o->passed_fds[i], err);
    for (uint32_t i = 0; i < o->n_listen && st == RD_OK; i++) st = open_text(out, o->listen[i], o, backlog, err);
    if (st == RD_OK && o->host) st = open_address(out, o->host, o->port, backlog, err);
    if (st == RD_OK && out->n == 0) st = error_set(err, RD_E_INVALID, "there is no address to listen on");
    if (st != RD_OK) listeners_close(out);
    return st;
}

void listeners_close(struct listeners *l)
{
    for (uint32_t i = 0; i < l->n; i++) {
        net_close(l->fds[i]);
        if (l->at[i].is_made) net_remove_unix(l->at[i].host + strlen("unix:"));
    }
    l->n = 0;
}
