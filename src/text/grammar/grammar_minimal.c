/* text/grammar/grammar_minimal.c - a deterministic automaton made minimal: dead states go, equal ones become one.
 *
 * States lie in blocks, at first two: ends and others. A state that leads to one which has changed its block is looked at
 * again: those of its block that do not lead to the same blocks by the same bytes and rules go into blocks of their own. The
 * most of them stay, so a state changes its block log n times at most, and what counts is edges, not bytes: ranges are never
 * cut into what others tell apart, but neighbours that lead to one block are one way.
 *
 *     block 7:  s  -a..f-> 3, -g..z-> 3, call -> 5        s  -a..z-> 3, call -> 5      stays
 *               t  -a..z-> 3, call -> 5                   t  the same                  stays
 *               u  -a..y-> 3, -z-> 4, call -> 5           u  another                   block 8; what leads to u is looked at
 *
 * Source  the larger part keeps its place: Hopcroft, 1971; by what states lead to: Valmari and Franceschinis, "Simple O(m log n)
 *         time Markov chain lumping", TACAS 2010.
 */
#include <string.h>
#include "base/mem.h"
#include "text/grammar/grammar_build.h"
#include "text/grammar/grammar_fa.h"

/* Elements are states; those of block i are elements[first[i]] .. elements[past[i] - 1], the marked ones first. */
struct blocks {
    uint32_t n, *elements, *place, *block_of, *first, *past, *marks;
};
/* States of a block that lead to the same blocks as one of them does. */
struct group {
    uint64_t hash;
    uint32_t state, n, at;
};
struct minimal {
    struct grammar_builder *b;
    const struct raw_fa *raw;
    uint32_t n_alive;
    uint32_t *pool, cap_pool, n_used; /* what all that is no list of its own lies in */
    uint32_t *edge_first;             /* [n_states + 1]: edges of a state */
    uint32_t *into, *into_first;      /* states by the one that they lead to */
    uint8_t *alive;                   /* from which an end can be reached */
    uint32_t cap_alive;
    struct blocks blocks;
    uint32_t *todo, n_todo; /* blocks with marked states */
    struct group *groups;
    uint32_t n_groups, cap_groups, cap_table;
    uint32_t *table, *group_of, *sorted; /* table: of groups, NONE: free; others [n_states]: of what is marked */
};

/* A way from a state: a range of bytes, or a rule, to a block. */
struct way {
    uint32_t rule, low, high, to;
};
struct cursor {
    const struct raw_edge *at, *end;
};

static struct cursor ways_of(const struct minimal *m, uint32_t s)
{
    if (!m->raw->edges) return (struct cursor){NULL, NULL}; /* there are none */
    return (struct cursor){m->raw->edges + m->edge_first[s], m->raw->edges + m->edge_first[s + 1]};
}

static bool next_way(const struct minimal *m, struct cursor *c, struct way *out)
{
    while (c->at < c->end && !m->alive[c->at->to]) c->at++;
    if (c->at == c->end) return false;
    *out = (struct way){c->at->rule, c->at->low, c->at->high, m->blocks.block_of[c->at->to]};
    for (c->at++; c->at < c->end && c->at->rule == NONE && out->rule == NONE && c->at->low == out->high + 1; c->at++) {
        if (!m->alive[c->at->to] || m->blocks.block_of[c->at->to] != out->to) break;
        out->high = c->at->high;
    }
    return true;
}

static uint64_t hash_ways(const struct minimal *m, uint32_t s)
{
    struct cursor c = ways_of(m, s);
    struct way w;
    uint64_t h = 0;

    while (next_way(m, &c, &w)) {
        h += (uint64_t)w.to << 32 ^ (w.rule == NONE ? w.low << 8 | w.high : w.rule | 1u << 31);
        h *= 0x9E3779B97F4A7C15u; /* 2^64 over the golden ratio */
        h ^= h >> 29;
    }
    return h;
}

static bool same_ways(const struct minimal *m, uint32_t s, uint32_t t)
{
    struct cursor c = ways_of(m, s), d = ways_of(m, t);
    struct way x, y;

    for (;;) {
        bool more = next_way(m, &c, &x);

        if (more != next_way(m, &d, &y)) return false;
        if (!more) return true;
        if (x.rule != y.rule || x.low != y.low || x.high != y.high || x.to != y.to) return false;
    }
}

static uint32_t *lay(struct minimal *m, uint64_t n)
{
    uint32_t *p = m->pool + m->n_used;

    m->n_used += (uint32_t)n;
    return p;
}

/* Makes room at once, so that nothing moves. */
static bool lay_all(struct minimal *m)
{
    uint64_t n = m->raw->n_states, table = 16, all;

    while (table < 2 * n + 2) table *= 2;
    all = 11 * (n + 1) + m->raw->n_edges + table;
    if (!grammar_room(m->b, (void **)&m->pool, &m->cap_pool, all, sizeof(*m->pool)) ||
        !grammar_room(m->b, (void **)&m->alive, &m->cap_alive, n, sizeof(*m->alive)) ||
        !grammar_room(m->b, (void **)&m->groups, &m->cap_groups, n + 1, sizeof(*m->groups)))
        return false;
    memset(m->pool, 0, all * sizeof(*m->pool));
    m->edge_first = lay(m, n + 1);
    m->into_first = lay(m, n + 1);
    m->into = lay(m, m->raw->n_edges);
    m->blocks =
        (struct blocks){0, lay(m, n + 1), lay(m, n + 1), lay(m, n + 1), lay(m, n + 1), lay(m, n + 1), lay(m, n + 1)};
    m->todo = lay(m, n + 1);
    m->group_of = lay(m, n + 1);
    m->sorted = lay(m, n + 1);
    m->table = lay(m, table);
    return true;
}

/* edge_first, into, into_first. */
static void index_edges(struct minimal *m)
{
    const struct raw_fa *r = m->raw;

    for (uint32_t i = 0; i < r->n_edges; i++) {
        m->edge_first[r->edges[i].from + 1]++;
        m->into_first[r->edges[i].to]++;
    }
    for (uint32_t s = 0; s < r->n_states; s++) {
        m->edge_first[s + 1] += m->edge_first[s];
        m->into_first[s + 1] += m->into_first[s];
    }
    for (uint32_t i = r->n_edges; i--;) m->into[--m->into_first[r->edges[i].to]] = r->edges[i].from;
}

/* States from which an end can be reached, the start always. */
static void find_alive(struct minimal *m)
{
    const struct raw_fa *r = m->raw;
    uint32_t n = 0, *stack = m->sorted;

    for (uint32_t s = 0; s < r->n_states; s++) {
        m->alive[s] = r->accepts[s];
        if (r->accepts[s]) stack[n++] = s;
    }
    while (n) {
        uint32_t s = stack[--n];

        for (uint32_t i = m->into_first[s]; i < m->into_first[s + 1]; i++)
            if (!m->alive[m->into[i]]) {
                m->alive[m->into[i]] = 1;
                stack[n++] = m->into[i];
            }
    }
    m->alive[0] = 1;
}

/* It is to be looked at. */
static void mark(struct minimal *m, uint32_t s)
{
    struct blocks *b = &m->blocks;
    uint32_t block = b->block_of[s], i = b->place[s], j = b->first[block] + b->marks[block];

    if (i < j) return; /* is marked */
    b->elements[i] = b->elements[j];
    b->place[b->elements[i]] = i;
    b->elements[j] = s;
    b->place[s] = j;
    if (!b->marks[block]++) m->todo[m->n_todo++] = block;
}

/* Ends and others, all to be looked at. */
static void begin(struct minimal *m)
{
    struct blocks *b = &m->blocks;

    for (unsigned ends = 0; ends < 2; ends++) {
        uint32_t first = m->n_alive;

        for (uint32_t s = 0; s < m->raw->n_states; s++) {
            if (!m->alive[s] || (m->raw->accepts[s] != 0) != ends) continue;
            b->elements[m->n_alive] = s;
            b->place[s] = m->n_alive++;
            b->block_of[s] = b->n;
        }
        if (m->n_alive == first) continue;
        b->first[b->n] = first;
        b->past[b->n] = m->n_alive;
        b->marks[b->n] = m->n_alive - first;
        m->todo[m->n_todo++] = b->n++;
    }
}

/* The group of states that lead where s does, made when there is none. */
static uint32_t group_of(struct minimal *m, uint32_t s)
{
    uint64_t hash = hash_ways(m, s);
    uint32_t h = (uint32_t)(hash >> 7), i;

    for (; (i = m->table[h & (m->cap_table - 1)]) != NONE; h++)
        if (m->groups[i].hash == hash && same_ways(m, m->groups[i].state, s)) return i;
    m->table[h & (m->cap_table - 1)] = m->n_groups;
    m->groups[m->n_groups] = (struct group){.hash = hash, .state = s};
    return m->n_groups++;
}

/* Into groups: the first is that of states that are not marked, when there are any. */
static bool find_groups(struct minimal *m, uint32_t block)
{
    struct blocks *b = &m->blocks;
    uint32_t first = b->first[block], n = b->marks[block], others = b->past[block] - first - n;

    for (m->cap_table = 16; m->cap_table < 2 * n + 2;) m->cap_table *= 2;
    memset(m->table, 0xFF, m->cap_table * sizeof(*m->table));
    m->n_groups = 0;
    if (others) m->groups[group_of(m, b->elements[first + n])].n = others;
    for (uint32_t i = 0; i < n; i++) {
        m->group_of[i] = group_of(m, b->elements[first + i]);
        m->groups[m->group_of[i]].n++;
        if (!grammar_tick(m->b)) return false;
    }
    return true;
}

/* The marked states in the order of their groups, from the last group to the first: next to the others are those like them. */
static void sort_marked(struct minimal *m, uint32_t block)
{
    struct blocks *b = &m->blocks;
    uint32_t first = b->first[block], n = b->marks[block], at = 0, others = b->past[block] - first - n;

    for (uint32_t g = m->n_groups; g--;) {
        m->groups[g].at = at;
        at += m->groups[g].n - (g == 0 ? others : 0);
    }
    for (uint32_t i = 0; i < n; i++) m->sorted[m->groups[m->group_of[i]].at++] = b->elements[first + i];
    for (uint32_t i = 0; i < n; i++) {
        b->elements[first + i] = m->sorted[i];
        b->place[m->sorted[i]] = first + i;
    }
}

/* Gives all groups but the largest a block of their own, and marks what leads to these. */
static void part(struct minimal *m, uint32_t block)
{
    struct blocks *b = &m->blocks;
    uint32_t largest = 0, at = b->first[block], n_moved = 0, *moved = m->sorted;

    for (uint32_t g = 1; g < m->n_groups; g++)
        if (m->groups[g].n > m->groups[largest].n) largest = g;
    for (uint32_t g = m->n_groups; g--; at += m->groups[g].n) {
        uint32_t to = g == largest ? block : b->n++;

        b->first[to] = at;
        b->past[to] = at + m->groups[g].n;
        for (uint32_t i = at; g != largest && i < b->past[to]; i++) {
            b->block_of[b->elements[i]] = to;
            moved[n_moved++] = b->elements[i];
        }
    }
    for (uint32_t i = 0; i < n_moved; i++)
        for (uint32_t k = m->into_first[moved[i]]; k < m->into_first[moved[i] + 1]; k++)
            if (m->alive[m->into[k]]) mark(m, m->into[k]);
}

static bool refine(struct minimal *m)
{
    while (m->n_todo) {
        uint32_t block = m->todo[--m->n_todo];

        if (m->blocks.past[block] - m->blocks.first[block] > 1) {
            if (!find_groups(m, block)) return false;
            sort_marked(m, block);
        } else {
            m->n_groups = 0;
        }
        m->blocks.marks[block] = 0;
        if (m->n_groups > 1) part(m, block);
    }
    return true;
}

/* The ways of a block, in order; targets are blocks still. */
static uint32_t put_ways(const struct minimal *m, uint32_t block, struct fa_edge *out)
{
    struct cursor c = ways_of(m, m->blocks.elements[m->blocks.first[block]]);
    struct way w;
    uint32_t n = 0;

    while (next_way(m, &c, &w)) out[n++] = (struct fa_edge){w.to, w.rule, (uint8_t)w.low, (uint8_t)w.high};
    return n;
}

/* Blocks in the order of a walk from the start's: equal automata become the same arrays. */
static struct fa *give(struct minimal *m)
{
    const struct blocks *b = &m->blocks;
    struct fa *f = mem_zalloc(1, sizeof(*f));
    uint32_t *order = m->sorted, *name = m->group_of, n_seen = 1; /* name: of blocks in the result */

    if (f) f->edges = mem_alloc(m->raw->n_edges, sizeof(*f->edges));
    if (f) f->first = mem_alloc((size_t)b->n + 1, sizeof(*f->first));
    if (f) f->accepts = mem_zalloc(b->n, 1);
    if (!f || !f->edges || !f->first || !f->accepts) {
        grammar_fail(m->b, RD_E_NOMEM, "out of memory for a grammar");
        fa_destroy(f);
        return NULL;
    }
    memset(name, 0xFF, b->n * sizeof(*name));
    order[0] = b->block_of[0];
    name[order[0]] = 0;
    f->first[0] = 0;
    for (uint32_t i = 0; i < n_seen; i++) {
        uint32_t n = put_ways(m, order[i], f->edges + f->n_edges);

        for (uint32_t k = f->n_edges; k < f->n_edges + n; k++) {
            uint32_t block = f->edges[k].to;

            if (name[block] == NONE) {
                name[block] = n_seen;
                order[n_seen++] = block;
            }
            f->edges[k].to = name[block];
        }
        f->accepts[i] = m->raw->accepts[b->elements[b->first[order[i]]]];
        f->n_edges += n;
        f->first[i + 1] = f->n_edges;
    }
    f->n_states = n_seen;
    return f;
}

struct fa *fa_minimal(struct grammar_builder *b, const struct raw_fa *r)
{
    struct minimal m = {.b = b, .raw = r};
    struct fa *f = NULL;

    if (lay_all(&m)) {
        index_edges(&m);
        find_alive(&m);
        begin(&m);
        if (refine(&m)) f = give(&m);
    }
    grammar_unroom(b, (void **)&m.pool, &m.cap_pool, sizeof(*m.pool));
    grammar_unroom(b, (void **)&m.alive, &m.cap_alive, sizeof(*m.alive));
    grammar_unroom(b, (void **)&m.groups, &m.cap_groups, sizeof(*m.groups));
    return f;
}
