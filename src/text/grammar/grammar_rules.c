/* text/grammar/grammar_rules.c - rules: which are reached, which contain themselves (components of the graph of rules,
 * by Tarjan's walk with a stack of its own), which have the empty text, which are small enough to stand in place.
 */
#include "text/grammar/grammar_rules.h"
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/mem.h"

#define INLINE_COST 100u

struct frame {
    uint32_t rule, next;
};
struct learning {
    struct grammar_builder *b;
    struct rule_facts *facts;
    const struct grammar_vocab *vocab;
    uint32_t n_rules;
    uint32_t *calls, n_calls, cap_calls; /* rules called by rule r: calls[first[r]] .. calls[first[r] + count[r] - 1] */
    uint32_t *pool, cap_pool;            /* first, count, index, low, stack, order: [n_rules] each */
    uint32_t *first, *count, *index, *low, *stack, *order;
    uint32_t n_index, n_stack, n_order, n_components;
    struct frame *frames;
    uint32_t n_frames, cap_frames;
    uint32_t *nodes, n_nodes, cap_nodes; /* of one tree */
    uint8_t *nullable;
    uint32_t cap_nullable; /* per node */
    uint32_t *costs, cap_costs;
};

static bool push(struct grammar_builder *b, uint32_t **at, uint32_t *n, uint32_t *cap, uint32_t v)
{
    if (*n == *cap && !grammar_room(b, (void **)at, cap, (uint64_t)*n + 1, sizeof(**at))) return false;
    (*at)[(*n)++] = v;
    return true;
}

static bool visit(struct learning *l, grammar_node node)
{
    struct node *n = &l->b->nodes[node];

    if (n->stamp == l->b->stamp) return true;
    n->stamp = l->b->stamp;
    return push(l->b, &l->nodes, &l->n_nodes, &l->cap_nodes, node);
}

/* The nodes of the tree of a rule's body, into l->nodes. */
static bool list_nodes(struct learning *l, uint32_t rule)
{
    struct grammar_builder *b = l->b;

    b->stamp++;
    l->n_nodes = 0;
    if (!visit(l, b->rules[rule].body)) return false;
    for (uint32_t i = 0; i < l->n_nodes; i++) {
        struct node n = b->nodes[l->nodes[i]];

        if (!grammar_tick(b)) return false;
        if (n.kind == NODE_SEQ || n.kind == NODE_ALT)
            for (uint32_t k = 0; k < n.n; k++)
                if (!visit(l, b->kids[n.a + k])) return false;
        if (n.kind == NODE_REPEAT && !visit(l, n.a)) return false;
        if ((n.kind == NODE_BOTH || n.kind == NODE_EXCEPT) && (!visit(l, n.a) || !visit(l, n.n))) return false;
    }
    return true;
}

/* The rules that a rule calls, and whether all is there. */
static bool list_calls(struct learning *l, uint32_t rule)
{
    struct grammar_builder *b = l->b;
    char name[128];

    if (!b->rules[rule].body) {
        grammar_fail(
            b, RD_E_INVALID, "the rule %s is not defined",
            error_quote(name, sizeof(name), (const char *)b->bytes + b->rules[rule].name, b->rules[rule].n_name));
        return false;
    }
    if (!list_nodes(l, rule)) return false;
    l->first[rule] = l->n_calls;
    for (uint32_t i = 0; i < l->n_nodes; i++) {
        const struct node *n = &b->nodes[l->nodes[i]];

        if (n->kind == NODE_TOKEN && l->vocab && !vocab_is_special(l->vocab, n->a)) {
            grammar_fail(b, RD_E_INVALID, "token %u is no special token of the vocabulary, which has %u tokens", n->a,
                         l->vocab->n_tokens);
            return false;
        }
        if (n->kind == NODE_RULE && !push(b, &l->calls, &l->n_calls, &l->cap_calls, n->a)) return false;
    }
    l->count[rule] = l->n_calls - l->first[rule];
    return true;
}

static bool enter(struct learning *l, uint32_t rule)
{
    if (!list_calls(l, rule) ||
        !grammar_room(l->b, (void **)&l->frames, &l->cap_frames, (uint64_t)l->n_frames + 1, sizeof(*l->frames)))
        return false;
    l->index[rule] = l->low[rule] = ++l->n_index;
    l->stack[l->n_stack++] = rule;
    l->facts[rule].component = NONE;
    l->frames[l->n_frames++] = (struct frame){rule, 0};
    return true;
}

/* A component is whole: its rules leave the stack. */
static void close_component(struct learning *l, uint32_t rule)
{
    bool several = l->stack[l->n_stack - 1] != rule;
    uint32_t r;

    do {
        r = l->stack[--l->n_stack];
        l->facts[r].component = l->n_components;
        l->facts[r].recursive = several;
        for (uint32_t i = 0; i < l->count[r]; i++) l->facts[r].recursive |= l->calls[l->first[r] + i] == r;
        l->order[l->n_order++] = r;
    } while (r != rule);
    l->n_components++;
}

static bool find_components(struct learning *l, uint32_t start)
{
    if (!enter(l, start)) return false;
    while (l->n_frames) {
        struct frame *f = &l->frames[l->n_frames - 1];
        uint32_t rule = f->rule, other;

        if (f->next == l->count[rule]) {
            l->n_frames--;
            if (l->low[rule] == l->index[rule]) close_component(l, rule);
            if (l->n_frames) {
                other = l->frames[l->n_frames - 1].rule;
                if (l->low[rule] < l->low[other]) l->low[other] = l->low[rule];
            }
            continue;
        }
        other = l->calls[l->first[rule] + f->next++];
        if (!l->index[other]) {
            if (!enter(l, other)) return false;
        } else if (l->facts[other].component == NONE && l->index[other] < l->low[rule]) {
            l->low[rule] = l->index[other];
        }
    }
    return true;
}

/* ---- the empty text, and costs ----------------------------------------------------------------------------------- */

static int by_id(const void *x, const void *y)
{
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;

    return a < b ? -1 : a > b;
}

static bool product_is_nullable(struct learning *l, grammar_node node)
{
    const struct fa *f;

    if (!grammar_is_regular(l->b, node)) {
        if (grammar_ok(l->b))
            grammar_fail(l->b, RD_E_INVALID, "an intersection or difference of rules that contain themselves");
        return false;
    }
    f = fa_of_node(l->b, node);
    return f && f->accepts[0];
}

static bool is_nullable(struct learning *l, grammar_node node)
{
    struct grammar_builder *b = l->b;
    const struct node *n = &b->nodes[node];

    switch (n->kind) {
    case NODE_EMPTY:
        return true;
    case NODE_SEQ:
        for (uint32_t i = 0; i < n->n; i++)
            if (!l->nullable[b->kids[n->a + i]]) return false;
        return true;
    case NODE_ALT:
        for (uint32_t i = 0; i < n->n; i++)
            if (l->nullable[b->kids[n->a + i]]) return true;
        return false;
    case NODE_REPEAT:
        return n->min == 0 || l->nullable[n->a];
    case NODE_RULE:
        return l->facts[n->a].nullable;
    case NODE_BOTH:
    case NODE_EXCEPT:
        return product_is_nullable(l, node);
    default:
        return false;
    }
}

static uint32_t cost_of(struct learning *l, grammar_node node)
{
    const struct node *n = &l->b->nodes[node];
    uint64_t v = 1;

    switch (n->kind) {
    case NODE_TEXT:
        return n->n;
    case NODE_CLASS:
        return 1 + 2 * n->n;
    case NODE_TOKEN:
        return 4;
    case NODE_SEQ:
    case NODE_ALT:
        for (uint32_t i = 0; i < n->n; i++) v += l->costs[l->b->kids[n->a + i]];
        break;
    case NODE_REPEAT:
        v = (uint64_t)l->costs[n->a] * (n->max == GRAMMAR_UNBOUNDED ? n->min + 1u : n->max);
        break;
    case NODE_RULE:
        v = l->facts[n->a].inlined ? l->costs[l->b->rules[n->a].body] : 2;
        break;
    case NODE_BOTH:
    case NODE_EXCEPT:
        v = INLINE_COST;
        break;
    default:
        break;
    }
    return v > INLINE_COST ? INLINE_COST : (uint32_t)v;
}

/* One rule, when those that it calls are known, its own component aside. *changed: it is found to have the empty text. */
static bool learn_rule(struct learning *l, uint32_t rule, bool *changed)
{
    struct grammar_builder *b = l->b;
    struct rule_facts *f = &l->facts[rule];
    uint32_t body = b->rules[rule].body;

    if (!list_nodes(l, rule)) return false;
    qsort(l->nodes, l->n_nodes, sizeof(*l->nodes), by_id);
    for (uint32_t i = 0; i < 2 * l->n_nodes; i++) { /* leaves first: outlined rules are younger than their parents */
        grammar_node node = l->nodes[i % l->n_nodes];
        uint8_t kind = b->nodes[node].kind;
        bool is_leaf = kind <= NODE_TOKEN || kind == NODE_RULE;

        if (is_leaf != (i < l->n_nodes)) continue;
        l->nullable[node] = is_nullable(l, node);
        l->costs[node] = cost_of(l, node);
        if (!grammar_tick(b)) return false;
    }
    if (l->nullable[body] && !f->nullable) *changed = f->nullable = true;
    f->inlined = !f->recursive && !b->rules[rule].is_called && l->costs[body] < INLINE_COST;
    return true;
}

static bool learn_rules(struct learning *l)
{
    for (uint32_t at = 0, end; at < l->n_order; at = end) {
        bool changed = true;

        for (end = at + 1; end < l->n_order && l->facts[l->order[end]].component == l->facts[l->order[at]].component;)
            end++;
        while (changed) {
            changed = false;
            for (uint32_t i = at; i < end; i++)
                if (!learn_rule(l, l->order[i], &changed)) return false;
            if (!l->facts[l->order[at]].recursive) break;
        }
    }
    return true;
}

bool grammar_learn(struct grammar_builder *b, uint32_t start, const struct grammar_vocab *vocab,
                   struct rule_facts **facts, uint32_t *cap)
{
    struct learning l = {.b = b, .vocab = vocab, .n_rules = b->n_rules};
    uint32_t n = b->n_rules;
    bool ok = grammar_room(b, (void **)facts, cap, n, sizeof(**facts)) &&
              grammar_room(b, (void **)&l.pool, &l.cap_pool, 6 * (uint64_t)n, sizeof(*l.pool)) &&
              grammar_room(b, (void **)&l.nullable, &l.cap_nullable, b->n_nodes, 1) &&
              grammar_room(b, (void **)&l.costs, &l.cap_costs, b->n_nodes, sizeof(*l.costs));

    if (ok) {
        memset(*facts, 0, n * sizeof(**facts));
        memset(l.pool, 0, 6 * (size_t)n * sizeof(*l.pool));
        memset(l.nullable, 0, b->n_nodes);
        memset(l.costs, 0, b->n_nodes * sizeof(*l.costs));
        l.facts = *facts;
        l.first = l.pool;
        l.count = l.first + n;
        l.index = l.count + n;
        l.low = l.index + n;
        l.stack = l.low + n;
        l.order = l.stack + n;
        ok = find_components(&l, start) && learn_rules(&l);
    }
    grammar_unroom(b, (void **)&l.calls, &l.cap_calls, sizeof(*l.calls));
    grammar_unroom(b, (void **)&l.pool, &l.cap_pool, sizeof(*l.pool));
    grammar_unroom(b, (void **)&l.frames, &l.cap_frames, sizeof(*l.frames));
    grammar_unroom(b, (void **)&l.nodes, &l.cap_nodes, sizeof(*l.nodes));
    grammar_unroom(b, (void **)&l.nullable, &l.cap_nullable, 1);
    grammar_unroom(b, (void **)&l.costs, &l.cap_costs, sizeof(*l.costs));
    return ok;
}
