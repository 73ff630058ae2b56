/* base/supervisor.h - what a service manager gives a process, and is told by it: sockets that are open already, a datagram
 * socket for news, a watchdog.
 *
 *     LISTEN_PID, LISTEN_FDS    n listening sockets, from descriptor 3 on (systemd's socket activation)
 *     NOTIFY_SOCKET             "/path", or "@name" in the abstract namespace: a line or more per datagram
 *     WATCHDOG_USEC             microseconds within which WATCHDOG=1 is wanted, again and again
 *
 * The protocol is small and has been stable since 2010, so nothing links libsystemd for it; where the variables are
 * missing every call does nothing, and no other manager has to be asked for by name.
 *
 * Thread  supervisor_listeners, supervisor_watchdog_ns: the main thread, at the start. supervisor_notify: any.
 * Errors  none: a manager that does not read is its own loss. A datagram is sent or dropped, never waited for.
 * Source  sd_listen_fds(3), sd_notify(3), sd_watchdog_enabled(3).
 */
#pragma once
#include <stdint.h>
#include "base/limits.h"

/* The descriptors that were passed, close-on-exec from now on; forgets the variables, so a child does not take them for
 * its own. Returns how many. */
uint32_t supervisor_listeners(int fds[LIMIT_LISTENERS]);
/* Lines such as "READY=1\nSTATUS=..": bytes that would end a line inside a value are the caller's to avoid. */
void supervisor_notify(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* 0: no watchdog is set. */
uint64_t supervisor_watchdog_ns(void);
