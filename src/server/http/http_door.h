/* server/http/http_door.h - the thread that lets clients in, and answers GET /health itself.
 *
 * A server that is full, or whose io threads compute, must still say that it lives: a supervisor would end it. So one
 * small thread accepts every connection, looks at what it asks for without taking it from the socket (MSG_PEEK), and
 *
 *     a whole /health request, nothing behind it      answers it, and keeps the connection for the next one
 *     anything else, or a part of a head              gives the socket to the io thread with the fewest connections,
 *                                                     which reads the same bytes
 *     nothing yet                                     waits DOOR_SILENT_NS, then gives it away as well
 *
 *      accept -> SILENT -> KEPT (asks /health) -> given away, or closed
 *                      \-> given away;  the io threads are full: WAITS -> given away, or 503 with Retry-After
 *
 * It has descriptors of its own (max_guests, beyond those of the io threads), and never blocks, takes no lock that is
 * held for long, and allocates nothing that it cannot do without. When its places are taken, the one that has waited the
 * longest leaves with 503, then who has been silent for DOOR_YOUNG_NS, then who has only kept his connection for a
 * while; so a probe gets in behind any number of clients that hold heads back. A full io thread is asked to make room:
 * idle connections end, and heads that were begun more than a second ago.
 *
 * It also sees whether the loops of the io threads turn: http_server.stuck_s.
 *
 * Thread  its own; http_server.door_wake: any thread.
 * Errors  RD_E_NOMEM, RD_E_IO from start.
 */
#pragma once
#include "server/http/http_state.h"

#define DOOR_SILENT_NS 1000000000ull /* sends nothing */
#define DOOR_YOUNG_NS  5000000ull
#define DOOR_WAIT_NS   1000000000ull  /* for a place with an io thread */
#define DOOR_KEPT_NS   75000000000ull /* between two requests, as the io threads do */

struct http_door;

/* fds: [n_fds] listening sockets, which stay the caller's. The io threads are initialised. */
rd_status http_door_start(struct http_server *s, const int *fds, uint32_t n_fds, uint32_t max_guests,
                          struct http_door **out);
/* After s->end is set: joins the thread and closes what it has. It can still be poked (net_wake(s->door_wake): a place
 * has become free). NULL is fine. */
void http_door_stop(struct http_door *door);
void http_door_destroy(struct http_door *door);
