/* text/grammar/grammar_product.c - both and except: two automata walked side by side.
 *
 * A state is a pair, found again in a table; of except, the second may have died (NONE), and a pair accepts when its
 * first does and its second does not.
 */
#include <string.h>
#include "base/hash.h"
#include "base/mem.h"
#include "text/grammar/grammar_fa.h"

struct pairs {
    struct grammar_builder *b;
    const struct fa *x, *y;
    bool except;
    uint32_t *at;
    uint32_t n, cap; /* [n]: two states each */
    uint32_t *table, cap_table;
    struct raw_fa raw;
};

static bool pairs_grow(struct pairs *p)
{
    uint32_t want = p->cap_table ? p->cap_table * 2 : 64, cap = 0, *table = NULL;

    if (!grammar_room(p->b, (void **)&table, &cap, want, sizeof(*table))) return false;
    grammar_unroom(p->b, (void **)&p->table, &p->cap_table, sizeof(*p->table));
    memset(table, 0xFF, cap * sizeof(*table));
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t h = (uint32_t)hash64_of(p->at + 2 * i, 8);

        while (table[h & (cap - 1)] != NONE) h++;
        table[h & (cap - 1)] = i;
    }
    p->table = table;
    p->cap_table = cap;
    return true;
}

/* NONE: failed. */
static uint32_t pair_of(struct pairs *p, uint32_t x, uint32_t y)
{
    uint32_t key[2] = {x, y}, h, i;
    bool accepts;

    if (p->n * 2 >= p->cap_table && !pairs_grow(p)) return NONE;
    for (h = (uint32_t)hash64_of(key, 8); (i = p->table[h & (p->cap_table - 1)]) != NONE; h++)
        if (p->at[2 * i] == x && p->at[2 * i + 1] == y) return i;
    accepts = p->x->accepts[x] && (y != NONE && p->y->accepts[y]) != p->except;
    if (!grammar_room(p->b, (void **)&p->at, &p->cap, 2 * (uint64_t)p->n + 2, sizeof(*p->at)) ||
        !raw_state(p->b, &p->raw, accepts))
        return NONE;
    p->at[2 * p->n] = x;
    p->at[2 * p->n + 1] = y;
    p->table[h & (p->cap_table - 1)] = p->n;
    return p->n++;
}

static bool edge_to(struct pairs *p, uint32_t from, uint32_t x, uint32_t y, unsigned low, unsigned high)
{
    uint32_t to = pair_of(p, x, y);

    return to != NONE && raw_edge(p->b, &p->raw, (struct raw_edge){from, to, NONE, (uint8_t)low, (uint8_t)high});
}

/* The edges of pair i: those of x, cut where those of y begin and end. */
static bool follow(struct pairs *p, uint32_t i)
{
    uint32_t x = p->at[2 * i], y = p->at[2 * i + 1];
    uint32_t k = y == NONE ? 0 : p->y->first[y], end = y == NONE ? 0 : p->y->first[y + 1];

    for (uint32_t j = p->x->first[x]; j < p->x->first[x + 1]; j++) {
        const struct fa_edge *e = &p->x->edges[j];
        unsigned low = e->low;

        while (low <= e->high) {
            unsigned high = e->high;

            while (k < end && p->y->edges[k].high < low) k++;
            if (k == end || p->y->edges[k].low > high) { /* y has no such byte */
                if (p->except && !edge_to(p, i, e->to, NONE, low, high)) return false;
                break;
            }
            if (p->y->edges[k].low > low) {
                high = p->y->edges[k].low - 1u;
                if (p->except && !edge_to(p, i, e->to, NONE, low, high)) return false;
            } else {
                if (p->y->edges[k].high < high) high = p->y->edges[k].high;
                if (!edge_to(p, i, e->to, p->y->edges[k].to, low, high)) return false;
            }
            low = high + 1;
        }
    }
    return grammar_tick(p->b);
}

static struct fa *product(struct grammar_builder *b, const struct fa *x, const struct fa *y, bool except)
{
    struct pairs p = {.b = b, .x = x, .y = y, .except = except};
    struct fa *f = NULL;
    bool ok = pair_of(&p, 0, 0) != NONE;

    for (uint32_t i = 0; ok && i < p.n; i++) ok = follow(&p, i);
    if (ok) f = fa_minimal(b, &p.raw);
    grammar_unroom(b, (void **)&p.at, &p.cap, sizeof(*p.at));
    grammar_unroom(b, (void **)&p.table, &p.cap_table, sizeof(*p.table));
    raw_deinit(b, &p.raw);
    return f;
}

struct fa *fa_both(struct grammar_builder *b, const struct fa *x, const struct fa *y)
{
    return product(b, x, y, false);
}
struct fa *fa_except(struct grammar_builder *b, const struct fa *x, const struct fa *y)
{
    return product(b, x, y, true);
}
