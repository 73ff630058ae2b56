/* text/grammar/grammar_nfa.c - from nodes to a non-deterministic automaton.
 *
 * Small rules that do not contain themselves are put in place of their calls. So are rules of the same circle in tail
 * position (A -> x A): the call becomes a jump to a copy of the rule, one copy per rule, which makes recursion on the
 * right a loop. Other rules become edges that call them, and beside the call of a rule that has the empty text stands an
 * empty edge: a call itself never has to be empty.
 */
#include <string.h>
#include "base/error.h"
#include "base/mem.h"
#include "text/grammar/grammar_build.h"
#include "text/grammar/grammar_fa.h"

#define INLINES_MAX 64u /* rules within rules */

struct copy {
    uint32_t rule, start;
}; /* of a rule in tail position */
struct building {
    struct nfa n;
    const struct rule_facts *facts; /* NULL: everything in place */
    uint32_t component;             /* of the rule that is built */
    struct copy *copies;
    uint32_t n_copies, cap_copies;
    uint32_t n_inlines;
};

static uint32_t new_state(struct building *g)
{
    struct nfa *n = &g->n;

    if (!grammar_count_states(n->b, 1) ||
        !grammar_room(n->b, (void **)&n->first, &n->cap_states, (uint64_t)n->n_states + 1, sizeof(*n->first)))
        return 0;
    n->first[n->n_states] = NONE;
    return n->n_states++;
}

static void edge(struct building *g, uint32_t from, uint32_t to, uint32_t label)
{
    struct nfa *n = &g->n;

    if (!grammar_room(n->b, (void **)&n->edges, &n->cap_edges, (uint64_t)n->n_edges + 1, sizeof(*n->edges))) return;
    n->edges[n->n_edges] = (struct nfa_edge){n->first[from], to, label};
    n->first[from] = n->n_edges++;
}

static void text(struct building *g, const uint8_t *bytes, uint32_t n, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < n && grammar_ok(g->n.b); i++) {
        uint32_t next = i + 1 == n ? to : new_state(g);

        edge(g, from, next, LABEL_BYTES(bytes[i], bytes[i]));
        from = next;
    }
}

/* A place of `bytes` in the builder, which may move. */
static void text_at(struct building *g, uint32_t at, uint32_t n, uint32_t from, uint32_t to)
{
    text(g, g->n.b->bytes + at, n, from, to);
}

static void class_of(struct building *g, grammar_node node, uint32_t from, uint32_t to)
{
    const struct dag *d = grammar_class_dag(g->n.b, node);
    uint32_t base = g->n.n_states;

    for (uint32_t i = 1; d && i < d->n_nodes; i++) new_state(g);
    for (uint32_t i = 0; d && grammar_ok(g->n.b) && i < d->n_nodes; i++)
        for (uint32_t k = d->first[i]; k < d->first[i + 1]; k++) {
            const struct dag_edge *e = &d->edges[k];

            edge(g, i ? base + i - 1 : from, e->to == NONE ? to : base + e->to - 1, LABEL_BYTES(e->low, e->high));
        }
}

static void automaton(struct building *g, const struct fa *f, uint32_t from, uint32_t to)
{
    uint32_t base = g->n.n_states;

    for (uint32_t i = 0; f && i < f->n_states; i++) new_state(g);
    if (!f || !grammar_ok(g->n.b)) return;
    edge(g, from, base, LABEL_EMPTY);
    for (uint32_t i = 0; i < f->n_states && grammar_ok(g->n.b); i++) {
        if (f->accepts[i]) edge(g, base + i, to, LABEL_EMPTY);
        for (uint32_t k = f->first[i]; k < f->first[i + 1]; k++)
            edge(g, base + i, base + f->edges[k].to, LABEL_BYTES(f->edges[k].low, f->edges[k].high));
    }
}

static void build(struct building *g, grammar_node node, uint32_t from, uint32_t to);

static void inline_rule(struct building *g, uint32_t rule, uint32_t from, uint32_t to)
{
    struct grammar_builder *b = g->n.b;

    if (b->rules[rule].is_open || g->n_inlines >= INLINES_MAX || !b->rules[rule].body) {
        grammar_fail(b, RD_E_INVALID,
                     "an intersection or difference of rules that contain themselves, or too deep ones");
        return;
    }
    b->rules[rule].is_open = true;
    g->n_inlines++;
    build(g, b->rules[rule].body, from, to);
    g->n_inlines--;
    b->rules[rule].is_open = false;
}

/* A rule of the same circle, as the last part: on to its copy. */
static void tail_call(struct building *g, uint32_t rule, uint32_t from)
{
    struct grammar_builder *b = g->n.b;
    uint32_t start;

    for (uint32_t i = 0; i < g->n_copies; i++)
        if (g->copies[i].rule == rule) {
            edge(g, from, g->copies[i].start, LABEL_EMPTY);
            return;
        }
    if (!grammar_room(b, (void **)&g->copies, &g->cap_copies, (uint64_t)g->n_copies + 1, sizeof(*g->copies))) return;
    start = new_state(g);
    g->copies[g->n_copies++] = (struct copy){rule, start};
    edge(g, from, start, LABEL_EMPTY);
    g->n_inlines++;
    build(g, b->rules[rule].body, start, 1);
    g->n_inlines--;
}

static void call(struct building *g, uint32_t rule, uint32_t from, uint32_t to)
{
    const struct rule_facts *f = g->facts ? &g->facts[rule] : NULL;

    if (!f || (f->inlined && g->n_inlines < INLINES_MAX / 4)) {
        inline_rule(g, rule, from, to);
        return;
    }
    if (to == 1 && f->recursive && f->component == g->component && g->n_inlines < INLINES_MAX / 4) {
        tail_call(g, rule, from);
        return;
    }
    edge(g, from, to, LABEL_CALL | rule);
    if (f->nullable) edge(g, from, to, LABEL_EMPTY);
}

static void repeat(struct building *g, const struct node *r, uint32_t from, uint32_t to)
{
    struct grammar_builder *b = g->n.b;
    uint32_t next;

    for (uint32_t i = 0; i < r->min && grammar_ok(b); i++) {
        next = i + 1 == r->min && r->max == r->min ? to : new_state(g);
        build(g, r->a, from, next);
        from = next;
    }
    if (r->max == GRAMMAR_UNBOUNDED) {
        next = new_state(g);
        edge(g, from, next, LABEL_EMPTY);
        build(g, r->a, next, next);
        edge(g, next, to, LABEL_EMPTY);
        return;
    }
    for (uint32_t i = r->min; i < r->max && grammar_ok(b); i++) {
        edge(g, from, to, LABEL_EMPTY);
        next = i + 1 == r->max ? to : new_state(g);
        build(g, r->a, from, next);
        from = next;
    }
}

static void product(struct building *g, grammar_node node, uint32_t from, uint32_t to)
{
    struct grammar_builder *b = g->n.b;

    if (!grammar_is_regular(b, node)) {
        if (grammar_ok(b))
            grammar_fail(b, RD_E_INVALID, "an intersection or difference of rules that contain themselves");
        return;
    }
    automaton(g, fa_of_node(b, node), from, to);
}

/* No edge leads back into `from`, nor out of `to`, but where a repeat made both. Recursion: the depth of a tree, and
 * that of rules put in place, both bounded. */
static void build(struct building *g, grammar_node node, uint32_t from, uint32_t to)
{
    struct grammar_builder *b = g->n.b;
    struct node n = b->nodes[node]; /* a copy: nodes may move */
    uint8_t token[4] = {0xFF, (uint8_t)(n.a >> 16), (uint8_t)(n.a >> 8), (uint8_t)n.a};
    uint32_t next;

    if (!grammar_tick(b)) return;
    switch (n.kind) {
    case NODE_EMPTY:
        edge(g, from, to, LABEL_EMPTY);
        break;
    case NODE_TEXT:
        text_at(g, n.a, n.n, from, to);
        break;
    case NODE_CLASS:
        class_of(g, node, from, to);
        break;
    case NODE_TOKEN:
        text(g, token, sizeof(token), from, to);
        break;
    case NODE_SEQ:
        for (uint32_t i = 0; i < n.n && grammar_ok(b); i++) {
            next = i + 1 == n.n ? to : new_state(g);
            build(g, b->kids[n.a + i], from, next);
            from = next;
        }
        break;
    case NODE_ALT:
        for (uint32_t i = 0; i < n.n && grammar_ok(b); i++) build(g, b->kids[n.a + i], from, to);
        break;
    case NODE_REPEAT:
        repeat(g, &n, from, to);
        break;
    case NODE_RULE:
        call(g, n.a, from, to);
        break;
    case NODE_BOTH:
    case NODE_EXCEPT:
        product(g, node, from, to);
        break;
    default:
        break; /* nothing */
    }
}

static struct fa *built(struct building *g, grammar_node node)
{
    struct grammar_builder *b = g->n.b;
    struct fa *f = fa_counted(b, node);

    if (f || !grammar_ok(b)) return f;
    new_state(g);
    new_state(g);
    if (grammar_ok(b)) build(g, node, 0, 1);
    if (grammar_ok(b)) f = fa_of_nfa(&g->n);
    grammar_unroom(b, (void **)&g->n.first, &g->n.cap_states, sizeof(*g->n.first));
    grammar_unroom(b, (void **)&g->n.edges, &g->n.cap_edges, sizeof(*g->n.edges));
    grammar_unroom(b, (void **)&g->copies, &g->cap_copies, sizeof(*g->copies));
    return f;
}

struct fa *fa_of_rule(struct grammar_builder *b, uint32_t rule, const struct rule_facts *facts)
{
    struct building g = {.n = {.b = b}, .facts = facts, .component = facts[rule].component};

    if (facts[rule].recursive) { /* a call of itself in tail position: back to the start */
        if (!grammar_room(b, (void **)&g.copies, &g.cap_copies, 1, sizeof(*g.copies))) return NULL;
        g.copies[g.n_copies++] = (struct copy){rule, 0};
    }
    return built(&g, b->rules[rule].body);
}

const struct fa *fa_of_node(struct grammar_builder *b, grammar_node node)
{
    struct node n = b->nodes[node];
    struct building g = {.n = {.b = b}};
    const struct fa *x, *y;
    struct fa *f = NULL;
    bool is_pair = n.kind == NODE_BOTH || n.kind == NODE_EXCEPT;
    bool is_kept = n.kind != NODE_CLASS; /* whose memo means something else */

    if (is_kept && n.memo) return b->fas[n.memo - 1];
    if (!grammar_room(b, (void **)&b->fas, &b->cap_fas, (uint64_t)b->n_fas + 2, sizeof(*b->fas))) return NULL;
    if (is_pair) {
        x = fa_of_node(b, n.a);
        y = x ? fa_of_node(b, n.n) : NULL;
        if (y) f = n.kind == NODE_BOTH ? fa_both(b, x, y) : fa_except(b, x, y);
    } else {
        f = built(&g, node);
    }
    if (!f || !grammar_room(b, (void **)&b->fas, &b->cap_fas, (uint64_t)b->n_fas + 1, sizeof(*b->fas))) {
        fa_destroy(f);
        return NULL;
    }
    b->fas[b->n_fas++] = f;
    if (is_kept) b->nodes[node].memo = b->n_fas;
    return f;
}
