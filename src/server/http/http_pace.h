/* server/http/http_pace.h - quick answers wait their turn while the engine computes.
 *
 * A status page that is asked for a hundred thousand times a second would take the cores from the requests that it
 * reports about. While any request is queued or runs, an io thread gives PACE_ANSWERS such answers in every PACE_MS; the
 * others are held back, in order, until the next ones are due. Everybody is served; an idle server answers at full speed.
 * The door (http_door.h) has windows of its own.
 * Thread  the io thread.
 */
#pragma once
#include <stdbool.h>
#include "server/http/http_state.h"

#define PACE_MS      10u
#define PACE_ANSWERS 10u /* per PACE_MS: 1,000 a second */

/* The request of c is complete and would be answered at once. True: it is answered later, from here. */
bool http_pace_hold(struct http_conn *c);
/* One of the window's answers is given now; false: it has none left. Any thread with an http_io of its own. */
bool http_pace_take(struct http_io *io);
/* The io thread's own part. */
rd_status http_pace_init(struct http_io *io);
void http_pace_deinit(struct http_io *io);
