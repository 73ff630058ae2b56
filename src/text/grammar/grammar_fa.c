/* text/grammar/grammar_fa.c - deterministic automata: sets of states of a non-deterministic one become states. */
#include "text/grammar/grammar_fa.h"
#include <stdlib.h>
#include <string.h>
#include "base/hash.h"
#include "base/mem.h"

void fa_destroy(struct fa *f)
{
    if (!f) return;
    mem_free(f->first);
    mem_free(f->edges);
    mem_free(f->accepts);
    mem_free(f);
}

bool fa_is_nothing(const struct fa *f)
{
    for (uint32_t i = 0; i < f->n_states; i++)
        if (f->accepts[i]) return false;
    return true;
}

bool raw_edge(struct grammar_builder *b, struct raw_fa *r, struct raw_edge e)
{
    if (!grammar_room(b, (void **)&r->edges, &r->cap_edges, (uint64_t)r->n_edges + 1, sizeof(*r->edges))) return false;
    r->edges[r->n_edges++] = e;
    return true;
}

bool raw_state(struct grammar_builder *b, struct raw_fa *r, bool accepts)
{
    if (!grammar_count_states(b, 1) ||
        !grammar_room(b, (void **)&r->accepts, &r->cap_accepts, (uint64_t)r->n_states + 1, 1))
        return false;
    r->accepts[r->n_states++] = accepts;
    return true;
}

void raw_deinit(struct grammar_builder *b, struct raw_fa *r)
{
    grammar_unroom(b, (void **)&r->accepts, &r->cap_accepts, 1);
    grammar_unroom(b, (void **)&r->edges, &r->cap_edges, sizeof(*r->edges));
}

/* ---- subsets ----------------------------------------------------------------------------------------------------- */

struct list {
    uint32_t *at, n, cap;
};

struct subsets {
    const struct nfa *n;
    struct grammar_builder *b;
    uint32_t *pool, n_pool, cap_pool; /* states of subset i: pool[first[i]] .. */
    uint32_t *first, cap_first;
    uint32_t *table, cap_table;
    uint32_t *stamps, cap_stamps, stamp; /* per state of the NFA */
    struct list targets, before[2], closed, stack;
    uint32_t before_set[2]; /* of `before`: the last two target lists of this subset */
    struct list edges,
        calls; /* of the subset that is followed: labels and targets of bytes, in pairs; indices of calls */
    struct raw_fa raw;
};

static bool push(struct grammar_builder *b, struct list *l, uint32_t v)
{
    if (l->n == l->cap && !grammar_room(b, (void **)&l->at, &l->cap, (uint64_t)l->n + 1, sizeof(*l->at))) return false;
    l->at[l->n++] = v;
    return true;
}

static int by_value(const void *x, const void *y)
{
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;

    return a < b ? -1 : a > b;
}

/* States reached from the targets by empty edges, of which those that have other edges (or are the end) are kept. */
static bool close_targets(struct subsets *s)
{
    const struct nfa *n = s->n;

    s->stamp++;
    s->closed.n = s->stack.n = 0;
    for (uint32_t i = 0; i < s->targets.n; i++) {
        if (s->stamps[s->targets.at[i]] == s->stamp) continue;
        s->stamps[s->targets.at[i]] = s->stamp;
        if (!push(s->b, &s->stack, s->targets.at[i])) return false;
    }
    while (s->stack.n) {
        uint32_t state = s->stack.at[--s->stack.n];
        bool counts = state == 1;

        for (uint32_t e = n->first[state]; e != NONE; e = n->edges[e].next) {
            if (n->edges[e].label != LABEL_EMPTY)
                counts = true;
            else if (s->stamps[n->edges[e].to] != s->stamp) {
                s->stamps[n->edges[e].to] = s->stamp;
                if (!push(s->b, &s->stack, n->edges[e].to)) return false;
            }
        }
        if (counts && !push(s->b, &s->closed, state)) return false;
    }
    if (s->closed.n) qsort(s->closed.at, s->closed.n, sizeof(*s->closed.at), by_value);
    return grammar_tick(s->b);
}

static bool subsets_grow(struct subsets *s)
{
    uint32_t want = s->cap_table ? s->cap_table * 2 : 64, cap = 0, *table = NULL;

    if (!grammar_room(s->b, (void **)&table, &cap, want, sizeof(*table))) return false;
    grammar_unroom(s->b, (void **)&s->table, &s->cap_table, sizeof(*s->table));
    memset(table, 0xFF, cap * sizeof(*table));
    for (uint32_t i = 0; i < s->raw.n_states; i++) {
        uint32_t h = (uint32_t)hash64_of(s->pool + s->first[i], (s->first[i + 1] - s->first[i]) * sizeof(*s->pool));

        while (table[h & (cap - 1)] != NONE) h++;
        table[h & (cap - 1)] = i;
    }
    s->table = table;
    s->cap_table = cap;
    return true;
}

/* The subset of `closed`, an old one or a new one; NONE: failed. */
static uint32_t subset_of(struct subsets *s)
{
    uint32_t h, i, n = s->closed.n;
    bool accepts = false;

    if (s->raw.n_states * 2 >= s->cap_table && !subsets_grow(s)) return NONE;
    for (h = (uint32_t)hash64_of(s->closed.at, n * sizeof(*s->closed.at));
         (i = s->table[h & (s->cap_table - 1)]) != NONE; h++)
        if (s->first[i + 1] - s->first[i] == n && !memcmp(s->pool + s->first[i], s->closed.at, n * sizeof(*s->pool)))
            return i;
    for (i = 0; i < n; i++) accepts |= s->closed.at[i] == 1;
    i = s->raw.n_states;
    if (!grammar_room(s->b, (void **)&s->first, &s->cap_first, (uint64_t)i + 2, sizeof(*s->first)) ||
        !grammar_room(s->b, (void **)&s->pool, &s->cap_pool, (uint64_t)s->n_pool + n, sizeof(*s->pool)) ||
        !raw_state(s->b, &s->raw, accepts))
        return NONE;
    if (n) memcpy(s->pool + s->n_pool, s->closed.at, n * sizeof(*s->pool));
    if (!i) s->first[0] = 0;
    s->n_pool += n;
    s->first[i + 1] = s->n_pool;
    s->table[h & (s->cap_table - 1)] = i;
    return i;
}

/* Nothing is known of what the targets of a subset close to. */
static void forget_targets(struct subsets *s)
{
    s->before_set[0] = s->before_set[1] = NONE;
}

/* The subset that the targets close to. The last two lists of targets are remembered: bytes side by side, and between those
 * that have a way of their own all others. */
static uint32_t target_of(struct subsets *s)
{
    for (unsigned i = 0; i < 2; i++)
        if (s->before_set[i] != NONE && s->before[i].n == s->targets.n &&
            !memcmp(s->before[i].at, s->targets.at, s->targets.n * sizeof(*s->targets.at))) {
            struct list list = s->before[i];
            uint32_t set = s->before_set[i];

            s->before[i] = s->before[0];
            s->before_set[i] = s->before_set[0];
            s->before[0] = list;
            return s->before_set[0] = set;
        }
    struct list unused = s->before[1];
    s->before[1] = s->before[0];
    s->before_set[1] = s->before_set[0];
    s->before_set[0] = close_targets(s) ? subset_of(s) : NONE;
    s->before[0] = s->targets;
    s->targets = unused;
    return s->before_set[0];
}

/* The first one from `at` on; 256: none. */
static uint32_t next_cut(const uint64_t *cuts, uint32_t at)
{
    for (uint32_t i = at >> 6; i < 4; i++) {
        uint64_t bits = i == at >> 6 ? cuts[i] & (~0ull << (at & 63)) : cuts[i];

        if (bits) return i * 64 + (uint32_t)__builtin_ctzll(bits);
    }
    return 256;
}

static bool follow_bytes(struct subsets *s, uint32_t i)
{
    uint64_t cuts[5] = {1}; /* a bit per byte where an edge begins, or ended before it */

    for (uint32_t k = 0; k < s->edges.n; k += 2) {
        uint32_t label = s->edges.at[k], low = label & 0xFF, end = (label >> 8 & 0xFF) + 1;

        cuts[low >> 6] |= 1ull << (low & 63);
        cuts[end >> 6] |= 1ull << (end & 63);
    }
    forget_targets(s);
    for (uint32_t low = 0, high; low < 256; low = high + 1) {
        uint32_t to;

        high = next_cut(cuts, low + 1) - 1;
        s->targets.n = 0;
        for (uint32_t k = 0; k < s->edges.n; k += 2) {
            uint32_t label = s->edges.at[k];

            if ((label & 0xFF) <= low && (label >> 8 & 0xFF) >= low && !push(s->b, &s->targets, s->edges.at[k + 1]))
                return false;
        }
        if (!s->targets.n) continue;
        to = target_of(s);
        if (to == NONE || !raw_edge(s->b, &s->raw, (struct raw_edge){i, to, NONE, (uint8_t)low, (uint8_t)high}))
            return false;
    }
    return true;
}

static bool follow_calls(struct subsets *s, uint32_t i)
{
    const struct nfa *n = s->n;

    s->stack.n = 0;
    for (uint32_t k = 0; k < s->calls.n; k++) /* (rule, target), sorted below by rule */
        if (!push(s->b, &s->stack, n->edges[s->calls.at[k]].label)) return false;
    if (s->stack.n) qsort(s->stack.at, s->stack.n, sizeof(*s->stack.at), by_value);
    s->edges.n = 0; /* the labels, each once: `stack` is needed to close */
    for (uint32_t k = 0; k < s->stack.n; k++)
        if ((!k || s->stack.at[k] != s->stack.at[k - 1]) && !push(s->b, &s->edges, s->stack.at[k])) return false;
    for (uint32_t k = 0; k < s->edges.n; k++) {
        uint32_t to;

        s->targets.n = 0;
        forget_targets(s);
        for (uint32_t j = 0; j < s->calls.n; j++) {
            const struct nfa_edge *e = &n->edges[s->calls.at[j]];

            if (e->label == s->edges.at[k] && !push(s->b, &s->targets, e->to)) return false;
        }
        to = target_of(s);
        if (to == NONE || !raw_edge(s->b, &s->raw, (struct raw_edge){i, to, s->edges.at[k] & ~LABEL_CALL, 0, 0}))
            return false;
    }
    return true;
}

static bool follow(struct subsets *s, uint32_t i)
{
    const struct nfa *n = s->n;

    s->edges.n = s->calls.n = 0;
    for (uint32_t k = s->first[i]; k < s->first[i + 1]; k++)
        for (uint32_t e = n->first[s->pool[k]]; e != NONE; e = n->edges[e].next) {
            uint32_t label = n->edges[e].label;

            if (label == LABEL_EMPTY) continue;
            if (label & LABEL_CALL ? !push(s->b, &s->calls, e)
                                   : !push(s->b, &s->edges, label) || !push(s->b, &s->edges, n->edges[e].to))
                return false;
        }
    return follow_bytes(s, i) && follow_calls(s, i);
}

static void unlist(struct grammar_builder *b, struct list *l)
{
    grammar_unroom(b, (void **)&l->at, &l->cap, sizeof(*l->at));
}

struct fa *fa_of_nfa(const struct nfa *n)
{
    struct grammar_builder *b = n->b;
    struct subsets s = {.n = n, .b = b};
    struct fa *f = NULL;
    bool ok =
        grammar_room(b, (void **)&s.stamps, &s.cap_stamps, n->n_states, sizeof(*s.stamps)) && push(b, &s.targets, 0);

    if (ok) memset(s.stamps, 0, n->n_states * sizeof(*s.stamps));
    ok = ok && close_targets(&s) && subset_of(&s) != NONE;
    for (uint32_t i = 0; ok && i < s.raw.n_states; i++) ok = follow(&s, i);
    if (ok) f = fa_minimal(b, &s.raw);
    grammar_unroom(b, (void **)&s.pool, &s.cap_pool, sizeof(*s.pool));
    grammar_unroom(b, (void **)&s.first, &s.cap_first, sizeof(*s.first));
    grammar_unroom(b, (void **)&s.table, &s.cap_table, sizeof(*s.table));
    grammar_unroom(b, (void **)&s.stamps, &s.cap_stamps, sizeof(*s.stamps));
    unlist(b, &s.targets);
    unlist(b, &s.before[0]);
    unlist(b, &s.before[1]);
    unlist(b, &s.closed);
    unlist(b, &s.stack);
    unlist(b, &s.edges);
    unlist(b, &s.calls);
    raw_deinit(b, &s.raw);
    return f;
}
