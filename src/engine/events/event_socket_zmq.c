/* engine/events/event_socket_zmq.c - the sockets, and the batches that are kept. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>
#include "base/error.h"
#include "base/mem.h"
#include "engine/events/event_socket.h"

#define KEPT_MOST       10000u
#define KEPT_MOST_BYTES (64ull << 20)
#define UNSENT_MOST     100000 /* messages for one subscriber */
#define ENDPOINT_BYTES  256u

struct kept {
    char *batch;
    size_t n;
};

struct event_socket {
    void *context, *publisher, *replay;
    char topic[256];
    uint64_t n_published; /* the next one's number */
    uint64_t first_kept, kept_bytes;
    struct kept kept[KEPT_MOST]; /* number i at i % KEPT_MOST */
};

static rd_status bind_one(void *context, int kind, const char *endpoint, void **out, struct rd_error *err)
{
    const int most = UNSENT_MOST, none = 0;
    char quoted[120], text[ENDPOINT_BYTES];
    bool is_zmq = strncmp(endpoint, "zmq://", 6) == 0;

    snprintf(text, sizeof(text), "%s%s", is_zmq ? "tcp://" : "", is_zmq ? endpoint + 6 : endpoint);
    if (strncmp(text, "tcp://", 6) != 0 && strncmp(text, "ipc://", 6) != 0)
        return error_set(err, RD_E_INVALID, "KV events: \"%s\": tcp://ADDRESS:PORT or ipc:///PATH wanted",
                         error_quote(quoted, sizeof(quoted), endpoint, strlen(endpoint)));
    *out = zmq_socket(context, kind);
    if (!*out) return error_set(err, RD_E_NOMEM, "KV events: no socket");
    (void)zmq_setsockopt(*out, ZMQ_SNDHWM, &most, sizeof(most));
    (void)zmq_setsockopt(*out, ZMQ_LINGER, &none, sizeof(none));
    if (zmq_bind(*out, text) == 0) return RD_OK;
    return error_set(err, RD_E_IO, "KV events: %s: %s", error_quote(quoted, sizeof(quoted), text, strlen(text)),
                     zmq_strerror(zmq_errno()));
}

rd_status event_socket_open(const struct event_socket_options *o, struct event_socket **out, struct rd_error *err)
{
    struct event_socket *s = mem_zalloc(1, sizeof(*s));
    rd_status st = RD_E_NOMEM;

    if (!s) return error_set(err, st, "KV events: no memory");
    snprintf(s->topic, sizeof(s->topic), "%s", o->topic ? o->topic : "");
    s->context = zmq_ctx_new();
    if (!s->context) {
        (void)error_set(err, st, "KV events: no memory");
        goto fail;
    }
    st = bind_one(s->context, ZMQ_PUB, o->endpoint, &s->publisher, err);
    if (st == RD_OK && o->replay) st = bind_one(s->context, ZMQ_ROUTER, o->replay, &s->replay, err);
    if (st != RD_OK) goto fail;
    *out = s;
    return RD_OK;

fail:
    event_socket_close(s);
    return st;
}

void event_socket_close(struct event_socket *s)
{
    if (!s) return;
    if (s->publisher) zmq_close(s->publisher);
    if (s->replay) zmq_close(s->replay);
    if (s->context) zmq_ctx_term(s->context);
    for (uint32_t i = 0; i < KEPT_MOST; i++) mem_free(s->kept[i].batch);
    mem_free(s);
}

static void number_bytes(uint64_t number, uint8_t out[8])
{
    for (int i = 0; i < 8; i++) out[i] = (uint8_t)(number >> (56 - 8 * i));
}

static void keep(struct event_socket *s, char *batch, size_t n)
{
    struct kept *at = &s->kept[s->n_published % KEPT_MOST];

    while (s->first_kept < s->n_published &&
           (s->n_published - s->first_kept >= KEPT_MOST || s->kept_bytes + n > KEPT_MOST_BYTES)) {
        struct kept *old = &s->kept[s->first_kept++ % KEPT_MOST];

        s->kept_bytes -= old->n;
        mem_free(old->batch);
        *old = (struct kept){NULL, 0};
    }
    *at = (struct kept){batch, n};
    s->kept_bytes += n;
    s->n_published++;
}

/* A signal ends neither: half a message would be the beginning of the next one. False: it would have had to wait. */
static bool send_part(void *to, const void *bytes, size_t n, int flags)
{
    int sent;

    do sent = zmq_send(to, bytes, n, flags | ZMQ_DONTWAIT);
    while (sent < 0 && zmq_errno() == EINTR);
    return sent >= 0;
}

static int receive_part(void *from, void *bytes, size_t n)
{
    int got;

    do got = zmq_recv(from, bytes, n, ZMQ_DONTWAIT);
    while (got < 0 && zmq_errno() == EINTR);
    return got;
}

void event_socket_publish(struct event_socket *s, char *batch, size_t n)
{
    uint8_t number[8];

    number_bytes(s->n_published, number);
    if (send_part(s->publisher, s->topic, strlen(s->topic), ZMQ_SNDMORE) &&
        send_part(s->publisher, number, sizeof(number), ZMQ_SNDMORE))
        (void)send_part(s->publisher, batch, n, 0); /* what is lost shows in the numbers */
    keep(s, batch, n);
}

/* One message to who asked: identity, an empty part, number, batch. */
static bool answer(struct event_socket *s, const void *who, size_t n_who, uint64_t number, const void *batch, size_t n)
{
    uint8_t bytes[8];

    number_bytes(number, bytes);
    return send_part(s->replay, who, n_who, ZMQ_SNDMORE) && send_part(s->replay, "", 0, ZMQ_SNDMORE) &&
           send_part(s->replay, bytes, sizeof(bytes), ZMQ_SNDMORE) && send_part(s->replay, batch, n, 0);
}

/* The parts of a request; longer ones are cut, and then are none. Returns how many there were. */
static int receive(struct event_socket *s, uint8_t parts[3][256], int n_bytes[3])
{
    int more = 1, n = 0;
    size_t size = sizeof(more);

    while (more) {
        uint8_t rest[256];
        int got = receive_part(s->replay, n < 3 ? parts[n] : rest, sizeof(rest));

        if (got < 0) return 0;
        if (n < 3) n_bytes[n] = got;
        n++;
        if (zmq_getsockopt(s->replay, ZMQ_RCVMORE, &more, &size) != 0) return 0;
    }
    return n;
}

uint32_t event_socket_replay(struct event_socket *s)
{
    uint8_t parts[3][256];
    int n_bytes[3] = {0};
    uint64_t first;

    if (!s->replay || receive(s, parts, n_bytes) != 3 || n_bytes[0] > 255 || n_bytes[1] != 0 ||
        !event_replay_parse(parts[2], (size_t)n_bytes[2], &first))
        return 0;
    if (first < s->first_kept) first = s->first_kept;
    for (; first < s->n_published; first++) {
        const struct kept *k = &s->kept[first % KEPT_MOST];

        if (!answer(s, parts[0], (size_t)n_bytes[0], first, k->batch, k->n)) return 0;
    }
    (void)answer(s, parts[0], (size_t)n_bytes[0], UINT64_MAX, "", 0);
    return 1;
}
