/* text/grammar/grammar_counted.c - the automaton of a counted part with what ends it, without the long way.
 *
 *     [a-z]{2,4}"      (0) -a-z-> (1) -a-z-> (2) -a-z-> (3) -a-z-> (4)
 *                                             |"         |"         |"
 *                                             +----------+----------+---> end
 *
 * Copies of the part's automaton in a row, each one's end being the next one's start. That is deterministic and minimal
 * already when no text of the part begins another, its start is not come back to, and what ends it begins with other bytes:
 * so it is for characters of a string and the quote behind them. Else the way is by subsets (grammar_nfa.c).
 */
#include <string.h>
#include "base/mem.h"
#include "text/grammar/grammar_build.h"
#include "text/grammar/grammar_fa.h"

#define LEAST_COPIES 4u
#define LOOK_DEPTH   8u
#define LOOK_KIDS    64u
#define PART_STATES  64u

struct counted {
    struct grammar_builder *b;
    const struct fa *part, *end; /* end NULL: nothing comes behind */
    uint32_t part_end;           /* its one state of acceptance */
    uint32_t min, n_copies;
    bool loops;     /* behind the last copy comes the last one again */
    uint32_t *name; /* [n_copies + 1, part->n_states], then [end->n_states]: state of the result, NONE: not met */
    uint32_t *order, cap_name, cap_order, n_met;
    struct fa *out;
};

/* Only bytes: no rules, which keep their masks to themselves, and no products. Recursion: LOOK_DEPTH. */
static bool is_simple(const struct grammar_builder *b, grammar_node node, unsigned depth)
{
    const struct node *n = &b->nodes[node];

    switch (n->kind) {
    case NODE_TEXT:
    case NODE_CLASS:
        return true;
    case NODE_SEQ:
    case NODE_ALT:
        if (depth == 0 || n->n > LOOK_KIDS) return false;
        for (uint32_t i = 0; i < n->n; i++)
            if (!is_simple(b, b->kids[n->a + i], depth - 1)) return false;
        return true;
    case NODE_REPEAT:
        return depth > 0 && n->max <= LEAST_COPIES && is_simple(b, n->a, depth - 1);
    default:
        return false;
    }
}

/* No text begins another, and the start is not come back to. */
static bool is_prefix_free(const struct fa *f, uint32_t *end)
{
    *end = NONE;
    if (f->n_states > PART_STATES || f->accepts[0]) return false;
    for (uint32_t s = 0; s < f->n_states; s++) {
        if (f->accepts[s] && f->first[s + 1] > f->first[s]) return false;
        if (f->accepts[s]) *end = s;
    }
    for (uint32_t k = 0; k < f->n_edges; k++)
        if (f->edges[k].to == 0 || f->edges[k].rule != NONE) return false;
    return *end != NONE; /* one, because it is minimal */
}

static bool begin_apart(const struct fa *x, const struct fa *y)
{
    for (uint32_t i = x->first[0]; i < x->first[1]; i++)
        for (uint32_t k = y->first[0]; k < y->first[1]; k++)
            if (x->edges[i].low <= y->edges[k].high && y->edges[k].low <= x->edges[i].high) return false;
    return true;
}

static bool is_plain_end(const struct fa *f)
{
    if (f->accepts[0] || f->n_states > PART_STATES) return false;
    for (uint32_t k = 0; k < f->n_edges; k++)
        if (f->edges[k].rule != NONE) return false;
    return true;
}

static uint32_t met(struct counted *c, uint32_t place)
{
    if (c->name[place] == NONE) {
        c->name[place] = c->n_met;
        c->order[c->n_met++] = place;
    }
    return c->name[place];
}

static void put(struct counted *c, uint32_t place, const struct fa_edge *e)
{
    c->out->edges[c->out->n_edges++] = (struct fa_edge){met(c, place), NONE, e->low, e->high};
}

/* Where an edge of copy i leads. */
static uint32_t after(const struct counted *c, uint32_t i, uint32_t to)
{
    if (to != c->part_end) return i * c->part->n_states + to;
    return (c->loops && i + 1 > c->min ? i : i + 1) * c->part->n_states;
}

/* The edges of a place, in order: of a copy, and at its start, of what may end there. */
static void put_edges(struct counted *c, uint32_t place)
{
    uint32_t n = c->part->n_states, last = (c->n_copies + 1) * n, i = place / n, s = place % n;
    const struct fa_edge *x = NULL, *x_end = NULL, *y = NULL, *y_end = NULL;

    if (place >= last) {
        s = place - last;
        y = c->end->edges + c->end->first[s];
        y_end = c->end->edges + c->end->first[s + 1];
    } else {
        if (i < c->n_copies) {
            x = c->part->edges + c->part->first[s];
            x_end = c->part->edges + c->part->first[s + 1];
        }
        if (s == 0 && i >= c->min && c->end) {
            y = c->end->edges + c->end->first[0];
            y_end = c->end->edges + c->end->first[1];
        }
    }
    while (x < x_end || y < y_end) {
        if (x < x_end && (y == y_end || x->low < y->low)) {
            put(c, after(c, i, x->to), x);
            x++;
        } else {
            put(c, last + y->to, y);
            y++;
        }
    }
}

static bool accepts(const struct counted *c, uint32_t place)
{
    uint32_t n = c->part->n_states, last = (c->n_copies + 1) * n;

    if (place >= last) return c->end->accepts[place - last];
    return !c->end && place % n == 0 && place / n >= c->min;
}

static struct fa *make(struct counted *c)
{
    struct grammar_builder *b = c->b;
    uint64_t places = ((uint64_t)c->n_copies + 1) * c->part->n_states + (c->end ? c->end->n_states : 0);
    uint64_t edges = ((uint64_t)c->n_copies + 1) * (c->part->n_edges + (c->end ? c->end->n_edges : 0));

    if (!grammar_room(b, (void **)&c->name, &c->cap_name, places, sizeof(*c->name)) ||
        !grammar_room(b, (void **)&c->order, &c->cap_order, places, sizeof(*c->order)))
        return NULL;
    memset(c->name, 0xFF, places * sizeof(*c->name));
    c->out = mem_zalloc(1, sizeof(*c->out));
    if (c->out) c->out->edges = mem_alloc(edges, sizeof(*c->out->edges));
    if (c->out) c->out->first = mem_alloc(places + 1, sizeof(*c->out->first));
    if (c->out) c->out->accepts = mem_zalloc(places, 1);
    if (!c->out || !c->out->edges || !c->out->first || !c->out->accepts) {
        grammar_fail(b, RD_E_NOMEM, "out of memory for a grammar");
        fa_destroy(c->out);
        return NULL;
    }
    met(c, 0);
    for (uint32_t i = 0; i < c->n_met; i++) {
        c->out->first[i] = c->out->n_edges;
        c->out->accepts[i] = accepts(c, c->order[i]);
        put_edges(c, c->order[i]);
    }
    c->out->n_states = c->n_met;
    c->out->first[c->n_met] = c->out->n_edges;
    if (grammar_count_states(b, c->n_met)) return c->out;
    fa_destroy(c->out);
    return NULL;
}

/* Whether it is such a part, and what it is made of. */
static bool is_counted(struct counted *c, grammar_node node)
{
    struct grammar_builder *b = c->b;
    struct node n = b->nodes[node], r = n;
    grammar_node end = 0;

    if (n.kind == NODE_SEQ && n.n == 2) {
        r = b->nodes[b->kids[n.a]];
        end = b->kids[n.a + 1];
    }
    c->loops = r.max == GRAMMAR_UNBOUNDED;
    c->min = r.min;
    c->n_copies = c->loops ? r.min + 1 : r.max;
    if (r.kind != NODE_REPEAT || c->n_copies < LEAST_COPIES || !is_simple(b, r.a, LOOK_DEPTH)) return false;
    if (end && !is_simple(b, end, LOOK_DEPTH)) return false;
    c->part = fa_of_node(b, r.a);
    c->end = c->part && end ? fa_of_node(b, end) : NULL;
    if (!c->part || (end && !c->end) || !is_prefix_free(c->part, &c->part_end)) return false;
    if (end && (!is_plain_end(c->end) || !begin_apart(c->part, c->end))) return false;
    return ((uint64_t)c->n_copies + 1) * (c->part->n_edges + 8u) * sizeof(struct fa_edge) <= b->limits.max_bytes / 2;
}

struct fa *fa_counted(struct grammar_builder *b, grammar_node node)
{
    struct counted c = {.b = b};
    struct fa *f = is_counted(&c, node) ? make(&c) : NULL;

    grammar_unroom(b, (void **)&c.name, &c.cap_name, sizeof(*c.name));
    grammar_unroom(b, (void **)&c.order, &c.cap_order, sizeof(*c.order));
    return f;
}
