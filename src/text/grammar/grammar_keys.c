/* text/grammar/grammar_keys.c - names for states, by which masks are found that are known already.
 *
 * Of most rules: the rule's hash and the state's place. Of a large one that counts (a string of at most 1,000
 * characters has about 9,000 states), states that cannot be told apart by NETWORK_LOOK bytes share a name: all but the
 * last few characters of such a string. The states of a large object are hardly ever alike, and it would take longer to
 * see that than all the rest of naming. Round by round, a state's key is made of those of the states that it leads to,
 * each with what leads there: a sum of products, which no order of the edges and no wait for the one before holds up.
 *
 * Source  NH, the sum of products of UMAC: Black, Halevi, Krawczyk, Krovetz, Rogaway, CRYPTO 1999.
 */
#include <string.h>
#include "base/mem.h"
#include "text/grammar/grammar_impl.h"

#define LARGE      64u /* states */
#define CALL_SHARE 8u  /* states per call: a rule that counts what it calls has fewer, an object more */

/* All edges and calls from one state of a large rule to another: where they lead, and the sum of numbers for what each reads
 * and by how much the rule's end is farther behind it. */
struct arc {
    uint32_t to;
    uint64_t label[3];
};
struct naming {
    struct network *n;
    struct arc *arcs;
    size_t n_arcs, cap_arcs, first_arc; /* first_arc: of the state whose arcs are put */
    uint32_t *n_of;                     /* [n_states] arcs */
    struct hash128 *other;              /* [n_states] */
};

static bool put_arc(struct naming *w, uint32_t from, uint32_t to, struct hash128 what, uint64_t kind)
{
    const struct network *n = w->n;
    bool never = n->dist[from] == NEVER || n->dist[to] == NEVER;
    struct hash128 rise = {never ? NEVER : n->dist[to] - n->dist[from], kind};
    struct hash128 label = name_mixed(n, name_mixed(n, rise, what, 1u << 16), rise, 2u << 16);
    uint64_t third = name_folded(label.low ^ n->secret[1], label.high ^ n->secret[3]);

    for (size_t i = w->n_arcs; i-- > w->first_arc;)
        if (w->arcs[i].to == to) {
            w->arcs[i].label[0] += label.low;
            w->arcs[i].label[1] += label.high;
            w->arcs[i].label[2] += third;
            return true;
        }
    if (!mem_grow((void **)&w->arcs, &w->cap_arcs, w->n_arcs + 1, sizeof(*w->arcs))) return false;
    w->arcs[w->n_arcs++] = (struct arc){to, {label.low, label.high, third}};
    return true;
}

/* Of a state: edges, then calls. */
static bool put_arcs(struct naming *w, uint32_t s)
{
    const struct network *n = w->n;
    bool ok = true;

    w->first_arc = w->n_arcs;
    for (uint32_t k = n->edge_first[s]; ok && k < n->edge_first[s + 1]; k++)
        ok = put_arc(w, s, n->edges[k].to, (struct hash128){n->edges[k].low, n->edges[k].high}, 0);
    for (uint32_t k = n->call_first[s]; ok && k < n->call_first[s + 1]; k++)
        ok = put_arc(w, s, n->calls[k].to, n->hashes[n->calls[k].rule], 1);
    w->n_of[s] = (uint32_t)(w->n_arcs - w->first_arc);
    return ok;
}

/* Rounds are even: the last one writes where the keys lie. */
static bool name_large(struct naming *w, uint32_t rule)
{
    struct network *n = w->n;
    uint32_t start = n->starts[rule], end = n->starts[rule + 1];

    _Static_assert(NETWORK_LOOK % 2 == 0, "keys end where they began");
    w->n_arcs = 0;
    for (uint32_t s = start; s < end; s++) {
        n->keys[s] = name_mixed(n, (struct hash128){3, NETWORK_LOOK},
                                (struct hash128){n->accepts[s], n->dist[s] == NEVER}, 3u << 16);
        if (!put_arcs(w, s)) return false;
    }
    for (uint32_t round = 0; round < NETWORK_LOOK; round++) {
        const struct hash128 *from = round % 2 ? w->other : n->keys;
        struct hash128 *to = round % 2 ? n->keys : w->other;
        const struct arc *arc = w->arcs;

        for (uint32_t s = start; s < end; s++) {
            uint128 low = (uint128)n->accepts[s] << 1 | (n->dist[s] == NEVER), high = low;

            for (uint32_t k = 0; k < w->n_of[s]; k++, arc++) { /* there may be none at all, and no array */
                struct hash128 x = from[arc->to];

                low += (uint128)(x.low + arc->label[0]) * (x.high + arc->label[1]);
                high += (uint128)(x.low + arc->label[1]) * (x.high + arc->label[2]);
            }
            to[s] = name_mixed(n, (struct hash128){(uint64_t)low, (uint64_t)high},
                               (struct hash128){(uint64_t)(low >> 64), (uint64_t)(high >> 64)}, w->n_of[s]);
        }
    }
    return true;
}

/* Whether it is large by counting: bytes alone, or calls. */
static bool does_count(const struct network *n, uint32_t rule)
{
    uint32_t start = n->starts[rule], end = n->starts[rule + 1], n_calls = n->call_first[end] - n->call_first[start];

    return end - start > LARGE && (!n_calls || (uint64_t)n_calls * CALL_SHARE >= end - start);
}

bool network_name(struct network *n)
{
    struct naming w = {.n = n};
    bool ok;

    w.n_of = mem_alloc(n->n_states, sizeof(*w.n_of));
    w.other = mem_alloc(n->n_states, sizeof(*w.other));
    n->keys = mem_alloc(n->n_states, sizeof(*n->keys));
    n->counts = mem_zalloc(n->n_rules, sizeof(*n->counts));
    ok = w.n_of && w.other && n->keys && n->counts;
    for (uint32_t r = 0; ok && r < n->n_rules; r++) {
        n->counts[r] = does_count(n, r);
        if (n->counts[r]) {
            ok = name_large(&w, r);
            continue;
        }
        for (uint32_t s = n->starts[r]; s < n->starts[r + 1]; s++)
            n->keys[s] = name_mixed(n, (struct hash128){5, s - n->starts[r]}, n->hashes[r], 4u << 16);
    }
    mem_free(w.n_of);
    mem_free(w.other);
    mem_free(w.arcs);
    return ok;
}
