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

static uint64_t folded(uint64_t a, uint64_t b)
{
    __extension__ unsigned __int128 p = (unsigned __int128)a * b;

    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

/* Both halves take all of x and label, each with numbers of its own that nobody outside knows: a grammar cannot be made so
 * that its states get the names of another's. */
static struct hash128 mixed(const struct network *n, struct hash128 h, struct hash128 x, uint64_t label)
{
    const uint64_t *s = n->secret;

    return (struct hash128){.low = folded(h.low + x.low + s[0], (label ^ x.high ^ s[1]) + h.high),
                            .high = folded(h.high + x.high + s[2], (label ^ x.low ^ s[3]) + h.low)};
}

static struct hash128 next_key(const struct network *n, uint32_t s, const struct hash128 *keys)
{
    struct hash128 h = {n->accepts[s], n->dist[s] == NEVER};

    for (uint32_t k = n->edge_first[s]; k < n->edge_first[s + 1]; k++) {
        const struct net_edge *e = &n->edges[k];

        h = mixed(n, h, keys[e->to], (uint64_t)e->low << 8 | e->high);
    }
    for (uint32_t k = n->call_first[s]; k < n->call_first[s + 1]; k++) {
        const struct net_call *c = &n->calls[k];

        h = mixed(n, mixed(n, h, n->hashes[c->rule], 1u << 16), keys[c->to], 2u << 16);
    }
    return h;
}

/* Rounds are even: the last one writes where the keys lie. */
static void name_large(struct network *n, uint32_t rule, struct hash128 *other)
{
    uint32_t start = n->starts[rule], end = n->starts[rule + 1];

    _Static_assert(NETWORK_LOOK % 2 == 0, "keys end where they began");
    for (uint32_t s = start; s < end; s++)
        n->keys[s] =
            mixed(n, (struct hash128){3, NETWORK_LOOK}, (struct hash128){n->accepts[s], n->dist[s] == NEVER}, 3u << 16);
    for (uint32_t round = 0; round < NETWORK_LOOK; round++) {
        const struct hash128 *from = round % 2 ? other : n->keys;
        struct hash128 *to = round % 2 ? n->keys : other;

        for (uint32_t s = start; s < end; s++) to[s] = next_key(n, s, from);
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
            n->keys[s] = mixed(n, (struct hash128){5, s - n->starts[r]}, n->hashes[r], 4u << 16);
    }
    mem_free(next);
    return true;
}
