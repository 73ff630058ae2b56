/* engine/retention.c - what a request asked to be kept longer than its last use would. */
#include "base/checked.h"
#include "engine/engine_state.h"
#include "engine/listener.h"

static void retain(struct engine *e, struct request *r)
{
    struct radix_node *root = root_of(e, r);

    for (uint32_t i = 0; root && i < REQUEST_N_KEEPS; i++) {
        const struct request_keep *k = &r->p.keep[i];

        if (k->class != RADIX_PLAIN)
            radix_retain(e->cache.tree, root, r->seq.keys, u32_min(k->n_keys, r->seq.n_keys), k->class);
    }
    if (root && r->p.keep_match && r->seq.n_match > 0)
        radix_retain(e->cache.tree, root, r->seq.keys, r->seq.n_match, RADIX_SHORT);
}

const struct engine_listener listens_retention = {.kept = retain};
