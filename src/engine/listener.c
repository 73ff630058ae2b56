/* engine/listener.c - who listens, in which order; and the questions. */
#include "engine/listener.h"
#include <stddef.h>

/* Host memory before the disk: a request asks the quicker tier first. The tiers before those who end sequences of their
 * own. Retention and names behind them: what they keep must be in the tree. The meter last: what others know of a
 * request is in its usage by then. */
const struct engine_listener *const engine_listeners[] = {
    &listens_ram,           &listens_store,     &listens_ahead, &listens_speculation, &listens_verifier,
    &listens_public_prefix, &listens_retention, &listens_names, &listens_pointers,    &listens_images,
    &listens_events,        &listens_meter,     NULL,
};

rd_status engine_begin_all(struct engine *e)
{
    rd_status st = RD_OK;

    for (uint32_t i = 0; st == RD_OK && engine_listeners[i]; i++)
        if (engine_listeners[i]->begin) st = engine_listeners[i]->begin(e);
    return st;
}

rd_status engine_check_all(const struct engine *e, struct rd_error *err)
{
    rd_status st = RD_OK;

    for (uint32_t i = 0; st == RD_OK && engine_listeners[i]; i++)
        if (engine_listeners[i]->check) st = engine_listeners[i]->check(e, err);
    return st;
}

bool engine_waits(struct engine *e, struct request *r, struct radix_node *root, uint64_t now)
{
    for (uint32_t i = 0; engine_listeners[i]; i++)
        if (engine_listeners[i]->wait && engine_listeners[i]->wait(e, r, root, now)) return true;
    return false;
}

bool engine_idles(struct engine *e)
{
    for (uint32_t i = 0; engine_listeners[i]; i++)
        if (engine_listeners[i]->idle && engine_listeners[i]->idle(e)) return true;
    return false;
}

uint64_t engine_promised(const struct engine *e)
{
    uint64_t n = 0;

    for (uint32_t i = 0; engine_listeners[i]; i++)
        if (engine_listeners[i]->promised) n += engine_listeners[i]->promised(e);
    return n;
}

uint32_t engine_n_out(const struct engine *e)
{
    uint32_t n = 0;

    for (uint32_t i = 0; engine_listeners[i]; i++)
        if (engine_listeners[i]->n_out) n += engine_listeners[i]->n_out(e);
    return n;
}

bool engine_must_turn(const struct engine *e)
{
    for (uint32_t i = 0; engine_listeners[i]; i++)
        if (engine_listeners[i]->must_turn && engine_listeners[i]->must_turn(e)) return true;
    return false;
}

uint32_t engine_n_lossy_of(const struct engine *e, const kv_page *pages, uint32_t n)
{
    uint32_t n_lossy = 0;

    for (uint32_t i = 0; engine_listeners[i]; i++)
        if (engine_listeners[i]->n_lossy) n_lossy += engine_listeners[i]->n_lossy(e, pages, n);
    return n_lossy;
}

bool engine_may_differ(const struct engine *e, uint32_t n)
{
    for (uint32_t i = 0; engine_listeners[i]; i++)
        if (engine_listeners[i]->may_differ && engine_listeners[i]->may_differ(e, n)) return true;
    return false;
}
