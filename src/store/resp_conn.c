/* store/resp_conn.c - hiredis' reader and writer over a socket that never blocks; poll waits. */
#include "store/resp_conn.h"
#include <errno.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"

#define MOST_PARTS 8u
#define SLACK      (64u << 10) /* of the reader's buffer beside one answer: what came behind it in one read */

struct resp_conn {
    redisContext *x;
    redisReply *reply; /* the latest; freed by the next call */
    redisReplyObjectFunctions functions;
    size_t max_reply;
};

bool resp_is_built(void)
{
    return true;
}

/* ---- the parser, held short ---- */

#if HIREDIS_MAJOR >= 1
static void *refuse_array(const redisReadTask *task, size_t n)
#else
static void *refuse_array(const redisReadTask *task, int n)
#endif
{
    (void)task, (void)n;
    return NULL;
}

static void hold_short(redisReader *reader, redisReplyObjectFunctions *f)
{
    *f = *reader->fn;
    f->createArray = refuse_array;
    reader->fn = f;
    reader->maxbuf = 0; /* its buffer stays for the next answer */
}

static bool is_too_long(const redisReader *reader, size_t max_reply)
{
    return reader->len - reader->pos > max_reply + SLACK;
}

static bool take(const redisReply *r, size_t max_reply, struct resp_reply *out)
{
    *out = (struct resp_reply){.bytes = "", .number = 0};
    switch (r->type) {
    case REDIS_REPLY_NIL:
        out->kind = RESP_NOTHING;
        return true;
    case REDIS_REPLY_INTEGER:
        out->kind = RESP_NUMBER, out->number = r->integer;
        return true;
    case REDIS_REPLY_STRING:
        out->kind = RESP_BYTES;
        break;
    case REDIS_REPLY_STATUS:
        out->kind = RESP_TEXT;
        break;
    case REDIS_REPLY_ERROR:
        out->kind = RESP_ERROR;
        break;
    default:
        return false;
    }
    if (!r->str || r->len > max_reply) return false;
    out->bytes = r->str;
    out->n = r->len;
    return true;
}

uint32_t resp_parse(const void *s, size_t n, size_t max_reply, void (*see)(void *arg, const struct resp_reply *r),
                    void *arg)
{
    redisReader *reader = redisReaderCreate();
    redisReplyObjectFunctions functions;
    uint32_t n_seen = 0;

    if (!reader) return 0;
    hold_short(reader, &functions);
    while (redisReaderFeed(reader, s, n) == REDIS_OK && !is_too_long(reader, max_reply)) {
        struct resp_reply r;
        void *reply = NULL;
        bool good;

        s = "", n = 0; /* all is fed */
        if (redisReaderGetReply(reader, &reply) != REDIS_OK || !reply) break;
        good = take(reply, max_reply, &r);
        if (good && see) see(arg, &r);
        freeReplyObject(reply);
        if (!good) break;
        n_seen++;
    }
    redisReaderFree(reader);
    return n_seen;
}

/* ---- the connection ---- */

static rd_status failed(struct resp_conn *c, struct rd_error *err)
{
    switch (c->x->err) {
    case REDIS_ERR_PROTOCOL:
        return error_set(err, RD_E_FORMAT, "it does not answer as Redis does");
    case REDIS_ERR_OOM:
        return error_set(err, RD_E_NOMEM, "no memory for its answer");
    case REDIS_ERR_EOF:
        return error_set(err, RD_E_IO, "it closed the connection");
    default:
        return error_set(err, RD_E_IO, "%s", strerror(errno ? errno : EIO));
    }
}

static void drop_reply(struct resp_conn *c)
{
    if (c->reply) freeReplyObject(c->reply);
    c->reply = NULL;
}

void resp_close(struct resp_conn *c)
{
    if (!c) return;
    drop_reply(c);
    if (c->x) redisFree(c->x);
    mem_free(c);
}

/* Waits until the socket can be read, or (too) written; RD_E_IO: not in time. */
static rd_status wait_for(struct resp_conn *c, bool write_too, uint64_t deadline_ns, short *events,
                          struct rd_error *err)
{
    for (;;) {
        struct pollfd p = {.fd = c->x->fd, .events = (short)(POLLIN | (write_too ? POLLOUT : 0))};
        uint64_t now = clock_now_ns(clock_system());
        uint64_t left = now < deadline_ns ? deadline_ns - now : 0;
        int n = poll(&p, 1, (int)((left + 999999) / 1000000));

        *events = p.revents;
        if (n > 0) return RD_OK;
        if (n < 0 && errno != EINTR) return error_set(err, RD_E_IO, "%s", strerror(errno));
        if (n == 0 && clock_now_ns(clock_system()) >= deadline_ns) return error_set(err, RD_E_IO, "no answer in time");
    }
}

static rd_status finish_connect(struct resp_conn *c, uint64_t deadline_ns, struct rd_error *err)
{
    struct pollfd p = {.fd = c->x->fd, .events = POLLOUT};
    socklen_t n = sizeof(int);
    int error = 0, ready = 0;

    do {
        uint64_t now = clock_now_ns(clock_system());

        if (now >= deadline_ns) return error_set(err, RD_E_IO, "no connection in time");
        ready = poll(&p, 1, (int)((deadline_ns - now + 999999) / 1000000));
    } while (ready == 0 || (ready < 0 && errno == EINTR));
    if (ready < 0 || getsockopt(c->x->fd, SOL_SOCKET, SO_ERROR, &error, &n) != 0) error = errno;
    return error ? error_set(err, RD_E_IO, "%s", strerror(error)) : RD_OK;
}

/* A command whose answer has to be +OK. */
static rd_status must(struct resp_conn *c, const char *what, uint32_t n, const char *const *parts, uint64_t deadline_ns,
                      struct rd_error *err)
{
    size_t n_bytes[MOST_PARTS];
    struct resp_reply r;
    char quoted[120];
    rd_status st;

    for (uint32_t i = 0; i < n; i++) n_bytes[i] = strlen(parts[i]);
    st = resp_ask(c, n, parts, n_bytes);
    if (st == RD_OK) st = resp_next(c, deadline_ns, &r, err);
    if (st != RD_OK || (r.kind == RESP_TEXT && r.n == 2 && memcmp(r.bytes, "OK", 2) == 0)) return st;
    return error_set(err, RD_E_IO, "%s: %s", what, error_quote(quoted, sizeof(quoted), r.bytes, r.n));
}

static rd_status log_in(struct resp_conn *c, const struct store_url *url, uint64_t deadline_ns, struct rd_error *err)
{
    const char *with_user[] = {"AUTH", url->user, url->password}, *alone[] = {"AUTH", url->password};
    char db[16];
    const char *select[] = {"SELECT", db};
    rd_status st = RD_OK;

    if (*url->password && *url->user)
        st = must(c, "AUTH", 3, with_user, deadline_ns, err);
    else if (*url->password)
        st = must(c, "AUTH", 2, alone, deadline_ns, err);
    snprintf(db, sizeof(db), "%u", url->db);
    if (st == RD_OK && url->db > 0) st = must(c, "SELECT", 2, select, deadline_ns, err);
    return st;
}

rd_status resp_open(const struct store_url *url, size_t max_reply, uint64_t deadline_ns, struct resp_conn **out,
                    struct rd_error *err)
{
    struct resp_conn *c = mem_zalloc(1, sizeof(*c));
    rd_status st = RD_E_NOMEM;

    if (!c) return error_set(err, RD_E_NOMEM, "no memory");
    c->max_reply = max_reply;
    errno = 0;
    c->x = *url->host ? redisConnectNonBlock(url->host, (int)url->port) : redisConnectUnixNonBlock(url->path);
    if (!c->x) {
        (void)error_set(err, st, "no memory");
        goto fail;
    }
    st = RD_E_IO;
    if (c->x->err) {
        (void)error_set(err, st, "%s", *c->x->errstr ? c->x->errstr : "it cannot be reached");
        goto fail;
    }
    (void)fcntl(c->x->fd, F_SETFD, FD_CLOEXEC);
    hold_short(c->x->reader, &c->functions);
    st = finish_connect(c, deadline_ns, err);
    if (st == RD_OK) st = log_in(c, url, deadline_ns, err);
    if (st != RD_OK) goto fail;
    *out = c;
    return RD_OK;

fail:
    resp_close(c);
    return st;
}

rd_status resp_ask(struct resp_conn *c, uint32_t n, const char *const *parts, const size_t *n_bytes)
{
    const char *list[MOST_PARTS];

    if (n > MOST_PARTS) return RD_E_INVALID;
    for (uint32_t i = 0; i < n; i++) list[i] = parts[i];
    return redisAppendCommandArgv(c->x, (int)n, list, n_bytes) == REDIS_OK ? RD_OK : RD_E_NOMEM;
}

size_t resp_n_unsent(const struct resp_conn *c)
{
    return sdslen(c->x->obuf);
}

rd_status resp_next(struct resp_conn *c, uint64_t deadline_ns, struct resp_reply *out, struct rd_error *err)
{
    drop_reply(c);
    for (;;) {
        void *reply = NULL;
        short events;
        rd_status st;
        int done;

        if (redisGetReplyFromReader(c->x, &reply) != REDIS_OK) return failed(c, err);
        if (reply) {
            c->reply = reply;
            if (take(reply, c->max_reply, out)) return RD_OK;
            return error_set(err, RD_E_FORMAT, "its answer is too long, or none to what was asked");
        }
        st = wait_for(c, sdslen(c->x->obuf) > 0, deadline_ns, &events, err);
        if (st != RD_OK) return st;
        errno = 0;
        if ((events & POLLOUT) && redisBufferWrite(c->x, &done) != REDIS_OK) return failed(c, err);
        errno = 0;
        if ((events & (POLLIN | POLLERR | POLLHUP)) && redisBufferRead(c->x) != REDIS_OK) return failed(c, err);
        if (is_too_long(c->x->reader, c->max_reply)) return error_set(err, RD_E_FORMAT, "its answer is too long");
        /* one that sends a byte now and then is as late as one that sends none */
        if (clock_now_ns(clock_system()) > deadline_ns) return error_set(err, RD_E_IO, "no answer in time");
    }
}
