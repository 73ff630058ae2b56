/* text/grammar/grammar_minimal.c - a deterministic automaton made minimal: dead states go, equal ones become one.
 *
 * States lie in blocks and edges in cords, and both are split until they are stable. To split is to mark some elements:
 * each block with marked and others falls apart, and its smaller half gets a new number, so an element moves log n times.
 * Edges of ranges are first cut into classes of bytes that no edge tells apart. Source: see grammar_fa.h.
 */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "text/grammar/grammar_build.h"
#include "text/grammar/grammar_fa.h"

struct cut {
    uint32_t from, to, label;
}; /* label: class of bytes, or LABEL_CALL | rule */

/* Elements 0 .. n - 1 in sets: those of set s are elements[first[s]] .. elements[past[s] - 1], marked ones first. */
struct partition {
    uint32_t n_sets, *elements, *place, *set_of, *first, *past;
};

struct minimal {
    struct grammar_builder *b;
    const struct raw_fa *raw;
    uint32_t n_states;           /* alive ones */
    uint32_t *name, cap_name;    /* [raw->n_states]: among the alive ones, NONE: dead */
    uint8_t low[256], high[256]; /* of classes of bytes */
    uint16_t class_of[256];
    uint32_t n_classes;
    struct cut *cuts;
    uint32_t n_cuts, cap_cuts;
    struct partition blocks, cords;
    uint32_t *pool, cap_pool, n_used; /* what the partitions and the lists below lie in */
    uint32_t *marks, *touched, n_touched;
    uint32_t *into, *into_first;   /* edges by the state that they lead to */
    uint32_t *after, *after_first; /* and by the state that they leave */
};

static uint32_t *lay(struct minimal *m, uint64_t n)
{
    uint32_t *p = m->pool + m->n_used;

    m->n_used += (uint32_t)n;
    return p;
}

/* Makes room at once, so that nothing moves. */
static bool lay_all(struct minimal *m)
{
    uint64_t n = m->n_states, c = m->n_cuts, more = (n > c ? n : c) + 2;
    uint64_t all = 5 * (n + 1) + 5 * (c + 1) + 2 * more + 2 * c + 2 * (n + 1) + 16;

    if (!grammar_room(m->b, (void **)&m->pool, &m->cap_pool, all, sizeof(*m->pool))) return false;
    memset(m->pool, 0, all * sizeof(*m->pool));
    struct partition *parts[2] = {&m->blocks, &m->cords};
    for (unsigned i = 0; i < 2; i++) {
        uint64_t k = (i ? c : n) + 1;

        parts[i]->elements = lay(m, k);
        parts[i]->place = lay(m, k);
        parts[i]->set_of = lay(m, k);
        parts[i]->first = lay(m, k);
        parts[i]->past = lay(m, k);
    }
    m->marks = lay(m, more);
    m->touched = lay(m, more);
    m->into = lay(m, c);
    m->after = lay(m, c);
    m->into_first = lay(m, n + 1);
    m->after_first = lay(m, n + 1);
    return true;
}

static void mark(struct minimal *m, struct partition *p, uint32_t e)
{
    uint32_t s = p->set_of[e], i = p->place[e], j = p->first[s] + m->marks[s];

    if (i < j) return; /* is marked */
    p->elements[i] = p->elements[j];
    p->place[p->elements[i]] = i;
    p->elements[j] = e;
    p->place[e] = j;
    if (!m->marks[s]++) m->touched[m->n_touched++] = s;
}

static void split(struct minimal *m, struct partition *p)
{
    while (m->n_touched) {
        uint32_t s = m->touched[--m->n_touched], j = p->first[s] + m->marks[s], z = p->n_sets;

        if (j == p->past[s]) {
            m->marks[s] = 0;
            continue;
        }
        if (m->marks[s] <= p->past[s] - j) { /* the marked ones are fewer: they move */
            p->first[z] = p->first[s];
            p->past[z] = p->first[s] = j;
        } else {
            p->past[z] = p->past[s];
            p->first[z] = p->past[s] = j;
        }
        for (uint32_t i = p->first[z]; i < p->past[z]; i++) p->set_of[p->elements[i]] = z;
        m->marks[s] = m->marks[z] = 0;
        p->n_sets++;
    }
}

/* Edges by one of their ends: those of state s are list[first[s]] .. list[first[s + 1] - 1]. */
static void by_state(const struct minimal *m, bool to, uint32_t *list, uint32_t *first)
{
    for (uint32_t i = 0; i < m->n_cuts; i++) first[to ? m->cuts[i].to : m->cuts[i].from]++;
    for (uint32_t s = 0; s < m->n_states; s++) first[s + 1] += first[s];
    for (uint32_t i = m->n_cuts; i--;) list[--first[to ? m->cuts[i].to : m->cuts[i].from]] = i;
}

/* Names the states from which an end can be reached, the start always. */
static bool name_alive(struct minimal *m)
{
    const struct raw_fa *r = m->raw;
    uint32_t *first = NULL, cap_first = 0, *stack = NULL, cap_stack = 0, *list = NULL, cap_list = 0, n = 0;
    bool ok = grammar_room(m->b, (void **)&m->name, &m->cap_name, r->n_states, sizeof(*m->name)) &&
              grammar_room(m->b, (void **)&first, &cap_first, (uint64_t)r->n_states + 1, sizeof(*first)) &&
              grammar_room(m->b, (void **)&stack, &cap_stack, r->n_states, sizeof(*stack)) &&
              grammar_room(m->b, (void **)&list, &cap_list, (uint64_t)r->n_edges + 1, sizeof(*list));

    if (ok) {
        memset(first, 0, (r->n_states + 1) * sizeof(*first));
        for (uint32_t i = 0; i < r->n_edges; i++) first[r->edges[i].to]++;
        for (uint32_t s = 0; s < r->n_states; s++) first[s + 1] += first[s];
        for (uint32_t i = r->n_edges; i--;) list[--first[r->edges[i].to]] = r->edges[i].from;
        for (uint32_t s = 0; s < r->n_states; s++) {
            m->name[s] = r->accepts[s] ? 0 : NONE;
            if (r->accepts[s]) stack[n++] = s;
        }
        while (n) {
            uint32_t s = stack[--n];

            for (uint32_t i = first[s]; i < first[s + 1]; i++)
                if (m->name[list[i]] == NONE) {
                    m->name[list[i]] = 0;
                    stack[n++] = list[i];
                }
        }
        m->name[0] = 0;
        for (uint32_t s = 0; s < r->n_states; s++)
            if (m->name[s] != NONE) m->name[s] = m->n_states++;
    }
    grammar_unroom(m->b, (void **)&first, &cap_first, sizeof(*first));
    grammar_unroom(m->b, (void **)&stack, &cap_stack, sizeof(*stack));
    grammar_unroom(m->b, (void **)&list, &cap_list, sizeof(*list));
    return ok;
}

static bool is_alive(const struct minimal *m, const struct raw_edge *e)
{
    return m->name[e->from] != NONE && m->name[e->to] != NONE;
}

static int by_label(const void *x, const void *y)
{
    const struct cut *a = x, *b = y;

    return a->label < b->label ? -1 : a->label > b->label;
}

/* Classes of bytes, and the edges in pieces of one class, by label. */
static bool cut_edges(struct minimal *m)
{
    const struct raw_fa *r = m->raw;
    bool starts[257] = {true};

    for (uint32_t i = 0; i < r->n_edges; i++)
        if (r->edges[i].rule == NONE) starts[r->edges[i].low] = starts[r->edges[i].high + 1] = true;
    for (unsigned c = 0; c < 256; c++) {
        if (starts[c]) m->low[m->n_classes++] = (uint8_t)c;
        m->high[m->n_classes - 1] = (uint8_t)c;
        m->class_of[c] = (uint16_t)(m->n_classes - 1);
    }
    for (uint32_t i = 0; i < r->n_edges; i++) {
        const struct raw_edge *e = &r->edges[i];
        bool is_call = e->rule != NONE;
        uint32_t at = is_call ? LABEL_CALL | e->rule : m->class_of[e->low], end = is_call ? at : m->class_of[e->high];

        if (!is_alive(m, e)) continue;
        if (!grammar_tick(m->b) ||
            !grammar_room(m->b, (void **)&m->cuts, &m->cap_cuts, (uint64_t)m->n_cuts + end - at + 1, sizeof(*m->cuts)))
            return false;
        for (uint32_t label = at;; label++) {
            m->cuts[m->n_cuts++] = (struct cut){m->name[e->from], m->name[e->to], label};
            if (label == end) break;
        }
    }
    if (m->n_cuts) qsort(m->cuts, m->n_cuts, sizeof(*m->cuts), by_label);
    return true;
}

/* First blocks: ends and others. First cords: edges of one label. */
static void begin(struct minimal *m)
{
    struct partition *b = &m->blocks, *c = &m->cords;

    for (uint32_t i = 0; i < m->n_states; i++) b->elements[i] = b->place[i] = i;
    b->n_sets = 1;
    b->past[0] = m->n_states;
    for (uint32_t s = 0; s < m->raw->n_states; s++)
        if (m->name[s] != NONE && m->raw->accepts[s]) mark(m, b, m->name[s]);
    split(m, b);
    for (uint32_t i = 0; i < m->n_cuts; i++) {
        if (!i || m->cuts[i].label != m->cuts[i - 1].label) c->first[c->n_sets++] = i;
        c->elements[i] = c->place[i] = i;
        c->set_of[i] = c->n_sets - 1;
        c->past[c->n_sets - 1] = i + 1;
    }
    by_state(m, true, m->into, m->into_first);
    by_state(m, false, m->after, m->after_first);
}

static bool refine(struct minimal *m)
{
    struct partition *b = &m->blocks, *c = &m->cords;
    uint32_t block = 1; /* each but one block has to split the cords */

    for (uint32_t cord = 0; cord < c->n_sets; cord++) {
        for (uint32_t i = c->first[cord]; i < c->past[cord]; i++) mark(m, b, m->cuts[c->elements[i]].from);
        split(m, b);
        for (; block < b->n_sets; block++) {
            for (uint32_t i = b->first[block]; i < b->past[block]; i++)
                for (uint32_t k = m->into_first[b->elements[i]]; k < m->into_first[b->elements[i] + 1]; k++)
                    mark(m, c, m->into[k]);
            split(m, c);
        }
        if (!grammar_tick(m->b)) return false;
    }
    return true;
}

static int by_symbol(const void *x, const void *y)
{
    const struct fa_edge *a = x, *b = y;

    if ((a->rule == NONE) != (b->rule == NONE)) return a->rule == NONE ? -1 : 1;
    if (a->rule != b->rule) return a->rule < b->rule ? -1 : 1;
    return a->low < b->low ? -1 : a->low > b->low;
}

/* The edges of a block, in order, neighbours joined; targets are blocks still. */
static uint32_t put_edges(const struct minimal *m, uint32_t block, struct fa_edge *out)
{
    const struct partition *b = &m->blocks;
    uint32_t state = b->elements[b->first[block]], n = 0, k = 0;

    for (uint32_t i = m->after_first[state]; i < m->after_first[state + 1]; i++) {
        const struct cut *c = &m->cuts[m->after[i]];
        bool is_call = c->label & LABEL_CALL;

        out[n++] = (struct fa_edge){b->set_of[c->to], is_call ? c->label & ~LABEL_CALL : NONE,
                                    is_call ? 0 : m->low[c->label], is_call ? 0 : m->high[c->label]};
    }
    if (!n) return 0;
    qsort(out, n, sizeof(*out), by_symbol);
    for (uint32_t i = 1; i < n; i++) {
        if (out[i].rule == NONE && out[k].to == out[i].to && out[k].high + 1 == out[i].low)
            out[k].high = out[i].high;
        else
            out[++k] = out[i];
    }
    return k + 1;
}

/* Blocks in the order of a walk from the start's: equal automata become the same arrays. */
static struct fa *give(struct minimal *m)
{
    const struct partition *b = &m->blocks;
    struct fa *f = mem_zalloc(1, sizeof(*f));
    uint32_t *order = NULL, *place = NULL, cap_order = 0, cap_place = 0, n_seen = 1;

    if (f) f->edges = mem_alloc(m->n_cuts, sizeof(*f->edges));
    if (f) f->first = mem_alloc((size_t)b->n_sets + 1, sizeof(*f->first));
    if (f) f->accepts = mem_zalloc(b->n_sets, 1);
    if (!f || !f->edges || !f->first || !f->accepts) {
        grammar_fail(m->b, RD_E_NOMEM, "out of memory for a grammar");
        goto fail;
    }
    if (!grammar_room(m->b, (void **)&order, &cap_order, b->n_sets, sizeof(*order)) ||
        !grammar_room(m->b, (void **)&place, &cap_place, b->n_sets, sizeof(*place)))
        goto fail;
    memset(place, 0xFF, b->n_sets * sizeof(*place));
    order[0] = b->set_of[0];
    place[order[0]] = 0;
    f->first[0] = 0;
    for (uint32_t i = 0; i < n_seen; i++) {
        uint32_t n = put_edges(m, order[i], f->edges + f->n_edges);

        for (uint32_t k = f->n_edges; k < f->n_edges + n; k++) {
            uint32_t block = f->edges[k].to;

            if (place[block] == NONE) {
                place[block] = n_seen;
                order[n_seen++] = block;
            }
            f->edges[k].to = place[block];
        }
        f->n_edges += n;
        f->first[i + 1] = f->n_edges;
    }
    f->n_states = n_seen;
    for (uint32_t s = 0; s < m->raw->n_states; s++)
        if (m->name[s] != NONE && m->raw->accepts[s] && place[b->set_of[m->name[s]]] != NONE)
            f->accepts[place[b->set_of[m->name[s]]]] = 1;
    goto done;

fail:
    fa_destroy(f);
    f = NULL;
done:
    grammar_unroom(m->b, (void **)&order, &cap_order, sizeof(*order));
    grammar_unroom(m->b, (void **)&place, &cap_place, sizeof(*place));
    return f;
}

struct fa *fa_minimal(struct grammar_builder *b, const struct raw_fa *r)
{
    struct minimal m = {.b = b, .raw = r};
    struct fa *f = NULL;

    if (name_alive(&m) && cut_edges(&m) && lay_all(&m)) {
        begin(&m);
        if (refine(&m)) f = give(&m);
    }
    grammar_unroom(b, (void **)&m.name, &m.cap_name, sizeof(*m.name));
    grammar_unroom(b, (void **)&m.cuts, &m.cap_cuts, sizeof(*m.cuts));
    grammar_unroom(b, (void **)&m.pool, &m.cap_pool, sizeof(*m.pool));
    return f;
}
