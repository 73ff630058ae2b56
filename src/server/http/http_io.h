/* server/http/http_io.h - an io thread: a loop of libevent's that owns connections, runs tasks and looks at deadlines.
 *
 * Thread  as said at each function.
 * Errors  RD_E_NOMEM from init.
 */
#pragma once
#include "server/http/http_state.h"

/* Before the threads run. http_io_deinit: after the loop has ended; accepts half-initialised ones. */
rd_status http_io_init(struct http_server *s, struct http_io *io);
void http_io_deinit(struct http_io *io);
/* A thread's main, of arg = struct http_io: until server->end. */
void http_io_main(void *arg);
/* io thread: connections whose output waits for their clients. */
uint32_t http_io_output_pending(const struct http_io *io);

/* From the door. take: the socket is the io thread's now; false: it has max_conns. */
bool http_io_take(struct http_io *io, int fd);
void http_io_ask_room(struct http_io *io);

/* Any thread: the task is run on the io thread, once for any number of wakes before that. */
void http_io_wake(struct http_io *io, struct http_task *task);
/* io thread: it is on no list afterwards, if nothing wakes it any more. */
void http_io_forget(struct http_io *io, struct http_task *task);

/* io thread: b goes on without a connection, and is counted as being answered; leave: no matter if it never did. */
void http_io_enter_background(struct http_io *io, struct http_background *b);
void http_io_leave_background(struct http_io *io, struct http_background *b);
