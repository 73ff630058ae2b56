/* text/grammar/grammar_keys.c - names for states, by which masks are found that are known already.
 *
 * Of a small rule: the rule's hash and the state's place. Of a large one, which counts (a string of at most 1,000
 * characters has about 9,000 states), states that cannot be told apart by NETWORK_LOOK bytes share a name: all but the
 * last few characters of such a string. Round by round, a state's key is made of those of the states that it leads to.
 */
#include <string.h>
#include "base/mem.h"
#include "text/grammar/grammar_impl.h"

#define LARGE      64u /* states */
#define CALL_DEPTH 6u

static struct hash128 mixed(struct hash128 h, uint64_t x)
{
    h.low = (h.low ^ x) * 0x9E3779B97F4A7C15ull;
    h.low ^= h.low >> 29;
    h.high = (h.high + x) * 0xC2B2AE3D27D4EB4Full;
    h.high ^= h.high >> 31;
    return h;
}

static struct hash128 next_key(const struct network *n, uint32_t s, const struct hash128 *keys)
{
    struct hash128 h = mixed((struct hash128){1, 2}, n->accepts[s] + 2u * (n->dist[s] == NEVER));

    for (uint32_t k = n->edge_first[s]; k < n->edge_first[s + 1]; k++) {
        const struct net_edge *e = &n->edges[k];

        h = mixed(h, (uint64_t)e->low << 8 | e->high);
        h = mixed(mixed(h, keys[e->to].low), keys[e->to].high);
    }
    for (uint32_t k = n->call_first[s]; k < n->call_first[s + 1]; k++) {
        const struct net_call *c = &n->calls[k];

        h = mixed(mixed(h, n->hashes[c->rule].low), n->hashes[c->rule].high);
        h = mixed(mixed(h, keys[c->to].low), keys[c->to].high);
    }
    return h;
}

static void name_large(struct network *n, uint32_t rule, struct hash128 *next)
{
    uint32_t start = n->starts[rule], end = n->starts[rule + 1];

    for (uint32_t s = start; s < end; s++)
        n->keys[s] = mixed((struct hash128){3, NETWORK_LOOK}, n->accepts[s] + 2u * (n->dist[s] == NEVER));
    for (uint32_t round = 0; round < NETWORK_LOOK; round++) {
        for (uint32_t s = start; s < end; s++) next[s] = next_key(n, s, n->keys);
        memcpy(n->keys + start, next + start, (end - start) * sizeof(*next));
    }
}

/* Of all rules: from no place within the rule, or within what it calls, is its end farther. NEVER where calls are nested
 * deeper than CALL_DEPTH. */
static void measure_far(struct network *n)
{
    for (uint32_t round = 0; round <= CALL_DEPTH; round++)
        for (uint32_t r = n->n_rules; r--;) {
            uint64_t far = 0, called = 0;

            for (uint32_t s = n->starts[r]; s < n->starts[r + 1]; s++)
                if (n->dist[s] != NEVER && n->dist[s] > far) far = n->dist[s];
            for (uint32_t k = n->call_first[n->starts[r]]; k < n->call_first[n->starts[r + 1]]; k++)
                if (n->far[n->calls[k].rule] > called) called = n->far[n->calls[k].rule];
            far = called == NEVER ? NEVER : far + called;
            if (round == CALL_DEPTH && far != n->far[r]) far = NEVER;
            n->far[r] = far;
        }
}

bool network_name(struct network *n)
{
    struct hash128 *next = mem_alloc(n->n_states, sizeof(*next));

    n->keys = mem_alloc(n->n_states, sizeof(*n->keys));
    n->is_large = mem_zalloc(n->n_rules, sizeof(*n->is_large));
    n->far = mem_zalloc(n->n_rules, sizeof(*n->far));
    if (!next || !n->keys || !n->is_large || !n->far) {
        mem_free(next);
        return false;
    }
    measure_far(n);
    for (uint32_t r = 0; r < n->n_rules; r++) {
        n->is_large[r] = n->starts[r + 1] - n->starts[r] > LARGE;
        if (n->is_large[r]) {
            name_large(n, r, next);
            continue;
        }
        for (uint32_t s = n->starts[r]; s < n->starts[r + 1]; s++)
            n->keys[s] =
                mixed(mixed(mixed((struct hash128){5, 6}, n->hashes[r].low), n->hashes[r].high), s - n->starts[r]);
    }
    mem_free(next);
    return true;
}
