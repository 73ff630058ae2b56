/* server/monitor/progress.h - whether the engine gets on, not only lives: what /health and the service manager's watchdog
 * are told.
 *
 *     the loop of its thread has not turned                              for stall_ns and 2 s: stalled
 *     requests wait or run, and no step ended, none began, none came or went    for stall_ns: stalled
 *
 * All that run are held by readers that are slow: then it has send_ns more, within which those are cut. A pause of the whole
 * process does not count: `now` is a deadline clock's (http_io_now).
 *
 * Thread  progress_look, progress_forget: one. progress_stalled_s: any.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "radish/radish.h"

struct progress {
    uint64_t stall_ns, send_ns;     /* stall_ns 0: it is never stalled */
    uint64_t seen_turns, turned_ns; /* of the looking thread: the latest change, and when */
    uint64_t seen_steps, stepped_ns;
    bool is_set;
    atomic_bool is_down;   /* rd_stats.process_is_down. Relaxed: as the next */
    atomic_uint shared;    /* 0: no shared store; 1 + its rd_stats.shared_read_trouble * 16 + shared_write_trouble */
    atomic_uint stalled_s; /* 0: it gets on; else for how long it does not. Relaxed: a number to be shown */
};

void progress_look(struct progress *p, const struct rd_stats *s, uint64_t now_ns);
/* There is no engine now, or another one. */
void progress_forget(struct progress *p);
static inline unsigned progress_stalled_s(const struct progress *p)
{
    return atomic_load_explicit(&p->stalled_s, memory_order_relaxed);
}
