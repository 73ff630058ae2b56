/* server/monitor/monitor.h - what the monitor page shows: a sample of the engine's numbers each second, kept for an hour,
 * and one each minute, kept for a day; who runs and who ran; as JSON, whole or as one event each second.
 *
 *     io[0], 4 times a second     monitor_tick: a second has passed? take a sample, write the event if anybody listens
 *     io threads, workers         monitor_put: everything so far;  monitor_event: the latest event
 *
 * Sampling reads what the engine has published (rd_get_stats, rd_get_histogram): the engine does nothing for it. A sample
 * is a row of floats, one for each column of monitor.c's table; NaN where there was nothing to measure.
 *
 * Thread  monitor_tick: io[0]. The rest: any (a lock, held while bytes are copied).
 * Errors  create: RD_E_NOMEM; the history's memory (1 MiB) is taken then, and nothing after it. An event for which there
 *         is no memory is left out.
 */
#pragma once
#include "base/buf.h"
#include "radish/radish.h"

struct monitor;
struct pressure;

rd_status monitor_create(struct monitor **out);
void monitor_destroy(struct monitor *m); /* NULL is fine */

/* now_ns: a clock that never goes backwards; wall_s: seconds since 1970. engine NULL: there is none, and the next one is
 * another, whose counters begin anew. */
void monitor_tick(struct monitor *m, rd_engine *engine, uint64_t now_ns, int64_t wall_s);
/* {"columns":[..],"seconds":{..},"minutes":{..},"running":[..],"recent":[..],"totals":{..}}: at most this many of each. */
void monitor_put(struct monitor *m, rd_engine *engine, uint32_t n_seconds, uint32_t n_minutes, struct buf *out);

/* Which budgets were nearly used up a second ago. */
const struct pressure *monitor_pressure(const struct monitor *m);

/* A reader of events comes and goes: events are made while there are any. */
void monitor_join(struct monitor *m);
void monitor_leave(struct monitor *m);
/* The latest event as server-sent text, if it is not number *seen; then *seen is its number. false: there is no newer. */
bool monitor_event(struct monitor *m, uint64_t *seen, struct buf *out);
