/* server/http/http_conn.c - the states of a connection, driven by bufferevent callbacks and the tick.
 *
 * Reading stays on while a request is being answered, because that is how the client's leaving is seen. What it sends
 * meanwhile waits in the input buffer; beyond PIPELINE_BYTES it is dropped and the connection ends after this response.
 * Between requests reading stops while more than OUTPUT_BYTES of answers wait, and while this turn's requests are done
 * and the next turn's wait in the input.
 * A connection is freed only from its own callbacks, the tick, and the end of the loop; never inside http_reply.
 */
#include "server/http/http_conn.h"
#include <event2/buffer.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include "base/checked.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/net.h"
#include "base/os_socket.h"
#include "base/random.h"
#include "server/http/http_guard.h"
#include "server/http/http_pace.h"

#define PIPELINE_BYTES   (64u << 10)
#define SCRATCH_BYTES    (64u << 10)
#define DRAINED_BYTES    (64u << 10)
#define COPIED_BYTES     (64u << 10)   /* an answer that is longer is given away, not copied */
#define OUTPUT_BYTES     DRAINED_BYTES /* waiting answers, beyond which no further request is begun: on_write goes on */
#define TURN_REQUESTS    16u           /* of one connection; then others get a turn */
#define DROPPED_BYTES    (4 * LIMIT_BODY_BYTES) /* read after a refusal, so that the client gets to see it */
#define SECOND_NS        1000000000ull
#define HEAD_DEADLINE_NS (10 * SECOND_NS)
#define IDLE_DEADLINE_NS (75 * SECOND_NS)
#define BODY_GRACE_NS    (10 * SECOND_NS) /* how far a body may fall behind BODY_BYTES_PER_S */
#define BODY_DEADLINE_NS (300 * SECOND_NS)
#define BODY_BYTES_PER_S 4096u
#define MAX_REQUEST_ID   128u
#define PROMPT_BYTES     1900u /* of a body in the log */
#define LINGER_NS        (3 * SECOND_NS)
#define LINGER_QUIET_NS  (SECOND_NS / 4)

static uint64_t now_ns(const struct http_conn *c)
{
    return http_io_now(c->io);
}

static void enter(struct http_conn *c, enum conn_state state)
{
    c->state = state;
    c->since_ns = now_ns(c);
    c->n_in = 0;
}

/* Bytes of an answer are lost: nothing may follow them. What waits before them still leaves. */
static void break_off(struct http_conn *c)
{
    c->broken = c->closing = true;
}

/* A request cannot be read. */
static void give_up(struct http_conn *c)
{
    break_off(c);
    enter(c, CONN_FLUSH);
}

static void set_reading(struct http_conn *c, bool on)
{
    if (c->reading == on) return;
    if (on ? bufferevent_enable(c->bev, EV_READ) : bufferevent_disable(c->bev, EV_READ))
        break_off(c);
    else
        c->reading = on;
}

static void drop_input(struct http_conn *c, size_t n)
{
    if (evbuffer_drain(bufferevent_get_input(c->bev), n)) break_off(c);
}

/* Requests wait in the input: they get their turn in the loop, not from within whoever has just answered one. */
static void go_on_later(struct http_conn *c)
{
    bufferevent_trigger(c->bev, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
}

/* ---- responses ---- */

static void output(struct http_conn *c, const void *p, size_t n)
{
    if (c->broken || n == 0) return;
    if (!c->bev) {
        buf_append(c->reply, p, n);
        if (c->reply->failed) break_off(c);
        return;
    }
    if (http_output_bytes(c) == 0) c->progress_ns = now_ns(c);
    if (bufferevent_write(c->bev, p, n)) {
        break_off(c);
        return;
    }
    c->n_appended += n;
    client_charge_force(&c->memory, CLIENT_UNREAD, http_output_bytes(c));
    /* libevent has asked for this, too, and does not say when it could not be had */
    if (bufferevent_enable(c->bev, EV_WRITE)) break_off(c);
}

size_t http_output_bytes(const struct http_conn *c)
{
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}

void http_peer(const struct http_conn *c, char *out, size_t size)
{
    struct sockaddr_storage address;
    socklen_t n = sizeof(address);
    char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
    uid_t who;
    int fd = c->bev ? bufferevent_getfd(c->bev) : -1;

    if (fd >= 0 && getpeername(fd, (struct sockaddr *)&address, &n) == 0 && address.ss_family == AF_UNIX) {
        if (os_peer_user(fd, &who))
            snprintf(out, size, "unix");
        else
            snprintf(out, size, "unix:uid %u", (unsigned)who);
        return;
    }
    n = sizeof(address);
    if (c->bev && getpeername(bufferevent_getfd(c->bev), (struct sockaddr *)&address, &n) == 0)
        (void)getnameinfo((struct sockaddr *)&address, n, host, sizeof(host), port, sizeof(port),
                          NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(out, size, "%.40s:%.8s", host, port);
}

static void log_request(struct http_conn *c)
{
    const char *method = c->head.method_text ? c->head.method_text : "-", *path = c->head.path ? c->head.path : "-";
    double ms = c->request_ns ? (double)(now_ns(c) - c->request_ns) / 1e6 : 0;
    bool is_probe = c->target.at_door; /* a line a second and supervisor: for debugging */
    char peer[64];

    if (c->is_logged) return;
    http_peer(c, peer, sizeof(peer));
    log_event(is_probe ? LOG_DEBUG : LOG_INFO, "request",
              LOG_FIELDS(LOG_F_TEXT("request_id", c->request_id), LOG_F_TEXT("method", method),
                         LOG_F_TEXT("route", path), LOG_F_NUMBER("status", (uint64_t)c->status), LOG_F_REAL("ms", ms),
                         LOG_F_TEXT("client", peer), LOG_F_TEXT("error", *c->reason ? c->reason : NULL)),
              "%s %s %d %.1f ms%s%s; client %s, %s", method, path, c->status, ms, *c->reason ? ": " : "", c->reason,
              peer, c->request_id);
}

/* BUSY ends. */
static void count_answered(struct http_conn *c)
{
    http_unuse(c->n_users);
    c->n_users = NULL;
    c->served = NULL;
    c->early = false;
    if (c->state == CONN_BUSY) atomic_fetch_sub_explicit(&c->io->server->n_busy, 1, memory_order_relaxed);
}

/* The response is complete: the next request, or the end. */
static void response_done(struct http_conn *c)
{
    log_request(c);
    count_answered(c);
    c->owner = NULL;
    c->owner_arg = NULL;
    if (!c->bev) return;
    if (c->closing || !c->head.keep_alive || c->eof) {
        enter(c, CONN_FLUSH);
        return;
    }
    enter(c, CONN_IDLE);
    if (!c->processing) go_on_later(c);
}

/* The client's own id of the request, else one of ours: both sides find it in their logs. */
const char *http_request_id(struct http_conn *c)
{
    const char *id = http_header(&c->head, "x-request-id");
    size_t n = id ? strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+=") : 0;
    uint64_t ours[2];

    if (*c->request_id) return c->request_id;
    if (n > 0 && n <= MAX_REQUEST_ID && id[n] == 0) {
        memcpy(c->request_id, id, n + 1);
    } else {
        random_os(ours, sizeof(ours));
        snprintf(c->request_id, sizeof(c->request_id), "req_%016llx%08llx", (unsigned long long)ours[0],
                 (unsigned long long)ours[1] & 0xffffffffu);
    }
    return c->request_id;
}

static void put_head(struct http_conn *c, struct buf *out, int status, const char *type, const char *extra)
{
    bool keep =
        c->head.keep_alive && !c->closing && http_phase(c->io->server) <= HTTP_READY && !http_is_leaving(c->io->server);

    c->status = status;
    c->head.keep_alive = keep;
    buf_printf(out, "HTTP/1.1 %d %s\r\nServer: radish\r\n", status, http_status_text(status));
    if (type) buf_printf(out, "Content-Type: %s\r\n", type);
    buf_printf(out, "Connection: %s\r\n%s", keep ? "keep-alive" : "close", extra);
    if (c->ignored.n) buf_printf(out, "X-Radish-Ignored-Fields: %s\r\n", c->ignored.data);
    buf_printf(out, "X-Request-Id: %s\r\n", http_request_id(c));
    http_guard_headers(c, out);
}

/* Its bytes, and what was charged for reading them. */
static void forget_body(struct http_conn *c)
{
    buf_deinit(&c->body);
    client_charge_force(&c->memory, CLIENT_BODIES, 0);
    client_charge_force(&c->memory, CLIENT_TREES, 0);
    client_charge_force(&c->memory, CLIENT_ANSWERS, 0);
}

static void free_answer(const void *data, size_t n, void *unused)
{
    (void)n;
    (void)unused;
    mem_free((void *)(uintptr_t)data);
}

/* As output(), without a copy where it is long: then the buffer is empty afterwards. */
static void output_body(struct http_conn *c, struct buf *body)
{
    struct evbuffer *out = c->bev ? bufferevent_get_output(c->bev) : NULL;
    size_t n = body->n;

    if (!out || c->broken || n < COPIED_BYTES || evbuffer_add_reference(out, body->data, n, free_answer, NULL)) {
        output(c, body->data, n);
        return;
    }
    memset(body, 0, sizeof(*body));
    c->n_appended += n;
    client_charge_force(&c->memory, CLIENT_UNREAD, http_output_bytes(c));
    if (bufferevent_enable(c->bev, EV_WRITE)) break_off(c);
}

/* The head has left: what would have been a body is the stream's last event. */
static void end_early(struct http_conn *c, int status, const struct buf *body)
{
    struct buf out = {0};

    buf_printf(&out, "event: %s\ndata: ", status >= 400 ? "error" : "message");
    if (body) buf_append(&out, body->data, body->n);
    buf_puts(&out, "\n\n");
    c->status = status;
    if (out.failed)
        break_off(c);
    else
        http_stream_write(c, out.data, out.n);
    buf_deinit(&out);
    http_stream_end(c);
}

void http_reply(struct http_conn *c, int status, const char *type, const char *extra, struct buf *body)
{
    struct buf out = {0};
    size_t n = body ? body->n : 0;

    if (c->job) {
        c->keep_reply(c, status, type, extra, body);
        return;
    }
    forget_body(c);
    if (c->early) {
        end_early(c, status, body);
        return;
    }
    put_head(c, &out, status, type, extra);
    if (status != 204) buf_printf(&out, "Content-Length: %zu\r\n", n);
    buf_puts(&out, "\r\n");
    if (out.failed) break_off(c);
    output(c, out.data, out.n);
    if (n && c->head.method != HTTP_HEAD) output_body(c, body);
    buf_deinit(&out);
    response_done(c);
}

/* In the words of the API that was asked. */
static void reply_error(struct http_conn *c, const struct api_error *e, const char *extra)
{
    struct buf body = {0};
    int status;

    snprintf(c->reason, sizeof(c->reason), "%.159s", e->message);
    status = c->io->server->service->put_error(c, e, &body);
    http_reply(c, status, "application/json", extra, &body);
    buf_deinit(&body);
}

void http_reply_error(struct http_conn *c, const struct api_error *e)
{
    reply_error(c, e, e->http == 429 || e->http == 503 ? "Retry-After: 1\r\n" : "");
}

void http_reply_json(struct http_conn *c, struct buf *body)
{
    struct api_error e;

    if (!body->failed) {
        http_reply(c, 200, "application/json", "", body);
        return;
    }
    api_error_set(&e, 503, NULL, "out of memory");
    http_reply_error(c, &e);
}

static bool takes_trailers(const struct http_conn *c)
{
    return c->chunked_out && c->head.takes_trailers;
}

void http_stream_start_with(struct http_conn *c, const char *type, const char *trailers)
{
    struct buf out = {0};

    if (c->early) {
        c->early = false;
        return;
    }
    c->streaming = true;
    c->chunked_out = !c->head.http_1_0;
    if (!c->chunked_out) c->head.keep_alive = false;
    put_head(c, &out, 200, type, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    if (takes_trailers(c) && *trailers) buf_printf(&out, "Trailer: %s\r\n", trailers);
    buf_puts(&out, c->chunked_out ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
    if (out.failed) break_off(c);
    output(c, out.data, out.n);
    buf_deinit(&out);
}

void http_stream_start_early(struct http_conn *c, const char *type, const char *trailers)
{
    http_stream_start_with(c, type, trailers);
    c->early = true;
}

void http_stream_start(struct http_conn *c, const char *type)
{
    http_stream_start_with(c, type, "");
}

/* "1f4\r\n" */
static void put_chunk_size(size_t n, struct buf *out)
{
    char digits[2 * sizeof(n) + 2];
    size_t at = sizeof(digits) - 2;

    memcpy(digits + at, "\r\n", 2);
    for (; n; n >>= 4) digits[--at] = "0123456789abcdef"[n & 15];
    buf_append(out, digits + at, sizeof(digits) - at);
}

void http_stream_write(struct http_conn *c, const char *s, size_t n)
{
    struct buf *out = &c->io->frame;
    size_t n_sent = 0;

    if (n == 0 || c->broken) return;
    buf_clear(out);
    if (c->chunked_out) put_chunk_size(n, out);
    buf_append(out, s, n);
    if (c->chunked_out) buf_puts(out, "\r\n");
    if (out->failed) {
        break_off(c);
    } else {
        if (http_output_bytes(c) == 0) n_sent = net_send_some(bufferevent_getfd(c->bev), out->data, out->n);
        if (n_sent < out->n) output(c, out->data + n_sent, out->n - n_sent);
    }
    if (out->failed || out->cap > SCRATCH_BYTES) buf_deinit(out);
}

void http_stream_end_with(struct http_conn *c, const char *trailers)
{
    if (c->chunked_out) output(c, "0\r\n", 3); /* nothing where a piece was lost */
    if (takes_trailers(c)) output(c, trailers, strlen(trailers));
    if (c->chunked_out) output(c, "\r\n", 2);
    c->streaming = false;
    response_done(c);
}

void http_stream_end(struct http_conn *c)
{
    http_stream_end_with(c, "");
}

void http_stream_break(struct http_conn *c)
{
    break_off(c);
    http_stream_end(c);
}

/* ---- requests ---- */

static void forget_request(struct http_conn *c)
{
    c->request_id[0] = c->reason[0] = 0;
    c->is_logged = false;
    mem_free(c->head_bytes);
    c->head_bytes = NULL;
    memset(&c->head, 0, sizeof(c->head));
    memset(&c->chunks, 0, sizeof(c->chunks));
    forget_body(c);
    buf_deinit(&c->ignored);
    memset(&c->target, 0, sizeof(c->target));
    c->cors_origin = NULL;
    c->n_scanned = 0;
    c->status = 0;
    c->request_ns = 0;
    c->chunked_out = false;
}

/* Answers and ends the connection: the rest of what the client sends cannot be trusted or is not wanted. */
static void refuse(struct http_conn *c, const struct api_error *e, const char *extra, bool keep)
{
    if (!keep) c->closing = c->linger = true;
    reply_error(c, e, extra);
}

static void refuse_status(struct http_conn *c, int status, const char *why)
{
    struct api_error e;

    api_error_set(&e, status, NULL, "%s", why);
    refuse(c, &e, "", false);
}

/* The request is complete. */
/* --log-prompts. A line of the log is cut, and escaped, by the log. */
static void log_body(struct http_conn *c)
{
    char text[PROMPT_BYTES + 1];

    if (!c->io->server->o.log_prompts || c->body.n == 0) return;
    snprintf(text, sizeof(text), "%.*s", (int)(c->body.n < PROMPT_BYTES ? c->body.n : PROMPT_BYTES), c->body.data);
    log_event(LOG_INFO, "prompt",
              LOG_FIELDS(LOG_F_TEXT("request_id", http_request_id(c)), LOG_F_TEXT("route", c->head.path),
                         LOG_F_TEXT("body", text), LOG_F_NUMBER("body_bytes", c->body.n)),
              "%s asks %s: %s%s", http_request_id(c), c->head.path, text, c->body.n > PROMPT_BYTES ? " ..." : "");
}

static void dispatch(struct http_conn *c)
{
    log_body(c);
    enter(c, CONN_BUSY);
    atomic_fetch_add_explicit(&c->io->server->n_busy, 1, memory_order_relaxed);
    if (c->bev && c->target.is_quick && http_pace_hold(c)) return;
    http_serve(c);
}

static void after_head(struct http_conn *c)
{
    struct api_error e;
    const char *extra;
    bool preflight;
    bool has_body = c->head.chunked || c->head.length > 0;

    c->request_ns = now_ns(c);
    if (http_guard(c, &preflight, &extra, &e)) {
        /* a POST that does not say whether it has a body may have one: what follows it is no request (411) */
        refuse(c, &e, extra, !has_body && (c->head.has_length || c->head.method != HTTP_POST));
        return;
    }
    client_charge_owner(&c->memory, c->tenant);
    if (preflight) {
        if (has_body) c->closing = c->linger = true;
        http_reply(c, 204, NULL, "Allow: GET, HEAD, POST, DELETE, OPTIONS\r\n", NULL);
        return;
    }
    if (!has_body) {
        dispatch(c);
        return;
    }
    if (c->head.expect_continue) output(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    enter(c, CONN_BODY);
    c->body_due_ns = c->since_ns + BODY_GRACE_NS;
}

void http_answer(struct http_conn *c)
{
    after_head(c);
}

/* false: more bytes are needed. */
static bool read_head(struct http_conn *c, struct evbuffer *in)
{
    size_t n = evbuffer_get_length(in);
    const char *s, *why = "";
    int64_t end;
    int status;

    if (n > LIMIT_HEADER_BYTES) n = LIMIT_HEADER_BYTES;
    if (n == 0) return false;
    s = (const char *)evbuffer_pullup(in, (ev_ssize_t)n);
    if (!s) {
        give_up(c);
        return true;
    }
    while (c->state == CONN_IDLE && n >= 2 && s[0] == '\r' &&
           s[1] == '\n') { /* RFC 9112, 2.2: empty lines before a request */
        drop_input(c, 2);
        s += 2;
        n -= 2;
    }
    if (n == 0 || (n == 1 && c->state == CONN_IDLE && s[0] == '\r')) return false;
    if (c->state == CONN_IDLE) {
        forget_request(c);
        enter(c, CONN_HEAD);
    }
    end = http_find_head_end(s, n, c->n_scanned);
    c->n_scanned = n;
    if (end == 0 && n < LIMIT_HEADER_BYTES) return false;
    if (end <= 0) {
        refuse_status(c, end ? 400 : 431, end ? "NUL or bare LF in the head" : "the header fields are too large");
        return true;
    }
    c->head_bytes = mem_memdup(s, (size_t)end);
    drop_input(c, (size_t)end);
    if (!c->head_bytes) {
        refuse_status(c, 503, "out of memory");
        return true;
    }
    status = http_parse_head(c->head_bytes, (size_t)end, &c->head, &why);
    if (status)
        refuse_status(c, status, why);
    else
        after_head(c);
    return true;
}

/* One piece of the input. false: more bytes are needed. */
static bool read_body(struct http_conn *c, struct evbuffer *in)
{
    size_t n = evbuffer_get_contiguous_space(in), n_used, n_data;
    const char *s, *data;
    struct api_error e;

    if (evbuffer_get_length(in) == 0) return false;
    s = (const char *)evbuffer_pullup(in, (ev_ssize_t)n);
    if (!s) {
        give_up(c);
        return true;
    }
    if (c->head.chunked) {
        n_used = http_chunks_read(&c->chunks, s, n, &data, &n_data);
    } else {
        data = s;
        n_used = n_data = n < c->head.length - c->n_in ? n : (size_t)(c->head.length - c->n_in);
    }
    if (client_charge_set(&c->memory, CLIENT_BODIES, c->body.n + n_data, &e)) {
        refuse(c, &e, e.http == 429 ? "Retry-After: 1\r\n" : "", false);
        return true;
    }
    buf_append(&c->body, data, n_data);
    c->n_in += n_used;
    c->body_due_ns = u64_min(c->body_due_ns + n_used * (SECOND_NS / BODY_BYTES_PER_S), now_ns(c) + BODY_GRACE_NS);
    drop_input(c, n_used);
    if (c->chunks.state == CHUNK_BAD)
        refuse_status(c, 400, "malformed chunk");
    else if (c->body.n > c->max_body)
        refuse_status(c, 413, "the body is too large");
    else if (c->body.failed)
        refuse_status(c, 503, "out of memory");
    else if (c->head.chunked ? c->chunks.state == CHUNK_DONE : c->n_in == c->head.length)
        dispatch(c);
    return true;
}

/* What is sent after the last request of a connection is read to the end, so that the client gets to its answer; but not
 * any amount of it. */
static void drop_rest(struct http_conn *c, struct evbuffer *in)
{
    size_t n = evbuffer_get_length(in);

    c->n_dropped += n;
    drop_input(c, n);
}

/* A turn: some requests, or what there is of one. */
static void conn_process(struct http_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    bool more = true, is_next, must_wait = false;
    uint32_t n_begun = 0;

    c->processing = true;
    while (more) {
        if (c->broken && c->state < CONN_BUSY) enter(c, CONN_FLUSH);
        switch (c->state) {
        case CONN_IDLE:
        case CONN_HEAD:
            must_wait = http_output_bytes(c) > OUTPUT_BYTES || n_begun == TURN_REQUESTS;
            more = !must_wait && read_head(c, in);
            n_begun++;
            break;
        case CONN_BODY:
            more = read_body(c, in);
            break;
        case CONN_BUSY:
            if (evbuffer_get_length(in) > PIPELINE_BYTES) c->closing = true;
            if (c->closing) drop_rest(c, in);
            more = false;
            break;
        case CONN_FLUSH:
        case CONN_LINGER:
            drop_rest(c, in);
            more = false;
            break;
        }
    }
    c->processing = false;
    is_next = c->state == CONN_IDLE || c->state == CONN_HEAD;
    set_reading(c, !(is_next && must_wait));
    if (is_next && must_wait && http_output_bytes(c) <= OUTPUT_BYTES) go_on_later(c);
}

/* ---- life ---- */

static void count_out(struct http_io *io)
{
    atomic_fetch_sub_explicit(&io->n_conns, 1, memory_order_relaxed);
    if (atomic_load(&io->server->door_waits)) net_wake(io->server->door_wake);
}

void http_conn_close(struct http_conn *c)
{
    struct http_io *io = c->io;

    if (c->owner) c->owner->gone(c->owner_arg);
    count_answered(c);
    if (c->prev)
        c->prev->next = c->next;
    else
        io->conns = c->next;
    if (c->next) c->next->prev = c->prev;
    count_out(io);
    if (c->bev) bufferevent_free(c->bev);
    mem_free(c->head_bytes);
    buf_deinit(&c->body);
    buf_deinit(&c->ignored);
    atomic_fetch_add_explicit(&io->server->unread_left, c->memory.parts[CLIENT_UNREAD], memory_order_relaxed);
    client_charge_clear(&c->memory);
    mem_free(c);
}

/* Flushed and to be closed? true: it was freed. A client that still sends its body would lose our answer to a reset:
 * read on for a moment, until it is quiet (LINGER). */
static bool close_if_done(struct http_conn *c)
{
    if (c->state != CONN_FLUSH || http_output_bytes(c) > 0) return false;
    if (c->linger && !c->eof && !c->broken) {
        enter(c, CONN_LINGER);
        return false;
    }
    http_conn_close(c);
    return true;
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct http_conn *c = arg;

    (void)bev;
    c->input_ns = now_ns(c);
    conn_process(c);
    if (c->n_dropped > DROPPED_BYTES)
        http_conn_close(c);
    else
        close_if_done(c);
}

static void on_write(struct bufferevent *bev, void *arg)
{
    struct http_conn *c = arg;

    (void)bev;
    client_charge_force(&c->memory, CLIENT_UNREAD, http_output_bytes(c));
    if (close_if_done(c)) return;
    if (c->owner && http_output_bytes(c) <= DRAINED_BYTES) {
        if (c->owner->drained) c->owner->drained(c->owner_arg);
    } else if (!c->reading) {
        conn_process(c);
    }
    close_if_done(c);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct http_conn *c = arg;

    (void)bev;
    /* A client that closed its side after a quick request still gets what is in the output buffer. */
    if ((what & BEV_EVENT_EOF) && c->state != CONN_BUSY && http_output_bytes(c) > 0) {
        c->eof = c->closing = true;
        enter(c, CONN_FLUSH);
        return;
    }
    http_conn_close(c);
}

/* Takes nothing of what waits for it. */
static bool is_stuck(struct http_conn *c, uint64_t now)
{
    uint64_t n_sent = c->n_appended - http_output_bytes(c);

    if (http_output_bytes(c) == 0 || n_sent != c->n_sent_seen) c->progress_ns = now;
    c->n_sent_seen = n_sent;
    return now > c->progress_ns && now - c->progress_ns > c->io->server->o.send_timeout_s * SECOND_NS;
}

void http_conn_tick(struct http_conn *c)
{
    uint64_t now = now_ns(c), age = now > c->since_ns ? now - c->since_ns : 0;
    bool late = false;

    if (is_stuck(c, now)) {
        log_info("closing a connection that has not read for %u s", c->io->server->o.send_timeout_s);
        http_conn_close(c);
        return;
    }
    if (c->broken && (c->state != CONN_FLUSH || bufferevent_enable(c->bev, EV_WRITE))) {
        http_conn_close(c);
        return;
    }
    switch (c->state) {
    case CONN_IDLE:
        late = age > IDLE_DEADLINE_NS || http_phase(c->io->server) > HTTP_READY;
        break;
    case CONN_LINGER:
        late = age > LINGER_NS || (age > LINGER_QUIET_NS && now > c->input_ns + LINGER_QUIET_NS);
        break;
    case CONN_HEAD:
        if (age > HEAD_DEADLINE_NS) refuse_status(c, 408, "the head of the request did not come in time");
        break;
    case CONN_BODY:
        if (age > BODY_DEADLINE_NS)
            refuse_status(c, 408, "the body of the request did not come in time");
        else if (now > c->body_due_ns)
            refuse_status(c, 408, "the body of the request comes too slowly");
        break;
    case CONN_BUSY:
        if (c->owner) c->owner->tick(c->owner_arg, clock_now_ns(clock_system()));
        break;
    case CONN_FLUSH:
        break;
    }
    if (late && http_output_bytes(c) == 0) {
        http_conn_close(c);
        return;
    }
    close_if_done(c);
}

void http_conn_refuse_late(struct http_conn *c)
{
    static const char late[] = "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

    net_send_some(bufferevent_getfd(c->bev), late, sizeof(late) - 1);
    http_conn_close(c);
}

/* An IPv4 address, or the network of an IPv6 one: whoever has one address of it has all. */
static uint64_t sender_of(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address;
    socklen_t n = sizeof(address);
    uint64_t sender = 0;

    if (getpeername(fd, &address.any, &n)) return 0;
    if (address.any.sa_family == AF_INET) return address.v4.sin_addr.s_addr;
    if (address.any.sa_family != AF_INET6) return 0;
    if (!IN6_IS_ADDR_V4MAPPED(&address.v6.sin6_addr))
        memcpy(&sender, &address.v6.sin6_addr, 8);
    else
        memcpy(&sender, address.v6.sin6_addr.s6_addr + 12, 4);
    return sender;
}

void http_conn_open(struct http_io *io, int fd)
{
    struct http_conn *c = mem_zalloc(1, sizeof(*c));

    net_tune(fd);
    if (!c) {
        net_close(fd);
        count_out(io);
        return;
    }
    c->io = io;
    c->sender = sender_of(fd);
    client_charge_init(&c->memory, &io->server->memory, NULL);
    mem_clear_failed();
    c->bev = bufferevent_socket_new(io->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!c->bev) {
        net_close(fd);
        mem_free(c);
        count_out(io);
        return;
    }
    c->next = io->conns;
    if (io->conns) io->conns->prev = c;
    io->conns = c;
    c->progress_ns = now_ns(c);
    enter(c, CONN_IDLE);
    bufferevent_setcb(c->bev, on_read, on_write, on_event, c);
    bufferevent_setwatermark(c->bev, EV_WRITE, DRAINED_BYTES, 0);
    c->reading = bufferevent_enable(c->bev, EV_READ | EV_WRITE) == 0;
    if (!c->reading || mem_has_failed()) http_conn_close(c);
}
