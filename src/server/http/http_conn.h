/* server/http/http_conn.h - one HTTP connection: bytes in, one request at a time to its route, a response or a stream out.
 *
 *     IDLE -> HEAD -> BODY -> BUSY (its route owns it) -> IDLE ...      or at the end  FLUSH -> LINGER -> freed
 *
 * A route answers within its handler (http_reply) or later: then it leaves an owner on the connection, who is told when
 * the client is gone, when there is room to write again, and every tick. Requests that come pipelined wait their turn:
 * 16 are begun in a turn of the loop, and none while more than 64 KiB of earlier answers wait for the client, nor is
 * anything read then. So a client that asks and never reads costs 64 KiB and one answer, until --send-timeout.
 * Checks that need no body (route, method, key, Host and Origin, size) are done before the body is read.
 *
 * What libevent decides: a readable socket is read 16 KiB at most (bufferevent's max_single_read) before our parser
 * sees it, so an unparsed input is bounded by a head's limit plus that, and by 64 KiB while a request is answered;
 * deadlines are looked at every 250 ms. Connections come from the door (http_door.h) and stay with their io thread.
 *
 * Thread  io thread that owns the connection.
 * Errors  memory running out closes the connection: what waits before the lost bytes leaves, nothing after them does. No
 *         body or piece of a stream goes out without its head, and no stream is ended that lacks a piece.
 */
#pragma once
#include <event2/bufferevent.h>
#include "base/buf.h"
#include "server/http/errors.h"
#include "server/http/http_parse.h"
#include "server/dialects/server_state.h"

struct route;
enum conn_state { CONN_IDLE, CONN_HEAD, CONN_BODY, CONN_BUSY, CONN_FLUSH, CONN_LINGER };

/* Who answers later. After gone() the owner must not touch the connection. */
struct conn_owner {
    void (*gone)(void *arg);
    void (*drained)(void *arg);                  /* the output fell below 64 KiB */
    void (*tick)(void *arg, uint64_t now_ns);
    void (*stop)(void *arg);                     /* the server ends: answer or cut the stream now */
};

struct http_conn {
    struct http_conn *prev, *next;
    struct server_io *io;
    struct bufferevent *bev;                     /* NULL at the door: its answers go to reply */
    struct buf *reply;
    enum conn_state state;
    uint64_t since_ns;                           /* when the state (HEAD: its first byte) began */
    uint64_t input_ns;                           /* when bytes last came */
    uint64_t n_in;                               /* body bytes read in this state */
    uint64_t n_dropped;                          /* bytes read after the last request */
    uint64_t body_due_ns;                        /* BODY: when it has fallen too far behind; each byte moves it on */
    size_t n_scanned;                            /* bytes of the head that were looked at */
    bool processing, closing, linger,
        eof; /* closing: no request after this one; linger: the client may still be sending */
    bool broken;                                 /* bytes were lost, no more go out: it ends when the output is empty */
    bool reading;                                /* libevent reads for us */
    bool streaming, chunked_out;
    char *head_bytes;                            /* what head points into */
    struct http_head head;
    struct http_chunks chunks;
    struct buf body;
    struct client_charge memory;                 /* the body, its JSON while it is read, what is unread */
    struct offload_job *job;                     /* this is a worker's copy: offload.h */
    struct buf ignored;                          /* fields of the body that say nothing: for the response's head */
    char request_id[132];                        /* told; ours, or the client's own */
    char reason[160];                            /* why it was refused, for the log; "": it was not */
    uint64_t max_body;
    const struct route *route;
    const char *tenant;                          /* the tenant key that was sent, or NULL */
    const char *cors_origin;                     /* to echo; NULL: no CORS headers */
    int status;                                  /* sent */
    uint64_t request_ns;                         /* when the head was complete */
    struct http_conn *held_prev, *held_next;     /* http_pace.h */
    const struct conn_owner *owner;
    void *owner_arg;
    uint64_t n_appended, n_sent_seen, progress_ns;   /* output: for stuck readers */
};

/* Takes over a socket that io->n_conns counts already; closes it when memory is out. */
void http_conn_open(struct server_io *io, int fd);
/* Frees it; its owner is told. */
void http_conn_close(struct http_conn *c);
/* HEAD: its place is needed by others. May free it. */
void http_conn_refuse_late(struct http_conn *c);
/* Deadlines, stuck readers, the owner's tick. May free it. */
void http_conn_tick(struct http_conn *c);

/* At the door: answers the request in c->head, which has no body and a route that replies at once. */
void http_answer(struct http_conn *c);

/* A whole response; extra: further header lines ("A: b\r\n") or "". HEAD requests get the head alone. The
 * body may be empty afterwards: a long one is given away. */
void http_reply(struct http_conn *c, int status, const char *type, const char *extra, struct buf *body);
/* The JSON in body, status 200; a failed body becomes 500. */
void http_reply_json(struct http_conn *c, struct buf *body);
void http_reply_error(struct http_conn *c, const struct api_error *e);
/* As X-Request-Id tells it. */
const char *http_request_id(struct http_conn *c);
/* Who sent it, for the log: "127.0.0.1:5012"; at the door "?:?". */
void http_peer(const struct http_conn *c, char *out, size_t size);

/* A stream: head, pieces, end. type: "text/event-stream", ... A piece goes to the socket at once where that takes it:
 * going through the event loop costs several times what the piece itself does. */
void http_stream_start(struct http_conn *c, const char *type);
/* As it, and names the fields that http_stream_end_with sends behind the stream. They go out only to clients that take
 * them ("TE: trailers") in pieces: others never see them. */
void http_stream_start_with(struct http_conn *c, const char *type, const char *trailers);
void http_stream_write(struct http_conn *c, const char *s, size_t n);
void http_stream_end(struct http_conn *c);
/* trailers: field lines ("A: b\r\n") that the stream's head has named. */
void http_stream_end_with(struct http_conn *c, const char *trailers);
/* A piece could not be written: the connection ends, without the stream's end. */
void http_stream_break(struct http_conn *c);
size_t http_output_bytes(const struct http_conn *c);
