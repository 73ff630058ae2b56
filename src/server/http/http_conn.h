/* server/http/http_conn.h - one HTTP connection: bytes in, one request at a time to the service, a response or a stream out.
 *
 *     IDLE -> HEAD -> BODY -> BUSY (the service has it) -> IDLE ...      or at the end  FLUSH -> LINGER -> freed
 *
 * The service answers within on_request (http_reply) or later: then it leaves an owner on the connection, who is told when
 * the client is gone, when there is room to write again, and every tick. Requests that come pipelined wait their turn:
 * 16 are begun in a turn of the loop, and none while more than 64 KiB of earlier answers wait for the client, nor is
 * anything read then. So a client that asks and never reads costs 64 KiB and one answer, until --send-timeout.
 * Checks that need no body (path, method, key, Host and Origin, size) are done before the body is read.
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
#include "server/http/http_state.h"

/* Takes over a socket that io->n_conns counts already; closes it when memory is out. */
void http_conn_open(struct http_io *io, int fd);
/* Frees it; its owner is told. */
void http_conn_close(struct http_conn *c);
/* HEAD: its place is needed by others. May free it. */
void http_conn_refuse_late(struct http_conn *c);
/* Deadlines, stuck readers, the owner's tick. May free it. */
void http_conn_tick(struct http_conn *c);

/* At the door: answers the request in c->head, which has no body and is answered at once (http_target.at_door). */
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
/* Before it is known what answers: comments may be written. Then http_stream_start goes on with it, and http_reply ends it
 * with its body as the last event ("error", where the status is one): what a client of a stream is told in any case. */
void http_stream_start_early(struct http_conn *c, const char *type, const char *trailers);
void http_stream_write(struct http_conn *c, const char *s, size_t n);
void http_stream_end(struct http_conn *c);
/* trailers: field lines ("A: b\r\n") that the stream's head has named. */
void http_stream_end_with(struct http_conn *c, const char *trailers);
/* A piece could not be written: the connection ends, without the stream's end. */
void http_stream_break(struct http_conn *c);
size_t http_output_bytes(const struct http_conn *c);
