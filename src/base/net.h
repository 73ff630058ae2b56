/* base/net.h - the one place for socket calls that libevent does not make for us.
 * Thread  any thread. Errors  RD_E_IO with errno's text in err; RD_E_INVALID for an address that does not parse.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

/* A listening TCP socket, non-blocking, close-on-exec, SO_REUSEADDR. host: a numeric IPv4 or IPv6 address or
 * "localhost". port 0: any free. */
rd_status net_listen(const char *host, uint16_t port, int backlog, int *fd, uint16_t *bound_port, struct rd_error *err);
/* A listening UNIX stream socket, likewise, whose file has these permissions from the first moment. The file of a socket
 * that has no listener any more is replaced; a socket that is listened to, or a file of another kind, is RD_E_IO. */
rd_status net_listen_unix(const char *path, unsigned mode, int backlog, int *fd, struct rd_error *err);
/* Removes the file of a socket that has no listener any more; leaves everything else. */
void net_remove_unix(const char *path);
/* A socket that another program opened (a service manager): it must listen, and take streams, or it is RD_E_INVALID. Non-blocking
 * from now on. host: the numeric address, or "unix:PATH" with port 0; *local: only
 * this machine reaches it. */
rd_status net_adopt(int fd, char *host, size_t size, uint16_t *port, bool *local, struct rd_error *err);
/* A connected socket for a simple client: blocking, reads and writes give up after timeout_ms. host: as above, or
 * "unix:PATH". The error says what went wrong, and where. */
rd_status net_connect(const char *host, uint16_t port, uint32_t timeout_ms, int *fd, struct rd_error *err);
/* RD_E_IO: closed, broken, or nothing moved for that long. */
rd_status net_send_all(int fd, const void *p, size_t n);
/* What there is, at least one byte; *got 0: the peer has closed. */
rd_status net_receive(int fd, void *p, size_t n, size_t *got);
void net_close(int fd);
/* A waiting client's connection, non-blocking and close-on-exec, or -1: none. *no_files: because of this process, not of
 * the client: another try helps only later. */
int net_accept(int listener, bool *no_files);
/* What can be read at once, up to n bytes, and stays to be read; 0: nothing yet, or *closed. */
size_t net_peek(int fd, void *p, size_t n, bool *closed);
/* Takes n bytes that net_peek has shown. false: the connection failed. */
bool net_discard(int fd, size_t n);
/* Sends the few bytes that a socket without unsent ones has room for; never waits. false: not all were taken. */
bool net_send_small(int fd, const void *p, size_t n);
/* Before a close: the end of what we send, and what the client has sent is taken, which would reset the connection. */
void net_finish(int fd);
/* A descriptor that becomes readable by net_wake (any thread, signal-safe), until net_wake_clear. */
rd_status net_wake_open(int *fd);
void net_wake(int fd);
void net_wake_clear(int fd);
/* Sends what the socket takes at once; returns how much that was. 0 also on an error: the next read or write tells. */
size_t net_send_some(int fd, const void *p, size_t n);
/* TCP_NODELAY, TCP_USER_TIMEOUT and keep-alive on an accepted connection (F45). */
void net_tune(int fd);
