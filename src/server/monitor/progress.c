/* server/monitor/progress.c - two sums that must change. */
#include "server/monitor/progress.h"
#include "base/checked.h"

#define SECOND_NS 1000000000ull
#define TURN_NS   (2 * SECOND_NS) /* an idle loop turns once a second */

/* Everything that changes when work is done. */
static uint64_t steps_of(const struct rd_stats *s)
{
    return s->n_steps + s->n_beats + s->n_submitted + s->n_stop + s->n_length + s->n_cancelled + s->n_failed +
           s->disk_pages_read + s->ram_pages_loaded;
}

void progress_look(struct progress *p, const struct rd_stats *s, uint64_t now)
{
    uint64_t turns = s->n_turns + s->n_beats, steps = steps_of(s), n_live = s->n_waiting + s->n_prefill + s->n_decode;
    uint64_t limit = p->stall_ns + (n_live > 0 && s->n_paused >= n_live ? p->send_ns : 0), idle, stood;

    atomic_store_explicit(&p->is_down, s->process_is_down, memory_order_relaxed);
    atomic_store_explicit(
        &p->shared, s->shared_is_on ? 1 + (unsigned)s->shared_read_trouble * 16 + (unsigned)s->shared_write_trouble : 0,
        memory_order_relaxed);
    if (!p->is_set || turns != p->seen_turns) p->turned_ns = now;
    if (!p->is_set || steps != p->seen_steps || n_live + s->n_queued == 0) p->stepped_ns = now;
    p->seen_turns = turns;
    p->seen_steps = steps;
    p->is_set = true;
    idle = now - p->turned_ns;
    stood = now - p->stepped_ns;
    if (!p->stall_ns || (idle < p->stall_ns + TURN_NS && stood < limit)) idle = stood = 0;
    atomic_store_explicit(&p->stalled_s, (unsigned)u64_min(u64_max(idle, stood) / SECOND_NS, UINT32_MAX),
                          memory_order_relaxed);
}

void progress_forget(struct progress *p)
{
    p->is_set = false;
    atomic_store_explicit(&p->is_down, false, memory_order_relaxed);
    atomic_store_explicit(&p->shared, 0, memory_order_relaxed);
    atomic_store_explicit(&p->stalled_s, 0, memory_order_relaxed);
}
